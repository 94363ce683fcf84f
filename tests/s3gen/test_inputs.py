"""What people hand to the model: the smallest that works, and every error in words."""
from __future__ import annotations

import pytest
import torch

from kit.tiny import ids, speechlike
from speechwright.s3gen.inputs import token_rows


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
            with pytest.raises(ValueError, match="speech_tokens: lengths .* do not fit ids of shape"):
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

    @pytest.mark.parametrize("name, given", [
        ("z", torch.zeros(1, 80, 9)), ("phase", torch.zeros(1, 8, 1)), ("noise", torch.zeros(1, 9, 100)),
        ("cache_source", torch.zeros(3, 1, 9)), ("z", "loud"),
    ])
    def test_pinned_draws_of_another_size(self, tiny, tiny_voice, name, given):
        with pytest.raises(ValueError, match=f"{name}: expected"):
            tiny.inference(ids(5, rows=2), ref_dict=tiny_voice, **{name: given})

    @pytest.mark.parametrize("steps", [-1, 0.5])
    def test_steps(self, tiny, tiny_voice, steps):
        """A negative number once gave the noise itself back as a mel."""
        with pytest.raises(ValueError, match="n_cfm_timesteps: .*whole number from 1 to 1000, or 0"):
            tiny.flow_inference(ids(5), ref_dict=tiny_voice, n_cfm_timesteps=steps)

    @pytest.mark.parametrize("rate", [0, -5, None, 24000.5, "fast", 10**9])
    def test_rates(self, tiny, rate):
        with pytest.raises(ValueError, match="ref_sr: .* is no sample rate"):
            tiny.embed_ref(speechlike(1.0), rate)

    @pytest.mark.parametrize("change, text", [
        ({"embedding": None}, "ref_dict: embedding missing"),
        ({"prompt_token_len": torch.tensor([0])}, r"ref_dict\['prompt_token'\]: row 0 has 0 tokens"),
        ({"prompt_token": torch.full((1, 32), 6561)}, r"ref_dict\['prompt_token'\]: id 6561"),
        ({"prompt_feat": torch.full((1, 64, 80), float("nan"))}, "NaN or infinite"),
        ({"embedding": torch.zeros(12)}, r"ref_dict\['embedding'\]: expected 2 axes"),
    ])
    def test_voices(self, tiny, tiny_voice, change, text):
        with pytest.raises(ValueError, match=text):
            tiny.inference(ids(5), ref_dict={**tiny_voice, **change})

    def test_every_id_survives(self):
        """4095 does not survive half precision, so ids are never cast."""
        every = torch.arange(6561)
        assert torch.equal(token_rows(every, None, 6561)[0], every)
