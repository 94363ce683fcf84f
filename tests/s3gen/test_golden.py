"""The composed model at full size beside the golden arrays, stage by stage."""
from __future__ import annotations

import pytest
import torch

from kit.golden import assert_within, golden_state, load_golden, source_noise
from speechwright.s3gen.config import S3GenConfig
from speechwright.s3gen.model import SYNTHESIS_PARTS
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


def golden_base(name: str) -> torch.Tensor:
    return load_golden("base")[name]


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
