"""Folders of CosyVoice: whole, in part, mixed up or broken, and what a model says of what it lacks."""
from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from kit.files import BROKEN_FILES, good_safetensors
from kit.lm import llm_manifest, tiny_lm_state
from kit.onnx_files import campplus_graph, tokenizer_graph, write
from kit.tiny import fill, tiny_config, tiny_state
from kit.vocabulary import demo, vocabulary_folder
from speechwright.assembly import shapes_of
from speechwright.checkpoint import Checkpoint
from speechwright.cosyvoice3 import demo_flow, demo_vocoder
from speechwright.cosyvoice3 import folder as folders
from speechwright.cosyvoice3.config import LMConfig
from speechwright.cosyvoice3.folder import BASE, RL, open_folder
from speechwright.cosyvoice3.lm import SpeechLM
from speechwright.cosyvoice3.tokenizer import CONTROL
from speechwright.s3gen.speaker import CAMPPlus
from speechwright.s3gen.tokenizer import S3Tokenizer

NETWORKS = {"tokenizer": S3Tokenizer, "speaker": CAMPPlus}


def reader_state(part: str) -> dict[str, Tensor]:
    config = tiny_config().tokenizer if part == "tokenizer" else tiny_config().speaker
    return fill(NETWORKS[part](config, device="meta"), part).state_dict()


def synthesis_states(version: int) -> dict[str, dict[str, Tensor]]:
    """The tensors of flow and vocoder by the published names."""
    if version == 3:
        return {"flow": demo_flow.random_state(demo_flow.demo_config()),
                "hift": demo_vocoder.random_state(demo_vocoder.demo_config())}
    prefixes = {"flow": "flow.", "hift": "mel2wav."}
    return {file: {name.removeprefix(prefix): tensor for name, tensor in tiny_state().items()
                   if name.startswith(prefix)} for file, prefix in prefixes.items()}


def whole(path: Path, version: int) -> Path:
    """A folder with every file of a version that is read, but for the text tokenizer's."""
    path.mkdir(parents=True)
    state = {**tiny_lm_state(version), "epoch": torch.tensor(3)}
    state["llm.model.lm_head.weight"] = state["llm.model.model.embed_tokens.weight"]
    torch.save({"state_dict": {**state, "step": 7}}, path / "llm.pt")
    for name, state in synthesis_states(version).items():
        torch.save({f"generator.{name}": tensor for name, tensor in state.items()} if name == "hift" else state,
                   path / f"{name}.pt")
    write(path / f"speech_tokenizer_v{version}.onnx", tokenizer_graph(reader_state("tokenizer"), version).file())
    write(path / "campplus.onnx", campplus_graph(reader_state("speaker"), folded=False).file())
    return path


def open_demo(path: Path, lm: str = BASE):
    return open_folder(path, lm, text_tokenizer=demo)


def build(part) -> nn.Module:
    return part.build(nn, torch.float32)


@pytest.mark.parametrize("version", [2, 3])
class TestWhole:
    def test_every_part(self, tmp_path, version):
        opened = open_demo(whole(tmp_path / "a", version))
        assert (opened.family, opened.token_kind) == (f"CosyVoice{version}", f"s3-v{version}")
        assert opened.config == LMConfig.from_shapes(shapes_of(tiny_lm_state(version)))
        assert list(opened.parts) == ["synthesis", "lm", "tokenizer", "speaker"] and opened.missing == {}
        lm = build(opened.parts["lm"])
        assert isinstance(lm, SpeechLM) and lm.config.version == version
        kinds = {2: ["Flow", "HiFT"], 3: ["MelFlow", "CausalHiFT"]}
        assert [type(network).__name__ for network in build(opened.parts["synthesis"]).children()] == kinds[version]
        expected = tiny_lm_state(version)
        assert all(torch.equal(tensor, expected[name]) for name, tensor in lm.state_dict().items())
        for part, network in NETWORKS.items():
            assert isinstance(build(opened.parts[part]), network)
            for name, tensor in build(opened.parts[part]).state_dict().items():
                assert torch.equal(tensor, reader_state(part)[name]), name

    def test_any_file_as_safetensors(self, tmp_path, version):
        path = tmp_path / "a"
        path.mkdir()
        save_file(tiny_lm_state(version), path / "llm.safetensors")
        for part, name in (("tokenizer", f"speech_tokenizer_v{version}"), ("speaker", "campplus")):
            save_file(reader_state(part), path / f"{name}.safetensors")
        for name, state in synthesis_states(version).items():
            save_file(state, path / f"{name}.safetensors")
        opened = open_demo(path)
        assert opened.missing == {} and all(map(build, opened.parts.values()))

    def test_no_weight_is_read_until_a_part_is_built(self, tmp_path, version, monkeypatch):
        monkeypatch.setattr(Checkpoint, "read", lambda *_: pytest.fail("weights were read"))
        open_demo(whole(tmp_path / "a", version))


