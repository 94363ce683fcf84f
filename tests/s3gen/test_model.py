"""The laws of the composed model, at a tiny size."""
from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from kit.checkout import CHECKOUT
from kit.golden import assert_within
from kit.tiny import ids, speechlike, tiny_config, tiny_state
from speechwright.s3gen import generate, sampling
from speechwright.s3gen.model import PARTS, S3Token2Wav, fade_in
from speechwright.s3gen.weights import build


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

    def test_pinned_rows_reach_their_rows(self, tiny, tiny_voice):
        """Each row of given draws is for the row of its number, and one row is for all."""
        batch, rng = ids(4, rows=2), torch.Generator().manual_seed(8)
        prompt = 2 * tiny_voice["prompt_token"].shape[1]
        pinned = {
            "z": torch.randn(2, 80, prompt + 8, generator=rng), "phase": torch.randn(2, 9, 1, generator=rng),
            "noise": torch.randn(2, 9, 3840, generator=rng), "cache_source": torch.rand(2, 1, 500, generator=rng),
        }
        wave, source = tiny.inference(batch, ref_dict=tiny_voice, **pinned)
        for row in range(2):
            one = {name: draw[row : row + 1] for name, draw in pinned.items()}
            alone, alone_source = tiny.inference(batch[row], ref_dict=tiny_voice, **one)
            assert torch.equal(wave[row : row + 1], alone) and torch.equal(source[row : row + 1], alone_source)
            assert torch.equal(source[row, :, :500], pinned["cache_source"][row])
        shared, _ = tiny.inference(
            batch, ref_dict=tiny_voice, **{name: draw[:1].numpy() for name, draw in pinned.items()})
        assert torch.equal(shared[:1], wave[:1])

    def test_source_longer_than_the_wave(self, tiny, tiny_voice):
        kept = torch.rand(1, 1, 9999, generator=torch.Generator().manual_seed(8))
        _, source = tiny.inference(ids(4), ref_dict=tiny_voice, cache_source=kept)
        assert torch.equal(source, kept[:, :, :3840])

    def test_progress_goes_over_all_rows(self, tiny, tiny_voice):
        seen = []
        tiny.inference(ids(4, rows=3), ref_dict=tiny_voice, n_cfm_timesteps=2, on_step=lambda *at: seen.append(at))
        assert seen == [(done, 6) for done in range(1, 7)]

    @pytest.mark.parametrize("frames", [63, 61, 65])
    def test_voice_with_an_odd_mel(self, tiny, tiny_voice, frames):
        """Files of voices from elsewhere hold a frame more or less than two for each token."""
        mel = torch.cat((tiny_voice["prompt_feat"], tiny_voice["prompt_feat"]), dim=1)[:, :frames]
        found, _ = tiny.inference(ids(4), ref_dict={**tiny_voice, "prompt_feat": mel}, seed=1)
        count = min(32, frames // 2)
        cut = {**tiny_voice, "prompt_token": tiny_voice["prompt_token"][:, :count], "prompt_feat": mel[:, : 2 * count],
               "prompt_token_len": torch.tensor([count])}
        assert torch.equal(found, tiny.inference(ids(4), ref_dict=cut, seed=1)[0])

    def test_voice_whose_ids_were_cast(self, tiny, tiny_voice):
        """The original casts the ids of a voice to the model's type, in the caller's own dict."""
        cast = {**tiny_voice, "prompt_token": tiny_voice["prompt_token"].float(), "prompt_token_len": [32]}
        assert torch.equal(tiny.inference(ids(4), ref_dict=cast)[0], tiny.inference(ids(4), ref_dict=tiny_voice)[0])

    def test_what_arrays_people_bring(self, tiny, tiny_voice):
        wave = speechlike(1.3).numpy()
        backwards = wave[::-1].copy()[::-1]
        wave.flags.writeable = False
        for given in (wave, backwards, wave.astype("float64"), wave.tolist()):
            assert torch.equal(tiny.embed_ref(given, 24000.0)["prompt_token"], tiny_voice["prompt_token"])
        found, _ = tiny.inference(ids(4).numpy().astype("int32"), ref_dict=tiny_voice, seed=np.int64(3))
        assert torch.equal(found, tiny.inference(ids(4), ref_dict=tiny_voice, seed=3)[0])

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


def test_fade_in():
    wave = fade_in(torch.ones(2, 1200))
    assert not wave[:, :480].any() and (wave[:, 960:] == 1).all()
    assert wave[0, 480] == 0 and abs(wave[0, 720] - 0.5) < 0.01 and (wave[:, 480:960].diff() >= 0).all()
    assert fade_in(torch.ones(1, 700)).shape == (1, 700)


DEFAULTS = """
import sys, types, torch
package = types.ModuleType("speechwright")
package.__path__ = [sys.argv[1]]
sys.modules["speechwright"] = package
sys.path.insert(0, sys.argv[1] + "/tests")
from kit.tiny import tiny_state
from speechwright.s3gen.weights import build
state = tiny_state()
wave = 0.1 * torch.randn(24000, generator=torch.Generator().manual_seed(1))
tokens = torch.arange(7)
if sys.argv[2] != "none":
    torch.set_default_dtype(getattr(torch, sys.argv[2]))
model = build(state)
print(model.inference(tokens, wave, 24000, seed=3)[0].double().abs().sum().item())
"""


def test_what_other_packs_set_for_torch_does_not_matter():
    """Another pack's default type once went into our noise, and into tables that are kept for the next run."""
    command = [sys.executable, "-c", DEFAULTS, str(CHECKOUT)]
    sums = [float(subprocess.run([*command, kind], capture_output=True, text=True, check=True).stdout)
            for kind in ("none", "bfloat16", "float64")]
    # The filterbank that torchaudio makes for the speaker encoder does follow the default, by a hair.
    assert sums[0] > 1 and sums[1:] == pytest.approx([sums[0]] * 2, rel=1e-3)


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
