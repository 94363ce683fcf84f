"""Loading under the genuine ComfyUI: where files are looked for, what they are, and who owns the memory."""
from __future__ import annotations

import copy
import gc
import os
import re
import weakref
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import comfy.memory_management
import comfy.model_management
import pytest
import torch
from safetensors.torch import save, save_file

from kit.files import BROKEN_FILES, good_safetensors, pickles_with_code
from kit.hub import Hub, allow_downloads, running_hub
from kit.tiny import tiny_config, tiny_state
from speechwright import files, loader
from speechwright.checkpoint import Checkpoint
from speechwright.hub import CHUNK_BYTES, Published
from speechwright.s3gen.model import SYNTHESIS_PARTS
from speechwright.s3gen.speaker import CAMPPlus
from speechwright.s3gen.tokenizer import S3Tokenizer
from speechwright.wires import S3_V3

NAME = "模型 v1/ä b s3gen.safetensors"


@pytest.fixture
def checkpoint(two_roots) -> Path:
    """A whole tiny model in a folder with a name from far away."""
    path = two_roots[1] / NAME
    path.parent.mkdir()
    save_file(tiny_state(), path)
    return path


class TestDownloads:
    NAME = "s3gen/tiny.safetensors"

    @pytest.fixture
    def hub(self, two_roots, monkeypatch) -> Iterator[Hub]:
        """A hub that has a tiny model, which is the only one that the family knows to be published."""
        content = save(tiny_state())
        published = Published("owner/models", "tiny.safetensors", len(content), None, "MIT")
        monkeypatch.setattr(loader, "FAMILIES", (replace(loader.FAMILIES[0], published={self.NAME: published}),))
        allow_downloads(monkeypatch)
        with running_hub() as running:
            running.files["owner/models/tiny.safetensors"] = content
            monkeypatch.setattr(files.hub, "fetch", partial(files.hub.fetch, endpoint=running.endpoint))
            yield running

    def test_choices_that_are_here_come_first(self, hub, two_roots):
        (two_roots[1] / "b.pt").touch()
        assert loader.checkpoint_choices() == ["b.pt", self.NAME]
        loader.load(self.NAME, download=True)
        assert loader.checkpoint_choices() == [self.NAME, "b.pt"]

    def test_nothing_is_fetched_unless_told(self, hub, two_roots):
        with pytest.raises(FileNotFoundError, match="is in none of") as caught:
            loader.load(self.NAME)
        for said in (*map(str, two_roots), "tiny.safetensors of owner/models on Hugging Face", "MIT licence",
                     "switch `download` on", str(two_roots[0] / self.NAME)):
            assert said in str(caught.value)
        assert hub.requests == [] and list(two_roots[0].iterdir()) == []

    def test_fetched_into_the_first_root_and_loaded(self, hub, two_roots):
        reports = []
        model = loader.load("s3gen\\tiny.safetensors", "auto", "cpu", True, lambda *report: reports.append(report))
        assert model.config == tiny_config() and model.source == str(two_roots[0] / self.NAME)
        done, total = reports[-1]
        assert done == total == (two_roots[0] / self.NAME).stat().st_size
        assert [path.name for path in (two_roots[0] / "s3gen").iterdir()] == ["tiny.safetensors"]
        before = len(hub.requests)
        loader.load(self.NAME, download=True)
        assert len(hub.requests) == before

    def test_file_in_another_root_is_not_fetched(self, hub, two_roots):
        path = two_roots[1] / self.NAME
        path.parent.mkdir()
        save_file(tiny_state(), path)
        assert loader.load(self.NAME, download=True).source == str(path) and hub.requests == []

    def test_half_a_file_is_no_model(self, hub, two_roots):
        hub.cuts = [CHUNK_BYTES, 0]
        with pytest.raises(OSError, match="queue again to go on"):
            loader.load(self.NAME, download=True)
        parts = [path for path in two_roots[0].rglob("*") if path.is_file() and path.stat().st_size]
        assert [path.suffix for path in parts] == [".part"]
        assert files.checkpoint_names() == [] and loader.checkpoint_stamp(self.NAME) == self.NAME
        loader.load(self.NAME, download=True)
        assert files.checkpoint_names() == [self.NAME]

    def test_what_is_not_published_is_not_asked_for(self, hub):
        with pytest.raises(FileNotFoundError, match="choose what can be fetched .tiny.safetensors of owner/models"):
            loader.load("tiny.safetensors", download=True)
        assert hub.requests == []


@pytest.mark.parametrize("family", loader.FAMILIES, ids=lambda family: family.name)
def test_what_is_known_of_published_files(family):
    assert family.published
    for name, published in family.published.items():
        assert re.fullmatch(r"[a-z0-9]+/[\w.]+", name) and name.endswith(files.SUFFIXES)
        assert re.fullmatch(r"[\w-]+/[\w-]+", published.repository) and published.licence
        assert published.sha256 is None or re.fullmatch("[0-9a-f]{64}", published.sha256)
        assert published.bytes is None or published.bytes > 10**6