def test_language_model_may_be_chosen(tmp_path):
    path = whole(tmp_path / "a", 3)
    other = tiny_lm_state(3)
    other["llm_decoder.weight"] = other["llm_decoder.weight"] + 1
    torch.save(other, path / "llm.rl.pt")
    heads = [build(open_demo(path, lm).parts["lm"]).llm_decoder.weight for lm in (BASE, RL)]
    assert torch.equal(heads[0] + 1, heads[1])
    (path / "llm.rl.pt").unlink()
    assert open_demo(path, RL).missing == {"lm": ("llm.rl.pt",)}
    with pytest.raises(ValueError, match="lm: 'sft' is not one of base, RL"):
        open_demo(path, "sft")


class TestInPart:
    def test_each_file_may_be_missing(self, tmp_path):
        """Who has the language model alone can have its tokens spoken by S3Gen, whose tokenizer reads voices too."""
        files = {"speech_tokenizer_v3.onnx": "tokenizer", "campplus.onnx": "speaker", "llm.pt": "lm",
                 "flow.pt": "synthesis", "hift.pt": "synthesis"}
        for number, (file, part) in enumerate(files.items()):
            path = whole(tmp_path / str(number), 3)
            (path / file).unlink()
            opened = open_demo(path)
            assert opened.missing == {part: (file,)} and part not in opened.parts and opened.family == "CosyVoice3"

    def test_one_error_names_every_missing_file(self, tmp_path):
        path = whole(tmp_path / "a", 2)
        for file in ("speech_tokenizer_v2.onnx", "campplus.onnx"):
            (path / file).unlink()
        opened = open_folder(path)
        assert opened.lack("synthesis") is None
        assert opened.lack("lm") is None
        problem = opened.lack("tokenizer")
        for said in (f"the model is CosyVoice2 ({path}), whose speech tokenizer is missing: speech_tokenizer_v2.onnx (",
                     "campplus.onnx", "CosyVoice-BlankEN/vocab.json", "CosyVoice-BlankEN/merges.txt",
                     "Put what is missing there, or connect a second model"):
            assert said in problem
        assert ("text tokenizer is missing: CosyVoice-BlankEN/vocab.json and CosyVoice-BlankEN/merges.txt "
                "(campplus.onnx, speech_tokenizer_v2.onnx are not there either)") in opened.lack("text")

    def test_nothing_is_there(self, tmp_path):
        """One list of all that is looked for, not one file at a time."""
        with pytest.raises(FileNotFoundError, match="neither a language model nor exactly one speech tok") as caught:
            open_demo(tmp_path)
        for file in ("llm.pt", "campplus.onnx", "speech_tokenizer_v2.onnx", "speech_tokenizer_v3.onnx", "vocab.json",
                     "merges.txt", str(tmp_path)):
            assert file in str(caught.value)

    @pytest.mark.parametrize("file, lm, lacking", [("flow.pt", BASE, "hift.pt"), ("llm.pt", RL, "llm.rl.pt")])
    def test_no_part_is_whole(self, tmp_path, file, lm, lacking):
        """A flow without its vocoder told the version, and then a model of no part at all died of StopIteration."""
        path = whole(tmp_path / "a", 3)
        for other in path.iterdir():
            if other.name != file:
                other.unlink()
        with pytest.raises(FileNotFoundError, match=f"no part of CosyVoice3 is whole there; missing: .*{lacking}"):
            open_demo(path, lm)

    def test_versions_do_not_mix(self, tmp_path):
        path = whole(tmp_path / "a", 3)
        torch.save(tiny_lm_state(2), path / "llm.rl.pt")
        with pytest.raises(ValueError, match="llm.pt is of CosyVoice3, and llm.rl.pt of CosyVoice2; put the files of "
                                             "one version into one folder"):
            open_demo(path)


