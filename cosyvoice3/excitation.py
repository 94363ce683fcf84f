"""What CosyVoice3's vocoder is excited by: the pitch of a mel, sines at its harmonics, and noise.

The sines stand still within a mel frame, as the published vocoder has them, and their phase goes on from frame to
frame. It is counted in whole numbers, which makes it exact after any length of speech.
"""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..assembly import UNFILLED
from ..s3gen.config import VocoderConfig
from ..s3gen.vocoder import (
    HARMONICS,
    HOP_SAMPLES,
    SAMPLE_RATE_HZ,
    SINE_AMPLITUDE,
    VOICED_ABOVE_HZ,
    VOICED_NOISE,
)
from .sampling import fold_seed, hashed_uniform

PITCH_LOOKAHEAD_FRAMES = 3
PITCH_CONTEXT_FRAMES = 8    # of the past that a pitch depends on: four convolutions of three taps
STEPS_PER_HZ = 2**20        # a pitch in float32 is a whole number of steps from 8 Hz on
TURN = SAMPLE_RATE_HZ // HOP_SAMPLES * STEPS_PER_HZ     # steps of the pitch that goes through one cycle in a frame
NOISE_SALT = 3              # of the hashed numbers; the sampler of tokens has 1 and 2


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
        def there(layer: nn.Module) -> tuple[Tensor, Tensor]:
            weight, bias = (part.to(mel.dtype).to(mel.device) for part in (layer.weight, layer.bias))
            return weight, bias

        x = mel
        for index, conv in self.condnet.items():
            if index != "0":
                x = F.pad(x, (conv.kernel_size[0] - 1, 0))
            x = F.elu(F.conv1d(x, *there(conv)))
        return F.linear(x.transpose(1, 2), *there(self.classifier))[..., 0].abs()


class HarmonicSource(nn.Module):
    """Sines at the harmonics of a pitch, held for a frame, and noise, mixed by one linear layer."""

    def __init__(self, operations, device=None, dtype=None):
        super().__init__()
        self.l_linear = operations.Linear(HARMONICS, 1, device=device, dtype=dtype)

    def forward(self, f0: Tensor, noise: Tensor, start: Tensor | None = None) -> Tensor:
        """Float32 (B, F) in Hz, uniform noise (B, 480 F, 9), phases int64 (B,) at the start -> (B, 1, 480 F)"""
        harmonics = torch.arange(1, HARMONICS + 1, device=f0.device)
        steps = phases(f0, start)[..., None] * harmonics % TURN                         # (B, F, 9)
        sines = SINE_AMPLITUDE * torch.sin(steps.float() * (2 * math.pi / TURN))
        voiced = (f0 > VOICED_ABOVE_HZ).float()[..., None]                              # (B, F, 1)
        amplitude = voiced * VOICED_NOISE + (1 - voiced) * (SINE_AMPLITUDE / 3)
        noise = noise.unflatten(1, (-1, HOP_SAMPLES))                                   # (B, F, 480, 9)
        held = (sines * voiced)[:, :, None].to(noise)
        mixed = self.l_linear(held + amplitude[:, :, None].to(noise) * noise)           # (B, F, 480, 1)
        return torch.tanh(mixed).flatten(1)[:, None]


def phases(f0: Tensor, start: Tensor | None = None) -> Tensor:
    """Where the fundamental stands in each frame, in steps of a ``TURN``: (B, F) in Hz, int64 (B,) -> int64 (B, F)"""
    steps = (f0.float() * STEPS_PER_HZ).round().to(torch.int64).cumsum(dim=1)
    return (steps if start is None else steps + start[:, None]) % TURN


def source_noise(seed: int, rows: int, first: int, frames: int, device: torch.device | str = "cpu") -> Tensor:
    """Uniform (B, 480 F, 9) strictly between 0 and 1 for the frames from ``first`` on; row i draws from ``seed + i``.

    A function of seed, row and place in the whole wave alone, on every device.
    """
    seeds = torch.tensor([fold_seed(seed, row) for row in range(rows)], dtype=torch.int64, device=device)
    frame = torch.arange(first, first + frames, device=device)
    noise = hashed_uniform(seeds.repeat_interleave(frames), frame.repeat(rows), NOISE_SALT, HOP_SAMPLES * HARMONICS)
    return noise.view(rows, frames * HOP_SAMPLES, HARMONICS)


def noise_table(noise: Tensor, rows: int, samples: int) -> Tensor:
    """(T, 9) or (B, T, 9) -> (B, samples, 9)"""
    noise = noise[None] if noise.ndim == 2 else noise
    if noise.ndim != 3 or len(noise) not in (1, rows) or noise.shape[1] < samples or noise.shape[2] != HARMONICS:
        raise ValueError(f"noise: expected ({rows}, {samples} or more, {HARMONICS}), got {tuple(noise.shape)}.")
    return noise[:, :samples].expand(rows, -1, -1)
