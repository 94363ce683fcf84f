"""HiFT: from mel to wave by way of an excitation (Li et al. 2023, https://arxiv.org/abs/2309.09493).

A predictor reads the pitch off the mel; nine harmonics of it and noise make the excitation; a stack
of transposed convolutions, fed with the excitation's spectrum at every rate, writes the magnitudes
and phases of a 16-point inverse STFT. Weight norm is folded when the checkpoint is read. Both
transforms are convolutions, since complex tensors do not exist on every device. float32 throughout.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import VocoderConfig

SAMPLE_RATE_HZ = 24000
RATES = (8, 5, 3)                               # of the upsampling stages
FFT_SAMPLES = 16
FFT_HOP_SAMPLES = 4
BINS = FFT_SAMPLES // 2 + 1
HOP_SAMPLES = math.prod(RATES) * FFT_HOP_SAMPLES    # of one mel frame: 480
HARMONICS = 9                                   # the fundamental and eight overtones
DILATIONS = (1, 3, 5)
SINE_AMPLITUDE = 0.1
VOICED_NOISE = 0.003
VOICED_ABOVE_HZ = 10.0
MAGNITUDE_LIMIT = 100.0
SAMPLE_LIMIT = 0.99
CONTEXT_FRAMES = 24     # mel frames beyond which a frame cannot reach: 3 + 7.5 + 1.5 + .5 and the STFT's


@lru_cache(maxsize=1)
@torch.inference_mode(False)        # a kept tensor must also serve outside that mode
def fourier_kernels() -> tuple[Tensor, Tensor, Tensor]:
    """Analysis (2 * BINS, 1, 16), synthesis (2 * BINS, 1, 16) and window squared (1, 1, 16). CPU, float32."""
    n = np.arange(FFT_SAMPLES)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * n / FFT_SAMPLES)
    angle = 2 * np.pi * np.outer(np.arange(BINS), n) / FFT_SAMPLES
    basis = np.concatenate((np.cos(angle), -np.sin(angle)))[:, None]                    # (2 * BINS, 1, 16)
    once = np.full((BINS, 1, 1), 2.0)
    once[0] = once[-1] = 1.0            # the bins at zero and at half the rate have no mirror image
    weight = np.concatenate((once, once)) / FFT_SAMPLES
    kernels = (basis * window, basis * window * weight, (window**2)[None, None])
    return tuple(torch.from_numpy(kernel.astype(np.float32)) for kernel in kernels)


def stft(x: Tensor) -> Tensor:
    """(B, 1, T) -> (B, 2 * BINS, T // 4 + 1), real parts and then imaginary ones."""
    return F.conv1d(
        F.pad(x, (FFT_SAMPLES // 2,) * 2, mode="reflect"), fourier_kernels()[0].to(x.device), stride=FFT_HOP_SAMPLES)


def istft(spectrum: Tensor) -> Tensor:
    """(B, 2 * BINS, F) -> (B, 4 * (F - 1)), the inverse of ``stft``."""
    _, synthesis, squared = (kernel.to(spectrum.device) for kernel in fourier_kernels())
    wave = F.conv_transpose1d(spectrum, synthesis, stride=FFT_HOP_SAMPLES)
    ones = spectrum.new_ones(1, 1, spectrum.shape[-1])
    overlap = F.conv_transpose1d(ones, squared, stride=FFT_HOP_SAMPLES)
    edge = FFT_SAMPLES // 2
    return wave[:, 0, edge:-edge] / overlap[:, 0, edge:-edge]


def as_line(x: Tensor) -> Tensor:
    """(B, C, F) -> (B, C, 1, F), on a CPU with the channels last in memory"""
    return x[:, :, None].contiguous(memory_format=line_format(x))


def line_format(x: Tensor) -> torch.memory_format:
    return torch.channels_last if x.device.type == "cpu" else torch.contiguous_format


class Snake(nn.Module):
    """x + sin(a x)**2 / a with one a per channel (Ziyin et al. 2020, https://arxiv.org/abs/2006.08195)."""

    def __init__(self, channels: int, device=None, dtype=None):
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels, device=device, dtype=dtype))

    def forward(self, x: Tensor, before: int = 0) -> Tensor:
        """(B, C, 1, F) -> (B, C, 1, before + F), zeros first: padding that costs no copy"""
        padded = torch.empty(
            *x.shape[:3], before + x.shape[3], dtype=x.dtype, device=x.device, memory_format=line_format(x))
        padded[..., :before] = 0
        alpha, wave = self.alpha.to(x)[:, None, None], padded[..., before:]
        torch.mul(x, alpha, out=wave).sin_().square_()
        torch.addcmul(x, wave, 1 / (alpha + 1e-9), out=wave)
        return padded


class ResBlock(nn.Module):
    """Three rounds of Snake and convolution, the first of each pair dilated, with residuals.

    Nine tenths of the vocoder's time goes by here. On a CPU a two-dimensional convolution with channels
    last does it in half the time of a one-dimensional one, so the frames are laid out as an image of
    one line. causal: no frame sees a later one.
    """

    def __init__(self, channels: int, kernel: int, operations, device=None, dtype=None, causal: bool = False):
        super().__init__()

        def conv(dilation: int) -> nn.Module:
            return operations.Conv2d(
                channels, channels, (1, kernel), dilation=(1, dilation),
                padding=(0, 0 if causal else dilation * (kernel - 1) // 2), device=device, dtype=dtype)

        # Frames before the first that a causal convolution reads.
        self.before = [dilation * (kernel - 1) if causal else 0 for dilation in (*DILATIONS, 1)]

        self.convs1 = nn.ModuleList(conv(dilation) for dilation in DILATIONS)
        self.convs2 = nn.ModuleList(conv(1) for _ in DILATIONS)
        self.activations1 = nn.ModuleList(Snake(channels, device, dtype) for _ in DILATIONS)
        self.activations2 = nn.ModuleList(Snake(channels, device, dtype) for _ in DILATIONS)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, 1, F) -> (B, C, 1, F)"""
        rounds = zip(self.activations1, self.convs1, self.activations2, self.convs2, self.before)
        for snake1, conv1, snake2, conv2, before in rounds:
            x = conv2(snake2(conv1(snake1(x, before)), self.before[-1])).add_(x)
        return x


def mean_of(blocks: Sequence[ResBlock], x: Tensor) -> Tensor:
    """(B, C, 1, F) -> (B, C, 1, F), the mean of what the blocks make of it"""
    total = blocks[0](x)
    for block in blocks[1:]:
        total.add_(block(x))
    return total.div_(len(blocks))


def wave_of(x: Tensor) -> Tensor:
    """Log magnitudes and phases (B, 2 * BINS, F) -> (B, 4 * (F - 1)) within +-0.99"""
    magnitude = x[:, :BINS].exp().clamp(max=MAGNITUDE_LIMIT)
    angle = torch.sin(x[:, BINS:])
    wave = istft(torch.cat((magnitude * angle.cos(), magnitude * angle.sin()), dim=1))
    return wave.clamp(-SAMPLE_LIMIT, SAMPLE_LIMIT)


class PitchPredictor(nn.Module):
    """Five convolutions and a linear layer: the fundamental of every mel frame."""

    def __init__(self, config: VocoderConfig, operations, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        channels = (config.mels, *[config.f0_channels] * 4)
        # The odd indices are the activations in the published names.
        self.condnet = nn.ModuleDict({
            str(2 * i): operations.Conv1d(c, config.f0_channels, 3, padding=1, **factory)
            for i, c in enumerate(channels)
        })
        self.classifier = operations.Linear(config.f0_channels, 1, **factory)

    def forward(self, mel: Tensor) -> Tensor:
        """(B, M, F) -> (B, F) in Hz, not negative"""
        for conv in self.condnet.values():
            mel = F.elu(conv(mel))
        return self.classifier(mel.transpose(1, 2))[..., 0].abs()


class HarmonicSource(nn.Module):
    """Sines at the harmonics of a pitch and noise, mixed by one linear layer."""

    def __init__(self, operations, device=None, dtype=None):
        super().__init__()
        self.l_linear = operations.Linear(HARMONICS, 1, device=device, dtype=dtype)

    def forward(self, f0: Tensor, phase: Tensor, noise: Tensor) -> Tensor:
        """(B, F) in Hz, start phases (B, 9, 1), normal noise (B, 9, 480 F) -> (B, 1, 480 F)"""
        f0 = f0[:, None].repeat_interleave(HOP_SAMPLES, dim=2)                          # (B, 1, T)
        harmonics = torch.arange(1, HARMONICS + 1, device=f0.device, dtype=f0.dtype)[:, None]
        cycles = torch.cumsum(f0 * harmonics / SAMPLE_RATE_HZ, dim=2) % 1               # (B, 9, T)
        sines = SINE_AMPLITUDE * torch.sin(2 * math.pi * cycles + phase)
        voiced = (f0 > VOICED_ABOVE_HZ).to(f0.dtype)
        amplitude = voiced * VOICED_NOISE + (1 - voiced) * (SINE_AMPLITUDE / 3)
        mixed = self.l_linear((sines * voiced + amplitude * noise).transpose(1, 2))     # (B, T, 1)
        return torch.tanh(mixed).transpose(1, 2)


class HiFT(nn.Module):
    """The whole vocoder."""

    def __init__(self, config: VocoderConfig, operations=nn, device=None, dtype=None):
        super().__init__()
        factory = {"device": device, "dtype": torch.float32}
        channels = [config.channels >> stage for stage in range(len(RATES) + 1)]
        self.m_source = HarmonicSource(operations, **factory)
        self.f0_predictor = PitchPredictor(config, operations, **factory)
        self.conv_pre = operations.Conv1d(config.mels, channels[0], 7, padding=3, **factory)
        self.ups, self.source_downs = nn.ModuleList(), nn.ModuleList()
        self.source_resblocks, self.resblocks = nn.ModuleList(), nn.ModuleList()
        for stage, (rate, kernel) in enumerate(zip(RATES, config.up_kernels)):
            wide, narrow = channels[stage], channels[stage + 1]
            self.ups.append(operations.ConvTranspose1d(
                wide, narrow, kernel, rate, padding=(kernel - rate) // 2, **factory))
            down = math.prod(RATES[stage + 1 :])    # from the excitation's rate to this stage's
            self.source_downs.append(
                operations.Conv1d(2 * BINS, narrow, 2 * down, down, padding=down // 2, **factory)
                if down > 1 else operations.Conv1d(2 * BINS, narrow, 1, **factory))
            self.source_resblocks.append(ResBlock(narrow, config.source_kernels[stage], operations, **factory))
            self.resblocks.extend(ResBlock(narrow, kernel, operations, **factory) for kernel in config.kernels)
        self.conv_post = operations.Conv1d(channels[-1], 2 * BINS, 7, padding=3, **factory)

    def pitch(self, mel: Tensor) -> Tensor:
        """(B, M, F) -> (B, F) in Hz"""
        return self.f0_predictor(mel)

    def source(self, f0: Tensor, phase: Tensor, noise: Tensor) -> Tensor:
        """(B, F) in Hz, start phases (B, 9, 1), normal noise (B, 9, 480 F) -> (B, 1, 480 F)"""
        return self.m_source(f0, phase, noise)

    def advance(self, f0: Tensor, phase: Tensor) -> Tensor:
        """The phases (B, 9, 1) in which the harmonics of a pitch (B, F) end, having begun in ``phase``."""
        frames = (f0 * (HOP_SAMPLES / SAMPLE_RATE_HZ))[:, None]                         # cycles of each frame
        harmonics = torch.arange(1, HARMONICS + 1, device=f0.device, dtype=f0.dtype)[:, None]
        return phase + 2 * math.pi * ((frames * harmonics % 1).sum(dim=2, keepdim=True) % 1)

    def decode(self, mel: Tensor, source: Tensor) -> Tensor:
        """(B, M, F), excitation (B, 1, 480 F) -> (B, 480 F) within +-0.99"""
        spectrum = stft(source)                                                         # (B, 18, 120 F + 1)
        x = self.conv_pre(mel)
        kinds = len(self.resblocks) // len(self.ups)
        for stage, up in enumerate(self.ups):
            x = up(F.leaky_relu(x, 0.1))
            if stage == len(self.ups) - 1:
                x = F.pad(x, (1, 0), mode="reflect")    # the STFT has one frame more than hops
            x = as_line(x) + self.source_resblocks[stage](as_line(self.source_downs[stage](spectrum)))
            x = mean_of(self.resblocks[stage * kinds : (stage + 1) * kinds], x)[:, :, 0]        # (B, C, F)
        return wave_of(self.conv_post(F.leaky_relu(x, 0.01)))
