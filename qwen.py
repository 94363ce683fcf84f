"""A Qwen decoder of generation 2 or 3, for every family that speaks with one.

Each layer is attention and a gated MLP behind RMS norms; positions turn the queries and keys (Su et al. 2021,
https://arxiv.org/abs/2104.09864, first half of a head against the second); several heads of queries share one
of keys and values (Ainslie et al. 2023, https://arxiv.org/abs/2305.13245). Qwen2 adds a bias to queries, keys
and values; Qwen3 norms the queries and keys of each head instead. Norms, rotation and scores are float32 in
every precision.

Keys and values live in a cache that is made per call, at its full size. The modules hold weights only.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Rotation = tuple[Tensor, Tensor]


class DecoderSizes(Protocol):
    """What a family's config has to tell."""

    width: int              # D
    layers: int
    heads: int              # H, of the queries
    kv_heads: int           # of keys and values
    head_width: int         # channels of one head
    hidden: int             # width of the MLP
    rope_theta: float
    norm_eps: float
    group: int              # heads of queries that share one of keys


@dataclass(eq=False)
class KVCache:
    """Keys and values of all layers, each (layers, B, H', columns, D/H) with H' heads of their own.

    Slots past ``length`` hold NaN: reading one spoils the output where everybody hears it.
    """
    keys: Tensor
    values: Tensor
    length: int = 0         # columns that are filled

    @classmethod
    def empty(cls, config: DecoderSizes, rows: int, capacity: int, device, dtype: torch.dtype) -> KVCache:
        shape = (config.layers, rows, config.kv_heads, capacity, config.head_width)
        return cls(*(torch.full(shape, float("nan"), device=device, dtype=dtype) for _ in range(2)))

    @property
    def capacity(self) -> int:
        return self.keys.shape[3]

    def after(self, steps: int) -> int:
        """The length that ``steps`` more columns make; ``ValueError`` where there is no room."""
        if self.length + steps > self.capacity:
            raise ValueError(f"language model: {self.length} + {steps} columns do not fit a cache of {self.capacity}; "
                             "shorten the text or the prompt, or lower the most tokens that may be spoken.")
        return self.length + steps

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write a layer's (B, H', S, D/H) behind its filled columns -> views of all its columns so far.

        ``length`` stays as it is until every layer has written.
        """
        end = self.after(keys.shape[2])
        self.keys[layer, :, :, self.length:end] = keys
        self.values[layer, :, :, self.length:end] = values
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def truncate(self, length: int) -> None:
        """Forget the columns from ``length`` on."""
        if not 0 <= length <= self.length:
            raise ValueError(f"language model: a cache of {self.length} columns cannot be cut to {length}.")
        for kept in (self.keys, self.values):
            kept[:, :, :, length : self.length] = float("nan")
        self.length = length

    def rows(self, first: int, last: int) -> KVCache:
        """The rows from ``first`` to before ``last``, in the same memory, with a ``length`` of their own."""
        return type(self)(self.keys[:, first:last], self.values[:, first:last], self.length)

    def pad(self, steps: int) -> None:
        """Append columns for no query to see: they may hold anything but NaN."""
        end = self.after(steps)
        for kept in (self.keys, self.values):
            kept[:, :, :, self.length : end] = 0
        self.length = end


class RMSNorm(nn.Module):
    """Root mean square norm, computed in float32."""

    def __init__(self, width: int, eps: float, device=None):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width, device=device, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)"""
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)


