"""The upsampling conformer: token embeddings at 25 frames per second in, states at 50 out.

A pre-lookahead convolution lets each token see the next three, six conformer layers follow, the
frames are doubled, and four more layers run at the higher rate. Self-attention is relative: the
score of query i and key j adds a term that depends on the distance i - j alone (Dai et al. 2019,
https://arxiv.org/abs/1901.02860). Attention is over the whole utterance in both directions; only the
convolutions are causal.
"""
from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import EncoderConfig

LOOKAHEAD_TOKENS = 3    # that the first convolution sees to the right
UPSAMPLING = 2          # mel frames of one token


@lru_cache(maxsize=8)
@torch.inference_mode(False)     # a kept tensor must also serve outside that mode
def relative_table(frames: int, width: int) -> Tensor:
    """(2F - 1, D) sinusoids of the distances F-1 ... -(F-1), sines in the even channels. CPU, float32."""
    distance = torch.arange(frames - 1, -frames, -1, dtype=torch.float32, device="cpu")
    rate = torch.exp(torch.arange(0, width, 2, dtype=torch.float32, device="cpu") * (-math.log(10000) / width))
    angle = distance[:, None] * rate
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)


class RelativeAttention(nn.Module):
    """Multi-head self-attention with learned content and distance biases."""

    def __init__(self, config: EncoderConfig, operations, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        width, self.heads = config.width, config.heads
        self.linear_q = operations.Linear(width, width, **factory)
        self.linear_k = operations.Linear(width, width, **factory)
        self.linear_v = operations.Linear(width, width, **factory)
        self.linear_out = operations.Linear(width, width, **factory)
        self.linear_pos = operations.Linear(width, width, bias=False, **factory)
        self.pos_bias_u = nn.Parameter(torch.empty(self.heads, width // self.heads, **factory))
        self.pos_bias_v = nn.Parameter(torch.empty(self.heads, width // self.heads, **factory))

    def forward(self, x: Tensor, table: Tensor, padding: Tensor | None) -> Tensor:
        """(B, F, D), (2F-1, D), additive (B, 1, 1, F) or None -> (B, F, D)"""
        frames = x.shape[1]
        q = self.linear_q(x).unflatten(-1, (self.heads, -1))                            # (B, F, H, D/H)
        k = self.linear_k(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)            # (B, H, F, D/H)
        v = self.linear_v(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)            # (B, H, F, D/H)
        distances = self.linear_pos(table).unflatten(-1, (self.heads, -1)).permute(1, 2, 0)  # (H, D/H, 2F-1)

        content = (q + self.pos_bias_u.to(q)).transpose(1, 2)                           # (B, H, F, D/H)
        distance = (q + self.pos_bias_v.to(q)).transpose(1, 2) * q.shape[-1] ** -0.5
        scores = torch.matmul(distance, distances)                                      # (B, H, F, 2F-1)
        # Row i needs the columns F-1-i ... 2F-2-i: one element less per row, which is a stride.
        batch, head, row, column = scores.stride()
        bias = scores.as_strided(
            (*scores.shape[:3], frames), (batch, head, row - column, column),
            scores.storage_offset() + (frames - 1) * column,
        )
        if padding is not None:
            bias = bias + padding
        out = F.scaled_dot_product_attention(content, k, v, attn_mask=bias)             # (B, H, F, D/H)
        return self.linear_out(out.transpose(1, 2).flatten(2))                          # (B, F, D)


class FeedForward(nn.Module):
    """Two linear layers with SiLU between."""

    def __init__(self, config: EncoderConfig, operations, device=None, dtype=None):
        super().__init__()
        self.w_1 = operations.Linear(config.width, config.hidden, device=device, dtype=dtype)
        self.w_2 = operations.Linear(config.hidden, config.width, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(B, F, D) -> (B, F, D)"""
        return self.w_2(F.silu(self.w_1(x)))


class ConformerLayer(nn.Module):
    """Attention and feed-forward, each behind its norm; this conformer has no convolution."""

    def __init__(self, config: EncoderConfig, operations, device=None, dtype=None):
        super().__init__()
        self.self_attn = RelativeAttention(config, operations, device, dtype)
        self.feed_forward = FeedForward(config, operations, device, dtype)
        self.norm_mha = operations.LayerNorm(config.width, eps=1e-12, device=device, dtype=dtype)
        self.norm_ff = operations.LayerNorm(config.width, eps=1e-12, device=device, dtype=dtype)

    def forward(self, x: Tensor, table: Tensor, padding: Tensor | None) -> Tensor:
        """(B, F, D), (2F-1, D), additive (B, 1, 1, F) or None -> (B, F, D)"""
        x = self.self_attn(self.norm_mha(x), table, padding).add_(x)
        return self.feed_forward(self.norm_ff(x)).add_(x)


class InputLayer(nn.Module):
    """Linear, norm, and the scale sqrt(D) that the sinusoids are meant to stand beside."""

    def __init__(self, config: EncoderConfig, operations, device=None, dtype=None):
        super().__init__()
        self.out = nn.Sequential(
            operations.Linear(config.width, config.width, device=device, dtype=dtype),
            operations.LayerNorm(config.width, eps=1e-5, device=device, dtype=dtype),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, F, D) -> (B, F, D)"""
        return self.out(x) * x.shape[-1] ** 0.5


class PreLookahead(nn.Module):
    """Each frame sees the next three, then the last two."""

    def __init__(self, width: int, hidden: int, operations, device=None, dtype=None):
        super().__init__()
        self.conv1 = operations.Conv1d(width, hidden, LOOKAHEAD_TOKENS + 1, device=device, dtype=dtype)
        self.conv2 = operations.Conv1d(hidden, width, 3, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(B, F, D) -> (B, F, D)"""
        h = x.transpose(1, 2)                                                           # (B, D, F)
        h = F.leaky_relu(self.conv1(F.pad(h, (0, LOOKAHEAD_TOKENS))), 0.01)
        h = self.conv2(F.pad(h, (2, 0)))
        return x + h.transpose(1, 2)


class Upsample(nn.Module):
    """Every frame twice, then a causal convolution over five."""

    def __init__(self, config: EncoderConfig, operations, device=None, dtype=None):
        super().__init__()
        self.conv = operations.Conv1d(config.width, config.width, 5, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(B, F, D) -> (B, 2F, D)"""
        h = x.transpose(1, 2).repeat_interleave(UPSAMPLING, dim=2)                      # (B, D, 2F)
        return self.conv(F.pad(h, (4, 0))).transpose(1, 2)


class UpsampleConformer(nn.Module):
    """The whole encoder."""

    def __init__(self, config: EncoderConfig, operations=nn, device=None, dtype=None):
        super().__init__()
        self.embed = InputLayer(config, operations, device, dtype)
        self.pre_lookahead_layer = PreLookahead(config.width, config.width, operations, device, dtype)
        self.encoders = nn.ModuleList(
            ConformerLayer(config, operations, device, dtype) for _ in range(config.layers))
        self.up_layer = Upsample(config, operations, device, dtype)
        self.up_embed = InputLayer(config, operations, device, dtype)
        self.up_encoders = nn.ModuleList(
            ConformerLayer(config, operations, device, dtype) for _ in range(config.up_layers))
        self.after_norm = operations.LayerNorm(config.width, eps=1e-5, device=device, dtype=dtype)

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """(B, F, D) and, where rows are padded, bool (B, F) -> (B, 2F, D)"""
        x = self.embed(x)
        if valid is not None:
            x = x * valid[..., None]        # the lookahead of a row's last frames must read zeros
        x = self._attend(self.encoders, self.pre_lookahead_layer(x), valid)
        x = self.up_embed(self.up_layer(x))                                             # (B, 2F, D)
        if valid is not None:
            valid = valid.repeat_interleave(UPSAMPLING, dim=1)
        return self.after_norm(self._attend(self.up_encoders, x, valid))

    @staticmethod
    def _attend(layers: nn.ModuleList, x: Tensor, valid: Tensor | None) -> Tensor:
        table = relative_table(x.shape[1], x.shape[2]).to(x)
        padding = None
        if valid is not None:
            padding = torch.zeros(valid.shape, device=x.device, dtype=x.dtype)
            padding = padding.masked_fill(~valid, float("-inf"))[:, None, None]         # (B, 1, 1, F)
        for layer in layers:
            x = layer(x, table, padding)
        return x
