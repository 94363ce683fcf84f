"""CosyVoice3's causal HiFT: from mel to wave by way of an excitation, looking eight frames ahead and no further.

A source-filter vocoder like S3Gen's (Li et al. 2023, https://arxiv.org/abs/2309.09493), with convolutions that
see the past alone, save two: the first of the pitch predictor looks three frames ahead, the first of the
decoder four. So speech can be vocoded as it comes: without ``finalize`` a wave is the beginning of the whole one.

The harmonics stand still within a frame, and their phase goes on from frame to frame. It is counted in whole
numbers, which makes it exact after any length of speech.
"""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..assembly import UNFILLED
from ..s3gen.config import VocoderConfig
from ..s3gen.vocoder import (
    BINS,
    DILATIONS,
    FFT_HOP_SAMPLES,
    HARMONICS,
    HOP_SAMPLES,
    MAGNITUDE_LIMIT,
    RATES,
    SAMPLE_LIMIT,
    SAMPLE_RATE_HZ,
    SINE_AMPLITUDE,
    VOICED_ABOVE_HZ,
    VOICED_NOISE,
    istft,
    stft,
)
from .sampling import fold_seed, hashed_uniform

PITCH_LOOKAHEAD_FRAMES = 3
LOOKAHEAD_FRAMES = 4        # of the decoder
HELD_FRAMES = PITCH_LOOKAHEAD_FRAMES + LOOKAHEAD_FRAMES + 1     # without finalize; one is the inverse STFT's

FRAMES_PER_SECOND = SAMPLE_RATE_HZ // HOP_SAMPLES
STEPS_PER_HZ = 2**20        # a pitch of float32 from 8 Hz on is a whole number of steps
TURN = FRAMES_PER_SECOND * STEPS_PER_HZ     # steps that a pitch takes in one frame for a whole cycle
NOISE_SALT = 3              # of the hashed numbers; the sampler of tokens has 1 and 2


def source_noise(seed: Tensor, first: int, frames: int) -> Tensor:
    """Uniform (B, 480 F, 9) strictly between 0 and 1, for seeds int64 (B,) and frames from ``first`` on.

    A function of the seed and of the place in the whole wave alone.
    """
    steps = torch.arange(first, first + frames, device=seed.device)
    noise = hashed_uniform(seed.repeat_interleave(frames), steps.repeat(len(seed)), NOISE_SALT, HOP_SAMPLES * HARMONICS)
    return noise.view(len(seed), frames * HOP_SAMPLES, HARMONICS)


def causal(conv: nn.Module, x: Tensor) -> Tensor:
    """A convolution of step 1 over what has been: (B, C, F) -> (B, C', F)"""
    return conv(F.pad(x, (conv.dilation[0] * (conv.kernel_size[0] - 1), 0)))


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    """x + sin(a x)**2 / a with one a per channel (Ziyin et al. 2020, https://arxiv.org/abs/2006.08195)."""
    alpha = alpha.to(x)[:, None]
    return x + torch.sin(x * alpha) ** 2 / (alpha + 1e-9)


class Alpha(nn.Module):
    """The frequencies of one snake."""

    def __init__(self, channels: int, device=None, dtype=None):
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels, device=device, dtype=dtype))


