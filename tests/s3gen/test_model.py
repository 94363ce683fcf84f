"""The composed model: golden files at full size, and the laws at a tiny one."""
from __future__ import annotations

import pytest
import torch

from kit.golden import assert_within, golden_state, load_golden, source_noise
from kit.tiny import tiny_config, tiny_state
from speechwright.s3gen import generate, sampling
from speechwright.s3gen.config import S3GenConfig
from speechwright.s3gen.model import PARTS, SYNTHESIS_PARTS, S3Token2Wav, fade_in, token_rows
from speechwright.s3gen.weights import build

LOOKAHEAD_FRAMES = 6


def voice_of(golden: dict) -> dict:
    """The golden voice as a ``ref_dict``."""
    return {
        "prompt_token": golden["tok"], "prompt_token_len": torch.tensor([80]),
        "prompt_feat": golden["mel24"].transpose(1, 2), "prompt_feat_len": None, "embedding": golden["xvec"],
    }


@pytest.fixture(scope="module", params=["base", "meanflow"])
def full_size(request):
    """(model of the golden weights, golden arrays): speech only, since the rest has tests of its own."""
    meanflow = request.param == "meanflow"
    state = {
        prefix + name: tensor for prefix in ("flow.", "mel2wav.")
        for name, tensor in golden_state(prefix, meanflow).items()
    }
    model = build(state, parts=SYNTHESIS_PARTS, config=S3GenConfig.default(meanflow))
    return model, load_golden("base") | (load_golden("meanflow") if meanflow else {})


@pytest.fixture(scope="module")
def tiny():
    return build(tiny_state())


@pytest.fixture(scope="module")
def tiny_voice(tiny):
    return tiny.embed_ref(speechlike(1.3), 24000)


def speechlike(seconds: float, rate_hz: int = 24000, pitch_hz: float = 130.0) -> torch.Tensor:
    """(T,) a buzz with a little noise."""
    time = torch.arange(int(seconds * rate_hz)) / rate_hz
    buzz = sum(torch.sin(2 * torch.pi * pitch_hz * k * time) / k for k in range(1, 9))
    noise = torch.randn(len(time), generator=torch.Generator().manual_seed(3))
    return 0.1 * buzz + 0.003 * noise


def ids(count: int, seed: int = 0, rows: int = 1) -> torch.Tensor:
    return torch.randint(0, 6561, (rows, count), generator=torch.Generator().manual_seed(seed))


class TestGolden:
    def test_encoder_and_speaker(self, full_size):
        model, golden = full_size
        tokens = torch.cat((golden["tok"][0], golden["in_tokens"][0]))
        embedded = model.flow.input_embedding(tokens[None])
        assert_within(model.flow.encoder(embedded), golden_base("enc"), 3e-5)
        condition = model.flow.condition([tokens], [golden["mel24"][0].T], golden["xvec"], finalize=True)
        assert_within(condition.mu, golden_base("mu").reshape(condition.mu.shape), 3e-5)
        assert_within(condition.speaker, golden_base("spk"), 1e-6)

    def test_estimator(self, full_size):
        model, golden = full_size
        estimator = model.flow.decoder.estimator
        mu, z = golden_base("mu").reshape(1, 240, 80), golden["in_z"].transpose(1, 2)
        speaker = golden_base("spk")[:, None].expand(1, 240, 80)
        prompt = torch.zeros(1, 240, 80)
        prompt[:, :160] = golden["mel24"].transpose(1, 2)
        t, r = (0.0, 0.5) if estimator.meanflow else (0.3, None)
        time = estimator.embed_time(torch.tensor([t]), None if r is None else torch.tensor([r]))
        found = estimator(torch.cat((z, mu, speaker, prompt), dim=-1), time)
        assert_within(found.transpose(1, 2), golden["est_out"], 5e-5)
        if not estimator.meanflow:
            found = estimator(torch.cat((z, torch.zeros(1, 240, 240)), dim=-1), time)
            assert_within(found.transpose(1, 2), golden["est_unc"], 5e-5)

    def test_mel(self, full_size):
        model, golden = full_size
        mel = model.flow_inference(golden["in_tokens"], ref_dict=voice_of(golden), finalize=True, z=golden["in_z"])
        assert_within(mel, golden["mel"], 1e-4)

    def test_pitch(self, full_size):
        model, golden = full_size
        expected = golden["f0"].reshape(1, -1)
        assert_within(model.mel2wav.pitch(golden["mel"]), expected, 2e-6 * expected.max().item())

    def test_source(self, full_size):
        model, golden = full_size
        phase = golden["in_phase"].clone()
        phase[:, 0] = 0
        found = model.mel2wav.source(golden["f0"].reshape(1, -1), phase, golden["in_noise"])
        assert_within(found, golden["source"], 1e-5)

    def test_source_at_the_border_of_voicing(self, full_size):
        model, _ = full_size
        given = load_golden("source")
        phase = given["phase"].clone()
        phase[:, 0] = 0
        assert_within(model.mel2wav.source(given["f0"], phase, source_noise()), given["source"], 1e-5)

    def test_wave_from_mel_and_source(self, full_size):
        model, golden = full_size
        assert_within(model.mel2wav.decode(golden["mel"], golden["source"]), golden["wav_raw"], 3e-4)

    def test_wave_from_tokens(self, full_size):
        """The pitch is summed up over the whole wave, which makes a small difference of it a large one."""
        model, golden = full_size
        wave, source = model.inference(
            golden["in_tokens"], ref_dict=voice_of(golden), z=golden["in_z"], phase=golden["in_phase"],
            noise=golden["in_noise"])
        assert source.shape == (1, 1, 38400)
        assert_within(wave, golden["wav"], 5e-2)

    def test_lookahead(self, full_size):
        """With finalize off, the last three tokens are seen but not spoken; the original crashes there."""
        model, golden = full_size
        tokens = torch.cat((golden["tok"][0], golden["in_tokens"][0]))
        voice = ([golden["mel24"][0].T], golden["xvec"])
        whole = model.flow.condition([tokens], *voice, finalize=True)
        held = model.flow.condition([tokens], *voice, finalize=False)
        assert_within(held.mu, whole.mu[:, :-LOOKAHEAD_FRAMES], 3e-5)


