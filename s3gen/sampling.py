"""Every random number of S3Gen.

Row i of a batch draws from generators of its own, made from ``seed + i``: one for the flow and one
for the excitation, each on the CPU and at the row's own length. So a row is the same alone, beside
others and on every device, and the global generators are never touched.
"""
from __future__ import annotations

import math

import torch
from torch import Tensor

from ..seeds import generator

VOCODER_STREAM = 0x9E3779B97F4A7C15     # far from any seed + row, so that the two streams differ


def flow_rng(seed: int, row: int = 0) -> torch.Generator:
    """The generator of one row's flow noise; any integer is a seed, taken modulo 2**64."""
    return generator(int(seed) + row)


def vocoder_rng(seed: int, row: int = 0) -> torch.Generator:
    """The generator of one row's excitation."""
    return generator(int(seed) + row + VOCODER_STREAM)


def flow_noise(mels: int, frames: int, rng: torch.Generator) -> Tensor:
    """(M, F) start of the flow, standard normal."""
    return torch.randn(mels, frames, generator=rng, dtype=torch.float32, device="cpu")


def start_phase(harmonics: int, rng: torch.Generator) -> Tensor:
    """(C, 1) phases of the harmonics in -pi..pi."""
    return (2 * torch.rand(harmonics, 1, generator=rng, dtype=torch.float32, device="cpu") - 1) * math.pi


def source_noise(harmonics: int, samples: int, rng: torch.Generator) -> Tensor:
    """(C, T) noise of the excitation, standard normal."""
    return torch.randn(harmonics, samples, generator=rng, dtype=torch.float32, device="cpu")
