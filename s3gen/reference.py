"""A reference recording as the model wants it: tokens, mel and speaker embedding.

Two clocks meet here: 25 tokens per second read at 16 kHz and 50 mel frames per second read at 24 kHz.
They agree only on whole tokens, so a recording is cut to whole tokens first. Left alone, an odd frame
count would lengthen the conditioned region by one frame and cost the output its last one.
"""
from __future__ import annotations

import logging

import torch
from torch import Tensor

from ..audio import resample
from . import inputs
from .encoder import UPSAMPLING
from .features import HOP_24K_SAMPLES, RATE_16K_HZ, RATE_24K_HZ, fbank, mel_24k
from .speaker import CAMPPlus
from .tokenizer import TOKEN_SAMPLES, S3Tokenizer

TOKEN_24K_SAMPLES = UPSAMPLING * HOP_24K_SAMPLES
MIN_SECONDS = 0.1       # below, the speaker encoder has one frame left and no spread to measure
ADVISED_SECONDS = 10.0  # that the models were trained with

logger = logging.getLogger(__name__)


def both_rates(wave: Tensor, rate_hz: int, role: str = "ref_wav") -> tuple[Tensor, Tensor]:
    """(..., T) at any rate -> the same at 24 kHz and at 16 kHz; ``ValueError`` where it is too short for a voice."""
    if wave.shape[-1] < MIN_SECONDS * rate_hz:
        raise ValueError(
            f"{role}: {wave.shape[-1]} samples at {rate_hz} Hz are {wave.shape[-1] / rate_hz:.3f} s; "
            f"give at least {MIN_SECONDS} s of speech.")
    return resample(wave, rate_hz, RATE_24K_HZ), resample(wave, rate_hz, RATE_16K_HZ)


def whole_tokens(wave: Tensor, rate_hz: int, role: str = "ref_wav") -> tuple[Tensor, Tensor]:
    """(..., T) at any rate -> the same at 24 kHz and at 16 kHz, cut to whole tokens."""
    at_24k, at_16k = both_rates(wave, rate_hz, role)
    tokens = at_24k.shape[-1] // TOKEN_24K_SAMPLES
    return at_24k[..., : tokens * TOKEN_24K_SAMPLES], at_16k[..., : tokens * TOKEN_SAMPLES]


def embed(
    tokenizer: S3Tokenizer, speaker: CAMPPlus, ref_wav, ref_sr: int, device: torch.device,
) -> dict[str, Tensor | None]:
    """Read B recordings of equal length.

    ref_wav: (T,) or (B, T) floats in +-1, tensor or array, at ``ref_sr`` Hz; the networks run on ``device``.
    Returns ``prompt_token`` int64 (B, L), ``prompt_token_len`` int64 (B,), ``prompt_feat`` float32
    (B, 2L, M), ``prompt_feat_len`` None (as published) and ``embedding`` float32 (B, D), there too.
    """
    wave, ref_sr = inputs.recording_rows(ref_wav), inputs.sample_rate(ref_sr)
    if wave.shape[1] > ADVISED_SECONDS * ref_sr:
        logger.warning("The reference is %.1f s long; above %g s it costs time and gains nothing.",
                       wave.shape[1] / ref_sr, ADVISED_SECONDS)
    at_24k, at_16k = whole_tokens(wave, ref_sr)
    ids = torch.stack([tokenizer.encode(row, device=device) for row in at_16k])         # (B, L)
    embedding = torch.cat([speaker(fbank(row)[None].to(device)) for row in at_16k])     # (B, D)
    return entries(ids, mel_24k(at_24k), embedding, device)


def entries(ids: Tensor, mel: Tensor, embedding: Tensor, device: torch.device) -> dict[str, Tensor | None]:
    """What was read of B voices, ids (B, L), mel (B, M, 2L) and embedding (B, D), as others take it."""
    return {
        "prompt_token": ids.to(device),
        "prompt_token_len": torch.full((len(ids),), ids.shape[1], device=device),
        "prompt_feat": mel.transpose(1, 2).contiguous().to(device),                     # (B, 2L, M)
        "prompt_feat_len": None,
        "embedding": embedding.to(device),
    }
