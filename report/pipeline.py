"""From what the node holds to a picture and words: ``report``."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..audio import Clip
from ..wires import SpeechTokens
from . import colours, picture, sound, words
from .timeline import timeline

ALL_ROWS = -1


def report(
    tokens: SpeechTokens | None, clips: Sequence[Clip] | None, row: int = 0, width: int = picture.WIDTH,
) -> tuple[Tensor, str]:
    """Tokens, a recording for each of their rows, or both -> pictures (B, H, W, 3) float32 in 0 to 1, and words.

    row: of the batch; ALL_ROWS gives a picture for each, as high as the highest, and their words one after the
    other. ``ValueError`` where there is neither, or no such row.
    """
    counts = {"tokens": len(tokens.batch) if tokens is not None else None,
              "audio": len(clips) if clips is not None else None}
    chosen = _rows(row, {name: count for name, count in counts.items() if count is not None})
    pictures, said = [], []
    for index in chosen:
        clip = clips[index] if clips is not None else None
        line = timeline(tokens, index, clip) if tokens is not None else None
        loudness = sound.measure(clip) if clip is not None else None
        most = max(count for count in counts.values() if count is not None)
        place = f"row {index} of 0 to {most - 1}" if most > 1 else ""
        pictures.append(picture.draw(line, clip, loudness, width, place).image)
        said.append(words.say(line, clip, loudness, place))
    return _stack(pictures), "\n\n".join(said)


def _rows(row: int, counts: dict[str, int]) -> range | list[int]:
    if not counts:
        raise ValueError("Speech Report: neither tokens nor audio is connected; connect one of them, or both.")
    if row == ALL_ROWS:
        if len(set(counts.values())) > 1:
            raise ValueError(f"Speech Report: row: {ALL_ROWS} shows all rows, but the tokens have {counts['tokens']} "
                             f"and the audio has {counts['audio']}; connect audio of these tokens, or choose a row.")
        return range(next(iter(counts.values())))
    for name, count in counts.items():
        if not 0 <= row < count:
            raise ValueError(f"Speech Report: row: there is no row {row} in {name}, which has {count}; choose 0 to "
                             f"{count - 1}, or {ALL_ROWS} for all.")
    return [row]


def _stack(pictures: list[np.ndarray]) -> Tensor:
    """(H_i, W, 3) uint8 -> (B, H, W, 3) float32, the lower ones ending in blank paper."""
    most = max(len(one) for one in pictures)
    batch = torch.empty(len(pictures), most, *pictures[0].shape[1:], dtype=torch.float32, device="cpu")
    for target, one in zip(batch, pictures):
        target[:] = torch.tensor(colours.PAPER)
        target[:len(one)] = torch.from_numpy(one)
    return batch.div_(255)
