"""The S3 speech tokenizer, version 2: what is said, at 25 tokens per second, with little of who says it.

Two strided convolutions take the log-mel from 100 to 25 frames per second, six transformer layers with
an FSMN memory beside their attention follow, and eight ternary digits of the result are one token. It was
trained on clips of at most 30 s; a longer recording is read in windows of that length.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from .config import HEAD_WIDTH, TokenizerConfig
from .features import HOP_16K_SAMPLES, RATE_16K_HZ, log_mel_16k

TOKEN_FRAMES = 4                # log-mel frames of one token, which is 40 ms
TOKEN_SAMPLES = TOKEN_FRAMES * HOP_16K_SAMPLES
WINDOW_TOKENS = 750             # 30 s
STRIDE_TOKENS = 650             # neighbouring windows share 4 s
DROPPED_TOKENS = (WINDOW_TOKENS - STRIDE_TOKENS) // 2   # at inner ends of windows, short of context

ROTARY_BASE = 10000.0
DIGIT_SCALE = 0.9990000128746033    # of the tanh, so that the outer two thirds never round to 2

Progress = Callable[[int, int], None]


@lru_cache(maxsize=8)
@torch.inference_mode(False)    # a table first made under inference would be barred from other modes
def rotary_table(frames: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotation of each frame, each (F, 1, 64). CPU, float32."""
    rate = ROTARY_BASE ** (-torch.arange(0, HEAD_WIDTH, 2, dtype=torch.float32, device="cpu") / HEAD_WIDTH)
    angle = torch.outer(torch.arange(frames, dtype=torch.float32, device="cpu"), rate).repeat(1, 2)[:, None]
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """(B, F, H, 64) turned by its frame's angles, channel i together with channel i + 32"""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1).mul_(sine).addcmul_(x, cosine)


