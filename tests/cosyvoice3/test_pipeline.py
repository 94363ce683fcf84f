"""From clips and tokens to audio by CosyVoice3: voices, seeds, pieces, windows over long speech."""
from __future__ import annotations

import pytest
import torch

from kit.flow import demo_flow, ids
from kit.golden import assert_within
from kit.vocoder import demo_vocoder
from kit.voice import tone
from speechwright.audio import Clip
from speechwright.cosyvoice3 import demo_flow as flow_demo
from speechwright.cosyvoice3 import pipeline
from speechwright.cosyvoice3.flow import mels, start_noise
from speechwright.cosyvoice3.pipeline import Token2Wav
from speechwright.s3gen import demo, features
from speechwright.s3gen.model import REFERENCE_PARTS
from speechwright.s3gen.weights import build
from speechwright.wires import S3_V3, Piece, SpeechTokens

CPU = torch.device("cpu")


def tokens(*rows: list[Piece]) -> SpeechTokens:
    return SpeechTokens(S3_V3, 25.0, tuple(tuple(row) for row in rows))


def piece(count: int, seed: int = 0, pause_s: float = 0.0) -> Piece:
    return Piece(ids(count, seed)[None], pause_s)


def clip(seconds: float, rate_hz: int = 24000, seed: int = 0) -> Clip:
    rng = torch.Generator().manual_seed(seed)
    return Clip(0.1 * torch.randn(round(seconds * rate_hz), generator=rng), rate_hz)


def speak(said: SpeechTokens, voice: dict, **options) -> list[torch.Tensor]:
    return pipeline.speak(Token2Wav(demo_flow(), demo_vocoder()), said, voice, **{"steps": 2, **options})


@pytest.fixture(scope="module")
def readers():
    """The speech tokenizer and the speaker encoder, small and random."""
    config = demo.demo_config()
    model = build(demo.random_state(config), parts=REFERENCE_PARTS, config=config)
    return model.tokenizer, model.speaker_encoder


@pytest.fixture(scope="module")
def voice(readers):
    return pipeline.read_voice(*readers, clip(1.0), CPU)


# Voices


def test_mel_of_a_voice_goes_up_to_half_the_rate(readers):
    """A tone of 220 Hz for one second. Numbers that were published to so many digits."""
    read = pipeline.read_voice(*readers, Clip(tone(24000), 24000), CPU)
    mel = read["prompt_feat"][0]
    assert mel.shape == (50, 80) and mel.sum() == pytest.approx(-38574.22, abs=0.2)
    spots = [mel[25, 0], mel[25, 5], mel[25, 40], mel[25, 79]]
    assert spots == pytest.approx([-5.92296, 1.10071, -11.51293, -11.51293], abs=5e-5)
    top = pipeline.read_voice(*readers, clip(1.0), CPU)["prompt_feat"][0]
    assert_within(top.T, features.mel_24k(clip(1.0).wave[None], 12000.0)[0], 0)
    assert (top.T - features.mel_24k(clip(1.0).wave[None])[0]).abs().max() > 0.1, "S3Gen's, up to 8 kHz"


def test_tokens_and_mel_of_a_voice_are_of_one_length(readers):
    """48160 samples are 76 tokens and 150 frames, so 75 are kept: of the whole recording, not of a shorter one."""
    tokenizer, speaker = readers
    recording = clip(48160 / 16000, 16000)
    read = pipeline.read_voice(tokenizer, speaker, recording, CPU)
    whole = tokenizer.encode(recording.wave)
    assert len(whole) == 76 and read["prompt_token_len"].tolist() == [75]
    assert torch.equal(read["prompt_token"][0], whole[:75]) and read["prompt_feat"].shape == (1, 150, 80)
    assert torch.equal(read["embedding"], speaker(features.fbank(recording.wave)[None]))
    assert read["prompt_token"].dtype == torch.int64


