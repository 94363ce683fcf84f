"""Measures CosyVoice's language model beside transformers' Qwen2, and its sampler beside a plain loop.

``python benchmarks/cosyvoice3_lm.py``. Both sides run on the processor, on the same random weights of full
size, in turns and in one process; medians count, and how far apart their results are is measured too. The
table goes to stdout. The first run builds an environment, and keeps it; the pack needs nothing of it.
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness import TORCH, cache_folder, ensure_python, finished, own_folder, processor, run, say

WORKER = Path(__file__).with_name("cosyvoice3_lm_worker.py")
REFERENCE = ("transformers==5.24.0",)
LOADS = "from transformers import Qwen2ForCausalLM"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0], allow_abbrev=False)
    parser.add_argument("--runs", type=int, default=5, help="of everything that is timed (default: 5)")
    parser.add_argument("--threads", type=int, default=2, help="of torch (default: 2)")
    parser.add_argument("--rows", type=int, default=1, help="that are decoded at once (default: 1)")
    parser.add_argument("--context", type=int, default=200, help="columns before the first step (default: 200)")
    parser.add_argument("--steps", type=int, default=20, help="tokens of one run, at least 2 (default: 20)")
    parser.add_argument("--part", choices=["decoder", "sampler"], action="append", help="one of them only")
    parser.add_argument("--no-bf16", action="store_true", help="leave our side in bf16 out")
    parser.add_argument("--no-compile", action="store_true",
                        help="leave the compiled sampler out, which needs a C++ compiler")
    parser.add_argument("--environment", metavar="DIR", type=Path,
                        help=f"where it is built (default: a folder in {cache_folder()})")
    return parser.parse_args()


def main() -> None:
    chosen = parse()
    numbers = [part for name in ("runs", "threads", "rows", "context", "steps")
               for part in (f"--{name}", getattr(chosen, name))]
    switches = [f"--{name}" for name in ("no-bf16", "no-compile") if getattr(chosen, name.replace("-", "_"))]
    python = ensure_python((chosen.environment or own_folder("lm-")).absolute(), [TORCH, REFERENCE],
                           "1 GB (6 GB with CUDA)", LOADS)
    print(f"{processor()}, {chosen.threads} threads; medians of {chosen.runs} in turns\n", flush=True)
    for part in chosen.part or ("decoder", "sampler"):
        say(f"Measuring the {part}")
        print(run([python, WORKER, part, *numbers, *switches], f"the {part} could not be measured"), flush=True)


if __name__ == "__main__":
    sys.exit(finished(main))
