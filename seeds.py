"""Generators from seeds of 64 bits."""
from __future__ import annotations

import torch


def generator(seed: int) -> torch.Generator:
    """A CPU generator from all 64 bits of a seed; torch's own looks at the lower 32 only.

    Any integer is a seed, taken modulo 2**64. Those below 2**32 are as torch takes them; larger ones go through the
    finalizer of SplitMix64 (Steele et al. 2014, doi 10.1145/2660193.2660195).
    """
    seed = int(seed) % 2**64        # numpy's integers would overflow
    if seed >= 2**32:
        seed = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        seed = (seed ^ (seed >> 27)) * 0x94D049BB133111EB % 2**64
        seed = (seed ^ (seed >> 31)) % 2**32
    return torch.Generator("cpu").manual_seed(seed)
