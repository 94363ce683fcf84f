"""Measures S3Gen of this checkout beside that of chatterbox-tts: ``python benchmarks/s3gen.py``.

Both run on the processor, on one checkpoint and equal draws, in turns and each in a process of its own.
Medians count, and the distance of their mels and waves is measured too. The table goes to stdout. The
first run builds an environment that both share, and keeps it; the pack needs nothing of it.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from harness import (
    CHECKOUT,
    TORCH,
    Worker,
    alternate,
    cache_folder,
    ensure_python,
    environment,
    finished,
    own_folder,
    processor,
    run,
    say,
)

WORKER = Path(__file__).with_name("s3gen_worker.py")
SIDES = ("ours", "reference")
# Their own pins would bring another torch.
REFERENCE = ("torchaudio==2.11.1", "chatterbox-tts==0.1.7", "s3tokenizer==0.3.0")
REFERENCE_NEEDS = ("onnx", "librosa==0.11.0", "diffusers==0.42.1", "conformer==0.3.2", "omegaconf",
                   "einops", "tqdm", "transformers==5.24.0")
MODELS = ("base", "meanflow")
MIB = 2**20


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0], allow_abbrev=False)
    parser.add_argument("--runs", type=int, default=5, help="of everything that is timed (default: 5)")
    parser.add_argument("--threads", type=int, default=2, help="of torch (default: 2)")
    parser.add_argument("--seconds", type=float, default=10, help="length of the reference (default: 10)")
    parser.add_argument("--tokens", type=int, default=125, help="25 are one second of speech (default: 125)")
    parser.add_argument("--model", choices=MODELS, action="append", help="one of them only")
    parser.add_argument("--weights", metavar="FILE", type=Path,
                        help="measure with this .safetensors file, of the kind that --model names")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32",
                        help="bf16: measure that too, for our side")
    parser.add_argument("--compile", action="store_true",
                        help="measure our side with a compiled estimator too; needs a C++ compiler")
    parser.add_argument("--environment", metavar="DIR", type=Path,
                        help=f"where it is built (default: a folder in {cache_folder()})")
    chosen = parser.parse_args()
    if chosen.weights and len(chosen.model or ()) != 1:
        parser.error("--weights needs --model base or --model meanflow")
    return chosen


def ensure_weights(folder: Path, python: Path, meanflow: bool) -> Path:
    """The checkpoint of full size that is measured, written the first time."""
    rule = hashlib.sha256((CHECKOUT / "tests" / "kit" / "golden.py").read_bytes()).hexdigest()[:12]
    path = folder / f"s3gen{'_meanflow' if meanflow else ''}-{rule}.safetensors"
    with environment.locked(folder):
        if not path.is_file():
            say(f"Writing {path.name} to {folder}: once, a minute, 1 GB.")
            kind = ["--meanflow"] if meanflow else []
            run([python, WORKER, "weights", path, *kind], "the checkpoint could not be made")
    return path


class Bench:
    """Runs one model on both sides and remembers every answer by what was asked for and of whom."""

    def __init__(self, chosen: argparse.Namespace, python: Path, model: str, weights: Path, folder: Path):
        self.chosen, self.python, self.folder = chosen, python, folder
        self.inputs = folder / "inputs.npz"
        self.loading = {"path": str(weights.resolve()), "meanflow": model == "meanflow"}
        self.answers: dict[tuple[str, str], list[dict]] = defaultdict(list)
        say(f"{model}: {chosen.seconds:g} s of reference, {chosen.tokens} tokens, {chosen.threads} threads")
        run([python, WORKER, "inputs", self.inputs, "--seconds", chosen.seconds, "--tokens", chosen.tokens],
            "the inputs could not be made")

    def start(self, side: str, name: str = "") -> Worker:
        return Worker([self.python, WORKER, side, self.inputs, "--threads", self.chosen.threads], name or side)

    def ask(self, worker: Worker, what: str, call: str, **arguments) -> None:
        answer = worker(call, **arguments)
        self.answers[what, worker.name].append(answer)
        say(f"  {what:14} {worker.name:9} {answer['seconds']:7.2f} s")

    def alternate(self, workers: list[Worker], what: str, call: str) -> None:
        for worker in alternate(self.chosen.runs, workers):
            self.ask(worker, what, call)

    def both(self) -> None:
        """Loading, each time in a new process; from nothing to the first wave; then voice and synthesis."""
        for turn in range(self.chosen.runs + 1):
            for side in SIDES if turn % 2 else SIDES[::-1]:
                with self.start(side) as worker:
                    # The first time the file may not be in the system's memory yet.
                    what = "load" if turn else "load cold"
                    self.ask(worker, what, "load", precision="fp32", **self.loading)
        for side in SIDES:
            with self.start(side) as worker:
                self.answers["imports", side].append(worker.ready)
                self.ask(worker, "whole", "whole", precision="fp32", results=str(self.folder / side),
                         **self.loading)
        with ExitStack() as stack:
            workers = [stack.enter_context(self.start(side)) for side in SIDES]
            for worker in workers:
                self.ask(worker, "load again", "load", precision="fp32", **self.loading)
                self.ask(worker, "voice cold", "embed")     # the first call makes tables
            self.alternate(workers, "voice", "embed")
            self.alternate(workers, "synthesis", "synthesize")

    def variant(self, name: str, precision: str = "fp32", compiled: bool = False) -> str:
        """Our side in another manner, in turns with itself in fp32; a line of the report."""
        with self.start("ours") as plain, self.start("ours", name) as other:
            for worker, kind in ((plain, "fp32"), (other, precision)):
                worker("load", precision=kind, **self.loading)
                worker("embed")
                if compiled and worker is other:
                    worker("compile")
                self.ask(worker, f"{name} cold", "synthesize", results=str(self.folder / worker.name))
            self.alternate([plain, other], name, "synthesize")
        ratio = self.median(name, name) / self.median(name, "ours")
        cold = self.median(f"{name} cold", name)
        return (f"\nOurs, {name}: {self.median(name, name):.2f} s, {ratio:.2f} of fp32 in turns with it; "
                f"the first call {cold:.1f} s; {self.apart(name, 'ours')}\n")

    def apart(self, first: str, second: str) -> str:
        """How far the results of two workers are from each other."""
        files = (self.folder / f"{name}.npz" for name in (first, second))
        found = json.loads(run([self.python, WORKER, "compare", *files], "the results could not be compared"))
        return "; ".join(f"{name} {most:.1e} apart at most, {norm:.1e} in norm"
                         for name, (most, norm) in found.items())

    def median(self, what: str, name: str, key: str = "seconds") -> float:
        return statistics.median(answer[key] for answer in self.answers[what, name])

    def stage(self, name: str, side: str) -> float:
        return statistics.median(answer["stages"][name] for answer in self.answers["synthesis", side])

    def table(self) -> str:
        """What was measured, ours beside the reference's, in Markdown."""
        def per_side(measure) -> tuple:
            return tuple(measure(side) for side in SIDES)

        timed = {
            "load": per_side(lambda side: self.median("load", side)),
            "read the voice": per_side(lambda side: self.median("voice", side)),
            "**synthesis, voice read before**": per_side(lambda side: self.median("synthesis", side)),
            "of that, tokens to mel": per_side(lambda side: self.stage("flow_inference", side)),
            "of that, mel to wave": per_side(lambda side: self.stage("hift_inference", side)),
            "synthesis in processor seconds": per_side(
                lambda side: self.median("synthesis", side, "processor_seconds")),
            "first synthesis with a voice": per_side(
                lambda side: self.median("voice", side) + self.median("synthesis", side)),
        }
        lines = ["| | ours | reference | ratio |", "|---|---|---|---|"]
        lines += [f"| {name} | {ours:.2f} s | {theirs:.2f} s | {ours / theirs:.2f} |"
                  for name, (ours, theirs) in timed.items()]
        for title, what in (("memory after the imports", "imports"),
                            ("peak memory of load, voice and synthesis", "whole")):
            ours, theirs = (self.answers[what, side][0]["peak_bytes"] for side in SIDES)
            if ours and theirs:
                sizes = f"{ours / MIB:.0f} MiB | {theirs / MIB:.0f} MiB"
                lines.append(f"| {title} | {sizes} | {ours / theirs:.2f} |")
        return "\n".join(lines)


