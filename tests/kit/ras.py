"""Rows for repetition-aware sampling."""
from __future__ import annotations

import torch
from torch import Tensor

from speechwright.cosyvoice3.sampling import MAX_TOP_K


def motley(rows: int = 24, ids: int = 6761, seed: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    """Rows that differ in every knob, some of which draw twice."""
    rng = torch.Generator().manual_seed(seed)

    def between(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(rows, generator=rng)

    def whole(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, (rows, *shape), generator=rng)

    logits = torch.randn(rows, ids, generator=rng) * between(2, 20)[:, None]
    likely = logits.argsort(dim=1, descending=True)[:, :2]
    return logits, {
        "seed": whole(-(2**63), 2**63 - 1), "step": whole(0, 2000),
        "history": likely.gather(1, whole(0, 2, 10)), "temperature": between(-0.2, 1.5).clamp_min(0),
        "top_p": between(0.3, 1), "top_k": whole(1, MAX_TOP_K + 1), "window": whole(0, 11),
        "repeat_threshold": whole(0, 3).float(), "blocked": torch.rand(rows, ids, generator=rng) < 0.1,
    }
