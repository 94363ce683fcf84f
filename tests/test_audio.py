"""The audio door: whatever users connect becomes the same sound, or one error in words."""
from __future__ import annotations

import logging
import math
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
import torchaudio
from hypothesis import given
from hypothesis import strategies as st

from kit.audio import BAD_AUDIO, RATE_HZ, UNSPEAKABLE, LazyAudio, audio, good_audio, tone
from speechwright import audio as door
from speechwright.audio import Clip, check_speech, clips, join, one_clip, resample, to_comfy

TOLERANCES = {"uint8": 0.006, "bfloat16": 0.004, "float16": 5e-4, "int16": 1e-3}


def test_a_clip_knows_its_seconds():
    assert Clip(torch.zeros(12_000), RATE_HZ).seconds == 0.5


@pytest.mark.parametrize("name", good_audio(0.1))
def test_every_wrapping_holds_the_same_sound(name):
    """Int16 samples once went in unscaled and came out as a buzz; a transposed view broke ``view``."""
    given_audio = good_audio(0.1)[name]
    clip = one_clip(given_audio, "voice")
    assert type(clip.rate_hz) is int
    expected = tone(seconds=0.1, rate_hz=clip.rate_hz)
    torch.testing.assert_close(clip.wave, expected, atol=TOLERANCES.get(name, 1e-6), rtol=0)
    assert not clip.wave.requires_grad


@pytest.mark.parametrize("channels", [1, 2, 6])
def test_channels_are_averaged_and_time_is_not_stretched(channels):
    """A stereo voice once became twice as long, or only its left side was heard."""
    left = tone(level=0.5)
    wave = torch.stack([left if index % 2 == 0 else -left for index in range(channels)])
    clip = one_clip(audio(wave), "voice")
    assert clip.wave.shape == left.shape
    torch.testing.assert_close(clip.wave, left if channels == 1 else torch.zeros_like(left))


def test_rows_of_a_batch_are_clips_of_their_own():
    waves = torch.stack([tone(hz)[None] for hz in (110, 220, 330)])
    together = clips(audio(waves), "voice")
    for row, clip in enumerate(together):
        assert torch.equal(clip.wave, one_clip(audio(waves[row]), "voice").wave)


def test_one_clip_refuses_a_batch():
    with pytest.raises(ValueError, match="voice: the audio is a batch of 3 recordings.*pick one"):
        one_clip(audio(torch.zeros(3, 1, 9)), "voice")


@pytest.mark.parametrize("dtype, low, high", [
    (torch.int8, -128, 127), (torch.int16, -2**15, 2**15 - 1), (torch.int32, -2**31, 2**31 - 1),
    (torch.uint8, 0, 255),
])
def test_the_full_range_of_integers_is_full_scale(dtype, low, high):
    clip = one_clip(audio(torch.tensor([low, high], dtype=dtype)), "voice")
    assert clip.wave[0] == -1
    assert 0.99 < clip.wave[1] <= 1


def test_a_lazy_mapping_is_read_once_per_key():
    lazy = LazyAudio(audio(tone()))
    clips(lazy, "voice")
    assert lazy.reads == {"waveform": 1, "sample_rate": 1}


@pytest.mark.parametrize("error", [OSError("the file is gone"), KeyError("audio"), ValueError("no stream")])
def test_an_error_of_a_lazy_mapping_passes_through(error):
    with pytest.raises(type(error)) as caught:
        clips(LazyAudio(audio(tone()), error), "voice")
    assert caught.value is error


@pytest.mark.parametrize("name", BAD_AUDIO)
def test_bad_audio_is_one_error_in_words(name):
    make, text = BAD_AUDIO[name]
    with pytest.raises(ValueError, match=text) as caught:
        clips(make(), "source voice")
    assert str(caught.value).startswith("source voice: ")


def test_the_caller_keeps_an_unchanged_recording():
    wave = tone()[None, None]
    before = wave.clone()
    clip = one_clip(audio(wave), "voice")
    clip.wave.zero_()
    assert torch.equal(wave, before)


