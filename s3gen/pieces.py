"""What every decoder of S3 tokens does alike: pieces and rows in turn, long pieces in windows, voices cut short.

The networks were trained on half a minute, and their attention grows with the square of the length; a longer
piece is spoken in windows of 30 s that share 4 s with their neighbours. The windows start from one noise, so
that they agree where they overlap.
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..audio import Clip, join_row, still_sample
from ..wires import Piece, SpeechTokens
from .encoder import UPSAMPLING
from .generate import OnStep
from .reference import ADVISED_SECONDS
from .tokenizer import DROPPED_TOKENS, STRIDE_TOKENS, WINDOW_TOKENS
from .vocoder import HOP_SAMPLES

SEAM_FRAMES = 8             # over which one window's mel fades into the next
TRIM_FROM_SECONDS = 8.0     # where the end of a long reference is looked for

# Of every piece, or a function that tells that of each; as ``read_voice`` gives them.
Voices = dict | Callable[[Piece], dict]
# (piece, its seed, whether silence is before it, advance(steps done since)) -> (T,) on the CPU
Say = Callable[[Piece, int, bool, Callable[[int], None]], Tensor]

logger = logging.getLogger(__name__)


def shorten(clip: Clip) -> Tensor:
    """The wave (T,) of a reference, beyond 10 s cut at a pause."""
    if clip.seconds <= ADVISED_SECONDS:
        return clip.wave
    wave = clip.wave[: still_sample(clip, TRIM_FROM_SECONDS, ADVISED_SECONDS)]
    logger.warning("The voice is %.1f s long; its first %.1f s are used: the model was trained on up to %g s.",
                   clip.seconds, len(wave) / clip.rate_hz, ADVISED_SECONDS)
    return wave


def speak(
    tokens: SpeechTokens, say: Say, seed: int, steps: int, rate_hz: int, fade_ms: float, on_step: OnStep | None,
) -> list[Tensor]:
    """Every row of ``tokens`` as ``say`` speaks its pieces, joined by ``join_row``: (T,) each.

    Row i begins with ``seed + i``, and each further piece of it adds 1. ``on_step(done, total)`` is told of the
    steps over all pieces, ``steps`` for each window.
    """
    total = steps * sum(len(windows(piece.ids.shape[1])) for row in tokens.batch for piece in row)
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if on_step is not None:
            on_step(done, total)

    waves = []
    for number, row in enumerate(tokens.batch):
        silent = [index == 0 or piece.lead_s > 0 or row[index - 1].pause_s > 0 for index, piece in enumerate(row)]

        def fill(index: int, room: Tensor, row: Sequence[Piece] = row, first: int = seed + number,
                 silent: Sequence[bool] = silent) -> int:
            wave = say(row[index], first + index, silent[index], advance)
            room[: len(wave)] = wave
            return len(wave)

        most = UPSAMPLING * HOP_SAMPLES * sum(piece.ids.shape[1] for piece in row)
        waves.append(join_row(fill, row, most, rate_hz, fade_ms))
    return waves


def own(voice: Voices, piece: Piece) -> dict:
    """The voice of one piece."""
    return voice(piece) if callable(voice) else voice


def windows(tokens: int) -> list[tuple[int, int]]:
    """The first and the last token (exclusive) of each window over a piece."""
    found = [(0, min(tokens, WINDOW_TOKENS))]
    while found[-1][1] < tokens:
        start = found[-1][0] + STRIDE_TOKENS
        found.append((start, min(tokens, start + WINDOW_TOKENS)))
    return found


def mel_in_windows(ids: Tensor, z: Tensor, flow: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Ids (N,) and noise (M, P + 2 N), for P frames of the voice too -> mel (1, M, 2 N)

    flow: ids (n,) of a window and noise (M, P + 2 n) -> mel (1, M, 2 n)
    """
    prompt = z.shape[1] - UPSAMPLING * len(ids)
    mel = None
    for start, end in windows(len(ids)):
        noise = torch.cat((z[:, :prompt], z[:, prompt + UPSAMPLING * start : prompt + UPSAMPLING * end]), dim=1)
        window = flow(ids[start:end], noise)
        mel = window if mel is None else _splice(mel, window, UPSAMPLING * start)
    return mel


def _splice(mel: Tensor, window: Tensor, start: int) -> Tensor:
    """Go over from ``mel`` (1, M, F) to ``window``, whose first frame stands at ``start``, amid their overlap."""
    seam = start + UPSAMPLING * DROPPED_TOKENS
    fade = torch.linspace(0, 1, SEAM_FRAMES, device=mel.device)
    after = window[:, :, seam - start :]
    met = torch.lerp(mel[:, :, seam : seam + SEAM_FRAMES], after[:, :, :SEAM_FRAMES], fade)
    return torch.cat((mel[:, :, :seam], met, after[:, :, SEAM_FRAMES:]), dim=2)


def longest(tokens: SpeechTokens, voice: Voices) -> tuple[int, int]:
    """Mel frames of the longest piece, and of the longest window with its voice before it."""
    lengths = [(piece.ids.shape[1], int(own(voice, piece)["prompt_token_len"][0])) for row in tokens.batch
               for piece in row]
    return (UPSAMPLING * max(count for count, _ in lengths),
            UPSAMPLING * max(min(count, WINDOW_TOKENS) + prompt for count, prompt in lengths))