class TestText:
    def test_of_the_folder_itself(self, tmp_path, comfyui_folder):
        path = whole(tmp_path / "a", 3)
        (path / "CosyVoice-BlankEN").mkdir()
        for name in ("vocab.json", "merges.txt"):
            shutil.copyfile(vocabulary_folder(comfyui_folder) / name, path / "CosyVoice-BlankEN" / name)
        opened = open_folder(path, vocabulary=tmp_path)
        assert opened.text_tokenizer.encode("Hello world") == [9707, 1879] and opened.missing == {}

    def test_comfyui_has_the_same_vocabulary(self, tmp_path, comfyui_folder):
        opened = open_folder(whole(tmp_path / "a", 3), vocabulary=vocabulary_folder(comfyui_folder))
        assert opened.text_tokenizer.encode("Hello world") == [9707, 1879] and "text" not in opened.missing
        assert opened.text_tokenizer.version == 3

    def test_wrong_one_is_an_error_at_load(self, tmp_path, comfyui_folder):
        """Another vocabulary speaks other words, and nothing else would tell."""
        path = whole(tmp_path / "a", 3)
        (path / "CosyVoice-BlankEN").mkdir()
        (path / "CosyVoice-BlankEN" / "vocab.json").write_text('{"a": 0}')
        (path / "CosyVoice-BlankEN" / "merges.txt").write_text("#version: 0.2\n")
        with pytest.raises(ValueError, match="not the vocabulary of CosyVoice: found 1 entries"):
            open_folder(path, vocabulary=vocabulary_folder(comfyui_folder))


class TestBroken:
    @pytest.mark.parametrize("kind", BROKEN_FILES)
    @pytest.mark.parametrize("file", ["llm.safetensors", "campplus.safetensors"])
    def test_damaged_file(self, tmp_path, kind, file):
        damage, text = BROKEN_FILES[kind]
        path = whole(tmp_path / "a", 3)
        (path / file.replace("safetensors", "pt")).unlink(missing_ok=True)
        (path / file.replace("safetensors", "onnx")).unlink(missing_ok=True)
        (path / file).write_bytes(damage(good_safetensors()))
        with pytest.raises(ValueError, match=text) as caught:
            open_demo(path)
        assert str(path / file) in str(caught.value)

    @pytest.mark.parametrize("file", ["speech_tokenizer_v3.onnx", "campplus.onnx"])
    def test_cut_onnx(self, tmp_path, file):
        path = whole(tmp_path / "a", 3)
        (path / file).write_bytes((path / file).read_bytes()[:-1000])
        with pytest.raises(ValueError, match="cut or damaged"):
            open_demo(path)

    @pytest.mark.parametrize("file, taken, words", [
        ("llm", "llm.model.model.norm.weight", "1 missing .llm.model.model.norm.weight"),
        ("speech_tokenizer_v3", "encoder.conv2.bias", "1 missing .encoder.conv2.bias"),
        ("speech_tokenizer_v3", "encoder.conv1.weight", "looked for 'encoder.conv1.weight'"),
        ("campplus", "head.conv1.weight", "missing|looked for"),
    ])
    def test_incomplete_file(self, tmp_path, file, taken, words):
        path = whole(tmp_path / "a", 3)
        for old in path.glob(f"{file}.*"):
            old.unlink()
        state = {"llm": tiny_lm_state(3), "speech_tokenizer_v3": reader_state("tokenizer"),
                 "campplus": reader_state("speaker")}[file]
        del state[taken]
        save_file(state, path / f"{file}.safetensors")
        with pytest.raises(ValueError, match=words):
            open_demo(path)


    @pytest.mark.parametrize("version, other", [(2, 3), (3, 2)])
    @pytest.mark.parametrize("kind", ["onnx", "safetensors"])
    def test_speech_tokenizer_of_the_other_version(self, tmp_path, version, other, kind):
        """Renamed, it fits: the tensors of one layer are alike. Its tokens are not, and the model babbles."""
        path = whole(tmp_path / "a", version)
        (path / f"speech_tokenizer_v{version}.onnx").unlink()
        config = replace(tiny_config().tokenizer, layers=folders.TOKENIZER_LAYERS[other])
        state = fill(S3Tokenizer(config, device="meta"), "tokenizer").state_dict()
        renamed = path / f"speech_tokenizer_v{version}.{kind}"
        if kind == "onnx":
            write(renamed, tokenizer_graph(state, other).file())
        else:
            save_file(state, renamed)
        with pytest.raises(ValueError, match=f"speech tokenizer of CosyVoice{other}, of .* folder is of "
                                             f"CosyVoice{version}.*speech_tokenizer_v{version}.onnx") as caught:
            open_demo(path)
        assert str(renamed) in str(caught.value)


