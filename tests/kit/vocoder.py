"""The golden causal vocoder, the demo's, and mels for both."""
from __future__ import annotations

import json
from functools import lru_cache

import torch
from torch import Tensor

from speechwright.cosyvoice3.demo_vocoder import demo_config, random_state
from speechwright.cosyvoice3.vocoder import CausalHiFT
from speechwright.cosyvoice3.vocoder_weights import build

from .voice import FOLDER, golden_weights

FINALIZE = {"0": True, "1": True, "2": False, "3": True, "4": False}    # of each golden case


@lru_cache(maxsize=1)
def vocoder_manifest() -> dict[str, tuple[int, ...]]:
    """Published name -> shape of all 328 tensors of hift.pt, all float32."""
    entries = json.loads((FOLDER / "vocoder_manifest.json").read_text(encoding="utf-8"))
    return {name: tuple(shape) for name, shape in entries.items()}


@lru_cache(maxsize=1)
def golden_vocoder() -> CausalHiFT:
    return build(golden_weights("vocoder"))


@lru_cache(maxsize=1)
def demo_vocoder() -> CausalHiFT:
    return build(random_state(demo_config()))


def random_mel(frames: int, rows: int = 1, seed: int = 0) -> Tensor:
    """(B, 80, F)"""
    return torch.randn(rows, 80, frames, generator=torch.Generator().manual_seed(seed))
