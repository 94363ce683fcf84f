"""Fish Audio's 44.1 kHz codec: a voice to ten streams of codes at 21.5 frames per second, and back.

Convolutions bring the wave down to 86 latents per second, a transformer behind the last of them looks back six
seconds; the quantizer makes one column of codes of four latents; the decoder's transposed convolutions write the
wave. After the Descript Audio Codec (Kumar et al. 2023, https://arxiv.org/abs/2306.06546).

Nothing looks ahead. So a recording of any length goes through in pieces, in memory that does not grow with it,
and each piece needs of those before only what its ``Carry`` keeps: some inputs of every convolution, and the keys
and values of every window. And a batch of unequal rows is one whose shorter rows end in zeros (or in any ids): a
row of n samples has its own codes in its first n / 2048 frames, rounded up. Computed in float32.
"""
from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .codec_config import DECODER_RATES, ENCODER_RATES, FRAME_SAMPLES, KERNEL, CodecConfig
from .codec_layers import Carry, CausalConv, CausalUpsampling, Snake, as_line, residual_units
from .codec_transformer import WindowTransformer
from .quantizer import Quantizer

CHUNK_FRAMES = 64       # 3 s
# At high rates, where most of the memory would go, that much of a piece is computed at a time.
PART_SAMPLES = 2**13
WORKING_BYTES = 2**28   # beside the weights, for each row of a batch; measured, of any length: 170 MB
ENCODER_OUT_TAPS = 3

OnChunk = Callable[[int, int], None]


class EncoderBlock(nn.Module):
    """Residual units at one rate, and the convolution to the next, which has twice the channels."""

    def __init__(self, channels: int, rate: int, transformer: WindowTransformer | None, operations,
                 device=None, dtype=None):
        super().__init__()
        self.block = nn.ModuleList((
            *residual_units(channels, operations, device, dtype),
            Snake(channels, device, dtype),
            CausalConv(channels, 2 * channels, 2 * rate, operations, device, dtype, stride=rate),
        ))
        if transformer is not None:
            self.block.append(transformer)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        """(B, C, 1, F) -> (B, 2 C, 1, F / rate)"""
        for layer in self.block:
            x = layer(x) if isinstance(layer, Snake) else layer(x, carry)
        return x


class Encoder(nn.Module):
    """Wave to latents."""

    def __init__(self, config: CodecConfig, operations, device=None, dtype=None):
        super().__init__()
        factory = {"operations": operations, "device": device, "dtype": dtype}
        width = config.width
        blocks = []
        for stage, rate in enumerate(ENCODER_RATES):
            last = stage == len(ENCODER_RATES) - 1
            transformer = WindowTransformer(width, config.encoder_transformer, **factory) if last else None
            blocks.append(EncoderBlock(config.encoder_channels << stage, rate, transformer, **factory))
        self.block = nn.ModuleList((
            CausalConv(1, config.encoder_channels, KERNEL, **factory),
            *blocks,
            Snake(width, device, dtype),
            CausalConv(width, width, ENCODER_OUT_TAPS, **factory),
        ))

    @torch.no_grad()
    def forward(self, wave: Tensor, carry: Carry | None = None) -> Tensor:
        """(B, T), T a multiple of 512 -> (B, D, T / 512)"""
        carry = Carry() if carry is None else carry
        block, snake, last = self.block[-3:]
        parts = wave[:, None, None].split(PART_SAMPLES, dim=3)
        x = block(torch.cat([self._early(part, carry) for part in parts], dim=3), carry)
        return last(snake(x), carry)[:, :, 0]

    def _early(self, x: Tensor, carry: Carry) -> Tensor:
        """(B, 1, 1, T) -> (B, C, 1, T / 64), before the last block"""
        first, *blocks = self.block[:-3]
        x = as_line(first(x, carry))        # one channel has no order of its own
        for block in blocks:
            x = block(x, carry)
        return x


