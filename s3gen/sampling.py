"""Every random number of S3Gen.

Row i of a batch draws from generators of its own, made from ``seed + i``: one for the flow and one
for the excitation, each on the CPU and at the row's own length. So a row is the same alone, beside
others and on every device, and the global generators are never touched.
"""
from __future__ import annotations

import math

import torch
from torch import Tensor

VOCODER_STREAM = 0x9E3779B97F4A7C15     # far from any seed + row, so that the two streams differ


def _rng(seed: int) -> torch.Generator:
    """A CPU generator from all 64 bits of a seed; torch's own looks at the lower 32 only.

    Larger seeds go through the finalizer of SplitMix64 (Steele et al. 2014, doi 10.1145/2660193.2660195).
    """
    seed %= 2**64
    if seed >= 2**32:
        seed = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        seed = (seed ^ (seed >> 27)) * 0x94D049BB133111EB % 2**64
        seed = (seed ^ (seed >> 31)) % 2**32
    return torch.Generator("cpu").manual_seed(seed)


def flow_rng(seed: int, row: int = 0) -> torch.Generator:
    """The generator of one row's flow noise; any integer is a seed, taken modulo 2**64."""
    return _rng(int(seed) + row)      # numpy's integers would overflow


def vocoder_rng(seed: int, row: int = 0) -> torch.Generator:
    """The generator of one row's excitation."""
    return _rng(int(seed) + row + VOCODER_STREAM)


def flow_noise(mels: int, frames: int, rng: torch.Generator) -> Tensor:
    """(M, F) start of the flow, standard normal."""
    return torch.randn(mels, frames, generator=rng, dtype=torch.float32, device="cpu")


def start_phase(harmonics: int, rng: torch.Generator) -> Tensor:
    """(C, 1) phases of the harmonics in -pi..pi."""
    return (2 * torch.rand(harmonics, 1, generator=rng, dtype=torch.float32, device="cpu") - 1) * math.pi


def source_noise(harmonics: int, samples: int, rng: torch.Generator) -> Tensor:
    """(C, T) noise of the excitation, standard normal."""
    return torch.randn(harmonics, samples, generator=rng, dtype=torch.float32, device="cpu")