def report(chosen: argparse.Namespace, python: Path, model: str, weights: Path, folder: Path) -> str:
    """All about one model, in Markdown."""
    bench = Bench(chosen, python, model, weights, folder)
    bench.both()
    version = bench.answers["imports", "ours"][0]["torch"]
    text = (f"### {model}\n\n{chosen.seconds:g} s of reference, {chosen.tokens} tokens, fp32, "
            f"{chosen.threads} threads, torch {version}, {processor()}; medians of {chosen.runs} in turns "
            f"with {REFERENCE[1]}.\n\n{bench.table()}\n\nWith equal draws: {bench.apart(*SIDES)}.\n")
    if chosen.precision == "bf16":
        text += bench.variant("bf16", precision="bf16")
    if chosen.compile:
        text += bench.variant("compiled", compiled=True)
    return text


def main() -> None:
    chosen = parse()
    cache = cache_folder()
    python = ensure_python((chosen.environment or own_folder("")).absolute(),
                           [TORCH, REFERENCE_NEEDS, ("--no-deps", *REFERENCE)], "2 GB (7 GB with CUDA)",
                           environment.DROP_LIBRARIES_THAT_DO_NOT_LOAD)
    for model in chosen.model or MODELS:
        weights = chosen.weights or ensure_weights(cache, python, model == "meanflow")
        with tempfile.TemporaryDirectory() as folder:
            print(report(chosen, python, model, weights, Path(folder)), flush=True)


if __name__ == "__main__":
    sys.exit(finished(main))
