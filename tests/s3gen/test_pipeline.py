"""From clips and tokens to audio: lengths, pieces, windows over long recordings."""
from __future__ import annotations

import pytest
import torch

from kit.golden import assert_within
from kit.tiny import tiny_state
from speechwright.audio import Clip
from speechwright.s3gen import pipeline
from speechwright.s3gen.weights import build
from speechwright.wires import S3_V2, Piece, SpeechTokens

CPU = torch.device("cpu")


def ids(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 6561, (1, count), generator=torch.Generator().manual_seed(seed))


def tokens(*rows: list[Piece]) -> SpeechTokens:
    return SpeechTokens(S3_V2, 25.0, tuple(tuple(row) for row in rows))


def clip(seconds: float, rate_hz: int = 24000, seed: int = 0) -> Clip:
    rng = torch.Generator().manual_seed(seed)
    return Clip(0.1 * torch.randn(round(seconds * rate_hz), generator=rng), rate_hz)


@pytest.fixture(scope="module")
def model():
    return build(tiny_state())


@pytest.fixture(scope="module")
def voice(model):
    return read(model, clip(1.0))


def read(model, recording) -> dict:
    return pipeline.read_voice(model.tokenizer, model.speaker_encoder, recording, CPU)


@pytest.mark.parametrize("rate_hz", [8000, 16000, 22050, 24000, 44100, 48000, 96000])
@pytest.mark.parametrize("seconds", [0.04, 0.1, 1.0, 3.21])
def test_conversion_keeps_the_duration(model, voice, seconds, rate_hz):
    found = pipeline.tokenize(model.tokenizer, clip(seconds, rate_hz), CPU)
    wave, = pipeline.speak(model, tokens([Piece(found)]), voice, seed=0)
    assert found.dtype == torch.int64 and found.shape[0] == 1
    assert abs(len(wave) / pipeline.SAMPLE_RATE_HZ - seconds) <= 0.04


def test_one_piece_is_the_model_s_own_inference(model, voice):
    wave, = pipeline.speak(model, tokens([Piece(ids(20))]), voice, seed=4, steps=3, guidance=0.5)
    expected, _ = model.inference(ids(20), ref_dict=voice, seed=4, n_cfm_timesteps=3, guidance=0.5)
    assert torch.equal(wave, expected[0])


def test_pieces_rows_and_seeds(model, voice):
    """Piece i of a row draws from seed + i, row j begins at seed + j, and each is as it would be alone."""
    first, second = Piece(ids(6), 0.25), Piece(ids(9, seed=1))
    row, other = pipeline.speak(model, tokens([first, second], [second]), voice, seed=10)
    alone = [pipeline.speak(model, tokens([Piece(piece.ids)]), voice, seed=seed)[0]
             for piece, seed in ((first, 10), (second, 11))]
    assert len(row) == 6 * 960 + 6000 + 9 * 960
    assert torch.equal(row[: 6 * 960], alone[0]) and torch.equal(row[-9 * 960 :], alone[1])
    assert not row[6 * 960 : 6 * 960 + 6000].any()
    assert torch.equal(other, alone[1])


def test_pieces_without_a_pause_fade(model, voice):
    pieces = [Piece(ids(6)), Piece(ids(6, seed=1))]
    hard, = pipeline.speak(model, tokens(pieces), voice, seed=1)
    soft, = pipeline.speak(model, tokens(pieces), voice, seed=1, fade_ms=20)
    assert len(hard) == len(soft) == 12 * 960
    assert soft[5 * 960 : 6 * 960].abs().max() <= hard[5 * 960 : 6 * 960].abs().max()
    assert torch.equal(soft[: 5 * 960], hard[: 5 * 960]) and not torch.equal(soft, hard)
    assert hard[6 * 960 : 6 * 960 + 480].abs().max() > 1e-3, "the second piece begins within a sentence"


def test_long_piece(model, voice):
    """Beyond 30 s the flow runs in windows and the vocoder in segments; before the first seam nothing changes."""
    long = ids(1500)
    wave, = pipeline.speak(model, tokens([Piece(long)]), voice, seed=2, steps=1)
    assert len(wave) == 1500 * 960 and wave.isfinite().all()
    again, = pipeline.speak(model, tokens([Piece(long)]), voice, seed=2, steps=1)
    assert torch.equal(wave, again)


def test_windows_meet_in_one_mel(model, voice):
    long, steps = ids(800)[0], 2
    calls = []
    mel = pipeline._mel(model, long, voice, 3, steps, 0.7, "auto", lambda *_: calls.append(1))
    assert mel.shape == (1, 80, 1600) and len(calls) == 2 * steps
    z = pipeline.sampling.flow_noise(80, 50 + 1600, pipeline.sampling.flow_rng(3))
    first = model.flow_inference(
        long[:750], ref_dict=voice, finalize=True, z=z[None, :, : 50 + 1500], n_cfm_timesteps=steps)
    second = model.flow_inference(
        long[650:], ref_dict=voice, finalize=True, z=torch.cat((z[:, :50], z[:, 50 + 1300 :]), 1)[None],
        n_cfm_timesteps=steps)
    assert torch.equal(mel[:, :, :1400], first[:, :, :1400])
    assert torch.equal(mel[:, :, 1408:], second[:, :, 108:])
    between = (1 - torch.linspace(0, 1, 8)) * first[:, :, 1400:1408] + torch.linspace(0, 1, 8) * second[:, :, 100:108]
    assert_within(mel[:, :, 1400:1408], between, 1e-5)


