"""Repetition-aware sampling as published: one row after another, one id after another.

What ``cosyvoice3.sampling.ras_sample`` is measured against.
"""
from __future__ import annotations

import torch
from torch import Tensor


def plain_ras(
    logits: Tensor, history: list[int], rng: torch.Generator | None = None, top_p: float = 0.8, top_k: int = 25,
    window: int = 10, tau: float = 0.1,
) -> int:
    """(V,) scores and all ids drawn so far -> the next id."""
    scores = logits.log_softmax(dim=0)
    mass, order = scores.softmax(dim=0).sort(descending=True, stable=True)
    kept, ids, total = [], [], 0.0
    for rank in range(len(order)):
        if total >= top_p or rank >= top_k:
            break
        total = total + mass[rank]
        kept.append(mass[rank])
        ids.append(order[rank])
    drawn = int(ids[torch.stack(kept).multinomial(1, generator=rng)])
    if history[-window:].count(drawn) >= window * tau:
        scores[drawn] = float("-inf")
        drawn = int(scores.softmax(dim=0).multinomial(1, generator=rng))
    return drawn


def plain_ras_rows(logits: Tensor, histories: list[list[int]], rng: torch.Generator | None = None) -> list[int]:
    """(B, V) and a history for each row -> the next id of each, with the published settings."""
    return [plain_ras(row, history, rng) for row, history in zip(logits, histories)]
