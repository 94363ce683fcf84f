"""What is measured in a recording: loudness, clipping, silence, and what a column of the picture shows of it.

All of it reads the samples in place or a piece at a time, so that ten minutes need little memory beside their own.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from ..audio import CLIPPED_LEVEL, SILENCE_DBFS, Clip, dbfs, resample
from ..s3gen import features

STILL_DBFS = -50.0          # RMS below which a pause is heard between words at a usual level
STILL_BLOCK_S = 0.01
CHUNK_SECONDS = 20          # whose spectrum is made at once,
MARGIN_SECONDS = 1          # with as much on either side as filters and windows reach, and more
FRAMES_PER_SECOND = features.RATE_16K_HZ // features.HOP_16K_SAMPLES
TOP_HZ = features.MEL_TOP_HZ
RANGE_BELS = 7.0            # from the loudest to the darkest colour
LOUD_SHARE = 0.95           # of the columns do not pass the loudest colour: a click does not darken the rest
QUIETEST_TOP = -2.0         # log10 of the power at which the map ends at least, so that silence stays dark


@dataclass(frozen=True)
class Loudness:
    """Levels of a recording, in dB below full scale (-inf for digital silence) and seconds.

    clipped: share of the samples at full scale. silent: nothing but an offset is in it.
    """
    peak_dbfs: float
    rms_dbfs: float
    clipped: float
    silent: bool
    still_begin_s: float        # the longest stretch under STILL_DBFS
    still_end_s: float


def measure(clip: Clip) -> Loudness:
    """The loudness of a clip of one sample or more, in mono as it is mixed."""
    wave = clip.wave.numpy()
    low, high = float(wave.min()), float(wave.max())
    clipped = int((wave >= CLIPPED_LEVEL).sum() + (wave <= -CLIPPED_LEVEL).sum())
    size = max(1, round(clip.rate_hz * STILL_BLOCK_S))
    whole = len(wave) // size * size
    blocks = wave[:whole].reshape(-1, size)
    energy = np.einsum("ij,ij->i", blocks, blocks, dtype=np.float64)
    rest = wave[whole:].astype(np.float64)
    if len(rest):
        energy = np.append(energy, rest @ rest)
    counts = np.full(len(energy), float(size))
    counts[-1] = len(rest) or size
    begin, end = _longest(energy / counts < 10 ** (STILL_DBFS / 10))
    return Loudness(
        dbfs(max(-low, high)), dbfs(math.sqrt(energy.sum() / len(wave))), clipped / len(wave),
        dbfs((high - low) / 2) < SILENCE_DBFS,
        begin * size / clip.rate_hz, min(end * size, len(wave)) / clip.rate_hz)


def envelope(clip: Clip, columns: int) -> np.ndarray:
    """(4, columns): lowest and highest sample, RMS, and samples at full scale, of each column's stretch."""
    wave, count = clip.wave.numpy(), clip.wave.shape[0]
    found = np.zeros((4, columns))
    for column in range(columns):
        begin = column * count // columns
        part = wave[begin:max(begin + 1, (column + 1) * count // columns)]
        low, high = part.min(), part.max()
        clipped = (np.abs(part) >= CLIPPED_LEVEL).sum() if max(-low, high) >= CLIPPED_LEVEL else 0
        found[:, column] = low, high, math.sqrt(np.einsum("i,i->", part, part, dtype=np.float64) / len(part)), clipped
    return found


def spectrum(clip: Clip, columns: int) -> np.ndarray:
    """(M, columns) float32 within 0 to 1: the log-mel of 16 kHz, 70 dB deep, low frequencies first."""
    frames = max(1, math.ceil(clip.seconds * FRAMES_PER_SECOND))
    bins = min(columns, frames)
    sums, counts = np.zeros((features.MELS_16K, bins)), np.zeros(bins)
    for first_s in range(0, math.ceil(clip.seconds), CHUNK_SECONDS):
        mel = _chunk(clip, first_s).numpy()[:, :frames - first_s * FRAMES_PER_SECOND]
        own = (first_s * FRAMES_PER_SECOND + np.arange(mel.shape[1])) * bins // frames
        starts = np.flatnonzero(np.diff(own, prepend=-1))
        sums[:, own[starts]] += np.add.reduceat(mel, starts, axis=1)
        counts += np.bincount(own, minlength=bins)
    mel = sums / counts
    mel = (mel - max(np.quantile(mel.max(axis=0), LOUD_SHARE), QUIETEST_TOP)) / RANGE_BELS + 1
    at = ((np.arange(columns) + 0.5) * bins / columns - 0.5).clip(0, bins - 1)
    left = np.floor(at).astype(int)
    right = np.minimum(left + 1, bins - 1)
    mixed = mel[:, left] + (mel[:, right] - mel[:, left]) * (at - left)
    return mixed.clip(0, 1).astype(np.float32)


def height(hz: float) -> float:
    """Where a frequency stands in the spectrum: 0 at 0 Hz, 1 at TOP_HZ; evenly in Slaney's mel."""
    return _mel(hz) / _mel(TOP_HZ)


def rows(mel: np.ndarray, count: int) -> np.ndarray:
    """(M, columns) -> (count, columns), high frequencies first, with the middle of each filter at its ``height``."""
    filters = mel.shape[0]
    at = ((1 - (np.arange(count) + 0.5) / count) * (filters + 1) - 1).clip(0, filters - 1)
    low = np.floor(at).astype(int)
    high = np.minimum(low + 1, filters - 1)
    return mel[low] + (mel[high] - mel[low]) * (at - low)[:, None]


def still_runs(clip: Clip, level: float) -> list[tuple[float, float]]:
    """(begin, end) in seconds of every run of samples no larger than ``level``."""
    still = torch.cat((torch.zeros(1, dtype=torch.bool), clip.wave.abs() <= level, torch.zeros(1, dtype=torch.bool)))
    edges = (still[1:] != still[:-1]).nonzero()[:, 0].tolist()
    return [(begin / clip.rate_hz, end / clip.rate_hz) for begin, end in zip(edges[::2], edges[1::2])]


def _chunk(clip: Clip, first_s: int) -> torch.Tensor:
    """(M, frames) log10 mel of CHUNK_SECONDS from ``first_s`` on; whole seconds keep the rates in step."""
    begin = (first_s - MARGIN_SECONDS) * clip.rate_hz
    end = min((first_s + CHUNK_SECONDS) * clip.rate_hz, clip.wave.shape[0]) + MARGIN_SECONDS * clip.rate_hz
    part = F.pad(clip.wave[max(0, begin):end], (max(0, -begin), max(0, end - clip.wave.shape[0])))
    mel = features.log_mel_16k(resample(part, clip.rate_hz, features.RATE_16K_HZ)) * 4 - 4
    skipped = MARGIN_SECONDS * FRAMES_PER_SECOND
    return mel[:, skipped:skipped + CHUNK_SECONDS * FRAMES_PER_SECOND]


def _mel(hz: float) -> float:
    return hz * 3 / 200 if hz < 1000 else 15 + 27 * math.log(hz / 1000) / math.log(6.4)


def _longest(still: np.ndarray) -> tuple[int, int]:
    """Begin and end of the first of the longest runs of True; (0, 0) without one."""
    edges = np.flatnonzero(np.diff(still.astype(np.int8), prepend=0, append=0))
    runs = list(zip(edges[::2].tolist(), edges[1::2].tolist()))
    return max(runs, key=lambda run: (run[1] - run[0], -run[0]), default=(0, 0))