class Memory(nn.Module):
    """FSMN: a depthwise filter over time that is added to its input.

    A plain convolution layer would do; run in two dimensions with channels last it is four times as
    fast on a CPU, and needs no transposition.
    """

    def __init__(self, config: TokenizerConfig, device=None, dtype=None):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.width, 1, config.kernel, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """(B, F, D) -> (B, F, D)"""
        width, _, kernel = self.weight.shape
        weight = self.weight.to(x.device, x.dtype)[..., None].contiguous(memory_format=torch.channels_last)
        filtered = F.conv2d(x.transpose(1, 2)[..., None], weight, padding=(kernel // 2, 0), groups=width)
        return x + filtered[..., 0].transpose(1, 2)


class Attention(nn.Module):
    """Rotary self-attention over the whole window, plus the memory of its values."""

    def __init__(self, config: TokenizerConfig, operations, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        width = config.width
        self.query = operations.Linear(width, width, **factory)
        self.key = operations.Linear(width, width, bias=False, **factory)
        self.value = operations.Linear(width, width, **factory)
        self.out = operations.Linear(width, width, **factory)
        self.fsmn_block = Memory(config, **factory)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """(B, F, D), two of (F, 1, 64) -> (B, F, D)"""
        value = self.value(x)
        query, key, heads = (
            part.unflatten(-1, (-1, HEAD_WIDTH)) for part in (self.query(x), self.key(x), value)
        )                                                                           # (B, F, H, 64)
        query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        mixed = F.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), heads.transpose(1, 2))      # (B, H, F, 64)
        return self.out(mixed.transpose(1, 2).flatten(2)) + self.fsmn_block(value)


class Block(nn.Module):
    """Attention and MLP, each behind its norm."""

    def __init__(self, config: TokenizerConfig, operations, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        width = config.width
        self.attn_ln = operations.LayerNorm(width, eps=1e-5, **factory)
        self.attn = Attention(config, operations, **factory)
        self.mlp_ln = operations.LayerNorm(width, eps=1e-5, **factory)
        self.mlp = nn.Sequential(
            operations.Linear(width, config.hidden, **factory),
            nn.GELU(),
            operations.Linear(config.hidden, width, **factory),
        )

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """(B, F, D), two of (F, 1, 64) -> (B, F, D)"""
        x = x + self.attn(self.attn_ln(x), cosine, sine)
        return x + self.mlp(self.mlp_ln(x))


class Encoder(nn.Module):
    """Log-mel to one state per token."""

    def __init__(self, config: TokenizerConfig, operations, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        self.conv1 = operations.Conv1d(config.mels, config.width, 3, stride=2, padding=1, **factory)
        self.conv2 = operations.Conv1d(config.width, config.width, 3, stride=2, padding=1, **factory)
        self.blocks = nn.ModuleList(Block(config, operations, **factory) for _ in range(config.layers))

    def forward(self, mel: Tensor) -> Tensor:
        """(B, M, F) -> (B, S, D), S = F / 4 rounded up"""
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).transpose(1, 2).contiguous()
        cosine, sine = (table.to(x) for table in rotary_table(x.shape[1]))
        for block in self.blocks:
            x = block(x, cosine, sine)
        return x


class Codebook(nn.Module):
    """The projection to the digits, which has no codes of its own."""

    def __init__(self, config: TokenizerConfig, operations, device=None, dtype=None):
        super().__init__()
        self.project_down = operations.Linear(config.width, config.digits, device=device, dtype=dtype)


class Quantizer(nn.Module):
    """Finite scalar quantization (Mentzer et al. 2023, https://arxiv.org/abs/2309.15505) to base 3."""

    def __init__(self, config: TokenizerConfig, operations, device=None, dtype=None):
        super().__init__()
        self._codebook = Codebook(config, operations, device, dtype)

    def project(self, x: Tensor) -> Tensor:
        """(B, S, D) -> (B, S, digits), before they are squashed and rounded"""
        return self._codebook.project_down(x)

    def forward(self, x: Tensor) -> Tensor:
        """(B, S, D) -> (B, S) int64, the digits read with the first as the smallest"""
        digits = (self.project(x).tanh() * DIGIT_SCALE).round().long() + 1          # 0, 1 or 2
        return (digits * 3 ** torch.arange(digits.shape[-1], device=digits.device)).sum(dim=-1)


class S3Tokenizer(nn.Module):
    """16 kHz speech to ids below 3 ** digits.

    Computes in float32, as ids sit on rounding borders: weights of another dtype take operations that cast.
    """

    def __init__(self, config: TokenizerConfig, operations=nn, device=None, dtype=None):
        super().__init__()
        self.mels = config.mels
        self.encoder = Encoder(config, operations, device, dtype)
        self.quantizer = Quantizer(config, operations, device, dtype)

    def hidden(self, mel: Tensor) -> Tensor:
        """(B, M, F) log-mel of at most 30 s -> (B, S, D) states before the quantizer"""
        return self.encoder(mel.float())

    @torch.no_grad()
    def encode(
        self, wave: Tensor, on_window: Progress | None = None, device: torch.device | str | None = None,
    ) -> Tensor:
        """(T,) at 16 kHz, of any length -> (S,) int64 ids on the CPU

        S is T // 160 frames divided by 4, rounded up. Windows are cut from the wave, so that each id
        is the one that its own window gives alone. ``on_window(done, total)`` is called after each.
        ``device`` is where to compute, by default where the weights are.
        """
        starts = window_starts(wave)
        kept = []
        for index, start in enumerate(starts):
            last = index + 1 == len(starts)
            piece = wave[start:] if last else wave[start : start + WINDOW_TOKENS * TOKEN_SAMPLES]
            ids = self._window(log_mel_16k(piece, self.mels), device)
            # A window begins at token 650 k and owns the tokens from 650 k + 50 to 650 k + 700.
            first = DROPPED_TOKENS if index else 0
            kept.append(ids[first:] if last else ids[first : WINDOW_TOKENS - DROPPED_TOKENS])
            if on_window is not None:
                on_window(index + 1, len(starts))
        return torch.cat(kept)

    @torch.no_grad()
    def forward(self, wavs: Iterable[Tensor], max_len: int | None = None) -> tuple[Tensor, Tensor]:
        """B waves (T_i,) or one (B, T), at 16 kHz -> ids (B, S) int64 padded with 0, lengths (B,) int64

        Each row is read alone. ``max_len``: keep that many tokens of each row.
        """
        if max_len is not None and max_len < 1:
            raise ValueError(f"max_len: found {max_len}; it takes at least 1 token.")
        rows = [self._row(torch.as_tensor(wave), max_len) for wave in wavs]
        if not rows:
            raise ValueError("wavs: found no clips; give at least one.")
        return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows], device="cpu")

    def _row(self, wave: Tensor, max_len: int | None) -> Tensor:
        """One row of ``forward``: (T,) -> (S,)"""
        window_starts(wave)
        if max_len is None or max_len > WINDOW_TOKENS:
            return self.encode(wave)[:max_len]
        # The cut is made in the mel, whose floor is still that of the whole clip.
        return self._window(log_mel_16k(wave, self.mels)[:, : TOKEN_FRAMES * max_len], None)

    def _window(self, mel: Tensor, device: torch.device | str | None) -> Tensor:
        """(M, F) -> (S,) int64 on the CPU"""
        device = next(self.parameters()).device if device is None else device
        return self.quantizer(self.hidden(mel[None].to(device)))[0].cpu()


def window_starts(wave: Tensor) -> list[int]:
    """Where the windows of a (T,) wave begin, in samples; the last one reaches the end.

    ``ValueError`` where it is no single clip or too short for one token.
    """
    if wave.ndim != 1:
        raise ValueError(f"speech tokenizer: expected one clip (samples,), found {tuple(wave.shape)}.")
    if len(wave) < TOKEN_SAMPLES:
        raise ValueError(
            f"speech tokenizer: found {len(wave)} samples at {RATE_16K_HZ} Hz; one token takes "
            f"{TOKEN_SAMPLES} ({1000 * TOKEN_SAMPLES // RATE_16K_HZ} ms). Give a longer clip.")
    beyond = len(wave) // HOP_16K_SAMPLES - TOKEN_FRAMES * WINDOW_TOKENS    # frames after the first window
    more = -(-max(0, beyond) // (TOKEN_FRAMES * STRIDE_TOKENS))
    return [index * STRIDE_TOKENS * TOKEN_SAMPLES for index in range(1 + more)]