class TestFiles:
    def test_suffixes_load_alike(self, two_roots, checkpoint):
        torch.save(tiny_state(), two_roots[0] / "s3gen.pt")
        one, other = loader.load(NAME), loader.load("s3gen.pt")
        for name, tensor in one.patcher.model.state_dict().items():
            assert torch.equal(tensor, other.patcher.model.state_dict()[name])

    def test_meanflow_is_told_by_its_keys(self, two_roots):
        """One published model has the meanflow weights under the base model's file name."""
        save_file(tiny_state(meanflow=True), two_roots[0] / "s3gen.safetensors")
        model = loader.load("s3gen.safetensors")
        assert model.config == tiny_config(meanflow=True)
        assert model.patcher.model.flow.decoder.estimator.meanflow

    @pytest.mark.parametrize("kind", BROKEN_FILES)
    def test_broken_files(self, two_roots, kind):
        damage, text = BROKEN_FILES[kind]
        (two_roots[0] / "broken.safetensors").write_bytes(damage(good_safetensors()))
        with pytest.raises(ValueError, match=text) as caught:
            loader.load("broken.safetensors")
        assert "broken.safetensors" in str(caught.value)

    def test_code_in_a_pickle_does_not_run(self, two_roots, tmp_path):
        marker = tmp_path / "ran"
        for kind, (data, text) in pickles_with_code(marker).items():
            (two_roots[0] / "voice.pt").write_bytes(data)
            with pytest.raises(ValueError, match=text):
                loader.load("voice.pt")
            assert not marker.exists(), kind

    @pytest.mark.parametrize("names", [
        ["model.diffusion_model.input_blocks.0.0.weight"],
        ["encoder.after_norm.weight", "decoder.estimator.mid_blocks.0.0.res_conv.weight"],      # CosyVoice 2's flow
        ["decoder.estimator.transformer_blocks.0.attn.to_q.weight"],                            # CosyVoice 3's flow
        ["conv_pre.weight_g", "m_source.l_linear.weight"],                                      # a vocoder alone
    ])
    def test_another_family(self, two_roots, names, monkeypatch):
        """Which family it is, is decided before a single weight is read."""
        save_file({name: torch.zeros(2) for name in names}, two_roots[0] / "other.safetensors")
        monkeypatch.setattr(Checkpoint, "read", lambda *_: pytest.fail("weights were read"))
        with pytest.raises(ValueError, match=r"other.safetensors: of the model families \(S3Gen\) none fits") as caught:
            loader.load("other.safetensors")
        assert names[0] in str(caught.value)

    def test_incomplete_file_is_refused_before_it_is_read(self, two_roots, monkeypatch):
        state = tiny_state()
        del state["tokenizer.encoder.conv2.bias"]
        save_file(state, two_roots[0] / "lean.safetensors")
        monkeypatch.setattr(Checkpoint, "read", lambda *_: pytest.fail("weights were read"))
        with pytest.raises(ValueError, match=r"1 missing \(tokenizer.encoder.conv2.bias\)"):
            loader.load("lean.safetensors")

    def test_file_changed_after_loading(self, checkpoint):
        """The parts that read recordings come from the file when first needed: it must be the same file."""
        model = loader.load(NAME)
        os.utime(checkpoint, (1, 1))
        with pytest.raises(ValueError, match="has changed or gone since it was loaded"), model.loaded("tokenizer", 0):
            pass