@pytest.mark.parametrize("name", UNSPEAKABLE)
def test_what_is_no_speech_is_refused(name):
    make, text = UNSPEAKABLE[name]
    with pytest.raises(ValueError, match=f"^voice: .*{text}"):
        check_speech(one_clip(make(), "voice"), "voice", 0.1)


@pytest.mark.parametrize("samples, fits", [(0, False), (1, False), (2399, False), (2400, True), (2401, True)])
def test_speech_has_a_least_length(samples, fits):
    clip = Clip(tone()[:samples], RATE_HZ)
    if fits:
        check_speech(clip, "voice", 0.1)
    else:
        with pytest.raises(ValueError, match=rf"^voice: {samples} samples? \(.*at least 0.1 s of speech"):
            check_speech(clip, "voice", 0.1)


def test_no_samples_are_refused_even_where_any_length_does():
    with pytest.raises(ValueError, match="0 samples"):
        check_speech(Clip(torch.zeros(0), RATE_HZ), "voice", 0.0)


@pytest.mark.parametrize("level_dbfs, offset, silent", [
    (-71.5, 0, False), (-72.5, 0, True), (-72.5, 0.7, True),
])
def test_silence_is_measured_without_the_offset(level_dbfs, offset, silent):
    clip = Clip(tone(level=10 ** (level_dbfs / 20)) + offset, RATE_HZ)
    if silent:
        with pytest.raises(ValueError, match="silent.*-72 dBFS"):
            check_speech(clip, "voice", 0.1)
    else:
        check_speech(clip, "voice", 0.1)


@pytest.mark.parametrize("wave, words", [
    (tone(level=1.5), "peaks at 1.5"),
    (tone(level=3.0).clamp(-1, 1), "clipped"),
    (tone(level=1e-3), "very quiet"),
    (tone(level=0.9), None),
    (tone(level=1.0), None),
])
def test_doubtful_recordings_are_logged_once(wave, words, caplog):
    with caplog.at_level(logging.WARNING, logger=door.__name__):
        check_speech(Clip(wave, RATE_HZ), "voice", 0.1)
    assert len(caplog.messages) == (words is not None)
    assert all(words in message and message.startswith("voice: ") for message in caplog.messages)


USUAL_RATES = [(44_100, 24_000), (44_100, 16_000), (48_000, 24_000), (22_050, 24_000), (8_000, 24_000),
               (96_000, 16_000), (11_025, 16_000), (24_000, 16_000), (16_000, 24_000), (192_000, 24_000)]


@pytest.mark.parametrize("from_hz, to_hz", USUAL_RATES)
@pytest.mark.parametrize("samples", [1, 2, 479, 24_001])
def test_resampling_is_torchaudios(from_hz, to_hz, samples):
    wave = torch.randn(2, samples, generator=torch.Generator().manual_seed(samples))
    ours = resample(wave, from_hz, to_hz)
    assert torch.equal(ours, torchaudio.functional.resample(wave, from_hz, to_hz))
    assert ours.shape[-1] == math.ceil(Fraction(to_hz, from_hz) * samples)


def test_equal_rates_and_no_samples_need_no_work():
    wave, nothing = tone(), torch.zeros(0)
    assert resample(wave, RATE_HZ, RATE_HZ) is wave
    assert resample(nothing, 8_000, RATE_HZ) is nothing


@pytest.mark.parametrize("shape", [(500,), (2, 500), (2, 3, 500)])
def test_every_row_is_resampled_alone(shape):
    wave = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    together = resample(wave, 44_100, 24_000)
    alone = torch.stack([resample(row, 44_100, 24_000) for row in wave.reshape(-1, 500)])
    torch.testing.assert_close(together, alone.reshape(*shape[:-1], -1))


def test_a_strided_view_is_resampled():
    wave = torch.randn(500, 2, generator=torch.Generator().manual_seed(0)).T
    assert torch.equal(resample(wave, 44_100, 24_000), resample(wave.contiguous(), 44_100, 24_000))


