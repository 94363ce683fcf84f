"""The codec's transformers, each of whose positions sees a window of the last ones, itself included.

Pre-norm, with a learned scale on each branch (Touvron et al. 2021, https://arxiv.org/abs/2103.17239), a gated
feed-forward and rotary positions (Su et al. 2021, https://arxiv.org/abs/2104.09864, neighbouring channels in
pairs). The published codec keeps its masks in tables of some gigabytes, and its rotations in bfloat16: here the
first are made per call, of the few positions at hand, and the second are rounded like those.
"""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .codec_config import HEAD_WIDTH, TransformerConfig
from .codec_layers import Carry, as_line

ROTARY_BASE = 10000.0
NORM_EPS = 1e-5

Rotation = tuple[Tensor, Tensor]


def rotation(start: int, steps: int) -> Rotation:
    """Cosines and sines of positions from ``start`` on, each (S, 1, 32) float32, rounded to bfloat16. CPU."""
    channel = torch.arange(0, HEAD_WIDTH, 2, dtype=torch.float32, device="cpu")
    position = torch.arange(start, start + steps, dtype=torch.float32, device="cpu")
    angle = torch.outer(position, 1.0 / ROTARY_BASE ** (channel / HEAD_WIDTH))[:, None]
    return angle.cos().bfloat16().float(), angle.sin().bfloat16().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(B, S, H, 64) turned by its position's angles, channel 2 i together with channel 2 i + 1"""
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)


def window_mask(start: int, steps: int, window: int, device) -> Tensor:
    """Which of the last ``window - 1`` positions and these ``steps`` each of these sees: bool (S, window - 1 + S)."""
    query = torch.arange(start, start + steps, device=device)[:, None]
    key = torch.arange(start - window + 1, start + steps, device=device)
    return (key <= query) & (key > query - window) & (key >= 0)


class RMSNorm(nn.Module):
    """Root mean square norm, computed in float32."""

    def __init__(self, width: int, device=None, dtype=None):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)"""
        return F.rms_norm(x, self.weight.shape, self.weight.to(x), NORM_EPS)


class LayerScale(nn.Module):
    """One factor per channel."""

    def __init__(self, width: int, device=None, dtype=None):
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(width, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)"""
        return x * self.gamma.to(x)


class Attention(nn.Module):
    """Self-attention over the window."""

    def __init__(self, width: int, config: TransformerConfig, operations, device=None, dtype=None):
        super().__init__()
        factory = {"bias": False, "device": device, "dtype": dtype}
        inner = config.heads * HEAD_WIDTH
        self.context = config.window - 1
        self.wqkv = operations.Linear(width, 3 * inner, **factory)
        self.wo = operations.Linear(inner, width, **factory)

    def forward(self, x: Tensor, turn: Rotation, mask: Tensor, carry: Carry) -> Tensor:
        """(B, S, D), bool (S, window - 1 + S) -> (B, S, D)"""
        q, k, v = self.wqkv(x).unflatten(-1, (3, -1, HEAD_WIDTH)).unbind(2)             # (B, S, H, 64)
        k = carry.extend((self, "keys"), rotate(k, *turn), self.context, dim=1)
        v = carry.extend((self, "values"), v, self.context, dim=1)
        q, k, v = (part.transpose(1, 2) for part in (rotate(q, *turn), k, v))           # (B, H, ..., 64)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.wo(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers, the first of them gated through SiLU."""

    def __init__(self, width: int, config: TransformerConfig, operations, device=None, dtype=None):
        super().__init__()
        factory = {"bias": False, "device": device, "dtype": dtype}
        self.w1 = operations.Linear(width, config.hidden, **factory)
        self.w3 = operations.Linear(width, config.hidden, **factory)
        self.w2 = operations.Linear(config.hidden, width, **factory)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)"""
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    """Attention and feed-forward, each behind its norm, scaled, and beside what went in."""

    def __init__(self, width: int, config: TransformerConfig, operations, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        self.attention_norm = RMSNorm(width, **factory)
        self.attention = Attention(width, config, operations, **factory)
        self.attention_layer_scale = LayerScale(width, **factory)
        self.ffn_norm = RMSNorm(width, **factory)
        self.feed_forward = FeedForward(width, config, operations, **factory)
        self.ffn_layer_scale = LayerScale(width, **factory)

    def forward(self, x: Tensor, turn: Rotation, mask: Tensor, carry: Carry) -> Tensor:
        """(B, S, D) -> (B, S, D)"""
        x = x + self.attention_layer_scale(self.attention(self.attention_norm(x), turn, mask, carry))
        return x + self.ffn_layer_scale(self.feed_forward(self.ffn_norm(x)))


class WindowTransformer(nn.Module):
    """The layers and the norm behind them. Positions count from the beginning of the recording."""

    def __init__(self, width: int, config: TransformerConfig, operations, device=None, dtype=None):
        super().__init__()
        self.window = config.window
        self.layers = nn.ModuleList(Layer(width, config, operations, device, dtype) for _ in range(config.layers))
        self.norm = RMSNorm(width, device, dtype)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        """(B, D, 1, S) -> (B, D, 1, S)"""
        x = x[:, :, 0].transpose(1, 2)                                                  # (B, S, D)
        steps = x.shape[1]
        start = carry.advance(self, steps)
        turn = tuple(table.to(x) for table in rotation(start, steps))
        mask = window_mask(start, steps, self.window, x.device)
        for layer in self.layers:
            x = layer(x, turn, mask, carry)
        return as_line(self.norm(x).transpose(1, 2)[:, :, None])
