"""The solver of the mel flow: Euler steps from noise to a mel.

A base model follows the conditional flow of Lipman et al. 2022 (https://arxiv.org/abs/2210.02747) on
a cosine grid under classifier-free guidance. A meanflow model (Geng et al. 2025,
https://arxiv.org/abs/2505.13447) was distilled to take long strides: a linear grid, no guidance.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .flow import Condition, Estimator

BASE_STEPS = 10
MEANFLOW_STEPS = 2
GUIDANCE = 0.7
LARGEST_HEAP_BLOCK_BYTES = 2**25 - 2**16    # just below where glibc stops counting

OnStep = Callable[[int, int], None]     # (done, total), may raise to cancel


def default_steps(estimator: Estimator) -> int:
    """The number of steps that the checkpoint was made for."""
    return MEANFLOW_STEPS if estimator.meanflow else BASE_STEPS


def time_grid(steps: int, meanflow: bool) -> Tensor:
    """(S + 1,) times from 0 to 1."""
    linear = torch.linspace(0, 1, steps + 1, dtype=torch.float32, device="cpu")
    return linear if meanflow else 1 - torch.cos(linear * (math.pi / 2))


def keep_freed_memory() -> None:
    """Make C's allocator hold on to what the steps free, since the next step wants it again.

    glibc gives memory back to the system beyond twice the largest block that it has seen freed, at most
    32 MiB. A step would then fault in some 200 000 pages, a tenth of its time. This block is never touched.
    """
    torch.empty(LARGEST_HEAP_BLOCK_BYTES, dtype=torch.uint8, device="cpu")


@dataclass(frozen=True)
class Schedule:
    """The times of a solver's steps, the same for every row and piece, and what an estimator makes of them."""

    grid: Tensor        # (S + 1,) from 0 to 1
    embedded: Tensor    # (S, ...)

    @property
    def steps(self) -> int:
        return len(self.embedded)


@torch.no_grad()
def schedule(estimator: nn.Module, steps: int, device: torch.device) -> Schedule:
    """Made once for as many pieces as there are."""
    grid = time_grid(steps, estimator.meanflow).to(device)
    return Schedule(grid, estimator.embed_time(grid[:-1], grid[1:]))


def solve(
    estimator: nn.Module,
    condition: Condition,
    z: Tensor,
    schedule: Schedule,
    guidance: float = GUIDANCE,
    on_step: OnStep | None = None,
) -> Tensor:
    """The mel that flows out of the noise ``z``.

    z: float32 (B, F, M) on the device of the condition. Guidance is not used by a meanflow model.
    Returns (B, F, M), prompt frames included; frames past a row's own are meaningless.
    """
    if z.device.type == "cpu":
        keep_freed_memory()
    guided = not estimator.meanflow and guidance != 0
    velocity = estimator.under(condition, guided)
    x = z
    for step in range(schedule.steps):
        found = velocity(x, schedule.embedded[step : step + 1])
        if guided:
            with_condition, without = found.chunk(2)
            found = (1 + guidance) * with_condition - guidance * without
        x = x + (schedule.grid[step + 1] - schedule.grid[step]) * found
        if on_step is not None:
            on_step(step + 1, schedule.steps)
    return x


def mels(
    estimator: nn.Module, condition: Condition, noise: Sequence[Tensor], schedule: Schedule,
    guidance: float = GUIDANCE, on_step: OnStep | None = None,
) -> list[Tensor]:
    """The rows of a condition, each from its noise (M, F_i or more), computed together -> (F_i, M) without prompts."""
    start = torch.zeros_like(condition.mu)                                              # (B, F, M)
    for row, draw, frames in zip(start, noise, condition.frames):
        row[:frames] = draw[:, :frames].T.to(row)
    mel = solve(estimator, condition, start, schedule, guidance, on_step)
    return [row[skip:end] for row, skip, end in zip(mel, condition.prompt_frames, condition.frames)]
