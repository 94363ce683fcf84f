"""Speech for reports: pieces with a history, and audio that keeps their clock or has their ends trimmed."""
from __future__ import annotations

import random

import torch

from speechwright.audio import Clip
from speechwright.report.picture import Picture
from speechwright.wires import FISH_44K, S3_V2, Made, Piece, SpeechTokens, Voice

RATE_HZ = 24_000
FISH_RATE = 44_100 / 2048
TEXTS = ("Good evening, and welcome aboard the night train.", "Dzień dobry, państwu — „żółw”!", "你好,世界",
         "It is me.")
PAUSES_S = (0.0, 0.4, 0.0, 0.8)


def noise(samples: int, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return 0.1 * torch.randn(samples, generator=rng)


def speech(kind: str, count: int, seed: int = 0, frames: int | None = None) -> SpeechTokens:
    """One row of ``count`` pieces: two voices, pauses, redraws or blocks, every ending, seconds of sampling."""
    draw, rng = random.Random(seed), torch.Generator().manual_seed(seed)
    fish = kind == FISH_44K
    rate = FISH_RATE if fish else 25.0
    voices = [Voice(Clip(noise(RATE_HZ, index), RATE_HZ), "", name) for index, name in enumerate(("Ada", "Bruno"))]
    pieces = []
    for index in range(count):
        length = frames or draw.randint(30, 90)
        ids = torch.randint(0, 1024 if fish else 6561, (10 if fish else 1, length), generator=rng)
        made = Made(TEXTS[index % 4], ("end", "end", "loop", "budget")[index % 4], int(index % 4 == 2),
                    () if fish else tuple(sorted(draw.sample(range(length), length // 15))), 16 if fish else 0,
                    length / rate * draw.uniform(0.2, 1.5))
        pieces.append(Piece(ids, PAUSES_S[index % 4] if count > 1 else 0.0, voices[index % 2],
                            0.3 if count > 1 and not index else 0.0, made))
    return SpeechTokens(kind, rate, (tuple(pieces),))


def spoken(tokens: SpeechTokens, trimmed_s: tuple[float, ...] = ()) -> Clip:
    """Its first row as noise, with digital silence for pauses; piece i lacks ``trimmed_s[i]`` at its end."""
    parts = []
    for index, piece in enumerate(tokens.batch[0]):
        lost_s = trimmed_s[index] if trimmed_s else 0.0
        seconds = (piece.lead_s, piece.ids.shape[1] / tokens.frames_per_second - lost_s, piece.pause_s)
        lead, said, pause = (round(part * RATE_HZ) for part in seconds)
        parts += [torch.zeros(lead), noise(said, index), torch.zeros(pause)]
    return Clip(torch.cat(parts), RATE_HZ)


def rows_of(picture: Picture, panel: str) -> torch.Tensor:
    """A panel (rows, columns of the axis, 3) of a picture, as integers."""
    top, bottom = picture.panels[panel]
    axis = picture.axis
    return torch.from_numpy(picture.image[top:bottom, axis.left:axis.left + axis.columns].astype(int))


def tokens_of(*pieces: Piece, kind: str = S3_V2) -> SpeechTokens:
    return SpeechTokens(kind, 25.0, (pieces,))


def piece(ids, pause_s: float = 0.0, lead_s: float = 0.0, made: Made | None = None) -> Piece:
    return Piece(torch.as_tensor(ids)[None], pause_s, None, lead_s, made)


def clip_of(wave: torch.Tensor, rate_hz: int = RATE_HZ) -> Clip:
    return Clip(wave, rate_hz)
