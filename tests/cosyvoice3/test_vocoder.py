"""The causal vocoder: golden values, and the laws of streaming, batches, noise and phases."""
from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kit.golden import assert_within
from kit.vocoder import FINALIZE, demo_vocoder, golden_vocoder, random_mel
from kit.voice import golden
from speechwright.cosyvoice3.excitation import PITCH_CONTEXT_FRAMES, TURN, phases, source_noise
from speechwright.cosyvoice3.sampling import hashed_uniform
from speechwright.cosyvoice3.vocoder import CONTEXT_FRAMES, HELD_FRAMES
from speechwright.s3gen.vocoder import HARMONICS, HOP_SAMPLES, SAMPLE_RATE_HZ

SAME = 1e-6         # one thing computed in two ways
NEARLY = 1e-5       # in convolutions of other sizes


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def of_case(case: str, name: str) -> Tensor:
    return golden("vocoder")[f"{case}.{name}"]


def table() -> Tensor:
    return golden("vocoder")["in.noise"]


def each_case():
    return pytest.mark.parametrize("case, finalize", FINALIZE.items())


# Golden values


@each_case()
@pytest.mark.parametrize("exact, gate", [(True, 1e-9), (False, 1e-3)])
def test_golden_pitch(case, finalize, exact, gate):
    found = golden_vocoder().pitch(of_case(case, "in.mel")[None], finalize, exact)
    assert found.dtype == (torch.float64 if exact else torch.float32)
    assert_within(found[0], of_case(case, "out.f0"), gate)


@each_case()
def test_golden_source(case, finalize):
    f0 = of_case(case, "out.f0")[None]
    found = golden_vocoder().source(f0, table()[None, : HOP_SAMPLES * f0.shape[1]])
    assert_within(found[0, 0], of_case(case, "out.source"), 2e-4)


@each_case()
def test_golden_wave_of_the_golden_source(case, finalize):
    source = of_case(case, "out.source")[None, None]
    found = golden_vocoder().decode(of_case(case, "in.mel")[None], source, finalize)
    assert_within(found[0], of_case(case, "out.wave"), 2e-5)


@each_case()
@pytest.mark.parametrize("exact", [True, False])
def test_golden_wave(case, finalize, exact):
    found = golden_vocoder()(of_case(case, "in.mel")[None], noise=table(), finalize=finalize, exact=exact)
    assert_within(found[0], of_case(case, "out.wave"), 5e-4)


def test_golden_wave_without_noise():
    vocoder, mel = golden_vocoder(), of_case("zero_noise", "in.mel")[None]
    silence = torch.zeros(1, HOP_SAMPLES * mel.shape[2], HARMONICS)
    assert_within(vocoder.source(vocoder.pitch(mel), silence)[0, 0], of_case("zero_noise", "out.source"), 2e-4)
    assert_within(vocoder(mel, noise=silence)[0], of_case("zero_noise", "out.wave"), 5e-4)


# Lengths and streaming


@pytest.mark.parametrize("frames", [0, 1, 2, 3, 4, 5, 8, 9])
def test_lengths(frames):
    wave = demo_vocoder()(random_mel(frames, rows=2))
    assert wave.shape == (2, HOP_SAMPLES * frames) and wave.dtype == torch.float32
    assert wave.isfinite().all() and (frames == 0 or 0.01 < wave.abs().max() <= 0.99)


@pytest.mark.parametrize("frames", [9, 10, 13, 14, 17, 20, 22, 36, 47, 59])
def test_a_stream_is_the_beginning_of_the_whole(frames):
    """Convolutions of little are computed in other ways, so a short beginning used to be off in its last bits."""
    vocoder, mel = golden_vocoder(), random_mel(60, seed=1)
    found = vocoder(mel[:, :, :frames], seed=3, finalize=False)
    assert found.shape == (1, HOP_SAMPLES * (frames - HELD_FRAMES))
    assert_within(found, vocoder(mel, seed=3)[:, : found.shape[1]], SAME)


