"""Golden data of what reads and makes a voice for CosyVoice3: tiny modules with random weights, and what they give."""
from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

FOLDER = Path(__file__).parents[1] / "golden" / "cosyvoice3"


@lru_cache(maxsize=2)
@torch.inference_mode(False)     # whoever asks first
def golden(file: str) -> dict[str, Tensor]:
    """``tokenizer_v3``, ``campplus`` or ``vocoder``: of case N ``N.in.NAME`` and ``N.out.NAME``. Not to be changed."""
    return {name: tensor for name, tensor in load_file(FOLDER / f"{file}.safetensors").items() if name[:2] != "w."}


@lru_cache(maxsize=2)
@torch.inference_mode(False)
def golden_weights(file: str) -> dict[str, Tensor]:
    """Their weights by the published names, without counters. Not to be changed."""
    tensors = load_file(FOLDER / f"{file}.safetensors")
    return {name[2:]: tensor for name, tensor in tensors.items()
            if name[:2] == "w." and not name.endswith("num_batches_tracked")}


@lru_cache(maxsize=1)
def tokenizer_manifest() -> dict[str, tuple[int, ...]]:
    """Published name -> shape of all 198 tensors of the speech tokenizer, version 3."""
    entries = json.loads((FOLDER / "tokenizer_v3_manifest.json").read_text(encoding="utf-8"))
    return {name: tuple(shape) for name, shape in entries.items()}


def tone(rate_hz: int) -> Tensor:
    """(T,) one second of 220 Hz at half of full scale."""
    return 0.5 * torch.sin(2 * torch.pi * 220 / rate_hz * torch.arange(rate_hz, dtype=torch.float64)).float()
