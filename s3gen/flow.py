"""From tokens to mel: what the flow is conditioned on, and the network that estimates its velocity.

``Flow.condition`` lays a voice's tokens and mel before the tokens to be spoken; ``Estimator`` is
called once per step of the solver in ``generate``. Everything between works on (B, F, C), since nine
tenths of the time is spent in linear layers and attention. All convolutions of the estimator are
causal, so a padded frame can reach a real one through attention alone, where it is masked.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import HEAD_WIDTH, EstimatorConfig, S3GenConfig
from .encoder import LOOKAHEAD_TOKENS, UPSAMPLING, UpsampleConformer

TAPS = 3    # frames that a convolution of the estimator sees

Voice = tuple[Tensor, Tensor, Tensor]   # as ``inputs.voices`` gives: ids (L,), mel (F, M), embedding (D,)
# (x (B, F, M), one step's row of the embedded times) -> (B, F, M), or (2 B, F, M) with guidance
Velocity = Callable[[Tensor, Tensor], Tensor]


def mish(x: Tensor) -> Tensor:
    """x tanh(log(1 + e^x)). On a CPU torch's own takes four times as long as its parts."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return F.mish(x)
    n = x.clamp(max=20).exp_()          # beyond, the factor is 1
    n.mul_(n + 2)
    return n.div_(n + 2).mul_(x)


def causal_conv(
    channels_in: int, channels_out: int, operations, device=None, dtype=None, taps: int = TAPS, groups: int = 1,
) -> nn.Module:
    """The layer of ``causal``: one over a few frames, laid out as an image of one line.

    Channels last is how the frames lie in memory anyway, and a CPU is a quarter faster so.
    """
    return operations.Conv2d(channels_in, channels_out, (1, taps), groups=groups, device=device, dtype=dtype)


def causal(conv: nn.Module, x: Tensor) -> Tensor:
    """(B, F, C) -> (B, F, C') by a convolution that sees the present frame and those before."""
    line = F.pad(x, (0, 0, conv.kernel_size[1] - 1, 0)).transpose(1, 2)[:, :, None]     # (B, C, 1, F + taps - 1)
    return conv(line)[:, :, 0].transpose(1, 2)


def sinusoids(t: Tensor, channels: int) -> Tensor:
    """(S,) times in 0..1 -> float32 (S, channels), sines and then cosines"""
    half = channels // 2
    rate = torch.exp(torch.arange(half, device=t.device, dtype=torch.float32) * (-math.log(10000) / (half - 1)))
    angle = 1000 * t[:, None] * rate
    return torch.cat((angle.sin(), angle.cos()), dim=-1)


