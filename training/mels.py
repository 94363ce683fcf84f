"""A wave of a mel without a vocoder (Griffin and Lim 1984), to hear tokens and flow before there is one."""
from __future__ import annotations

import torch
from torch import Tensor

from speechwright.s3gen.features import (
    HOP_24K_SAMPLES,
    PAD_24K_SAMPLES,
    RATE_24K_HZ,
    WINDOW_24K_SAMPLES,
    hann_window,
    slaney_filters,
)

SPECTRUM_ROUNDS, PHASE_ROUNDS, MOMENTUM = 30, 40, 0.99


def spectrum(mel: Tensor) -> Tensor:
    """Natural log mel (80, F) -> magnitudes (961, F) that have it, none of them negative"""
    filters, wanted = slaney_filters(RATE_24K_HZ, WINDOW_24K_SAMPLES, len(mel)), mel.exp()
    found = filters.T @ wanted + 1e-8
    for _ in range(SPECTRUM_ROUNDS):
        found = found * (filters.T @ wanted) / (filters.T @ (filters @ found) + 1e-9)
    return found


def wave_of(mel: Tensor) -> Tensor:
    """(80, F) -> (480 F,)"""
    window, magnitude = hann_window(WINDOW_24K_SAMPLES), spectrum(mel)
    length = HOP_24K_SAMPLES * mel.shape[1]
    whole = length + 2 * PAD_24K_SAMPLES

    def back(transform: Tensor) -> Tensor:
        frames = torch.fft.irfft(transform, WINDOW_24K_SAMPLES, dim=0) * window[:, None]
        weights = window.square()[:, None].expand_as(frames)
        wave, norm = (torch.nn.functional.fold(part[None], (1, whole), (1, WINDOW_24K_SAMPLES), stride=HOP_24K_SAMPLES)
                      for part in (frames, weights))
        return (wave / norm.clamp(min=1e-3)).flatten()

    turn = torch.polar(torch.ones_like(magnitude), 6.2832 * torch.rand(magnitude.shape))
    before = torch.zeros_like(turn)
    for _ in range(PHASE_ROUNDS):
        after = torch.stft(back(magnitude * turn), WINDOW_24K_SAMPLES, HOP_24K_SAMPLES, window=window, center=False,
                           return_complex=True)
        turn = after + MOMENTUM * (after - before)
        turn, before = turn / turn.abs().clamp(min=1e-9), after
    return back(magnitude * turn)[PAD_24K_SAMPLES : PAD_24K_SAMPLES + length]
