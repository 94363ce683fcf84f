"""Measures Fish Audio's codec of this checkout: ``python benchmarks/fish_codec.py``.

Seconds and peak memory of loading, encoding and decoding at full size, on the processor and in float32, each in
a process of its own. The weights are made up. The table goes to stdout. The first run builds an environment and
writes the weights, and keeps both; the pack needs nothing of it.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
from pathlib import Path

from harness import (
    CHECKOUT,
    TORCH,
    cache_folder,
    ensure_python,
    environment,
    finished,
    own_folder,
    processor,
    run,
    say,
)

WORKER = Path(__file__).with_name("fish_codec_worker.py")
MB = 1e6


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0], allow_abbrev=False)
    parser.add_argument("--runs", type=int, default=3, help="of everything that is timed (default: 3)")
    parser.add_argument("--threads", type=int, default=2, help="of torch (default: 2)")
    parser.add_argument("--seconds", type=float, action="append",
                        help="of audio, once for each length to be measured (default: 10, 12 and 120)")
    parser.add_argument("--chunk", type=int, default=0, help="frames of a piece (default: the codec's own)")
    parser.add_argument("--weights", metavar="FILE", type=Path, help="measure with this file")
    parser.add_argument("--environment", metavar="DIR", type=Path,
                        help=f"where it is built (default: a folder in {cache_folder()})")
    return parser.parse_args()


def ensure_weights(folder: Path, python: Path) -> Path:
    """The checkpoint of full size that is measured, written the first time."""
    rule = hashlib.sha256((CHECKOUT / "omnifish" / "codec_demo.py").read_bytes()).hexdigest()[:12]
    path = folder / f"fish_codec-{rule}.safetensors"
    with environment.locked(folder):
        if not path.is_file():
            say(f"Writing {path.name} to {folder}: once, a minute, 1.6 GB.")
            run([python, WORKER, "weights", path], "the checkpoint could not be made")
    return path


def table(chosen: argparse.Namespace, python: Path, weights: Path) -> str:
    """What was measured, in Markdown. Memory is that of the worst run."""
    lines = [f"{processor()}, {chosen.threads} threads, fp32; medians of {chosen.runs}\n",
             "| | seconds | of all processors | peak of the process | above the model |", "|---|---|---|---|---|"]

    def measure(title: str, *arguments) -> None:
        say(f"  {title}")
        answers = [json.loads(run([python, WORKER, "measure", weights, "--threads", chosen.threads, *arguments],
                                  f"{title} could not be measured")) for _ in range(chosen.runs)]
        seconds, busy = (statistics.median(answer[key] for answer in answers) for key in ("seconds", "processor"))
        peak, above = (max(answer[key] for answer in answers) / MB for key in ("peak_bytes", "above_bytes"))
        lines.append(f"| {title} | {seconds:.2f} | {busy:.2f} | {peak:.0f} MB | {above:.0f} MB |")

    measure("load")
    for call in ("encode", "decode"):
        for seconds in chosen.seconds or (10, 12, 120):
            measure(f"{call} {seconds:g} s", "--call", call, "--seconds", seconds, "--chunk", chosen.chunk)
    lines.append("\nAbove the model: beside its weights and without what is given back. Loading counts from an "
                 "interpreter that has imported torch.\n")
    return "\n".join(lines)


def main() -> None:
    chosen = parse()
    folder = (chosen.environment or own_folder("codec-")).absolute()
    python = ensure_python(folder, [TORCH], "1 GB (6 GB with CUDA)", "import torch, safetensors.torch")
    say("Measuring the codec")
    print(table(chosen, python, chosen.weights or ensure_weights(cache_folder(), python)), flush=True)


if __name__ == "__main__":
    sys.exit(finished(main))
