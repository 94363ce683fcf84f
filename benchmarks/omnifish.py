"""Measures OGG's blocks of this checkout beside a plain rendering of the published algorithm.

``python benchmarks/omnifish.py``. Both sides run on the processor, on the same random weights of full size, in
turns and in one process; medians count, and the ids that come out have to be the same. The table goes to
stdout. The first run builds an environment, that of ``cosyvoice3_lm.py``, and keeps it; the pack needs nothing
of it.
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cosyvoice3_lm import LOADS, REFERENCE
from harness import TORCH, cache_folder, ensure_python, finished, own_folder, processor, run, say

WORKER = Path(__file__).with_name("omnifish_worker.py")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0], allow_abbrev=False)
    parser.add_argument("--runs", type=int, default=5, help="of everything that is timed (default: 5)")
    parser.add_argument("--threads", type=int, default=2, help="of torch (default: 2)")
    parser.add_argument("--blocks", type=int, default=4, help="of a speech, 16 frames each (default: 4)")
    parser.add_argument("--no-bf16", action="store_true", help="leave both sides in bf16 out")
    parser.add_argument("--environment", metavar="DIR", type=Path,
                        help=f"where it is built (default: a folder in {cache_folder()})")
    return parser.parse_args()


def main() -> None:
    chosen = parse()
    numbers = [part for name in ("runs", "threads", "blocks") for part in (f"--{name}", getattr(chosen, name))]
    switches = ["--no-bf16"] if chosen.no_bf16 else []
    python = ensure_python((chosen.environment or own_folder("lm-")).absolute(), [TORCH, REFERENCE],
                           "1 GB (6 GB with CUDA)", LOADS)
    print(f"{processor()}, {chosen.threads} threads; medians of {chosen.runs} in turns\n", flush=True)
    say("Measuring the blocks")
    print(run([python, WORKER, *numbers, *switches], "the blocks could not be measured"), flush=True)


if __name__ == "__main__":
    sys.exit(finished(main))