@pytest.mark.parametrize("finalize", [True, False])
@pytest.mark.parametrize("frames, segment", [(10, 1), (61, 9), (60, 59), (60, 60), (67, 60), (64, 31)])
def test_segments_are_the_whole(frames, segment, finalize):
    """Long speech is decoded in pieces, so that it takes no more memory than 20 s of it. A frame may stand
    elsewhere in the blocks in which convolutions are computed, which shows in its last bits."""
    vocoder, mel = golden_vocoder(), random_mel(frames, rows=2)
    calls = []
    found = vocoder(mel, seed=3, finalize=finalize, segment=segment, on_segment=lambda: calls.append(0))
    assert_within(found, vocoder(mel, seed=3, finalize=finalize), NEARLY)
    heard = frames - (0 if finalize else HELD_FRAMES)
    assert len(calls) == -(-heard // segment)


def test_a_table_of_noise_serves_segments_too():
    vocoder, mel = golden_vocoder(), random_mel(47)
    assert_within(vocoder(mel, noise=table(), segment=13), vocoder(mel, noise=table()), NEARLY)


class Largest(TorchFunctionMode):
    """Counts the numbers of the largest tensor that is computed meanwhile."""

    numbers = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.numbers = max(self.numbers, result.numel())
        return result


def test_memory_does_not_grow_with_the_length():
    """The published noise alone took 259 MB, and pitch and excitation of minutes were computed at once."""
    found = {}
    for frames in (120, 150):
        with Largest() as largest:
            demo_vocoder()(random_mel(frames), segment=40)
        found[frames] = largest.numbers
    assert found[120] == found[150]
    with Largest() as whole:
        demo_vocoder()(random_mel(150))
    assert whole.numbers > 1.5 * found[150]


def test_even_segments_are_of_two_lengths_and_say_the_same(monkeypatch):
    """torch keeps how it computes each length: a text of many pieces took a gigabyte of that."""
    vocoder, lengths = demo_vocoder(), set()
    mels = [random_mel(frames) for frames in (1, 7, 20, 21, 40, 41, 60, 61, 97)]
    expected = [vocoder(mel, segment=40) for mel in mels]
    monkeypatch.setattr(vocoder.conv_pre, "forward", lambda x, own=vocoder.conv_pre.forward: (
        lengths.add(x.shape[-1]), own(x))[1])
    for mel, wave in zip(mels, expected):
        torch.testing.assert_close(vocoder(mel, segment=40, even=True), wave, rtol=0, atol=1e-5)
    assert len(lengths) == 2


def test_cancelling_between_segments():
    calls = []

    def cancel():
        calls.append(0)
        if len(calls) == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        demo_vocoder()(random_mel(30), segment=10, on_segment=cancel)
    assert len(calls) == 2


def test_context_is_as_wide_as_it_has_to_be():
    """A frame that far back changes nothing, and one that is nearer does."""
    vocoder, mel = golden_vocoder(), random_mel(2 * CONTEXT_FRAMES)
    source = 0.1 * torch.randn(1, 1, HOP_SAMPLES * mel.shape[2], generator=torch.Generator().manual_seed(1))
    before, f0 = vocoder.decode(mel, source), vocoder.pitch(mel)
    for frame, reached in ((CONTEXT_FRAMES - 1, False), (CONTEXT_FRAMES + 2, True)):
        changed, changed_source = mel.clone(), source.clone()
        changed[:, :, : frame + 1] += 1
        changed_source[:, :, : HOP_SAMPLES * (frame + 1)] += 0.1
        after = vocoder.decode(changed, changed_source)[:, HOP_SAMPLES * 2 * CONTEXT_FRAMES - HOP_SAMPLES :]
        assert torch.equal(after, before[:, -HOP_SAMPLES:]) != reached
    changed = mel.clone()
    changed[:, :, :20] += 1
    assert torch.equal(vocoder.pitch(changed)[:, 20 + PITCH_CONTEXT_FRAMES :], f0[:, 20 + PITCH_CONTEXT_FRAMES :])
    assert not torch.equal(vocoder.pitch(changed)[:, 19 + PITCH_CONTEXT_FRAMES], f0[:, 19 + PITCH_CONTEXT_FRAMES])


def test_what_is_held_back_is_needed():
    """One frame fewer, and its end would not be known: neither the pitch nor the wave may look further."""
    vocoder, mel = golden_vocoder(), random_mel(30)
    last = HOP_SAMPLES * (20 - HELD_FRAMES)
    changed = mel.clone()
    changed[:, :, 20:] += 1
    assert_within(vocoder(changed)[:, :last], vocoder(mel)[:, :last], SAME)
    ended = vocoder(mel[:, :, :20])
    assert not torch.allclose(ended[:, last : last + HOP_SAMPLES * 8], vocoder(mel)[:, last : last + HOP_SAMPLES * 8],
                              atol=1e-3)


def test_eight_frames_are_nothing_yet():
    assert demo_vocoder()(random_mel(8, rows=3), finalize=False).shape == (3, 0)


@pytest.mark.parametrize("frames", [0, 7])
def test_fewer_frames_than_are_held_back(frames):
    with pytest.raises(ValueError, match=rf"mel: {frames} frames with finalize=False, which holds back 8; give at"):
        demo_vocoder()(random_mel(frames), finalize=False)


# Rows and runs


def test_a_row_is_blind_to_its_neighbours():
    vocoder, mel = golden_vocoder(), random_mel(12, rows=3)
    mel[1] *= 3
    together = vocoder(mel, seed=5)
    for row in range(3):
        assert_within(together[row : row + 1], vocoder(mel[row : row + 1], seed=5 + row), NEARLY)


def test_the_same_twice_and_another_between():
    vocoder, first, second = golden_vocoder(), random_mel(9), random_mel(14, seed=1)
    before = first.clone()
    expected = vocoder(first, seed=1)
    vocoder(second, seed=2)
    assert torch.equal(vocoder(first, seed=1), expected) and torch.equal(first, before)


def test_global_generators_are_left_alone():
    before = torch.get_rng_state()
    demo_vocoder()(random_mel(4))
    assert torch.equal(torch.get_rng_state(), before)


# Noise


def test_noise_is_a_function_of_the_seed_and_the_place():
    whole = source_noise(7, 2, 0, 6)
    assert whole.shape == (2, 6 * HOP_SAMPLES, HARMONICS)
    assert torch.equal(source_noise(7, 2, 4, 2), whole[:, 4 * HOP_SAMPLES :])
    assert torch.equal(source_noise(8, 1, 0, 6), whole[1:])
    assert source_noise(7, 2, 5, 0).shape == (2, 0, HARMONICS)


def test_noise_is_uniform():
    noise = source_noise(0, 1, 0, 20)[0]
    assert 0 < noise.min() and noise.max() < 1
    assert noise.mean(dim=0).sub(0.5).abs().max() < 0.02
    assert noise.std(dim=0).sub(1 / math.sqrt(12)).abs().max() < 0.01
    assert torch.corrcoef(noise.T).triu(diagonal=1).abs().max() < 0.05
    for step in (1, HOP_SAMPLES):
        assert torch.corrcoef(torch.stack((noise[:-step, 0], noise[step:, 0])))[0, 1].abs() < 0.05


def test_noise_is_not_that_of_the_tokens():
    """The sampler of tokens hashes the same seeds: with its salts the breath would follow the words."""
    seed, step = torch.tensor([0]), torch.tensor([0])
    drawn = {salt: hashed_uniform(seed, step, salt, HARMONICS) for salt in (1, 2)}
    assert all(not torch.equal(source_noise(0, 1, 0, 1)[:, 0], other) for other in drawn.values())


def test_seeds_differ_and_any_integer_is_one():
    vocoder, mel = demo_vocoder(), random_mel(5)
    waves = [vocoder(mel, seed=seed) for seed in (0, 1, 2**32, 2**63, 2**64 - 1)]
    assert all(not torch.equal(a, b) for i, a in enumerate(waves) for b in waves[:i])
    assert torch.equal(vocoder(mel, seed=-1), waves[-1])


@pytest.mark.parametrize("shape", [(5 * HOP_SAMPLES - 1, 9), (5 * HOP_SAMPLES, 8), (3, 5 * HOP_SAMPLES, 9), (9,)])
def test_a_table_that_does_not_fit(shape):
    with pytest.raises(ValueError, match=rf"noise: expected \(2, {5 * HOP_SAMPLES} or more, 9\), got"):
        demo_vocoder()(random_mel(5, rows=2), noise=torch.zeros(shape))


@pytest.mark.parametrize("shape", [(80, 9), (1, 81, 9), (1, 1, 80, 9)])
def test_a_mel_that_does_not_fit(shape):
    with pytest.raises(ValueError, match=r"mel: expected \(B, 80, F\), got"):
        demo_vocoder()(torch.zeros(shape))


# The source


def plain_source(f0: Tensor) -> Tensor:
    """Pitches float64 (F,) -> (F, 9): voiced harmonics by the definition, summed up in double precision."""
    cycles = torch.cumsum(f0[:, None] * torch.arange(1, 10) * (HOP_SAMPLES / SAMPLE_RATE_HZ), dim=0)
    return 0.1 * torch.sin(2 * math.pi * cycles) * (f0 > 10)[:, None]


def test_source_is_constant_within_a_frame():
    vocoder = golden_vocoder()
    f0 = torch.tensor([[5.0, 150, 151, 9, 220]])
    source = vocoder.source(f0, torch.zeros(1, 5 * HOP_SAMPLES, HARMONICS))[0, 0].view(5, HOP_SAMPLES)
    assert torch.equal(source, source[:, :1].expand_as(source))
    linear = vocoder.m_source.l_linear
    assert_within(source[:, 0], torch.tanh(linear(plain_source(f0[0].double()).float()))[:, 0], SAME)


@pytest.mark.parametrize("f0, amplitude", [(10.0, 0.1 / 3), (10.01, 0.003), (0.0, 0.1 / 3), (200.0, 0.003)])
def test_noise_is_louder_without_voice(f0, amplitude):
    """At exactly 10 Hz there is none yet."""
    vocoder = golden_vocoder()
    noise = torch.rand(1, HOP_SAMPLES, HARMONICS, generator=torch.Generator().manual_seed(0))
    pitch = torch.tensor([[f0]])
    held = plain_source(pitch[0].double()).float()
    expected = torch.tanh(vocoder.m_source.l_linear(held + amplitude * noise[0]))[:, 0]
    assert_within(vocoder.source(pitch, noise)[0, 0], expected, SAME)


def test_phases_do_not_drift():
    """In float32 the sum of five minutes of pitch had no decimal left, and every voice went hoarse."""
    f0 = (100 + 300 * torch.rand(15000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).float()
    turns = phases(f0[None])[0].double() / TURN
    expected = torch.cumsum(f0.double() * (HOP_SAMPLES / SAMPLE_RATE_HZ), dim=0) % 1
    apart = (turns - expected + 0.5) % 1 - 0.5
    assert apart.abs().max() < 1e-6


def test_source_goes_on_in_phase():
    vocoder = golden_vocoder()
    f0 = 300 * torch.rand(2, 40, generator=torch.Generator().manual_seed(2))
    noise = source_noise(0, 2, 0, 40)
    whole, half = vocoder.source(f0, noise), 17 * HOP_SAMPLES
    start = vocoder.advance(f0[:, :17])
    first = vocoder.source(f0[:, :17], noise[:, :half])
    second = vocoder.source(f0[:, 17:], noise[:, half:], start)
    assert_within(torch.cat((first, second), dim=2), whole, SAME)
