"""The estimator of CosyVoice3's mel flow: a diffusion transformer (Peebles & Xie 2022, https://arxiv.org/abs/2212.09748).

Each block is attention and feed-forward behind norms without weights; shift, scale and gate of each are read
off the time (adaptive layer norm). What the mel is conditioned on enters once, beside the noisy mel, where
two causal convolutions add positions. The published model also turns queries and keys by their position, but
before the heads are split and over one head's channels only: head 0 alone knows where a frame stands.

The linear layers of attention and feed-forward and the convolutions run in ``dtype``; norms, modulation, the
time's layers and the residual stream are float32. What does not change from step to step is computed once:
what is read off the times for a schedule, the condition's part of the input for a piece.
"""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..s3gen.flow import Condition, Velocity, additive, causal, causal_conv, mish, sinusoids
from .config import HEAD_WIDTH, FlowConfig

BLOCK_FRAMES = 50       # of streaming, 25 tokens: no frame sees beyond its block
NORM_EPSILON = 1e-6
ROTARY_BASE = 10000.0

# What is read off the time, in the order of the published layers.
BLOCK_PARTS = ("shift", "scale", "gate", "shift", "scale", "gate")     # of attention, then of feed-forward
END_PARTS = ("scale", "shift")

Rotation = tuple[Tensor, Tensor]


def norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """(B, F, D) float32, layer norm with what was read off the time, (D,) each, in place of weights"""
    return F.layer_norm(x, x.shape[-1:], scale, shift, NORM_EPSILON)


def rotation(frames: int, device: torch.device) -> Rotation:
    """Cosines of each frame's angles, and sines with the sign that ``rotate_`` needs; float32 (F, 64) each."""
    rate = ROTARY_BASE ** (-torch.arange(0, HEAD_WIDTH, 2, device=device, dtype=torch.float32) / HEAD_WIDTH)
    angle = torch.outer(torch.arange(frames, device=device, dtype=torch.float32), rate)
    sine = angle.sin()
    return angle.cos().repeat_interleave(2, dim=-1), torch.stack((-sine, sine), dim=-1).flatten(-2)


