"""The estimator of CosyVoice3's mel flow: a diffusion transformer (Peebles & Xie 2022, https://arxiv.org/abs/2212.09748).

Each block is attention and feed-forward behind norms without weights; shift, scale and gate of each are read
off the time (adaptive layer norm). What the mel is conditioned on enters once, beside the noisy mel, where
two causal convolutions add positions. The published model also turns queries and keys by their position, but
before the heads are split and over one head's channels only: head 0 alone knows where a frame stands.

The linear layers of attention and feed-forward and the convolutions run in ``dtype``; norms, modulation, the
time's layers and the residual stream are float32.
"""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..s3gen.flow import Condition, Velocity
from .config import HEAD_WIDTH, FlowConfig

BLOCK_FRAMES = 50       # of streaming, 25 tokens: no frame sees beyond its block
NORM_EPSILON = 1e-6
ROTARY_BASE = 10000.0
TIME_SCALE = 1000.0     # sinusoids of a time in 0..1

Rotation = tuple[Tensor, Tensor]


def norm(x: Tensor) -> Tensor:
    """Layer norm without weights."""
    return F.layer_norm(x, x.shape[-1:], eps=NORM_EPSILON)


def rotation(frames: int, device: torch.device) -> Rotation:
    """Cosines and sines of each frame's angles, float32 (F, 32) each."""
    rate = ROTARY_BASE ** (-torch.arange(0, HEAD_WIDTH, 2, device=device, dtype=torch.float32) / HEAD_WIDTH)
    angle = torch.outer(torch.arange(frames, device=device, dtype=torch.float32), rate)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(B, F, D) with the channels of head 0 turned, 2 i against 2 i + 1"""
    even, odd = x[..., :HEAD_WIDTH].float().unflatten(-1, (-1, 2)).unbind(-1)              # (B, F, 32) each
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
    return torch.cat((turned.to(x.dtype), x[..., HEAD_WIDTH:]), dim=-1)


class TimeEmbedding(nn.Module):
    """Sinusoids of a time in 0..1 through two linear layers."""

    def __init__(self, config: FlowConfig, operations, device=None):
        super().__init__()
        self.channels = config.time_channels
        # Index 1 is SiLU in the published names.
        self.time_mlp = nn.ModuleDict({
            "0": operations.Linear(config.time_channels, config.width, device=device, dtype=torch.float32),
            "2": operations.Linear(config.width, config.width, device=device, dtype=torch.float32),
        })

    def forward(self, t: Tensor) -> Tensor:
        """(S,) -> (S, D)"""
        half = self.channels // 2
        rate = torch.exp(torch.arange(half, device=t.device, dtype=torch.float32) * (-math.log(10000) / (half - 1)))
        angle = TIME_SCALE * t[:, None] * rate
        return self.time_mlp["2"](F.silu(self.time_mlp["0"](torch.cat((angle.sin(), angle.cos()), dim=-1))))


class AdaptiveNorm(nn.Module):
    """Reads ``parts`` vectors of the width off the time."""

    def __init__(self, parts: int, config: FlowConfig, operations, device=None):
        super().__init__()
        self.parts = parts
        self.linear = operations.Linear(config.width, parts * config.width, device=device, dtype=torch.float32)

    def forward(self, time: Tensor) -> list[Tensor]:
        """(S, D) -> (S, 1, D), parts times"""
        return list(self.linear(F.silu(time))[:, None].chunk(self.parts, dim=-1))


class PositionConv(nn.Module):
    """Two causal grouped convolutions, each with Mish behind it."""

    def __init__(self, config: FlowConfig, operations, device=None, dtype=None):
        super().__init__()
        self.taps = config.position_taps

        def conv() -> nn.Module:
            # Index 1 is Mish in the published names.
            return nn.ModuleDict({"0": operations.Conv1d(
                config.width, config.width, config.position_taps, groups=config.position_groups,
                device=device, dtype=dtype)})

        self.conv1, self.conv2 = conv(), conv()

    def forward(self, x: Tensor) -> Tensor:
        """(B, F, D) -> (B, F, D)"""
        x = x.transpose(1, 2)
        for conv in (self.conv1, self.conv2):
            x = F.mish(conv["0"](F.pad(x, (self.taps - 1, 0))))
        return x.transpose(1, 2)


class InputEmbedding(nn.Module):
    """Noisy mel and condition to the width of the transformer, positions added."""

    def __init__(self, config: FlowConfig, operations, device=None, dtype=None):
        super().__init__()
        self.dtype = dtype
        self.proj = operations.Linear(4 * config.mels, config.width, device=device, dtype=torch.float32)
        self.conv_pos_embed = PositionConv(config, operations, device, dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        """(B, F, 4M) -> float32 (B, F, D)"""
        x = self.proj(inputs)
        return x + self.conv_pos_embed(x.to(self.dtype))


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, config: FlowConfig, operations, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        self.to_q = operations.Linear(config.width, config.width, **factory)
        self.to_k = operations.Linear(config.width, config.width, **factory)
        self.to_v = operations.Linear(config.width, config.width, **factory)
        self.to_out = nn.ModuleList([operations.Linear(config.width, config.width, **factory)])

    def forward(self, x: Tensor, turn: Rotation, seen: Tensor | None) -> Tensor:
        """(B, F, D), bool (1 or B, 1, 1 or F, F) of keys or None for all -> (B, F, D)"""
        q, k, v = rotate(self.to_q(x), *turn), rotate(self.to_k(x), *turn), self.to_v(x)
        q, k, v = (part.unflatten(-1, (-1, HEAD_WIDTH)).transpose(1, 2) for part in (q, k, v))     # (B, H, F, 64)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.to_out[0](out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers with GELU between."""

    def __init__(self, config: FlowConfig, operations, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        # Published as ff.0.0 and ff.2; what is between are GELU and a dropout.
        self.ff = nn.ModuleDict({
            "0": nn.ModuleList([operations.Linear(config.width, config.hidden, **factory)]),
            "2": operations.Linear(config.hidden, config.width, **factory),
        })

    def forward(self, x: Tensor) -> Tensor:
        """(B, F, D) -> (B, F, D)"""
        return self.ff["2"](F.gelu(self.ff["0"][0](x), approximate="tanh"))


class Block(nn.Module):
    """Attention and feed-forward, each between modulated norm and gate."""

    def __init__(self, config: FlowConfig, operations, device=None, dtype=None):
        super().__init__()
        self.dtype = dtype
        self.attn_norm = AdaptiveNorm(6, config, operations, device)
        self.attn = Attention(config, operations, device, dtype)
        self.ff = FeedForward(config, operations, device, dtype)

    def forward(self, x: Tensor, time: Tensor, turn: Rotation, seen: Tensor | None) -> Tensor:
        """(B, F, D), (1 or B, D) -> (B, F, D)"""
        shift, scale, gate, ff_shift, ff_scale, ff_gate = self.attn_norm(time)
        x = x + gate * self.attn((norm(x) * (1 + scale) + shift).to(self.dtype), turn, seen).float()
        return x + ff_gate * self.ff((norm(x) * (1 + ff_scale) + ff_shift).to(self.dtype)).float()


class DiT(nn.Module):
    """The velocity of the mel at time t."""

    meanflow = False

    def __init__(self, config: FlowConfig, operations=nn, device=None, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.config = config
        self.time_embed = TimeEmbedding(config, operations, device)
        self.input_embed = InputEmbedding(config, operations, device, dtype)
        self.transformer_blocks = nn.ModuleList(
            Block(config, operations, device, dtype) for _ in range(config.layers))
        self.norm_out = AdaptiveNorm(2, config, operations, device)
        self.proj_out = operations.Linear(config.width, config.mels, device=device, dtype=torch.float32)

    def embed_time(self, t: Tensor, r: Tensor | None = None) -> Tensor:
        """(S,) times -> (S, D); where intervals end is of no use here."""
        return self.time_embed(t)

    def forward(self, inputs: Tensor, time: Tensor, seen: Tensor | None = None) -> Tensor:
        """(B, F, 4M) of noisy mel, prompt, mu and speaker; (1 or B, D) -> (B, F, M)

        ``seen``: bool (1 or B, 1, 1 or F, F), true where a key is seen; None where all are.
        """
        x = self.input_embed(inputs)
        turn = rotation(x.shape[1], x.device)
        for block in self.transformer_blocks:
            x = block(x, time, turn, seen)
        scale, shift = self.norm_out(time)      # in the blocks it is shift first
        return self.proj_out(norm(x) * (1 + scale) + shift)

    def under(self, condition: Condition, guided: bool) -> Velocity:
        """The velocity under a condition; ``guided``: of each row, and then of each without any condition."""
        rows, frames, mels = condition.mu.shape
        copies = 2 if guided else 1
        known = torch.cat((condition.prompt, condition.mu, condition.speaker[:, None].expand(-1, frames, -1)), dim=-1)
        if guided:
            known = torch.cat((known, torch.zeros_like(known)))                            # (2B, F, 3M)
        seen = visible(condition)
        if seen is not None:
            seen = seen.repeat(copies if len(seen) > 1 else 1, 1, 1, 1)

        def velocity(x: Tensor, time: Tensor) -> Tensor:
            return self(torch.cat((x.repeat(copies, 1, 1), known), dim=-1), time, seen)

        return velocity


def visible(condition: Condition) -> Tensor | None:
    """bool (1 or B, 1, 1 or F, F), true where a frame sees a key: no padding, and no later block. None for all."""
    frames, device = condition.mu.shape[1], condition.mu.device
    valid, block = condition.valid(), condition.block_frames
    seen = None if valid is None else valid[:, None, None]
    if block is not None and frames > block:
        of = torch.arange(frames, device=device) // block
        earlier = (of <= of[:, None])[None, None]
        seen = earlier if seen is None else seen & earlier
    return seen
