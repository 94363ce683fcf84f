"""The golden codec of Fish Audio's design, and a small one of unequal sizes."""
from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from speechwright.omnifish.codec import FishCodec
from speechwright.omnifish.codec_config import CodecConfig, TransformerConfig
from speechwright.omnifish.codec_demo import random_state
from speechwright.omnifish.codec_weights import build_codec

FOLDER = Path(__file__).parents[1] / "golden" / "omnifish"
CASES = ("0", "1")
GOLDEN_WINDOW = 16
FRAME = 2048
# Windows that a few frames outgrow.
TINY = CodecConfig(
    encoder_channels=3, decoder_channels=32, semantic_rows=40, residual_rows=24, residual_codebooks=3, code_width=6,
    encoder_transformer=TransformerConfig(layers=2, window=5, heads=2, hidden=40),
    quantizer_transformer=TransformerConfig(layers=3, window=3, heads=1, hidden=56),
)


@lru_cache(maxsize=1)
def codec_manifest() -> dict[str, tuple[int, ...]]:
    """Published name -> shape of all tensors of the full-size codec, all float32."""
    entries = json.loads((FOLDER / "codec_manifest.json").read_text(encoding="utf-8"))
    return {name: tuple(shape) for name, shape in entries.items()}


@lru_cache(maxsize=1)
@torch.inference_mode(False)     # whoever asks first
def golden_codec_tensors() -> dict[str, Tensor]:
    """Weights as ``w.NAME``, what goes in and comes out of case N as ``N.NAME``. Not to be changed."""
    with safe_open(FOLDER / "codec.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def golden_codec_state() -> dict[str, Tensor]:
    """The golden weights by their published names."""
    return {name[2:]: tensor for name, tensor in golden_codec_tensors().items() if name.startswith("w.")}


@lru_cache(maxsize=1)
def golden_codec() -> FishCodec:
    return build_codec(golden_codec_state(), GOLDEN_WINDOW)


def tiny_codec_state(seed: int = 0) -> dict[str, Tensor]:
    """A new state dict of ``TINY`` by the published names."""
    return random_state(TINY, seed)


@lru_cache(maxsize=1)
def tiny_codec() -> FishCodec:
    return build_codec(tiny_codec_state(), config=TINY)


def with_windows(encoder: int, quantizer: int) -> CodecConfig:
    """``TINY`` with other windows."""
    return replace(TINY, encoder_transformer=replace(TINY.encoder_transformer, window=encoder),
                   quantizer_transformer=replace(TINY.quantizer_transformer, window=quantizer))


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def random_codes(frames: int, rows: int = 1, seed: int = 0) -> Tensor:
    """int64 (B, K, F) of the tiny codec"""
    rng = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(0, ids, (rows, frames), generator=rng) for ids in TINY.rows], dim=1)