def golden_base(name: str) -> torch.Tensor:
    return load_golden("base")[name]


class TestLaws:
    @pytest.mark.parametrize("finalize", [True, False])
    def test_rows_are_blind_to_their_neighbours(self, tiny, tiny_voice, finalize):
        """Rows of unlike length share a batch: padding must reach neither attention, lookahead nor vocoder."""
        lengths = [4, 7, 50]
        batch = ids(50, rows=3)
        arguments = {"ref_dict": tiny_voice, "finalize": finalize}
        waves, sources = tiny.inference(batch, speech_token_lens=lengths, seed=5, **arguments)
        mels = tiny.flow_inference(batch, speech_token_lens=lengths, seed=5, **arguments)
        for row, length in enumerate(lengths):
            one = batch[row : row + 1, :length]
            wave, source = tiny.inference(one, seed=5 + row, **arguments)
            mel = tiny.flow_inference(one, seed=5 + row, **arguments)
            assert torch.equal(mels[row : row + 1, :, : mel.shape[2]], mel)
            assert torch.equal(waves[row : row + 1, : wave.shape[1]], wave)
            assert torch.equal(sources[row : row + 1, :, : source.shape[2]], source)
            assert not waves[row, wave.shape[1] :].any() and not mels[row, :, mel.shape[2] :].any()

    @pytest.mark.parametrize("finalize", [True, False])
    def test_padded_batch_is_its_rows(self, tiny, tiny_voice, finalize):
        """On a GPU rows of unlike length run together: encoder and estimator must not see the padding."""
        lengths = [4, 7, 50]
        rows = [ids(50, seed=n)[0, :n] for n in lengths]
        mel, embedding = tiny_voice["prompt_feat"][0], tiny_voice["embedding"][0]
        noise = [sampling.flow_noise(80, 2 * (n + tiny_voice["prompt_token"].shape[1]), sampling.flow_rng(1, i))
                 for i, n in enumerate(lengths)]
        voices = [(tiny_voice["prompt_token"][0], mel, embedding)] * 3
        arguments = (finalize, 10, 0.7, None, torch.device("cpu"))
        together = tiny._flow(rows, voices, noise, *arguments)
        for index in range(3):
            alone = tiny._flow(rows[index : index + 1], voices[:1], noise[index : index + 1], *arguments)
            assert_within(together[index], alone[0], 1e-5)

    def test_each_row_may_have_its_own_voice(self, tiny, tiny_voice):
        other = tiny.embed_ref(speechlike(0.8, pitch_hz=210), 24000)
        short = other["prompt_token"].shape[1]
        pad = tiny_voice["prompt_token"].shape[1] - short
        both = {
            "prompt_token": torch.cat((tiny_voice["prompt_token"], pad_end(other["prompt_token"], pad, 1))),
            "prompt_token_len": torch.cat((tiny_voice["prompt_token_len"], other["prompt_token_len"])),
            "prompt_feat": torch.cat((tiny_voice["prompt_feat"], pad_end(other["prompt_feat"], 2 * pad, 1))),
            "prompt_feat_len": None,
            "embedding": torch.cat((tiny_voice["embedding"], other["embedding"])),
        }
        batch = ids(9, rows=2)
        mels = tiny.flow_inference(batch, ref_dict=both, finalize=True, seed=2)
        for row, voice in enumerate((tiny_voice, other)):
            assert_within(
                mels[row : row + 1], tiny.flow_inference(batch[row], ref_dict=voice, finalize=True, seed=2 + row), 1e-5)

    def test_pinned_noise_is_per_row(self, tiny, tiny_voice):
        batch = ids(6, rows=2)
        prompt = 2 * tiny_voice["prompt_token"].shape[1]
        z = torch.randn(2, 80, prompt + 12, generator=torch.Generator().manual_seed(1))
        together = tiny.flow_inference(batch, ref_dict=tiny_voice, finalize=True, z=z)
        for row in range(2):
            alone = tiny.flow_inference(batch[row], ref_dict=tiny_voice, finalize=True, z=z[row : row + 1])
            assert_within(together[row : row + 1], alone, 1e-5)

    def test_seed_is_the_draws_it_makes(self, tiny, tiny_voice):
        """Giving the draws of a seed by hand is the same as giving the seed."""
        tokens = ids(5)
        frames = 2 * (tiny_voice["prompt_token"].shape[1] + 5)
        rng = sampling.vocoder_rng(7)
        pinned = {
            "z": sampling.flow_noise(80, frames, sampling.flow_rng(7))[None],
            "phase": sampling.start_phase(9, rng)[None], "noise": sampling.source_noise(9, 4800, rng)[None],
        }
        by_hand, _ = tiny.inference(tokens, ref_dict=tiny_voice, **pinned)
        by_seed, _ = tiny.inference(tokens, ref_dict=tiny_voice, seed=7)
        assert torch.equal(by_hand, by_seed)

    @pytest.mark.parametrize("seed", [-1, 0, 2**31, 2**32, 2**63, 2**64 - 1])
    def test_every_seed_is_a_seed(self, tiny, tiny_voice, seed):
        """Seeds reach 2**64 - 1 in ComfyUI, and row i adds i to them."""
        state = torch.get_rng_state()
        once, _ = tiny.inference(ids(3, rows=2), ref_dict=tiny_voice, seed=seed)
        torch.manual_seed(99)
        torch.set_rng_state(state)
        again, _ = tiny.inference(ids(3, rows=2), ref_dict=tiny_voice, seed=seed)
        other, _ = tiny.inference(ids(3, rows=2), ref_dict=tiny_voice, seed=seed + 2)
        assert torch.equal(once, again) and not torch.equal(once, other)
        assert torch.equal(state, torch.get_rng_state())

    def test_stages_add_up(self, tiny, tiny_voice):
        tokens = ids(5)
        mel = tiny.flow_inference(tokens, ref_dict=tiny_voice, finalize=True, seed=3)
        wave, source = tiny.hift_inference(mel, seed=3)
        whole, whole_source = tiny.inference(tokens, ref_dict=tiny_voice, seed=3)
        forward, _ = tiny(tokens, ref_dict=tiny_voice, seed=3)
        assert mel.shape == (1, 80, 10) and wave.shape == (1, 4800)
        assert torch.equal(fade_in(wave), whole) and torch.equal(source, whole_source)
        assert torch.equal(forward, whole)

    def test_cached_voice_is_a_fresh_one(self, tiny, tiny_voice):
        tokens = ids(4)
        fresh, _ = tiny.inference(tokens, ref_wav=speechlike(1.3), ref_sr=24000, seed=1)
        cached, _ = tiny.inference(tokens, ref_dict=tiny_voice, seed=1)
        assert torch.equal(fresh, cached)

    def test_voice_a_b_a(self, tiny, tiny_voice):
        """Nothing of a call may stay on the model, and nothing that is passed in may change."""
        before = {name: entry.clone() for name, entry in tiny_voice.items() if entry is not None}
        attributes = set(tiny.__dict__)
        other = tiny.embed_ref(speechlike(0.9, pitch_hz=220), 24000)
        first, _ = tiny.inference(ids(6), ref_dict=tiny_voice, seed=1)
        between, _ = tiny.inference(ids(9), ref_dict=other, seed=2)
        second, _ = tiny.inference(ids(6), ref_dict=tiny_voice, seed=1)
        assert torch.equal(first, second) and between.shape != first.shape
        assert set(tiny.__dict__) == attributes
        for name, entry in before.items():
            assert torch.equal(entry, tiny_voice[name]) and entry.dtype == tiny_voice[name].dtype

    def test_kept_source_goes_on(self, tiny, tiny_voice):
        mel = tiny.flow_inference(ids(5), ref_dict=tiny_voice, finalize=True)
        _, source = tiny.hift_inference(mel, seed=1)
        _, other = tiny.hift_inference(mel, seed=2)
        _, mixed = tiny.hift_inference(mel, cache_source=source[:, :, :960], seed=2)
        assert torch.equal(mixed[:, :, :960], source[:, :, :960])
        assert torch.equal(mixed[:, :, 960:], other[:, :, 960:])

    def test_progress_counts_steps_and_may_cancel(self, tiny, tiny_voice):
        seen = []

        def cancel(done, total):
            seen.append((done, total))
            if done == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            tiny.inference(ids(4), ref_dict=tiny_voice, on_step=cancel)
        assert seen == [(1, 10), (2, 10), (3, 10)]

    def test_inference_mode_inside_and_out(self, tiny):
        """ComfyUI runs nodes in inference mode; what a run leaves behind must serve outside it as well."""
        with torch.inference_mode():
            model = build(tiny_state(seed=4))
            voice = model.embed_ref(speechlike(1.0), 24000)
            inside, _ = model.inference(ids(4), ref_dict=voice)
        outside, _ = model.inference(ids(4), ref_dict=voice)
        assert torch.equal(inside, outside)
        assert not any(tensor.is_inference() for tensor in model.state_dict().values())

    def test_guidance_of_zero_is_no_guidance(self, tiny, tiny_voice):
        plain = tiny.flow_inference(ids(4), ref_dict=tiny_voice, finalize=True, guidance=0.0)
        faint = tiny.flow_inference(ids(4), ref_dict=tiny_voice, finalize=True, guidance=1e-7)
        assert_within(plain, faint, 1e-4)

    def test_bfloat16_estimator_stays_near(self, tiny, tiny_voice):
        """Only the estimator runs in bfloat16; ids, voice and vocoder stay as they are."""
        half = build(tiny_state(), dtype=torch.bfloat16)
        assert half.flow.encoder.after_norm.weight.dtype == torch.float32
        voice = half.embed_ref(speechlike(1.3), 24000)
        assert torch.equal(voice["prompt_token"], tiny_voice["prompt_token"])
        mel = half.flow_inference(ids(20), ref_dict=voice, finalize=True, seed=1)
        exact = tiny.flow_inference(ids(20), ref_dict=tiny_voice, finalize=True, seed=1)
        assert mel.dtype == torch.float32
        assert (mel - exact).norm() < 0.05 * exact.norm()