@pytest.mark.parametrize("from_hz, to_hz", [
    (44_100, 24_000), (24_000, 44_100), (48_000, 16_000), (11_025, 16_000),
])
@pytest.mark.parametrize("samples", [6_000, 14_699, 14_700, 14_701, 50_003])
def test_blocks_of_a_long_recording_leave_no_trace(from_hz, to_hz, samples, monkeypatch):
    """An hour is resampled in blocks; a filter that does not see across a border would click there."""
    wave = torch.randn(2, samples, generator=torch.Generator().manual_seed(samples))
    whole = resample(wave, from_hz, to_hz)
    monkeypatch.setattr(door, "BLOCK_SAMPLES", 4_000)
    blocks = resample(wave, from_hz, to_hz)
    torch.testing.assert_close(blocks, whole, atol=1e-6, rtol=0)


@pytest.mark.parametrize("from_hz, to_hz", [(44_101, 24_000), (47_951, 16_000), (24_000, 44_101)])
@pytest.mark.parametrize("samples", [1, 2, 30_011])
def test_prime_rates_keep_pitch_and_length(from_hz, to_hz, samples):
    """torchaudio's kernel for 44101 Hz has a thousand million elements: the machine ran out of memory."""
    wave = tone(440, 2.0, from_hz)[:samples].repeat(2, 1)
    out = resample(wave, from_hz, to_hz)
    assert out.shape == (2, math.ceil(Fraction(to_hz, from_hz) * samples))
    assert out.dtype == torch.float32
    if samples > 1000:
        expected = tone(440, 2.0, to_hz)[:out.shape[1]].expand(2, -1)
        torch.testing.assert_close(out[:, 200:-200], expected[:, 200:-200], atol=2e-3, rtol=0)


@pytest.mark.parametrize("from_hz, to_hz", [(0, 24_000), (24_000, 0), (-1, 24_000)])
def test_rates_are_positive(from_hz, to_hz):
    with pytest.raises(ValueError, match=f"from {from_hz} Hz to {to_hz} Hz"):
        resample(tone(), from_hz, to_hz)


def test_missing_torchaudio_is_named_when_it_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchaudio", None)
    monkeypatch.setitem(sys.modules, "torchaudio.functional", None)
    assert resample(tone(), RATE_HZ, RATE_HZ).shape == (RATE_HZ,)
    with pytest.raises(ImportError, match="pip install torchaudio"):
        resample(tone(), RATE_HZ, 16_000)