def rotation(position: Tensor, config: DecoderSizes) -> Rotation:
    """int64 (B, S) -> float32 (B, S, 1, D/H) cosines, and sines with the sign that ``rotate`` needs."""
    channel = torch.arange(0, config.head_width, 2, device=position.device, dtype=torch.float32)
    # Rounded as in training: a product with the inverse, not a quotient. It shows after a thousand columns.
    angle = position[..., None, None] * (1 / config.rope_theta ** (channel / config.head_width))
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(B, S, H, D/H) -> the same, channel i turned against channel i + D/2H."""
    return (x * cos + x.roll(x.shape[-1] // 2, dims=-1) * sin).to(x.dtype)


class Attention(nn.Module):
    """Self-attention over the cache."""

    def __init__(self, config: DecoderSizes, generation: int, operations, device=None, dtype=None):
        super().__init__()
        factory = {"bias": generation == 2, "device": device, "dtype": dtype}
        inner, kv_inner = config.heads * config.head_width, config.kv_heads * config.head_width
        self.kv_heads, self.group, self.head_width = config.kv_heads, config.group, config.head_width
        self.q_proj = operations.Linear(config.width, inner, **factory)
        self.k_proj = operations.Linear(config.width, kv_inner, **factory)
        self.v_proj = operations.Linear(config.width, kv_inner, **factory)
        self.o_proj = operations.Linear(inner, config.width, bias=False, device=device, dtype=dtype)
        self.head_norms = generation == 3
        if self.head_norms:
            self.q_norm = RMSNorm(config.head_width, config.norm_eps, device)
            self.k_norm = RMSNorm(config.head_width, config.norm_eps, device)

    def forward(self, x: Tensor, turn: Rotation, mask: Tensor | None, cache: KVCache, layer: int) -> Tensor:
        """(B, S, D), additive (B, 1, G S, columns) or None -> (B, S, D), with G heads on one key"""
        steps = x.shape[1]
        q, k, v = (linear(x).unflatten(-1, (-1, self.head_width)) for linear in (self.q_proj, self.k_proj, self.v_proj))
        if self.head_norms:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, *turn), rotate(k, *turn)
        keys, values = cache.append(layer, k.transpose(1, 2), v.transpose(1, 2))
        # Heads that share a key are so many more queries of one head: no key is ever copied.
        q = q.unflatten(2, (self.kv_heads, self.group)).permute(0, 2, 3, 1, 4).flatten(2, 3)    # (B, H', G S, D/H)
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        out = out.unflatten(2, (self.group, steps)).permute(0, 3, 1, 2, 4).flatten(2)           # (B, S, H D/H)
        return self.o_proj(out)


class MLP(nn.Module):
    """Two linear layers, the first of them gated through SiLU."""

    def __init__(self, config: DecoderSizes, operations, device=None, dtype=None):
        super().__init__()
        factory = {"bias": False, "device": device, "dtype": dtype}
        self.gate_proj = operations.Linear(config.width, config.hidden, **factory)
        self.up_proj = operations.Linear(config.width, config.hidden, **factory)
        self.down_proj = operations.Linear(config.hidden, config.width, **factory)

    def forward(self, x: Tensor) -> Tensor:
        """(B, S, D) -> (B, S, D)"""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and MLP, each behind its norm and beside what went in."""

    def __init__(self, config: DecoderSizes, generation: int, operations, device=None, dtype=None):
        super().__init__()
        self.input_layernorm = RMSNorm(config.width, config.norm_eps, device)
        self.self_attn = Attention(config, generation, operations, device, dtype)
        self.post_attention_layernorm = RMSNorm(config.width, config.norm_eps, device)
        self.mlp = MLP(config, operations, device, dtype)

    def forward(self, x: Tensor, turn: Rotation, mask: Tensor | None, cache: KVCache, layer: int) -> Tensor:
        """(B, S, D) -> (B, S, D)"""
        x = x + self.self_attn(self.input_layernorm(x), turn, mask, cache, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """The layers and the norm behind them."""

    def __init__(self, config: DecoderSizes, generation: int, operations, device=None, dtype=None):
        super().__init__()
        self.layers = nn.ModuleList(
            Layer(config, generation, operations, device, dtype) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, config.norm_eps, device)

    def run(self, x: Tensor, turn: Rotation, mask: Tensor | None, cache: KVCache) -> Tensor:
        """(B, S, D), additive (B, 1, G S or 1, columns) or None -> (B, S, D); the cache is S columns longer"""
        end = cache.after(x.shape[1])
        for index, layer in enumerate(self.layers):
            x = layer(x, turn, mask, cache, index)
        cache.length = end
        return self.norm(x)
