"""A Qwen3 decoder of unequal sizes, and the same computation once more: plain, in float64 and without a cache."""
from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from speechwright.omnifish.backbone import Backbone
from speechwright.omnifish.config import BackboneConfig

from .tiny import fill

# Unequal numbers wherever the model allows it.
TINY = BackboneConfig(width=28, layers=3, heads=6, kv_heads=2, head_width=10, hidden=44, text_rows=50)


@lru_cache(maxsize=1)
@torch.inference_mode(False)     # whoever asks first
def tiny_backbone() -> Backbone:
    return fill(Backbone(TINY, nn, "meta"), "llm.")


def plain(backbone: Backbone, x: Tensor, seen: Tensor, position: Tensor) -> Tensor:
    """(S, D) of one row, bool (S, S), int64 (S,) -> float64 (S, D)"""
    config = backbone.config
    weights = {name: tensor.double() for name, tensor in backbone.state_dict().items()}
    half = config.head_width // 2
    angle = position[:, None].double() * config.rope_theta ** (-torch.arange(half).double() / half)
    turn = torch.polar(torch.ones_like(angle), angle)

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(dim=-1, keepdim=True) + config.norm_eps).sqrt() * weights[f"{name}.weight"]

    x = x.double()
    for layer in range(config.layers):
        at = f"layers.{layer}."
        y, outs = norm(x, f"{at}input_layernorm"), []
        for head in range(config.heads):
            q, k, v = (
                (y @ weights[f"{at}self_attn.{letter}_proj.weight"].T).split(config.head_width, dim=1)[index]
                for letter, index in (("q", head), ("k", head // config.group), ("v", head // config.group)))
            q, k = (torch.complex(*norm(part, f"{at}self_attn.{letter}_norm").split(half, dim=1)) * turn
                    for letter, part in (("q", q), ("k", k)))
            scores = (q @ k.conj().T).real / math.sqrt(config.head_width)
            outs.append(scores.masked_fill(~seen, -math.inf).softmax(dim=1) @ v)
        x = x + torch.cat(outs, dim=1) @ weights[f"{at}self_attn.o_proj.weight"].T
        y = norm(x, f"{at}post_attention_layernorm")
        gate, up, down = (weights[f"{at}mlp.{name}_proj.weight"].T for name in ("gate", "up", "down"))
        x = x + (F.silu(y @ gate) * (y @ up)) @ down
    return norm(x, "norm")