@pytest.mark.parametrize("rate_hz", [16000, 22050, 44100, 48000])
@pytest.mark.parametrize("seconds", [0.1, 0.999, 3.21])
def test_voices_of_any_rate_and_length(readers, seconds, rate_hz):
    read = pipeline.read_voice(*readers, clip(seconds, rate_hz), CPU)
    count = int(read["prompt_token_len"][0])
    assert abs(count - 25 * seconds) <= 1
    assert read["prompt_token"].shape == (1, count) and read["prompt_feat"].shape == (1, 2 * count, 80)
    assert read["embedding"].shape == (1, 192)


def test_voice_that_is_too_short(readers):
    with pytest.raises(ValueError, match="voice: 1200 samples at 24000 Hz are 0.050 s; give at least 0.1 s of speech"):
        pipeline.read_voice(*readers, clip(0.05), CPU)


def test_long_voice_is_cut_at_a_pause(readers, caplog):
    recording = clip(14.0)
    recording.wave[round(9.1 * 24000) : round(9.2 * 24000)] = 0
    read = pipeline.read_voice(*readers, recording, CPU)
    assert abs(int(read["prompt_token_len"]) / 25 - 9.15) < 0.1
    assert "14.0 s long; its first 9.1 s are used" in caplog.text


# Speech


@pytest.mark.parametrize("rate_hz", [8000, 24000, 44100])
@pytest.mark.parametrize("seconds", [0.04, 1.0])
def test_conversion_keeps_the_duration(readers, voice, seconds, rate_hz):
    found = pipeline.tokenize(readers[0], clip(seconds, rate_hz), CPU)
    wave, = speak(tokens([Piece(found)]), voice)
    assert abs(len(wave) / pipeline.SAMPLE_RATE_HZ - seconds) <= 0.04
    assert wave.dtype == torch.float32 and wave.isfinite().all() and 0 < wave.abs().max() <= 0.99


@pytest.mark.parametrize("seed", [0, 6])
def test_one_piece_is_the_flow_and_then_the_vocoder(voice, seed):
    flow = demo_flow()
    wave, = speak(tokens([piece(20)]), voice, seed=seed, steps=3, guidance=0.5)
    prompt = (voice["prompt_token"][0], voice["prompt_feat"][0], voice["embedding"][0])
    noise = start_noise(80, 2 * (25 + 20), seed)
    mel, = mels(flow, [ids(20)], [prompt], [noise], schedule=flow.schedule(3), guidance=0.5)
    # On a CPU both are computed with silence behind them, whose last bits differ.
    torch.testing.assert_close(wave, demo_vocoder()(mel[None], seed=seed)[0], atol=2e-3, rtol=0)


def test_published_number_of_steps(voice):
    one, ten = (speak(tokens([piece(5)]), voice, steps=steps)[0] for steps in (0, 10))
    assert torch.equal(one, ten)


def test_seed_0_is_the_published_noise_for_every_piece(voice):
    """The published model has one noise for all that it ever says; other seeds give each piece its own."""
    said = tokens([piece(6), piece(6)], [piece(6)])
    row, other = speak(said, voice, seed=0)
    assert torch.equal(row[: 6 * 960], row[6 * 960 :]) and torch.equal(row[: 6 * 960], other)
    row, other = speak(said, voice, seed=10)
    assert not torch.equal(row[: 6 * 960], row[6 * 960 :]) and torch.equal(row[6 * 960 :], other)


def test_pieces_rows_and_seeds(voice):
    """Piece i of a row draws from seed + i, row j begins at seed + j, and each is as it would be alone."""
    first, second = piece(6, pause_s=0.25), piece(9, 1)
    row, other = speak(tokens([first, second], [second]), voice, seed=10)
    alone = [speak(tokens([Piece(one.ids)]), voice, seed=seed)[0] for one, seed in ((first, 10), (second, 11))]
    assert len(row) == 6 * 960 + 6000 + 9 * 960
    assert torch.equal(row[: 6 * 960], alone[0]) and torch.equal(row[-9 * 960 :], alone[1])
    assert not row[6 * 960 : 6 * 960 + 6000].any()
    assert torch.equal(other, alone[1])


