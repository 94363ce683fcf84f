"""Spectra that S3Gen's networks read: three kinds, each with the framing its network was trained on.

All of them run on the CPU in float32. The Slaney filterbank is computed here in double precision,
since torchaudio's single precision one moves the tokenizer's log-mel by 2e-5.
"""
from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..needed import needed

RATE_24K_HZ = 24000             # of the mel that the flow continues
HOP_24K_SAMPLES = 480           # 50 frames per second
WINDOW_24K_SAMPLES = 1920
MELS_24K = 80

RATE_16K_HZ = 16000             # of what the tokenizer and the speaker encoder hear
HOP_16K_SAMPLES = 160           # 100 frames per second
WINDOW_16K_SAMPLES = 400
MELS_16K = 128
FBANK_BINS = 80

MEL_TOP_HZ = 8000.0             # of the last filter, unless a model was trained otherwise
PAD_24K_SAMPLES = (WINDOW_24K_SAMPLES - HOP_24K_SAMPLES) // 2
PAD_16K_SAMPLES = WINDOW_16K_SAMPLES // 2


@lru_cache(maxsize=8)
@torch.inference_mode(False)    # a table first made under inference would be barred from other modes
def slaney_filters(rate_hz: int, window: int, mels: int, top_hz: float = MEL_TOP_HZ) -> Tensor:
    """(M, window // 2 + 1) triangles of unit area, linear below 1 kHz and logarithmic above. CPU, float32."""
    linear_mels = 15.0              # at 1 kHz
    step = np.log(6.4) / 27         # log of the frequency ratio of one mel above that
    top = linear_mels + np.log(top_hz / 1000) / step
    mel = np.linspace(0, top, mels + 2)
    edges = np.where(mel < linear_mels, mel * 200 / 3, 1000 * np.exp((mel - linear_mels) * step))
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    bins = np.linspace(0, rate_hz / 2, window // 2 + 1)
    triangles = np.minimum((bins - low) / (centre - low), (high - bins) / (high - centre)).clip(min=0)
    return torch.from_numpy((triangles * (2 / (high - low))).astype(np.float32))


@lru_cache(maxsize=4)
@torch.inference_mode(False)
def hann_window(samples: int) -> Tensor:
    """(samples,) periodic Hann window. CPU, float32."""
    return torch.hann_window(samples, dtype=torch.float32, device="cpu")


def mel_24k(wave: Tensor, top_hz: float = MEL_TOP_HZ) -> Tensor:
    """Natural log of the magnitude mel of a 24 kHz wave, up to ``top_hz``: (B, T) -> (B, 80, T // 480)

    Each frame is centred on its own 480 samples; the ends are reflected, so it takes 721 samples.
    """
    _require(wave, PAD_24K_SAMPLES + 1, RATE_24K_HZ, "24 kHz mel")
    padded = F.pad(_on_cpu(wave), (PAD_24K_SAMPLES, PAD_24K_SAMPLES), mode="reflect")
    power = _power(padded, WINDOW_24K_SAMPLES, HOP_24K_SAMPLES, center=False)   # (B, 961, F)
    mel = slaney_filters(RATE_24K_HZ, WINDOW_24K_SAMPLES, MELS_24K, top_hz) @ (power + 1e-9).sqrt_()
    return mel.clamp_(min=1e-5).log_()


def log_mel_16k(wave: Tensor, mels: int = MELS_16K) -> Tensor:
    """Scaled log10 of the power mel of a 16 kHz wave, (T,) or (B, T) -> (..., mels, T // 160)

    What lies more than 80 dB under the loudest bin of a clip is lifted to that floor, so values depend on
    the whole clip. The ends are reflected, so it takes 201 samples.
    """
    _require(wave, PAD_16K_SAMPLES + 1, RATE_16K_HZ, "16 kHz log-mel")
    power = _power(_on_cpu(wave), WINDOW_16K_SAMPLES, HOP_16K_SAMPLES, center=True)[..., :-1]
    mel = slaney_filters(RATE_16K_HZ, WINDOW_16K_SAMPLES, mels) @ power         # (..., mels, F)
    mel = mel.clamp_(min=1e-10).log10_()
    floor = mel.amax(dim=(-2, -1), keepdim=True) - 8
    return torch.maximum(mel, floor).add_(4).div_(4)


def fbank(wave: Tensor) -> Tensor:
    """Kaldi's log filterbank of a 16 kHz wave, less its mean over time: (T,) -> (1 + (T - 400) // 160, 80)"""
    with needed("torchaudio", "the speaker encoder"):
        from torchaudio.compliance import kaldi

    _require(wave, WINDOW_16K_SAMPLES, RATE_16K_HZ, "16 kHz filterbank")
    features = kaldi.fbank(_on_cpu(wave)[None], num_mel_bins=FBANK_BINS, sample_frequency=RATE_16K_HZ)
    return features - features.mean(dim=0)


def _power(wave: Tensor, window: int, hop: int, center: bool) -> Tensor:
    """(..., T) -> (..., window // 2 + 1, F) power spectrum"""
    spectrum = torch.stft(wave, window, hop, window, hann_window(window), center=center, return_complex=True)
    real, imaginary = torch.view_as_real(spectrum).unbind(dim=-1)
    return real.square().addcmul_(imaginary, imaginary)


def _on_cpu(wave: Tensor) -> Tensor:
    return wave.detach().to("cpu", torch.float32)


def _require(wave: Tensor, samples: int, rate_hz: int, what: str) -> None:
    found = wave.shape[-1]
    if found < samples:
        raise ValueError(
            f"{what}: found {found} samples at {rate_hz} Hz; it takes at least {samples} "
            f"({1000 * samples / rate_hz:.0f} ms). Give a longer clip.")