def rotate_(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn the channels of head 0 in a (..., F, D), 2 i against 2 i + 1. In place: the others are 15 of 16."""
    head = x[..., :HEAD_WIDTH]
    swapped = head.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    head.copy_((head * cos).addcmul_(swapped, sin))


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
        return self.time_mlp["2"](F.silu(self.time_mlp["0"](sinusoids(t, self.channels))))


class AdaptiveNorm(nn.Module):
    """Reads shifts, scales and gates of the width off the time."""

    def __init__(self, parts: tuple[str, ...], config: FlowConfig, operations, device=None):
        super().__init__()
        self.parts = parts
        self.linear = operations.Linear(config.width, len(parts) * config.width, device=device, dtype=torch.float32)

    def forward(self, time: Tensor) -> Tensor:
        """(S, D), with SiLU behind it -> (S, parts, D), scales as factors"""
        read = self.linear(time).unflatten(-1, (len(self.parts), -1))
        for index, part in enumerate(self.parts):
            if part == "scale":
                read[:, index] += 1
        return read


class PositionConv(nn.Module):
    """Two causal grouped convolutions, each with Mish behind it."""

    def __init__(self, config: FlowConfig, operations, device=None, dtype=None):
        super().__init__()

        def conv() -> nn.Module:
            # Index 1 is Mish in the published names.
            return nn.ModuleList([causal_conv(
                config.width, config.width, operations, device, dtype, config.position_taps, config.position_groups)])

        self.conv1, self.conv2 = conv(), conv()

    def forward(self, x: Tensor) -> Tensor:
        """(B, F, D) -> (B, F, D)"""
        return mish(causal(self.conv2[0], mish(causal(self.conv1[0], x))))


class InputEmbedding(nn.Module):
    """Noisy mel and condition to the width of the transformer, positions added.

    Published as one layer over both; apart, the condition's part is computed once.
    """

    def __init__(self, config: FlowConfig, operations, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": torch.float32}
        self.dtype = dtype
        self.noisy = operations.Linear(config.mels, config.width, bias=False, **factory)
        self.known = operations.Linear(3 * config.mels, config.width, **factory)
        self.conv_pos_embed = PositionConv(config, operations, device, dtype)

    def forward(self, x: Tensor, known: Tensor) -> Tensor:
        """(B, F, M) and what ``known`` made of the condition (copies, B, F, D) -> float32 (copies * B, F, D)"""
        x = (known + self.noisy(x)).flatten(0, 1)
        return x.add_(self.conv_pos_embed(x.to(self.dtype)))


class Attention(nn.Module):
    """Multi-head self-attention. Queries, keys and values are one layer here and three as published."""

    def __init__(self, config: FlowConfig, operations, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        self.to_qkv = operations.Linear(config.width, 3 * config.width, **factory)
        self.to_out = nn.ModuleList([operations.Linear(config.width, config.width, **factory)])

    def forward(self, x: Tensor, turn: Rotation, mask: Tensor | None) -> Tensor:
        """(B, F, D), additive (1 or B, 1, 1 or F, F) or None -> (B, F, D)"""
        qkv = self.to_qkv(x).unflatten(-1, (3, -1)).transpose(1, 2)                    # (B, 3, F, D)
        rotate_(qkv[:, :2], *turn)
        q, k, v = qkv.unflatten(-1, (-1, HEAD_WIDTH)).transpose(2, 3).unbind(1)         # (B, H, F, 64) each
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
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
        self.attn_norm = AdaptiveNorm(BLOCK_PARTS, config, operations, device)
        self.attn = Attention(config, operations, device, dtype)
        self.ff = FeedForward(config, operations, device, dtype)

    def forward(self, x: Tensor, time: Tensor, turn: Rotation, mask: Tensor | None) -> Tensor:
        """(B, F, D), which is written over, and what ``attn_norm`` read (6, D) -> (B, F, D)"""
        shift, scale, gate, ff_shift, ff_scale, ff_gate = time
        x.addcmul_(self.attn(norm(x, scale, shift).to(self.dtype), turn, mask), gate)
        return x.addcmul_(self.ff(norm(x, ff_scale, ff_shift).to(self.dtype)), ff_gate)


class DiT(nn.Module):
    """The velocity of the mel at time t."""

    meanflow = False

    def __init__(self, config: FlowConfig, operations=nn, device=None, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.config, self.dtype = config, dtype
        self.time_embed = TimeEmbedding(config, operations, device)
        self.input_embed = InputEmbedding(config, operations, device, dtype)
        self.transformer_blocks = nn.ModuleList(
            Block(config, operations, device, dtype) for _ in range(config.layers))
        self.norm_out = AdaptiveNorm(END_PARTS, config, operations, device)
        self.proj_out = operations.Linear(config.width, config.mels, device=device, dtype=torch.float32)

    def embed_time(self, t: Tensor, r: Tensor | None = None) -> Tensor:
        """(S,) times -> (S, 6 N + 2, D), what N blocks and the end read off them. Ends of intervals do not matter.

        These layers are two fifths of the weights.
        """
        time = F.silu(self.time_embed(t))
        layers = (*(block.attn_norm for block in self.transformer_blocks), self.norm_out)
        return torch.cat([layer(time) for layer in layers], dim=1)

    def forward(self, x: Tensor, known: Tensor, time: Tensor, turn: Rotation, mask: Tensor | None = None) -> Tensor:
        """Noisy mel (B, F, M), condition (copies, B, F, D), one step's (6 N + 2, D) -> (copies * B, F, M)

        ``mask``: additive (1 or copies * B, 1, 1 or F, F), 0 where a frame sees another and else -inf.
        """
        *blocks, end = time.split(len(BLOCK_PARTS))
        x = self.input_embed(x, known)
        for block, read in zip(self.transformer_blocks, blocks):
            x = block(x, read, turn, mask)
        scale, shift = end
        return self.proj_out(norm(x, scale, shift))

    def under(self, condition: Condition, guided: bool) -> Velocity:
        """The velocity under a condition; ``guided``: of each row, and then of each without any condition."""
        frames = condition.mu.shape[1]
        given = torch.cat((condition.prompt, condition.mu, condition.speaker[:, None].expand(-1, frames, -1)), dim=-1)
        known = self.input_embed.known(torch.stack((given, torch.zeros_like(given))[: 1 + guided]))
        seen, turn = visible(condition), rotation(frames, known.device)
        if seen is not None and len(seen) > 1:
            seen = seen.repeat(len(known), 1, 1, 1)
        mask = additive(seen, self.dtype)
        return lambda x, time: self(x, known, time[0], turn, mask)


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