class ResBlock(nn.Module):
    """Three rounds of snake and causal convolution, the first of each pair dilated, with residuals."""

    def __init__(self, channels: int, kernel: int, operations, device=None, dtype=None):
        super().__init__()

        def conv(dilation: int) -> nn.Module:
            return operations.Conv1d(channels, channels, kernel, dilation=dilation, device=device, dtype=dtype)

        self.convs1 = nn.ModuleList(conv(dilation) for dilation in DILATIONS)
        self.convs2 = nn.ModuleList(conv(1) for _ in DILATIONS)
        self.activations1 = nn.ModuleList(Alpha(channels, device, dtype) for _ in DILATIONS)
        self.activations2 = nn.ModuleList(Alpha(channels, device, dtype) for _ in DILATIONS)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, F) -> (B, C, F)"""
        for a1, conv1, a2, conv2 in zip(self.activations1, self.convs1, self.activations2, self.convs2):
            x = x + causal(conv2, snake(causal(conv1, snake(x, a1.alpha)), a2.alpha))
        return x


class PitchPredictor(nn.Module):
    """Five convolutions and a linear layer, the first with three frames of foresight: a fundamental for each frame.

    The phase sums up the pitch, so rounding would be heard in time: weights and sums are float64, as published.
    """

    def __init__(self, config: VocoderConfig, device=None):
        super().__init__()
        factory = {"device": device, "dtype": torch.float64}
        channels = (config.mels, *[config.f0_channels] * 4)
        # The odd indices are the activations in the published names.
        self.condnet = nn.ModuleDict({
            str(2 * i): UNFILLED.Conv1d(c, config.f0_channels, 3 if i else PITCH_LOOKAHEAD_FRAMES + 1, **factory)
            for i, c in enumerate(channels)
        })
        self.classifier = UNFILLED.Linear(config.f0_channels, 1, **factory)

    def forward(self, mel: Tensor) -> Tensor:
        """(B, M, F + 3) -> (B, F) in Hz, not negative, in the dtype and on the device of the mel"""
        x = mel
        for index, conv in self.condnet.items():
            if index != "0":
                x = F.pad(x, (conv.kernel_size[0] - 1, 0))
            x = F.elu(F.conv1d(x, conv.weight.to(x), conv.bias.to(x)))
        return F.linear(x.transpose(1, 2), self.classifier.weight.to(x), self.classifier.bias.to(x))[..., 0].abs()


class HarmonicSource(nn.Module):
    """Sines at the harmonics of a pitch, held for a frame, and noise, mixed by one linear layer."""

    def __init__(self, operations, device=None, dtype=None):
        super().__init__()
        self.l_linear = operations.Linear(HARMONICS, 1, device=device, dtype=dtype)

    def forward(self, f0: Tensor, start: Tensor, noise: Tensor) -> Tensor:
        """Float32 (B, F) in Hz, phases (B,) of ``phases``, uniform noise (B, 480 F, 9) -> (B, 1, 480 F)"""
        harmonics = torch.arange(1, HARMONICS + 1, device=f0.device)
        steps = phases(f0, start)[..., None] * harmonics % TURN                         # (B, F, 9)
        sines = SINE_AMPLITUDE * torch.sin(steps.float() * (2 * math.pi / TURN))
        voiced = (f0 > VOICED_ABOVE_HZ).float()[..., None]                              # (B, F, 1)
        amplitude = voiced * VOICED_NOISE + (1 - voiced) * (SINE_AMPLITUDE / 3)
        noise = noise.unflatten(1, (-1, HOP_SAMPLES))                                   # (B, F, 480, 9)
        held = (sines * voiced)[:, :, None].to(noise)
        mixed = self.l_linear(held + amplitude[:, :, None].to(noise) * noise)           # (B, F, 480, 1)
        return torch.tanh(mixed).flatten(1)[:, None]


def phases(f0: Tensor, start: Tensor) -> Tensor:
    """Where the fundamental stands in each frame, in steps of a ``TURN``: (B, F) in Hz, int64 (B,) -> int64 (B, F)"""
    steps = (f0.float() * STEPS_PER_HZ).round().to(torch.int64)
    return (start[:, None] + steps.cumsum(dim=1)) % TURN


class CausalHiFT(nn.Module):
    """The whole vocoder.

    The pitch predictor stays in the CPU's memory wherever the module goes, for few other devices have float64;
    so it is none of its submodules.
    """

    def __init__(self, config: VocoderConfig | None = None, operations=nn, device=None):
        super().__init__()
        self.config = config = config or VocoderConfig()
        factory = {"device": device, "dtype": torch.float32}
        channels = [config.channels >> stage for stage in range(len(RATES) + 1)]
        self.m_source = HarmonicSource(operations, **factory)
        self._beside = (PitchPredictor(config, device),)
        self.conv_pre = operations.Conv1d(config.mels, channels[0], LOOKAHEAD_FRAMES + 1, **factory)
        self.ups, self.source_downs = nn.ModuleList(), nn.ModuleList()
        self.source_resblocks, self.resblocks = nn.ModuleList(), nn.ModuleList()
        for stage, kernel in enumerate(config.up_kernels):
            wide, narrow = channels[stage], channels[stage + 1]
            self.ups.append(operations.Conv1d(wide, narrow, kernel, **factory))
            down = math.prod(RATES[stage + 1 :])    # from the excitation's rate to this stage's
            self.source_downs.append(
                operations.Conv1d(2 * BINS, narrow, 2 * down if down > 1 else 1, down, **factory))
            self.source_resblocks.append(ResBlock(narrow, config.source_kernels[stage], operations, **factory))
            self.resblocks.extend(ResBlock(narrow, kernel, operations, **factory) for kernel in config.kernels)
        self.conv_post = operations.Conv1d(channels[-1], 2 * BINS, 7, **factory)

    @property
    def f0_predictor(self) -> PitchPredictor:
        return self._beside[0]

    def pitch(self, mel: Tensor, finalize: bool = True, exact: bool = True) -> Tensor:
        """(B, M, F) -> (B, F) in Hz, or (B, F - 3) without finalize.

        exact: float64 and on the CPU, as published; else float32, where the mel is.
        """
        mel = mel.to("cpu", torch.float64) if exact else mel.float()
        return self.f0_predictor(F.pad(mel, (0, PITCH_LOOKAHEAD_FRAMES)) if finalize else mel)

    def source(self, f0: Tensor, noise: Tensor, start: Tensor | None = None) -> Tensor:
        """(B, F) in Hz, uniform noise (B, 480 F, 9), int64 (B,) of ``advance`` -> (B, 1, 480 F)"""
        start = f0.new_zeros(len(f0), dtype=torch.int64) if start is None else start
        return self.m_source(f0.float(), start, noise)

    def advance(self, f0: Tensor, start: Tensor) -> Tensor:
        """The phases int64 (B,) in which a pitch (B, F) ends that began in ``start``."""
        return phases(f0, start)[:, -1] if f0.shape[1] else start

    def decode(self, mel: Tensor, source: Tensor, finalize: bool = True) -> Tensor:
        """(B, M, F), excitation (B, 1, 480 F) -> (B, 480 F) within +-0.99

        Without finalize, excitation (B, 1, 480 (F - 3)) -> (B, 480 (F - 8)).
        """
        spectrum = stft(source)                                                         # (B, 18, 120 F + 1)
        if finalize:
            mel = F.pad(mel, (0, LOOKAHEAD_FRAMES))
        else:
            mel = mel[:, :, : source.shape[2] // HOP_SAMPLES]
            spectrum = spectrum[:, :, : -LOOKAHEAD_FRAMES * HOP_SAMPLES // FFT_HOP_SAMPLES]
        x = self.conv_pre(mel)
        kinds = len(self.resblocks) // len(self.ups)
        for stage, (up, rate) in enumerate(zip(self.ups, RATES)):
            x = causal(up, F.leaky_relu(x, 0.1).repeat_interleave(rate, dim=2))
            if stage == len(self.ups) - 1:
                x = F.pad(x, (1, 0), mode="reflect")    # the STFT has one frame more than hops
            down = self.source_downs[stage]
            beside = down(F.pad(spectrum, (down.stride[0] - 1, 0)))
            x = x + self.source_resblocks[stage](beside)
            x = sum(block(x) for block in self.resblocks[stage * kinds : (stage + 1) * kinds]) / kinds
        x = causal(self.conv_post, F.leaky_relu(x, 0.01))
        magnitude = x[:, :BINS].exp().clamp(max=MAGNITUDE_LIMIT)
        angle = torch.sin(x[:, BINS:])
        wave = istft(torch.cat((magnitude * angle.cos(), magnitude * angle.sin()), dim=1))
        if not finalize:
            wave = wave[:, :-HOP_SAMPLES]
        return wave.clamp(-SAMPLE_LIMIT, SAMPLE_LIMIT)

    @torch.no_grad()
    def forward(
        self, mel: Tensor, *, seed: int = 0, noise: Tensor | None = None, finalize: bool = True, exact: bool = True,
    ) -> Tensor:
        """Mel (B, M, F) -> wave (B, 480 F) within +-0.99

        Without finalize the last eight frames are seen but not heard: (B, 480 (F - 8)), the beginning of what
        they and more frames give. Row i draws from ``seed + i``, or takes its noise, uniform between 0 and 1,
        from a table (480 F, 9) or (B, 480 F, 9), which may be longer. exact: see ``pitch``.
        """
        rows, frames = self._frames(mel, finalize)
        mel = mel.float()
        if not frames:
            return mel.new_zeros(rows, 0)
        f0 = self.pitch(mel, finalize, exact)
        if noise is None:
            seeds = torch.tensor([fold_seed(seed, row) for row in range(rows)], device=mel.device)
            noise = source_noise(seeds, 0, f0.shape[1])
        else:
            noise = _table(noise, rows, HOP_SAMPLES * f0.shape[1]).to(mel)
        return self.decode(mel, self.source(f0, noise), finalize)

    def _frames(self, mel: Tensor, finalize: bool) -> tuple[int, int]:
        """Rows, and frames that will be heard."""
        if mel.ndim != 3 or mel.shape[1] != self.config.mels:
            raise ValueError(f"mel: expected (B, {self.config.mels}, F), got {tuple(mel.shape)}.")
        rows, _, frames = mel.shape
        if finalize:
            return rows, frames
        if frames < HELD_FRAMES:
            raise ValueError(f"mel: {frames} frames with finalize=False, which holds back {HELD_FRAMES}; give at least "
                             f"{HELD_FRAMES}, or finalize=True.")
        return rows, frames - HELD_FRAMES


def _table(noise: Tensor, rows: int, samples: int) -> Tensor:
    """(T, 9) or (B, T, 9) -> (B, samples, 9)"""
    noise = noise[None] if noise.ndim == 2 else noise
    if noise.ndim != 3 or len(noise) not in (1, rows) or noise.shape[1] < samples or noise.shape[2] != HARMONICS:
        raise ValueError(f"noise: expected ({rows}, {samples} or more, {HARMONICS}), got {tuple(noise.shape)}.")
    return noise[:, :samples].expand(rows, -1, -1)