def test_each_piece_in_its_own_voice(model, voice):
    """And what CosyVoice2 does otherwise with the same networks: another start, and no fade."""
    other = read(model, clip(1.4))
    row = [Piece(ids(9, seed)[0][None]) for seed in range(2)]
    chosen = {id(row[0]): voice, id(row[1]): other}
    both, = pipeline.speak(model, tokens(row), lambda piece: chosen[id(piece)], seed=3, steps=1)
    alone = [pipeline.speak(model, tokens([piece]), chosen[id(piece)], seed=3 + index, steps=1, fades_in=not index)[0]
             for index, piece in enumerate(row)]
    assert torch.equal(both, torch.cat(alone))
    asked = []

    def ones(*at: int) -> torch.Tensor:
        asked.append(at)
        return torch.ones(at[:2])

    plain, = pipeline.speak(model, tokens(row[:1]), voice, seed=3, steps=1, start_noise=ones)
    assert asked == [(80, 50 + 18, 3)] and not torch.equal(plain, alone[0])
    assert pipeline.working_bytes(tokens(row), lambda piece: chosen[id(piece)]) == max(
        pipeline.working_bytes(tokens(row), each) for each in (voice, other))


def test_seed_0_is_the_published_noise_for_every_piece(model, voice):
    """As in CosyVoice3. The second piece of CosyVoice2 had the noise of seed 1."""
    asked = []

    def noise(mels: int, frames: int, seed: int) -> torch.Tensor:
        asked.append(seed)
        return torch.ones(mels, frames)

    rows = [Piece(ids(5)[0][None], 0.5)] * 2, [Piece(ids(5)[0][None], 0.5)]
    for seed, expected in ((0, [0, 0, 0]), (7, [7, 8, 8])):
        asked.clear()
        first, second = pipeline.speak(
            model, tokens(*rows), voice, seed=seed, steps=1, start_noise=noise, fades_in=False)
        assert asked == expected and torch.equal(first[: 5 * 960], second[: 5 * 960]) == (seed == 0)


def test_silence_before_the_first_piece_and_the_others(model, voice):
    row = [Piece(ids(5, 0)[0][None], lead_s=0.5), Piece(ids(5, 1)[0][None], 0.25, lead_s=0.125)]
    wave, = pipeline.speak(model, tokens(row), voice, seed=0, steps=1)
    assert len(wave) == 24000 * 0.875 + 2 * 5 * 960
    assert not wave[:12000].any() and not wave[12000 + 4800 :][:3000].any() and not wave[-6000:].any()


def test_segments_of_the_vocoder_are_the_whole(model, monkeypatch):
    """Cut into segments of 50 frames or left whole, the wave is the same but for the noise's own order."""
    mel = torch.randn(1, 80, 130, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(
        pipeline.sampling, "source_noise", lambda harmonics, samples, _: torch.zeros(harmonics, samples))
    whole, _ = model.hift_inference(mel, seed=1)
    monkeypatch.setattr(pipeline, "SEGMENT_FRAMES", 50)
    pieces = pipeline._vocode(model, mel, 1, "auto", lambda: None)
    assert pieces.shape == whole.shape
    assert (pieces - whole).norm() < 0.01 * whole.norm()


def test_progress_covers_everything_and_may_cancel(model, voice):
    seen = []
    rows = tokens([Piece(ids(5)), Piece(ids(5))], [Piece(ids(760))])
    pipeline.speak(model, rows, voice, seed=0, steps=2, on_step=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[0] == (1, 8) and seen[-1] == (8, 8) and {total for _, total in seen} == {8}

    def cancel(done, total):
        raise KeyboardInterrupt

    before = set(model.__dict__)
    with pytest.raises(KeyboardInterrupt):
        pipeline.speak(model, rows, voice, seed=0, on_step=cancel)
    assert set(model.__dict__) == before


class TestVoice:
    def test_long_reference_is_cut_at_a_pause(self, model, caplog):
        recording = clip(14.0)
        recording.wave[round(9.1 * 24000) : round(9.2 * 24000)] = 0
        voice = read(model, recording)
        assert abs(int(voice["prompt_token_len"]) / 25 - 9.15) < 0.1
        assert "14.0 s long; its first 9.1 s are used" in caplog.text

    def test_voice_of_ten_seconds_is_whole(self, model):
        assert int(read(model, clip(10.0))["prompt_token_len"]) == 250

    def test_no_source_is_too_long(self, model):
        assert pipeline.tokenize(model.tokenizer, clip(61, 8000), CPU).shape == (1, 1525)


def test_working_memory_grows_to_a_bound(voice):
    sizes = [pipeline.working_bytes(tokens([Piece(ids(count))]), voice) for count in (1, 100, 750, 750_0)]
    assert sizes[0] < sizes[1] < sizes[2] == sizes[3]
