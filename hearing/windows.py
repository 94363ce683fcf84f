"""A long recording in windows that a network reads at once, cut where nobody speaks."""
from __future__ import annotations

import math

import torch
from torch import Tensor

PAUSE_S = 0.3           # the quietest stretch of this length is a pause, if there is one of it
LATEST_SHARE = 1 / 3    # of a window, at its end, in which the cut is looked for
FRAME_S = 0.02


def windows(wave: Tensor, rate_hz: int, longest: int) -> list[tuple[int, int]]:
    """Begin and end in samples of the windows of (T,), each of at most ``longest`` samples.

    They follow each other without gap or overlap. Each ends in the middle of the quietest 0.3 s in the last third of
    what it could have had, or with the recording.
    """
    found, begin, total = [], 0, wave.shape[0]
    while total - begin > longest:
        end = begin + longest - _back(wave[begin : begin + longest], rate_hz)
        found.append((begin, end))
        begin = end
    return [*found, (begin, total)]


def _back(wave: Tensor, rate_hz: int) -> int:
    """How many samples before the end of (T,) its last pause has its middle."""
    frame = max(1, round(FRAME_S * rate_hz))
    width = round(PAUSE_S / FRAME_S)
    frames = math.floor(wave.shape[0] * LATEST_SHARE / frame)
    if frames <= width:
        return 0
    tail = wave[wave.shape[0] - frames * frame :].reshape(frames, frame).double()
    loudness = tail.square().sum(dim=1).unfold(0, width, 1).sum(dim=1)         # (frames - width + 1,)
    quietest = frames - width - int(torch.argmin(loudness.flip(0)))            # the latest of equals
    return (frames - quietest) * frame - width * frame // 2
