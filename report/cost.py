"""What sampling each piece took, so that the pieces add up to the whole.

A language model speaks several pieces as one batch, and each of them tells the seconds of that batch; pieces that
tell the same were in one, and share its seconds by their lengths. A piece that was drawn anew tells the seconds of
its batch and of the further attempts, which are its own; its batch is then the slowest that took no longer.
"""
from __future__ import annotations

from collections.abc import Sequence

from ..wires import ONE_CODEBOOK, Piece

SAME_S = 0.001              # pieces of a batch are told the time one after the other


def costs(kind: str, pieces: Sequence[Piece]) -> list[float]:
    """Seconds for each piece, 0 where none are known."""
    told = [piece.made.seconds if piece.made else 0.0 for piece in pieces]
    if kind not in ONE_CODEBOOK:
        return told                     # blocks are diffused for one piece at a time
    batches: list[tuple[float, list[int]]] = []
    anew = []
    for index in sorted(range(len(pieces)), key=lambda index: told[index]):
        if told[index] <= 0:
            continue
        if pieces[index].made.retries and batches:
            anew.append(index)
            batches[-1][1].append(index)
        elif batches and told[index] - batches[-1][0] <= SAME_S:
            batches[-1][1].append(index)
        else:
            batches.append((told[index], [index]))
    found = [0.0] * len(pieces)
    for seconds, members in batches:
        frames = sum(pieces[index].ids.shape[1] for index in members)
        for index in members:
            own_s = told[index] - seconds if index in anew else 0.0
            found[index] = seconds * pieces[index].ids.shape[1] / frames + own_s
    return found