def additive(visible: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A mask of what is visible as attention takes it without converting it anew: 0 there, else -inf."""
    if visible is None:
        return None
    return torch.zeros(visible.shape, device=visible.device, dtype=dtype).masked_fill(~visible, float("-inf"))


class CausalBlock(nn.Module):
    """Causal convolution, norm over channels, Mish."""

    def __init__(self, channels_in: int, channels_out: int, operations, device=None, dtype=None):
        super().__init__()
        # Index 1 is the transposition before the norm in the published names.
        self.block = nn.ModuleDict({
            "0": causal_conv(channels_in, channels_out, operations, device, dtype),
            "2": operations.LayerNorm(channels_out, eps=1e-5, device=device, dtype=dtype),
        })

    def forward(self, x: Tensor) -> Tensor:
        """(B, F, C) -> (B, F, C')"""
        return mish(self.block["2"](causal(self.block["0"], x)))


class ResnetBlock(nn.Module):
    """Two causal blocks with the time embedding added between, and a residual."""

    def __init__(self, channels_in: int, config: EstimatorConfig, operations, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        self.mlp = nn.Sequential(nn.Mish(), operations.Linear(config.time_width, config.width, **factory))
        self.block1 = CausalBlock(channels_in, config.width, operations, **factory)
        self.block2 = CausalBlock(config.width, config.width, operations, **factory)
        self.res_conv = operations.Linear(channels_in, config.width, **factory)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """(B, F, C), (B or 1, time width) -> (B, F, D)"""
        h = self.block1(x).add_(self.mlp(time)[:, None])
        return self.block2(h).add_(self.res_conv(x))


class Attention(nn.Module):
    """Multi-head self-attention whose heads are wider together than the model."""

    def __init__(self, config: EstimatorConfig, operations, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        width, inner = config.width, config.heads * HEAD_WIDTH
        self.to_q = operations.Linear(width, inner, bias=False, **factory)
        self.to_k = operations.Linear(width, inner, bias=False, **factory)
        self.to_v = operations.Linear(width, inner, bias=False, **factory)
        self.to_out = nn.ModuleList([operations.Linear(inner, width, **factory)])

    def forward(self, x: Tensor, padding: Tensor | None) -> Tensor:
        """(B, F, D), additive (B, 1, 1, F) or None -> (B, F, D)"""
        q, k, v = (
            project(x).unflatten(-1, (-1, HEAD_WIDTH)).transpose(1, 2)                  # (B, H, F, 64)
            for project in (self.to_q, self.to_k, self.to_v)
        )
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=padding)
        return self.to_out[0](out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers with GELU between."""

    def __init__(self, config: EstimatorConfig, operations, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        # Index 1 is a dropout in the published names.
        self.net = nn.ModuleDict({
            "0": nn.ModuleDict({"proj": operations.Linear(config.width, config.hidden, **factory)}),
            "2": operations.Linear(config.hidden, config.width, **factory),
        })

    def forward(self, x: Tensor) -> Tensor:
        """(B, F, D) -> (B, F, D)"""
        return self.net["2"](F.gelu(self.net["0"]["proj"](x)))


class TransformerBlock(nn.Module):
    """Attention and feed-forward, each behind its norm."""

    def __init__(self, config: EstimatorConfig, operations, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        self.norm1 = operations.LayerNorm(config.width, eps=1e-5, **factory)
        self.attn1 = Attention(config, operations, **factory)
        self.norm3 = operations.LayerNorm(config.width, eps=1e-5, **factory)
        self.ff = FeedForward(config, operations, **factory)

    def forward(self, x: Tensor, padding: Tensor | None) -> Tensor:
        """(B, F, D), additive (B, 1, 1, F) or None -> (B, F, D)"""
        x = self.attn1(self.norm1(x), padding).add_(x)
        return self.ff(self.norm3(x)).add_(x)


class TimeEmbedding(nn.Module):
    """Sinusoids of a time in 0..1 through two linear layers."""

    def __init__(self, config: EstimatorConfig, operations, device=None, dtype=None):
        super().__init__()
        self.channels = 4 * config.mels     # as many as the estimator has inputs
        self.linear_1 = operations.Linear(self.channels, config.time_width, device=device, dtype=dtype)
        self.linear_2 = operations.Linear(config.time_width, config.time_width, device=device, dtype=dtype)

    def forward(self, t: Tensor, dtype: torch.dtype) -> Tensor:
        """(S,) float32 -> (S, time width)"""
        return self.linear_2(F.silu(self.linear_1(sinusoids(t, self.channels).to(dtype))))


class Estimator(nn.Module):
    """The velocity of the mel at time t, or its mean over (t, r) in a meanflow model.

    A U-Net in name only: no block changes the frame rate, and the one skip runs from before the
    first plain convolution to the last block.
    """

    def __init__(self, config: EstimatorConfig, operations=nn, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        width = config.width
        self.dtype = dtype or torch.float32

        def stage(channels_in: int, *tail: nn.Module) -> nn.ModuleList:
            transformers = (TransformerBlock(config, operations, **factory) for _ in range(config.transformers))
            return nn.ModuleList(
                [ResnetBlock(channels_in, config, operations, **factory), nn.ModuleList(transformers), *tail])

        def conv() -> nn.Module:
            return causal_conv(width, width, operations, **factory)

        self.time_mlp = TimeEmbedding(config, operations, **factory)
        if config.meanflow:
            self.time_embed_mixer = operations.Linear(
                2 * config.time_width, config.time_width, bias=False, **factory)
        self.down_blocks = nn.ModuleList([stage(4 * config.mels, conv())])
        self.mid_blocks = nn.ModuleList(stage(width) for _ in range(config.mid_blocks))
        self.up_blocks = nn.ModuleList([stage(2 * width, conv())])
        self.final_block = CausalBlock(width, width, operations, **factory)
        self.final_proj = operations.Linear(width, config.mels, **factory)

    @property
    def meanflow(self) -> bool:
        return hasattr(self, "time_embed_mixer")

    def embed_time(self, t: Tensor, r: Tensor | None = None) -> Tensor:
        """(S,) times, for a meanflow model also where each interval ends -> (S, time width)"""
        time = self.time_mlp(t, self.dtype)
        if self.meanflow:
            time = self.time_embed_mixer(torch.cat((time, self.time_mlp(r, self.dtype)), dim=-1))
        return time

    def forward(self, inputs: Tensor, time: Tensor, padding: Tensor | None = None) -> Tensor:
        """(B, F, 4M) of noisy mel, mu, speaker and prompt; (1 or B, time width) -> float32 (B, F, M)

        ``padding``: additive (B, 1, 1, F), 0 at real frames and -inf at padded ones.
        """
        x = inputs.to(self.dtype)

        def run(stage: nn.ModuleList, x: Tensor) -> Tensor:
            x = stage[0](x, time)
            for block in stage[1]:
                x = block(x, padding)
            return x

        skip = run(self.down_blocks[0], x)                                              # (B, F, D)
        x = causal(self.down_blocks[0][2], skip)
        for stage in self.mid_blocks:
            x = run(stage, x)
        x = run(self.up_blocks[0], torch.cat((x, skip), dim=-1))
        x = self.final_block(causal(self.up_blocks[0][2], x))
        return self.final_proj(x).float()               # (B, F, M)

    def under(self, condition: Condition, guided: bool) -> Velocity:
        """The velocity under a condition; ``guided``: of each row, and then of each without any condition."""
        rows, frames, mels = condition.mu.shape
        copies = 2 if guided else 1
        inputs = condition.mu.new_zeros(copies * rows, frames, 4 * mels)
        inputs[:rows, :, mels : 2 * mels] = condition.mu
        inputs[:rows, :, 2 * mels : 3 * mels] = condition.speaker[:, None]
        inputs[:rows, :, 3 * mels :] = condition.prompt
        valid = condition.valid()
        padding = None if valid is None else additive(valid[:, None, None].repeat(copies, 1, 1, 1), self.dtype)

        def velocity(x: Tensor, time: Tensor) -> Tensor:
            inputs.unflatten(0, (copies, rows))[..., :mels] = x
            return self(inputs, time, padding)

        return velocity


@dataclass(frozen=True)
class Condition:
    """What the estimator sees beside the noisy mel, prompt frames first."""

    mu: Tensor              # (B, F, M), what the tokens say
    speaker: Tensor         # (B, M)
    prompt: Tensor          # (B, F, M), the voice's mel, then zeros
    frames: list[int]       # of each row, prompt included; the rest is padding
    prompt_frames: list[int]
    block_frames: int | None = None     # blocks that see no later one, for estimators that know them; None: all see all

    def valid(self) -> Tensor | None:
        """bool (B, F), true at real frames; None where there are no others"""
        return real(self.frames, self.mu.device, self.mu.shape[1])


def real(lengths: list[int], device: torch.device, longest: int) -> Tensor | None:
    """bool (B, longest), true before the end of each row; None where all are as long"""
    if min(lengths) == longest:
        return None
    return torch.arange(longest, device=device) < torch.tensor(lengths, device=device)[:, None]


class TokenFlow(nn.Module):
    """Embeds tokens and speakers, and lays out what the estimator is to see. float32 but for the estimator.

    A kind of flow adds ``read``, its way from tokens to mu, and ``decoder.estimator``, which
    ``generate.solve`` asks for the velocity.
    """

    def __init__(self, vocabulary: int, width: int, speaker: int, mels: int, operations, device=None):
        super().__init__()
        self.vocabulary = vocabulary
        factory = {"device": device, "dtype": torch.float32}
        self.input_embedding = operations.Embedding(vocabulary, width, **factory)
        self.spk_embed_affine_layer = operations.Linear(speaker, mels, **factory)

    def read(self, embedded: Tensor, valid: Tensor | None) -> Tensor:
        """(B, L, D) and, where rows are padded, bool (B, L) -> (B, 2L, M)"""
        raise NotImplementedError

    def lay_out(self, rows: list[Tensor], voices: list[Voice], finalize: bool, device: torch.device,
                even: int = 1) -> Condition:
        """``condition`` of rows of ids (N_i,), each behind the prompt of its voice."""
        return self.condition(
            [torch.cat((prompt, row)).to(device) for (prompt, _, _), row in zip(voices, rows)],
            [mel for _, mel, _ in voices], torch.stack([speaker for _, _, speaker in voices]), finalize, even)

    def condition(self, ids: list[Tensor], prompt_mel: list[Tensor], embedding: Tensor, finalize: bool,
                  even: int = 1) -> Condition:
        """Lay out B utterances.

        ids: int64 (L_i,) per row, the prompt's and then the utterance's; prompt_mel: (F_i, M) per
        row; embedding: (B, D) of the speakers. Without ``finalize`` the last three tokens are read
        as lookahead only: six frames fewer come out. even: rows are padded to a multiple of so many tokens.
        """
        lengths = [len(row) for row in ids]
        longest = -(-max(lengths) // even) * even
        padded = torch.stack([F.pad(row, (0, longest - len(row))) for row in ids])      # (B, L)
        mu = self.read(self.input_embedding(padded), real(lengths, padded.device, longest))      # (B, 2L, M)
        held = 0 if finalize else LOOKAHEAD_TOKENS
        mu = mu[:, : UPSAMPLING * (longest - held)]                                     # (B, F, M)
        prompt = torch.zeros_like(mu)
        for row, mel in zip(prompt, prompt_mel):
            row[: len(mel)] = mel
        return Condition(
            mu=mu,
            speaker=self.spk_embed_affine_layer(F.normalize(embedding, dim=1)),
            prompt=prompt,
            frames=[UPSAMPLING * (length - held) for length in lengths],
            prompt_frames=[len(mel) for mel in prompt_mel],
        )


class Flow(TokenFlow):
    """Embeddings, encoder and estimator of the mel flow."""

    def __init__(self, config: S3GenConfig, operations=nn, device=None, dtype=None):
        width, mels = config.encoder.width, config.estimator.mels
        super().__init__(config.vocabulary, width, config.speaker.embedding, mels, operations, device)
        self.encoder = UpsampleConformer(config.encoder, operations, device, torch.float32)
        self.encoder_proj = operations.Linear(width, mels, device=device, dtype=torch.float32)
        self.decoder = nn.ModuleDict({"estimator": Estimator(config.estimator, operations, device, dtype)})

    def read(self, embedded: Tensor, valid: Tensor | None) -> Tensor:
        """(B, L, D) and, where rows are padded, bool (B, L) -> (B, 2L, M)"""
        return self.encoder_proj(self.encoder(embedded, valid))
