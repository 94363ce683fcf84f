"""Writes the averaged weights of a training's last checkpoint in float16, for --begin on another machine.

``python keep.py NAME.pt NAME.safetensors``: a checkpoint is nine times as large, most of it the optimiser's.
"""
from __future__ import annotations

import argparse
from pathlib import Path

import pack
import torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    kept = torch.load(given.checkpoint, weights_only=True)
    given.file.parent.mkdir(parents=True, exist_ok=True)
    pack.write({name: tensor.half().contiguous() for name, tensor in kept["average"].items()}, given.file)
    print(f"step {kept['step']}")


if __name__ == "__main__":
    main()