@pytest.mark.parametrize("rate_hz", [24_000, np.int64(24_000), 24_000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_output_is_exactly_what_comfyui_expects(rate_hz, dtype):
    given_wave = tone(seconds=0.1).to(dtype).requires_grad_()
    out = to_comfy([given_wave], rate_hz)
    assert type(out) is dict and set(out) == {"waveform", "sample_rate"}
    wave = out["waveform"]
    assert wave.shape == (1, 1, 2400) and wave.dtype == torch.float32 and wave.device.type == "cpu"
    assert wave.is_contiguous() and not wave.requires_grad
    assert type(out["sample_rate"]) is int and out["sample_rate"] == 24_000


@given(st.lists(st.integers(1, 50), min_size=1, max_size=4))
def test_rows_go_out_and_come_back_padded_with_zeros(lengths):
    rng = torch.Generator().manual_seed(sum(lengths))
    waves = [torch.rand(length, generator=rng) * 2 - 1 for length in lengths]
    back = clips(to_comfy(waves, RATE_HZ), "voice")
    assert [clip.rate_hz for clip in back] == [RATE_HZ] * len(waves)
    for wave, clip in zip(waves, back):
        assert torch.equal(clip.wave[:len(wave)], wave)
        assert len(clip.wave) == max(lengths) and not clip.wave[len(wave):].any()


def test_loud_output_is_clamped_with_a_word(caplog):
    """Writers of 16 bits wrapped 1.2 around to -0.8: a hard click in the file."""
    loud = tone(level=3.0)
    with caplog.at_level(logging.WARNING, logger=door.__name__):
        wave = to_comfy([tone(), loud], RATE_HZ)["waveform"]
    assert wave.abs().max() == 1 and loud.abs().max() > 2.9
    assert caplog.messages == ["audio row 1 peaks at 3 and is clamped to 1."]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_broken_output_is_never_passed_on(value):
    """numpy's cast made silence of NaN, and the user searched for the fault in the file."""
    wave = tone()
    wave[5] = value
    with pytest.raises(RuntimeError, match="audio row 1: 1 of 24000 samples.*NaN or infinite"):
        to_comfy([tone(), wave], RATE_HZ)


@pytest.mark.parametrize("waves, text", [
    ([], "0 rows"),
    ([torch.zeros(0)], r"row 0: .*got \(0,\)"),
    ([tone(), torch.zeros(1, 5)], r"row 1: .*\(1, 5\)"),
])
def test_no_audio_is_not_output(waves, text):
    with pytest.raises(ValueError, match=text):
        to_comfy(waves, RATE_HZ)


def steepest(wave: torch.Tensor) -> float:
    return float(wave.diff().abs().max()) if len(wave) > 1 else 0.0


PIECES = st.lists(st.integers(0, 3_000), min_size=2, max_size=6)


@given(PIECES, st.data(), st.sampled_from([0.5, 5.0, 20.0]))
def test_joints_neither_click_nor_change_the_length(lengths, data, fade_ms):
    """Pieces of a tone, cut anywhere: no step exceeds the tone's own plus the slope of the fade."""
    count = len(lengths)
    pause = st.sampled_from([0.0, 0.001, 0.05])
    pauses = data.draw(st.lists(pause, min_size=count - 1, max_size=count))
    starts = data.draw(st.lists(st.integers(0, 20_000), min_size=count, max_size=count))
    whole = tone(220, level=0.9)
    pieces = [whole[start:start + length] for start, length in zip(starts, lengths)]
    joined = join(pieces, pauses, RATE_HZ, fade_ms)
    assert len(joined) == sum(lengths) + sum(round(pause * RATE_HZ) for pause in pauses)
    slope = 0.9 / (fade_ms * RATE_HZ / 1000)
    assert steepest(joined) <= steepest(whole) + slope + 1e-6


def test_a_single_piece_is_returned_unaltered():
    wave = tone()
    assert torch.equal(join([wave], [], RATE_HZ, 5), wave)
    assert torch.equal(join([wave], [0.0], RATE_HZ, 5), wave)


def test_silence_after_the_last_piece_is_kept_and_its_edge_falls():
    joined = join([torch.ones(2400)], [0.1], RATE_HZ, 5)
    assert len(joined) == 4800 and not joined[2400:].any()
    assert torch.equal(joined[:2280], torch.ones(2280)) and joined[2399] < 0.01


def test_only_the_edges_at_a_joint_are_faded():
    joined = join([torch.ones(1000), torch.ones(1000)], [0.01], RATE_HZ, 5)
    assert torch.equal(joined[:880], torch.ones(880)) and torch.equal(joined[-880:], torch.ones(880))
    assert not joined[1000:1240].any()


def test_without_a_fade_pieces_are_put_end_to_end():
    joined = join([torch.ones(3), -torch.ones(2)], [0.0], RATE_HZ, 0)
    assert joined.tolist() == [1, 1, 1, -1, -1]


def test_joining_leaves_the_pieces_alone():
    first, second = torch.ones(500), torch.ones(500)
    join([first, second], [0], RATE_HZ, 5)
    assert first.min() == 1 and second.min() == 1


@pytest.mark.parametrize("waves, pauses, text", [
    ([], [], "0 pieces"),
    ([tone()] * 3, [0.0], "3 pieces have 2 joints, but 1 pauses"),
    ([tone()], [0.0, 0.0], "1 pieces have 0 joints, but 2 pauses"),
    ([tone()] * 2, [-0.1], "a pause of -0.1 s"),
    ([tone()] * 2, [math.nan], "a pause of nan s"),
    ([tone()] * 2, [math.inf], "a pause of inf s"),
])
def test_joins_that_cannot_be(waves, pauses, text):
    with pytest.raises(ValueError, match=text):
        join(waves, pauses, RATE_HZ, 5)