class TestSizes:
    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_few_tokens(self, tiny, tiny_voice, count):
        """A wave shorter than the 40 ms fade once broke on the fade."""
        wave, source = tiny.inference(ids(count), ref_dict=tiny_voice)
        assert wave.shape == (1, 960 * count) and source.shape == (1, 1, 960 * count)
        assert wave.isfinite().all() and not wave[:, :480].any()

    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_too_few_tokens_to_hold_back(self, tiny, tiny_voice, count):
        with pytest.raises(ValueError, match=rf"{count} tokens with finalize=False.*at least 4"):
            tiny.inference(ids(count), ref_dict=tiny_voice, finalize=False)

    def test_four_tokens_with_three_held_back(self, tiny, tiny_voice):
        assert tiny.flow_inference(ids(4), ref_dict=tiny_voice).shape == (1, 80, 2)

    @pytest.mark.parametrize("samples", [0, 1, 479, 480, 481, 720, 721, 959, 961, 2399])
    def test_reference_too_short(self, tiny, samples):
        with pytest.raises(ValueError, match=rf"{samples} samples at 24000 Hz.*at least 0.1 s"):
            tiny.embed_ref(torch.ones(samples), 24000)

    @pytest.mark.parametrize("samples", [2400, 2401, 3359, 47999, 48480, 48481, 48959, 48960])
    def test_reference_of_any_length_is_whole_tokens(self, tiny, samples):
        """An odd number of mel frames once shifted the output by a frame: two frames stand for each token."""
        voice = tiny.embed_ref(speechlike(samples / 24000 + 0.001)[:samples], 24000)
        count = int(voice["prompt_token_len"])
        assert count == samples // 960
        assert voice["prompt_token"].shape == (1, count) and voice["prompt_feat"].shape == (1, 2 * count, 80)
        wave, _ = tiny.inference(ids(10), ref_dict=voice)
        assert wave.shape == (1, 9600)

    @pytest.mark.parametrize("rate_hz", [8000, 16000, 22050, 44100, 48000, 96000])
    def test_reference_at_any_rate(self, tiny, rate_hz):
        voice = tiny.embed_ref(speechlike(1.0, rate_hz), rate_hz)
        assert voice["prompt_feat"].shape == (1, 50, 80) and voice["embedding"].isfinite().all()


