"""How the frames of a block are decided: how many at each step, which id for each, and how sure it is."""
from __future__ import annotations

import math

import torch
from torch import Tensor

SMALLEST_TEMPERATURE = 1e-5


def schedule(block: int, steps: int) -> list[int]:
    """How many frames each step decides; few at first, when little is known (the cosine of Chang et al. 2022)."""
    waiting = [block, *(math.floor(block * math.cos(math.pi / 2 * (step + 1) / steps)) for step in range(steps))]
    return [before - after for before, after in zip(waiting, waiting[1:])]


def race(block: int, rows: int, rng: torch.Generator) -> Tensor:
    """float32 (block, rows) on the CPU, for one draw of each frame: how long each id takes, were it alone."""
    return torch.empty(block, rows).exponential_(generator=rng)


def draw(scores: Tensor, temperature: float, times: Tensor | None) -> tuple[Tensor, Tensor]:
    """float32 (F, V), and their ``race`` -> int64 (F,), float32 (F,): an id for each frame, and its probability.

    Whoever comes in first, each running at the speed of its probability, was drawn by probability. This is how
    ``torch.multinomial`` draws one id, from the same numbers, so that a seed draws what it draws there; but
    these were drawn on the CPU, whatever device has the scores. times: None takes the likeliest ids.
    """
    chances = (scores / max(temperature, SMALLEST_TEMPERATURE)).softmax(dim=-1)
    ids = (scores if times is None else chances / times).argmax(dim=-1)
    return ids, chances.gather(-1, ids[:, None])[:, 0]
