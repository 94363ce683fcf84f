"""The vocoder's transforms against torch's, its excitation, and decoding in pieces."""
from __future__ import annotations

import math

import pytest
import torch

from kit.golden import assert_within
from kit.tiny import tiny_config, tiny_state
from speechwright.s3gen.vocoder import (
    BINS,
    CONTEXT_FRAMES,
    FFT_HOP_SAMPLES,
    FFT_SAMPLES,
    HARMONICS,
    HOP_SAMPLES,
    istft,
    stft,
)
from speechwright.s3gen.weights import build


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def vocoder():
    return build(tiny_state(), parts=("mel2wav",), config=tiny_config()).mel2wav


@pytest.mark.parametrize("samples", [480, 484, 4800])
def test_transforms_are_torch_s(samples):
    window = torch.hann_window(FFT_SAMPLES)
    wave = noise(2, 1, samples)
    expected = torch.stft(wave[:, 0], FFT_SAMPLES, FFT_HOP_SAMPLES, FFT_SAMPLES, window, return_complex=True)
    found = stft(wave)
    assert_within(found[:, :BINS], expected.real, 5e-6)
    assert_within(found[:, BINS:], expected.imag, 5e-6)
    spectrum = noise(2, 2 * BINS, samples // 4 + 1, seed=1)
    spectrum[:, [BINS, 2 * BINS - 1]] = 0      # the ends of a real signal's spectrum have no imaginary part
    expected = torch.istft(
        torch.complex(spectrum[:, :BINS], spectrum[:, BINS:]), FFT_SAMPLES, FFT_HOP_SAMPLES, FFT_SAMPLES, window)
    assert_within(istft(spectrum), expected, 5e-6)
    assert_within(istft(found), wave[:, 0], 5e-6)


@pytest.mark.parametrize("frames", [1, 2, 7])
def test_lengths(vocoder, frames):
    mel = noise(2, 80, frames)
    f0 = vocoder.pitch(mel)
    source = vocoder.source(f0, torch.zeros(2, HARMONICS, 1), noise(2, HARMONICS, HOP_SAMPLES * frames))
    wave = vocoder.decode(mel, source)
    assert f0.shape == (2, frames) and (f0 >= 0).all()
    assert source.shape == (2, 1, HOP_SAMPLES * frames) and wave.shape == (2, HOP_SAMPLES * frames)
    assert wave.isfinite().all() and wave.abs().max() <= 0.99


def test_excitation_goes_on_in_phase(vocoder):
    """Two halves, the second begun where the first ended, are the whole: no click in a long recording."""
    f0 = 80 + 200 * torch.rand(1, 40, generator=torch.Generator().manual_seed(2))
    phase, silence = math.pi * noise(1, HARMONICS, 1), torch.zeros(1, HARMONICS, HOP_SAMPLES * 40)
    whole = vocoder.source(f0, phase, silence)
    half = HOP_SAMPLES * 20
    first = vocoder.source(f0[:, :20], phase, silence[:, :, :half])
    second = vocoder.source(f0[:, 20:], vocoder.advance(f0[:, :20], phase), silence[:, :, half:])
    assert_within(torch.cat((first, second), dim=2), whole, 1e-3)
    assert_within(first, whole[:, :, :half], 1e-6)


def test_context_is_wide_enough(vocoder):
    """A frame that far away changes nothing: pieces decoded with that much beside them equal the whole."""
    mel = noise(1, 80, 4 * CONTEXT_FRAMES)
    source = 0.1 * noise(1, 1, HOP_SAMPLES * mel.shape[2], seed=1)
    changed, changed_source = mel.clone(), source.clone()
    changed[:, :, : CONTEXT_FRAMES] += 1
    changed_source[:, :, : HOP_SAMPLES * CONTEXT_FRAMES] += 0.1
    reached = slice(2 * CONTEXT_FRAMES * HOP_SAMPLES, None)
    assert torch.equal(vocoder.decode(changed, changed_source)[:, reached], vocoder.decode(mel, source)[:, reached])
    assert torch.equal(vocoder.pitch(changed)[:, 2 * CONTEXT_FRAMES :], vocoder.pitch(mel)[:, 2 * CONTEXT_FRAMES :])


def test_batch_is_its_rows(vocoder):
    mel, source = noise(3, 80, 9), 0.1 * noise(3, 1, 9 * HOP_SAMPLES, seed=1)
    together = vocoder.decode(mel, source)
    for row in range(3):
        one = slice(row, row + 1)
        assert_within(together[one], vocoder.decode(mel[one], source[one]), 1e-5)