class DecoderBlock(nn.Module):
    """From one rate to the next, which has half the channels, and residual units there."""

    def __init__(self, channels: int, rate: int, operations, device=None, dtype=None):
        super().__init__()
        self.block = nn.ModuleList((
            Snake(channels, device, dtype),
            CausalUpsampling(channels, channels // 2, 2, rate, operations, device, dtype),
            *residual_units(channels // 2, operations, device, dtype),
        ))

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        """(B, C, 1, F) -> (B, C / 2, 1, rate F)"""
        snake, up, *units = self.block
        x = up(snake(x), carry)
        for unit in units:
            x = unit(x, carry)
        return x


class Decoder(nn.Module):
    """Dequantized latents to wave."""

    def __init__(self, config: CodecConfig, operations, device=None, dtype=None):
        super().__init__()
        self.late_samples = math.prod(DECODER_RATES[1:])    # of a column behind the first block
        factory = {"operations": operations, "device": device, "dtype": dtype}
        channels = [config.decoder_channels >> stage for stage in range(len(DECODER_RATES) + 1)]
        self.model = nn.ModuleList((
            CausalConv(config.width, channels[0], KERNEL, **factory),
            *(DecoderBlock(wide, rate, **factory) for wide, rate in zip(channels, DECODER_RATES)),
            Snake(channels[-1], device, dtype),
            CausalConv(channels[-1], 1, KERNEL, **factory),
        ))

    @torch.no_grad()
    def forward(self, latent: Tensor, carry: Carry | None = None) -> Tensor:
        """(B, D, F) -> (B, 1, 512 F) within +-1"""
        carry = Carry() if carry is None else carry
        first, block, *_ = self.model
        x = block(first(as_line(latent[:, :, None]), carry), carry)
        parts = x.split(PART_SAMPLES // self.late_samples, dim=3)
        return torch.cat([self._late(part, carry) for part in parts], dim=2)

    def _late(self, x: Tensor, carry: Carry) -> Tensor:
        """(B, C, 1, F), behind the first block -> (B, 1, T)"""
        *blocks, snake, last = self.model[2:]
        for block in blocks:
            x = block(x, carry)
        return last(snake(x), carry)[:, :, 0].tanh()


class FishCodec(nn.Module):
    """The whole codec, by the published names.

    Each method takes its input in pieces of ``chunk_frames`` frames, computes on ``device`` (by default where the
    weights are) and gives its result where the input is. ``on_chunk(done, total)`` is called after each piece and
    may raise to cancel.
    """

    def __init__(self, config: CodecConfig | None = None, operations=nn, device=None,
                 dtype: torch.dtype = torch.float32):
        super().__init__()
        self.config = config = config or CodecConfig()
        self.encoder = Encoder(config, operations, device, dtype)
        self.quantizer = Quantizer(config, operations, device, dtype)
        self.decoder = Decoder(config, operations, device, dtype)

    def encode(self, wave: Tensor, on_chunk: OnChunk | None = None, chunk_frames: int = CHUNK_FRAMES,
               device: torch.device | str | None = None) -> Tensor:
        """(B, T) at 44.1 kHz -> int64 (B, K, F), F = T / 2048 rounded up; the last frame is filled with zeros"""
        return self._in_pieces(checked_wave(wave), FRAME_SAMPLES, lambda piece, carry: self.quantizer.encode(
            self.encoder(piece.float(), carry), carry), on_chunk, chunk_frames, device)

    def encode_latent(self, wave: Tensor, on_chunk: OnChunk | None = None, chunk_frames: int = CHUNK_FRAMES,
                      device: torch.device | str | None = None) -> Tensor:
        """(B, T) at 44.1 kHz -> (B, D, 4 F), before the quantizer"""
        return self._in_pieces(checked_wave(wave), FRAME_SAMPLES, lambda piece, carry: self.encoder(
            piece.float(), carry), on_chunk, chunk_frames, device)

    def decode(self, codes: Tensor, on_chunk: OnChunk | None = None, chunk_frames: int = CHUNK_FRAMES,
               device: torch.device | str | None = None, out: Tensor | None = None) -> Tensor:
        """Ids (B, K, F) -> float32 (B, 1, 2048 F) within +-1, in ``out`` if that is given

        Of the semantic codebook alone, (B, 1, F), comes speech that is rough and can be understood.
        """
        return self._in_pieces(self.checked_codes(codes), 1, self._decode, on_chunk, chunk_frames, device, out)

    def dequantize(self, codes: Tensor, on_chunk: OnChunk | None = None, chunk_frames: int = CHUNK_FRAMES,
                   device: torch.device | str | None = None) -> Tensor:
        """Ids (B, K, F) -> (B, D, 4 F), before the decoder"""
        return self._in_pieces(self.checked_codes(codes), 1, self.quantizer.decode, on_chunk, chunk_frames, device)

    def decode_piece(self, codes: Tensor, carry: Carry) -> Tensor:
        """Ids (B, K, S) where the weights are -> (B, 1, 2048 S), the samples behind those of the pieces before.

        For codes that come bit by bit: one new ``Carry`` for each recording, the same in all of its calls.
        """
        return self._decode(self.checked_codes(codes), carry)

    def _decode(self, codes: Tensor, carry: Carry) -> Tensor:
        return self.decoder(self.quantizer.decode(codes, carry), carry)

    def checked_codes(self, codes: Tensor) -> Tensor:
        """int64 (B, K or 1, F). ``ValueError`` where there are no frames, or an id is no row of its table."""
        books, shape = len(self.config.rows), tuple(codes.shape)
        if len(shape) != 3 or shape[1] not in (1, books) or not shape[0]:
            raise ValueError(f"codes: expected (batch, {books} codebooks, frames), found {shape}.")
        if not shape[2]:
            raise ValueError("codes: found 0 frames, which decode to nothing; give at least 1.")
        if codes.is_floating_point() or codes.is_complex() or codes.dtype == torch.bool:
            raise ValueError(f"codes: expected whole numbers, found {codes.dtype}.")
        codes = codes.long()
        rows = torch.tensor(self.config.rows[: shape[1]], device=codes.device)[:, None]
        wrong = (codes < 0) | (codes >= rows)
        if wrong.any():
            row, book, frame = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"codes: frame {frame} of codebook {book} (row {row}) is {int(codes[row, book, frame])}, and that "
                f"codebook has the ids 0 to {self.config.rows[book] - 1}. Leave out frames that are no speech: "
                "what ends it, masks, and padding.")
        return codes

    def _in_pieces(self, x: Tensor, unit: int, step: Callable[[Tensor, Carry], Tensor], on_chunk: OnChunk | None,
                   chunk_frames: int, device: torch.device | str | None, whole: Tensor | None = None) -> Tensor:
        """The results of ``step`` for pieces of ``x``, whose last axis has ``unit`` entries for a frame."""
        if chunk_frames < 1:
            raise ValueError(f"chunk_frames: found {chunk_frames}; a piece takes at least 1 frame.")
        device = next(self.parameters()).device if device is None else device
        frames = -(-x.shape[-1] // unit)
        carry = Carry()
        starts = range(0, frames, chunk_frames)
        for index, start in enumerate(starts):
            end = min(start + chunk_frames, frames)
            piece = x[..., start * unit : end * unit].to(device)
            result = step(F.pad(piece, (0, (end - start) * unit - piece.shape[-1])), carry)
            scale = result.shape[-1] // (end - start)
            if whole is None:
                whole = torch.empty(*result.shape[:-1], frames * scale, dtype=result.dtype, device=x.device)
            whole[..., start * scale : end * scale] = result
            if on_chunk is not None:
                on_chunk(index + 1, len(starts))
        return whole


def checked_wave(wave: Tensor) -> Tensor:
    """``ValueError`` where it is no batch of finite samples, or has none."""
    if wave.ndim != 2 or not wave.shape[0]:
        raise ValueError(f"wave: expected (batch, samples) at 44100 Hz, found {tuple(wave.shape)}.")
    if not wave.shape[1]:
        raise ValueError("wave: found 0 samples, which make no frame; give at least 1.")
    if not wave.is_floating_point():
        raise ValueError(f"wave: expected floats within +-1, found {wave.dtype}.")
    if not wave.isfinite().all():
        raise ValueError("wave: found NaN or infinite samples; give finite ones.")
    return wave