class TestConverted:
    def test_kept_and_used_again(self, tmp_path, monkeypatch):
        path, cache = whole(tmp_path / "a", 3), tmp_path / "cache"
        parts = open_folder(path, text_tokenizer=demo, cache=cache).parts
        first = build(parts["tokenizer"]).state_dict()
        assert len(list(cache.glob("*.safetensors"))) == 1
        monkeypatch.setattr("speechwright.s3gen.onnx._read", lambda *_: pytest.fail("converted again"))
        again = build(open_folder(path, text_tokenizer=demo, cache=cache).parts["tokenizer"]).state_dict()
        assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())


def test_full_size_language_model_is_known_by_its_names():
    assert folders.belonging(llm_manifest()) == "the language model"
    assert folders.belonging({f"generator.{name}" for name in ("m_source.l_linear.weight", "conv_pre.bias")}) \
        == "the vocoder"
    assert folders.belonging({"input_embedding.weight", "spk_embed_affine_layer.weight"}) == "the flow"
    assert folders.belonging({"a"}) is None


def test_published_files():
    for name, (repository, version) in folders.PUBLISHED.items():
        files = folders.published(name)
        assert name.startswith("cosyvoice/") and name.endswith(repository.split("/")[1])
        assert {"llm.pt", f"speech_tokenizer_v{version}.onnx", "campplus.onnx", "CosyVoice-BlankEN/vocab.json",
                "CosyVoice-BlankEN/merges.txt"} <= files.keys()
        assert all(entry.repository == repository and entry.file == file and entry.licence == "Apache-2.0"
                   for file, entry in files.items())
    assert "llm.rl.pt" in folders.published("cosyvoice/Fun-CosyVoice3-0.5B-2512", RL)
    with pytest.raises(ValueError, match="lm: RL was published for CosyVoice3 alone; choose base"):
        folders.published("cosyvoice/CosyVoice2-0.5B", RL)
    assert folders.published("mine/llm") == {}


def test_marks_of_a_folder():
    assert {"llm.pt", "llm.rl.safetensors", "campplus.onnx", "speech_tokenizer_v2.onnx"} <= folders.marks()
    assert not {"vocab.json", "s3gen.safetensors", "model.safetensors"} & folders.marks()


def test_demo_tokenizer_has_the_real_control_ids():
    assert CONTROL.end_of_prompt not in demo(3).encode("<|endofprompt|>")
