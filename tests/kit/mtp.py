"""A tiny depth decoder, what goes into it, and the same computation once more: plain, slow and without a cache."""
from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from speechwright.omnifish.mtp import MTP, MTPConfig, State

from .tiny import fill

# Unequal numbers wherever the model allows it.
TINY = MTPConfig(width=24, heads=6, kv_heads=2, head_width=10, hidden=40)


@lru_cache(maxsize=1)
@torch.inference_mode(False)     # whoever asks first
def tiny_mtp() -> MTP:
    return fill(MTP(TINY, device="meta"), "mtp.")


@lru_cache(maxsize=1)
def _exact_weights() -> dict[str, Tensor]:
    return {name: tensor.double() for name, tensor in tiny_mtp().state_dict().items()}


def speech(frames: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Codes int64 (10, F) and what a backbone might make of them, (1, F, D)"""
    rng = torch.Generator().manual_seed(seed)
    rows = torch.tensor([TINY.semantic_rows] + [TINY.residual_rows] * 9)[:, None]
    codes = (torch.rand(10, frames, generator=rng) * rows).long()
    return codes, torch.randn(1, frames, TINY.width, generator=rng)


def state_for(codes: Tensor, hidden: Tensor, known: int, seed: int = 0) -> State:
    """A new state with all codes of the first ``known`` frames, and of the others the semantic one."""
    state = tiny_mtp().new_state(codes.shape[1], TINY.width, "cpu", torch.float32)
    state["codes"][:, :known] = codes[:, :known]
    state["codes"][0] = codes[0]
    state["states"][0].copy_(hidden)
    state["seed"] = seed
    return state


def blocks(start: int, end: int, block: int) -> list[tuple[int, int]]:
    """Where each block begins and ends."""
    return [(lo, min(lo + block, end)) for lo in range(start, end, block)]


def decode(state: State, prompt: int, end: int, block: int, start: int | None = None, **options) -> Tensor:
    """The codes (10, F) after every block from ``start`` to ``end``."""
    for lo, hi in blocks(prompt if start is None else start, end, block):
        tiny_mtp().decode_block(state, lo, hi, block, prefix=prompt, **options)
    return state["codes"]


def spoken(prompt: int, total: int, block: int, primed: bool = True, seed: int = 0, **options) -> State:
    """The state after a prompt and all blocks."""
    state = state_for(*speech(total), prompt, seed)
    if primed:
        tiny_mtp().prime(state, prompt)
    decode(state, prompt, total, block, **options)
    return state


def kept(state: State) -> tuple[Tensor, Tensor]:
    """What the cache holds."""
    return state["cache"].keys, state["cache"].values


def plain_block(
    codes: Tensor, hidden: Tensor, lo: int, hi: int, block: int, rounds: int, prefix: int,
    temperature: float = 0.0, noise: Tensor | None = None,
) -> Tensor:
    """int64 (9, S), the residual codes of a block by float64, whole sequences and a mask.

    noise: (S, 9, R, V) for the R rounds that decide something.
    """
    weights = _exact_weights()
    frame = torch.arange(hi)
    group = torch.where(frame < prefix, -1, torch.div(frame - prefix, block, rounding_mode="floor"))
    seen = group[:, None] >= group[None]
    above, state, decided = codes[0, :hi], hidden[0, :hi].double(), []
    for depth in range(9):
        own = codes[depth + 1, :hi].clone()
        own[lo:] = TINY.residual_rows
        waiting, drawn = list(range(lo, hi)), 0
        for turn in range(rounds):
            keep = math.floor((hi - lo) * math.cos(math.pi / 2 * (turn + 1) / rounds))
            if keep == len(waiting):
                continue
            scores = plain_layer(weights, depth, above, own, state, seen) @ weights[f"heads.{depth}.weight"].T
            scores = scores[lo:] / (temperature or 1)
            chance = scores.softmax(dim=1)
            ids = (scores if noise is None else scores + noise[:, depth, drawn]).argmax(dim=1).tolist()
            surest = sorted(waiting, key=lambda at: (-float(chance[at - lo, ids[at - lo]]), at))
            for at in surest[: len(waiting) - keep]:
                own[at] = ids[at - lo]
                waiting.remove(at)
            drawn += 1
        state = plain_layer(weights, depth, above, own, state, seen)
        above = own
        decided.append(own[lo:])
    return torch.stack(decided)


def plain_layer(
    weights: dict[str, Tensor], depth: int, above: Tensor, own: Tensor, state: Tensor, seen: Tensor,
) -> Tensor:
    """int64 (F,) twice, float64 (F, D), bool (F, F) -> (F, D)"""
    def get(name: str) -> Tensor:
        return weights[f"layers.{depth}.{name}.weight"]

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(dim=-1, keepdim=True) + TINY.norm_eps).sqrt() * get(name)

    code = norm(weights[f"embeddings.{depth}.weight"][above] + get("own_code")[own], "norm_code")
    x = torch.cat((code, norm(state, "norm_state")), dim=1) @ get("in_proj").T
    y, half = norm(x, "norm_attention"), TINY.head_width // 2
    angle = torch.arange(len(x))[:, None].double() * TINY.rope_theta ** (-torch.arange(half).double() / half)
    turn = torch.polar(torch.ones_like(angle), angle)
    heads = {letter: (y @ get(f"attention.{letter}_proj").T).split(TINY.head_width, dim=1) for letter in "qkv"}
    queries, keys = ([torch.complex(*norm(head, f"attention.{letter}_norm").split(half, dim=1)) * turn
                      for head in heads[letter]] for letter in "qk")
    outs = []
    for index, query in enumerate(queries):
        scores = (query @ keys[index // 3].conj().T).real / math.sqrt(TINY.head_width)
        outs.append(scores.masked_fill(~seen, -math.inf).softmax(dim=1) @ heads["v"][index // 3])
    x = x + torch.cat(outs, dim=1) @ get("attention.o_proj").T
    y = norm(x, "norm_mlp")
    x = x + (F.silu(y @ get("mlp.gate_proj").T) * (y @ get("mlp.up_proj").T)) @ get("mlp.down_proj").T
    return norm(x, "norm_out")
