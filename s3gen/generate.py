"""The solver of the mel flow: Euler steps from noise to a mel.

A base model follows the conditional flow of Lipman et al. 2022 (https://arxiv.org/abs/2210.02747) on
a cosine grid under classifier-free guidance. A meanflow model (Geng et al. 2025,
https://arxiv.org/abs/2505.13447) was distilled to take long strides: a linear grid, no guidance.
"""
from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

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


def solve(
    estimator: Estimator,
    condition: Condition,
    z: Tensor,
    steps: int,
    guidance: float = GUIDANCE,
    on_step: OnStep | None = None,
) -> Tensor:
    """The mel that flows out of the noise ``z``.

    z: float32 (B, F, M) on the device of the condition. Guidance is not used by a meanflow model.
    Returns (B, F, M), prompt frames included; frames past a row's own are meaningless.
    """
    if z.device.type == "cpu":
        keep_freed_memory()
    rows, frames, mels = z.shape
    guided = not estimator.meanflow and guidance != 0
    grid = time_grid(steps, estimator.meanflow).to(z.device)
    times = estimator.embed_time(grid[:-1], grid[1:])                                   # (S, time width)
    padding = None
    if min(condition.frames) != frames:
        lengths = torch.tensor(condition.frames, device=z.device)[:, None]
        padded = torch.arange(frames, device=z.device) >= lengths
        padding = torch.zeros(padded.shape, device=z.device).masked_fill(padded, float("-inf"))[:, None, None]

    # The conditional rows, then the unconditional ones, whose condition is zero throughout.
    inputs = z.new_zeros(2 * rows if guided else rows, frames, 4 * mels)
    inputs[:rows, :, mels : 2 * mels] = condition.mu
    inputs[:rows, :, 2 * mels : 3 * mels] = condition.speaker[:, None]
    inputs[:rows, :, 3 * mels :] = condition.prompt
    if guided and padding is not None:
        padding = padding.repeat(2, 1, 1, 1)

    x = z
    for step in range(steps):
        inputs[:rows, :, :mels] = x
        if guided:
            inputs[rows:, :, :mels] = x
        velocity = estimator(inputs, times[step : step + 1], padding)
        if guided:
            velocity = (1 + guidance) * velocity[:rows] - guidance * velocity[rows:]
        x = x + (grid[step + 1] - grid[step]) * velocity
        if on_step is not None:
            on_step(step + 1, steps)
    return x