class TestErrors:
    @pytest.mark.parametrize("tokens, text", [
        ([], "0 tokens"), ([[]], "0 tokens"), (torch.empty(1, 0), "0 tokens"), ([6561], "id 6561 at position 0"),
        ([1, 6562], "id 6562 at position 1"), ([1, 2, -1], "id -1 at position 2"), ([0.5], "integer ids"),
        (torch.zeros(1, 1, 3, dtype=torch.long), r"\(1, 1, 3\)"),
        (torch.zeros(0, 3, dtype=torch.long), "batch is empty"),
    ])
    def test_tokens(self, tiny, tiny_voice, tokens, text):
        with pytest.raises(ValueError, match=text):
            tiny.inference(tokens, ref_dict=tiny_voice)

    def test_lengths(self, tiny, tiny_voice):
        for lengths in ([3], [3, 9], [3, -1]):
            with pytest.raises(ValueError, match="speech_token_lens"):
                tiny.inference(ids(5, rows=2), ref_dict=tiny_voice, speech_token_lens=lengths)

    def test_voice(self, tiny, tiny_voice):
        with pytest.raises(ValueError, match="either ref_wav with ref_sr, or ref_dict"):
            tiny.inference(ids(5))
        with pytest.raises(ValueError, match="either ref_wav with ref_sr, or ref_dict"):
            tiny.inference(ids(5), ref_wav=speechlike(1), ref_sr=24000, ref_dict=tiny_voice)
        with pytest.raises(ValueError, match="ref_sr"):
            tiny.inference(ids(5), ref_wav=speechlike(1))
        two = {name: None if entry is None else torch.cat((entry, entry)) for name, entry in tiny_voice.items()}
        with pytest.raises(ValueError, match="2 voices for 3 rows"):
            tiny.inference(ids(5, rows=3), ref_dict=two)

    @pytest.mark.parametrize("wave, text", [
        (torch.zeros(1, 1, 9000), r"\(1, 1, 9000\)"), (torch.full((9000,), float("nan")), "NaN or infinite"),
        (torch.zeros(9000, dtype=torch.int16), "int16"),
    ])
    def test_reference(self, tiny, wave, text):
        with pytest.raises(ValueError, match=text):
            tiny.embed_ref(wave, 24000)

    def test_pinned_noise_of_another_size(self, tiny, tiny_voice):
        with pytest.raises(ValueError, match="z: expected"):
            tiny.flow_inference(ids(5), ref_dict=tiny_voice, z=torch.zeros(1, 80, 9))

    def test_every_id_survives(self):
        """4095 does not survive half precision, so ids are never cast."""
        every = torch.arange(6561)
        assert torch.equal(token_rows(every, None, 6561)[0], every)


def test_parts_make_the_whole():
    assert set(dict(S3Token2Wav(config=tiny_config(), device="meta").named_children())) == set(PARTS)


def test_schedules():
    grid = generate.time_grid(10, meanflow=False)
    assert grid[0] == 0 and abs(grid[-1] - 1) < 1e-6 and (grid.diff() > 0).all() and grid[1] < 0.02
    assert generate.time_grid(2, meanflow=True).tolist() == [0, 0.5, 1]


def pad_end(tensor: torch.Tensor, count: int, dim: int) -> torch.Tensor:
    shape = list(tensor.shape)
    shape[dim] = count
    return torch.cat((tensor, tensor.new_zeros(shape)), dim=dim)
