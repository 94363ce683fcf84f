"""A stand-in for the language model, whose tokens a script decides."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from speechwright.cosyvoice3.config import LMConfig

Script = Callable[[int, int, int], "int | Tensor"]


@dataclass(frozen=True)
class Spoken:
    """What the decode loop reads of a prompt."""

    text_ids: tuple[int, ...]
    prompt_text_ids: tuple[int, ...] = ()
    speech_ids: tuple[int, ...] = ()


class Cache:
    def __init__(self, capacity: int):
        self.capacity, self.length = capacity, 0

    def rows(self, first: int, last: int) -> Cache:
        return Cache(self.capacity)


class ScriptedLM(nn.Module):
    """Draws ``script(name, attempt, step)``, an id or all scores, for the piece whose last text id is ``name``."""

    def __init__(self, script: Script, version: int = 3):
        super().__init__()
        self.script = script
        self.config = LMConfig(version=version, width=2)
        self.anchor = nn.Parameter(torch.zeros(1))      # for its device
        self.names: list[int] = []
        self.attempts: dict[int, int] = {}
        self.fed: list[list[int]] = []                  # speech ids of each step
        self.prompts: list[Tensor] = []
        self.cache: Cache | None = None
        self.column_bytes = 1       # of the cache

    def _embed(self, ids: Tensor, channel: int) -> Tensor:
        return torch.nn.functional.one_hot(torch.full_like(ids, channel), 2).float() * (ids[:, None] + 1)

    def embed_text(self, ids: Tensor) -> Tensor:
        return self._embed(ids, 0)

    def embed_speech(self, ids: Tensor) -> Tensor:
        return self._embed(ids, 1)

    def start(self, device) -> Tensor:
        return torch.full((1, 2), 0.25, device=device)

    def task(self, device) -> Tensor:
        return torch.full((1, 2), 0.5, device=device)

    def cache_bytes(self, rows: int, capacity: int) -> int:
        return rows * capacity * self.column_bytes

    def new_cache(self, rows: int, capacity: int, device) -> Cache:
        self.cache = Cache(capacity)
        self.names, self.prompts, self.fed = [], [], []
        return self.cache

    def forward(self, x: Tensor, cache: Cache, first: Tensor) -> Tensor:
        if cache.length == 0:
            prompts = [row[begin:] for row, begin in zip(x, first.tolist())]
            ends = [(row[:, 0] == 0.5).nonzero()[0, 0] for row in prompts]
            names = [int(row[end - 1, 0]) - 1 for row, end in zip(prompts, ends)]
            for name in names:
                self.attempts[name] = self.attempts.get(name, -1) + 1
            self.prompts += prompts
            self.names += names
        else:
            self.fed.append((x[:, 0, 1] - 1).long().tolist())
        cache.length += x.shape[1]
        assert cache.length <= cache.capacity
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        rows = []
        for name in self.names:
            told = self.script(name, self.attempts[name], len(self.fed))
            scores = told if isinstance(told, Tensor) else self.favour(told)
            rows.append(scores)
        return torch.stack(rows)

    def favour(self, token: int, second: int | None = None) -> Tensor:
        """Scores that leave hardly a choice: ``token``, or ``second`` where that is not allowed."""
        scores = torch.zeros(self.config.ids.rows)
        scores[token] = 2000
        if second is not None:
            scores[second] = 1000
        return scores