def test_pieces_without_a_pause_fade(voice):
    said = tokens([piece(6), piece(6, 1)])
    hard, = speak(said, voice, seed=1)
    soft, = speak(said, voice, seed=1, fade_ms=20)
    assert len(hard) == len(soft) == 12 * 960
    assert torch.equal(soft[: 5 * 960], hard[: 5 * 960]) and not torch.equal(soft, hard)
    assert hard[:480].abs().max() > 1e-3, "nothing is muted at the start, unlike in S3Gen"


@pytest.mark.parametrize("seed", [-1, 2**32, 2**63, 2**64 - 1])
def test_every_seed_is_a_seed(voice, seed):
    state = torch.get_rng_state()
    said = tokens([piece(3)], [piece(3)])
    once, again, other = speak(said, voice, seed=seed), speak(said, voice, seed=seed), speak(said, voice, seed=seed + 2)
    assert torch.equal(once[0], again[0]) and torch.equal(once[1], again[1])
    assert not torch.equal(once[0], other[0]) and not torch.equal(once[0], once[1])
    assert torch.equal(state, torch.get_rng_state())


def test_long_piece_is_spoken_in_windows(voice):
    """Beyond 30 s the flow runs in windows that start from one noise; before the first seam nothing changes."""
    def one_bin(mel: torch.Tensor, seed: int, on_segment, segment: int, even: bool) -> torch.Tensor:
        return mel[:, 3]

    long, seen = piece(800), []
    model = Token2Wav(demo_flow(), one_bin)
    wave, = pipeline.speak(model, tokens([long]), voice, steps=2, on_step=lambda *at: seen.append(at))
    first, = pipeline.speak(model, tokens([Piece(long.ids[:, :750])]), voice, steps=2)
    assert len(wave) == 2 * 800 and torch.equal(wave[: 2 * 700], first[: 2 * 700])
    assert not torch.equal(wave[2 * 700 : 2 * 750], first[2 * 700 :])
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_progress_covers_everything_and_may_cancel(voice):
    seen, said = [], tokens([piece(5), piece(5)], [piece(5)])
    speak(said, voice, on_step=lambda *at: seen.append(at))
    assert seen == [(1, 6), (2, 6), (2, 6), (3, 6), (4, 6), (4, 6), (5, 6), (6, 6), (6, 6)]

    def cancel(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        speak(said, voice, on_step=cancel)


def test_voice_a_b_a(readers, voice):
    """Nothing of a call may stay on the networks, and nothing that is passed in may change."""
    networks = (demo_flow(), demo_flow().decoder.estimator, demo_vocoder())
    before = {name: entry.clone() for name, entry in voice.items() if entry is not None}
    attributes = [set(network.__dict__) for network in networks]
    other = pipeline.read_voice(*readers, clip(0.7, seed=4), CPU)
    first, = speak(tokens([piece(6)]), voice)
    between, = speak(tokens([piece(6)]), other)
    second, = speak(tokens([piece(6)]), voice)
    assert torch.equal(first, second) and not torch.equal(between, first)
    assert [set(network.__dict__) for network in networks] == attributes
    assert all(torch.equal(entry, voice[name]) for name, entry in before.items())


def test_ids_that_are_no_speech_reach_no_table(voice):
    with pytest.raises(ValueError, match="id 6561 at position 1 of row 0; speech ids are 0..6560"):
        speak(tokens([Piece(torch.tensor([[3, 6561]]))]), voice)


def test_working_memory_grows_to_a_bound(voice):
    sizes = [pipeline.working_bytes(tokens([piece(count)]), voice) for count in (1, 100, 750, 7500)]
    assert sizes[0] < sizes[1] < sizes[2] == sizes[3]


# The demo


def test_demo_is_small_has_every_row_and_hears_its_tokens(voice):
    state = flow_demo.random_state(flow_demo.demo_config())
    assert sum(tensor.nbytes for tensor in state.values()) < 2.5e6
    assert demo_flow().config == flow_demo.demo_config() and len(demo_flow().input_embedding.weight) == 6561
    again = flow_demo.random_state(flow_demo.demo_config())
    assert all(torch.equal(state[name], again[name]) for name in state)
    one, other = (speak(tokens([piece(6, seed)]), voice)[0] for seed in (0, 1))
    assert (one - other).norm() > 0.3 * one.norm()
