"""Spectra: the golden ones, their frame counts, and what they do with too little or with nothing."""
from __future__ import annotations

import math

import pytest
import torch

from kit.golden import assert_within, load_golden
from kit.voice import golden as cosyvoice3_golden
from kit.voice import tone
from speechwright.s3gen import features

KINDS = {
    # function of a (T,) wave, the least it takes, frames of T samples
    "24 kHz mel": (lambda wave: features.mel_24k(wave[None])[0], 721, lambda samples: samples // 480),
    "16 kHz log-mel": (features.log_mel_16k, 201, lambda samples: samples // 160),
    "16 kHz filterbank": (
        lambda wave: features.fbank(wave).T, 400, lambda samples: 1 + (samples - 400) // 160),
}


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return 0.1 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_mel_is_the_published_one():
    golden = load_golden()
    assert_within(features.mel_24k(golden["in_ref_24k"][None]), golden["mel24"], 2e-5)


def test_log_mel_is_the_published_one():
    golden = load_golden()
    assert_within(features.log_mel_16k(golden["r16"]), golden["logmel16"], 1e-5)


def test_filterbank_is_the_published_one():
    golden = load_golden()
    assert_within(features.fbank(golden["r16"][0])[None], golden["fbank"], 2e-4)


def test_spectra_of_cosyvoice3_are_the_published_ones():
    """The same ones, but that the mel goes up to half of the rate."""
    expected = cosyvoice3_golden("tokenizer_v3")
    at_16k, at_24k = expected["feat.in.wave16k"], expected["feat.in.wave24k"]
    assert_within(features.mel_24k(at_24k[None], top_hz=12000.0)[0], expected["feat.out.mel24k"], 5e-5)
    assert_within(features.log_mel_16k(at_16k), expected["feat.out.whisper128"], 2e-5)
    assert_within(features.fbank(at_16k), expected["feat.out.fbank"], 1e-3)


def test_spectra_of_a_tone():
    """Of 220 Hz for one second. Numbers that were published to so many digits."""
    mel = features.mel_24k(tone(24000)[None], top_hz=12000.0)[0]
    assert mel.shape == (80, 50) and mel.sum() == pytest.approx(-38574.22, abs=0.2)
    spots = [mel[0, 25], mel[5, 25], mel[40, 25], mel[79, 25]]
    assert spots == pytest.approx([-5.92296, 1.10071, -11.51293, -11.51293], abs=5e-5)
    whisper = features.log_mel_16k(tone(16000))
    assert whisper.shape == (128, 100)
    spots = [whisper.mean(), whisper.max(), whisper.min(), whisper[0, 50], whisper[6, 50]]
    assert spots == pytest.approx([-0.33409, 1.43844, -0.56156, 0.07049, 1.10312], abs=2e-5)
    # The mean over time is taken off, but silence lies at a level that is known.
    bins = features.fbank(torch.cat((torch.zeros(16000), tone(16000))))
    spots = (bins[150] - bins[0] + math.log(torch.finfo(torch.float32).eps))[[0, 5, 79]]
    assert spots == pytest.approx([-5.10790, 0.59492, -15.94238], abs=5e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("more", [0, 1, 78, 79, 238, 239, 240, 5000])
def test_number_of_frames(kind, more):
    compute, least, frames = KINDS[kind]
    spectrum = compute(noise(least + more))
    assert spectrum.shape[1] == frames(least + more)
    assert spectrum.dtype == torch.float32
    assert spectrum.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("missing", [1, 2, None])
def test_too_short_a_clip_is_told_what_it_takes(kind, missing):
    """The reflected ends once failed deep inside a padding call that named neither clip nor limit."""
    compute, least, _ = KINDS[kind]
    samples = 0 if missing is None else least - missing
    with pytest.raises(ValueError, match=rf"{kind}: found {samples} samples .* at least {least} "):
        compute(noise(samples))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", [0.0, 0.5])
def test_silence_and_a_constant_are_finite(kind, level):
    compute, _, _ = KINDS[kind]
    assert compute(torch.full((2000,), level)).isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_wave_is_left_as_it_was_in_any_float(kind):
    compute, _, _ = KINDS[kind]
    wave = noise(2000)
    before = wave.clone()
    torch.testing.assert_close(compute(wave.double()), compute(wave), rtol=0, atol=0)
    assert torch.equal(wave, before)


@pytest.mark.parametrize("compute", [features.mel_24k, features.log_mel_16k])
def test_a_row_is_blind_to_its_neighbours(compute):
    """A floor 80 dB under the loudest bin of the whole batch would lift a quiet clip beside a loud one."""
    wave = noise(2, 4000)
    wave[1] *= 1e-4
    both = compute(wave)
    for row in range(2):
        torch.testing.assert_close(both[row], compute(wave[row : row + 1])[0], rtol=0, atol=1e-5)


def test_log_mel_floor_is_that_of_the_clip():
    """80 dB, two units after scaling, under the loudest bin; the silent half lies on the floor."""
    wave = torch.cat((noise(8000), torch.zeros(8000)))
    mel = features.log_mel_16k(wave)
    torch.testing.assert_close(mel.amax() - mel.amin(), torch.tensor(2.0))
    assert (mel[:, 60:] == mel.amin()).all()


def test_filterbank_has_no_mean_over_time():
    torch.testing.assert_close(features.fbank(noise(16000)).mean(dim=0), torch.zeros(80), rtol=0, atol=1e-5)


@pytest.mark.parametrize("table", [
    lambda: features.slaney_filters(16000, 400, 20), lambda: features.hann_window(222)])
def test_tables_made_under_inference_serve_elsewhere(table):
    """ComfyUI runs nodes in inference mode, and a tensor made there may not meet gradients later."""
    with torch.inference_mode():
        table()
    assert not table().is_inference()