class TestModel:
    @pytest.mark.parametrize("precision, dtype", [
        ("auto", torch.float32), ("fp32", torch.float32), ("bf16", torch.bfloat16)])
    def test_precision(self, checkpoint, precision, dtype):
        model = loader.load(NAME, precision)
        assert model.patcher.model.flow.decoder.estimator.final_proj.weight.dtype == dtype
        assert model.patcher.model.mel2wav.conv_pre.weight.dtype == torch.float32

    def test_what_it_does_not_run_in(self, checkpoint):
        with pytest.raises(ValueError, match="S3Gen does not run in fp16; choose auto, fp32, bf16"):
            loader.load(NAME, "fp16")
        with pytest.raises(ValueError, match="device: 'cuda' is not known; choose auto or cpu"):
            loader.load(NAME, device="cuda")
        with pytest.raises(ValueError, match=r"demo: 'x' is not one of Demo voice \(English\), S3Gen, S3Gen meanflow"):
            loader.load_demo("x")

    def test_layers_without_weights_until_they_are_filled(self, checkpoint, monkeypatch):
        """So ComfyUI's are with dynamic VRAM, its default on NVIDIA: they looked like a file with too many tensors."""
        expected = loader.load(NAME).patcher.model.state_dict()
        monkeypatch.setattr(comfy.memory_management, "aimdo_enabled", True)
        found = loader.load(NAME).patcher.model.state_dict()
        assert found.keys() == expected.keys()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())

    def test_room_is_made_for_the_whole_part(self, checkpoint, monkeypatch):
        asked = []
        monkeypatch.setattr(
            comfy.model_management, "load_models_gpu", lambda *args, **kwargs: asked.append((args, kwargs)))
        model = loader.load(NAME)
        with model.loaded("synthesis", 123):
            assert asked == [(([model.patcher],), {"memory_required": 123, "force_full_load": True})]
        assert model.is_dynamic() is False

    def test_parts_come_when_needed(self, checkpoint):
        model = loader.load(NAME)
        assert [name for name, _ in model.patcher.model.named_children()] == list(SYNTHESIS_PARTS)
        assert model.get_models() == [model.patcher]
        with model.loaded(("tokenizer", "speaker"), 0) as networks:
            assert [type(network) for network in networks] == [S3Tokenizer, CAMPPlus]
        assert len(model.get_models()) == 3 and model.get_models()[0] is model.patcher

    def test_layers_are_comfyui_s(self, checkpoint):
        """Its memory management moves and casts only layers of its own kind."""
        import comfy.ops
        model = loader.load(NAME)
        with model.loaded(("tokenizer", "speaker"), 0) as networks:
            layers = [*networks[0].modules(), *networks[1].modules(), *model.patcher.model.modules()]
        plain = {type(layer) for layer in layers if type(layer).__module__.startswith("torch.nn.modules")}
        assert not plain & {torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.ConvTranspose1d,
                            torch.nn.LayerNorm, torch.nn.Embedding}
        assert any(isinstance(layer, comfy.ops.CastWeightBiasOp) for layer in layers)

    @pytest.mark.parametrize("title", loader.demo_titles())
    def test_demo_goes_through_a_file(self, title, monkeypatch, caplog):
        read = []
        original = Checkpoint.read
        monkeypatch.setattr(Checkpoint, "read", lambda self, *wanted: read.append(self.path) or original(self, *wanted))
        model = loader.load_demo(title)
        assert read and read[0].suffix == ".safetensors"
        assert ("random" in caplog.text) == (title != loader.DEMO_VOICE) == (model.own_voice is None)
        assert read[0].is_relative_to(model.source if Path(model.source).is_dir() else Path(model.source).parent)

    def test_made_in_inference_mode_used_outside(self, checkpoint):
        """ComfyUI runs nodes in inference mode, and its memory management works outside it."""
        with torch.inference_mode():
            model = loader.load(NAME)
        assert not any(tensor.is_inference() for tensor in model.patcher.model.state_dict().values())
        copy.deepcopy(model.patcher.model.state_dict())

    def test_dropping_the_model_frees_it(self, checkpoint):
        """Packs that keep models in a dictionary of their own never give the memory back."""
        model = loader.load(NAME)
        with model.loaded("synthesis", 0) as network, model.loaded("tokenizer", 0):
            alive = weakref.ref(network)
        del network
        comfy.model_management.free_memory(1e30, torch.device("cpu"))
        assert alive() is not None
        del model
        gc.collect()
        comfy.model_management.cleanup_models()
        gc.collect()
        assert alive() is None

    def test_voices_are_read_once_and_bounded(self, checkpoint):
        model, reads = loader.load(NAME), []
        for index in [0, 0, *range(loader.MAX_VOICES), 0, loader.MAX_VOICES, 1]:
            assert model.voice(str(index), lambda index=index: reads.append(index) or {"of": index}) == {"of": index}
        assert reads == [*range(loader.MAX_VOICES + 1), 1]
        assert len(model._voices) == loader.MAX_VOICES

    def test_room_for_several_parts_is_made_at_once(self, checkpoint, monkeypatch):
        """Loaded one after the other, the second could push the first out again."""
        asked = []
        monkeypatch.setattr(
            comfy.model_management, "load_models_gpu", lambda patchers, **kwargs: asked.append(len(patchers)))
        with loader.load(NAME).loaded(("tokenizer", "speaker"), 0):
            assert asked == [2]

    def test_other_family_s_node(self, checkpoint):
        model = loader.load(NAME)
        model.require("S3 Tokenize", "tokenizer", "speaker")
        with pytest.raises(ValueError, match="RAS Sampler: the model is S3Gen .*no language model; connect a model of "
                                             "CosyVoice"):
            model.require("RAS Sampler", "lm")
        with pytest.raises(ValueError, match="S3 Tokenize: S3Gen .* reads s3-v2 tokens, and s3-v3 are needed; connect "
                                             "CosyVoice3"):
            model.require_kind(S3_V3, "S3 Tokenize")
