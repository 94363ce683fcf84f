"""Folders of Whisper and Moonshine: found, whole, broken, of something else, and fetched."""
from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_nodes import run, speech

from kit import whisper
from kit.audio import audio
from kit.files import BROKEN_FILES, pickles_with_code
from kit.whisper import END, ids
from speechwright import files, nodes
from speechwright.hearing import folder

NAME = "whisper/small one"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return whisper.write_small(tmp_path_factory.mktemp("ears") / "small")


@pytest.fixture
def here(two_roots, small):
    """The folder of the tiny Whisper among the models."""
    target = two_roots[0] / NAME
    shutil.copytree(small, target)
    return target


def test_list(here, two_roots):
    """Folders that are here, told by what they say of themselves, then those to be fetched."""
    others = {"cosy": '{"model_type": "qwen2"}', "odd": "{", "odder": '{"model_type": ["whisper"]}'}
    for name, content in others.items():
        (two_roots[0] / name).mkdir()
        (two_roots[0] / name / "config.json").write_text(content)
    whisper.write_moonshine(two_roots[1] / "moon")
    combo = nodes.Transcribe.define_schema().inputs[1]
    assert combo.options == ["moon", NAME, *folder.PUBLISHED]


def test_fingerprint(here):
    first = nodes.Transcribe.fingerprint_inputs(NAME)
    assert first == nodes.Transcribe.fingerprint_inputs(folder=NAME, audio=None, language="en")
    (here / "tokenizer.json").touch()
    assert nodes.Transcribe.fingerprint_inputs(NAME) != first
    assert nodes.Transcribe.fingerprint_inputs("nowhere") == "nowhere"
    assert nodes.Transcribe.fingerprint_inputs() == ""


def test_missing_files_are_all_named(here):
    for file in ("model.safetensors", "tokenizer.json"):
        (here / file).unlink()
    with pytest.raises(FileNotFoundError, match="these are missing: tokenizer.json, model.safetensors. Put them"):
        run(nodes.Transcribe, audio(speech(0.5)), NAME)
    (here / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match="missing: config.json, tokenizer.json, model.safetensors"):
        run(nodes.Transcribe, audio(speech(0.5)), NAME)


def test_another_model_s_folder(here):
    (here / "config.json").write_text('{"model_type": "qwen2", "vocab_size": 151936}')
    with pytest.raises(ValueError, match="no folder of Whisper or Moonshine; config.json says that it is 'qwen2'"):
        run(nodes.Transcribe, audio(speech(0.5)), NAME)
    (here / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="says that it is 'nothing known'. Choose a folder"):
        run(nodes.Transcribe, audio(speech(0.5)), NAME)


@pytest.mark.parametrize("name", ["../whisper", "/etc", "", " "])
def test_names_that_lead_out(here, name):
    with pytest.raises(ValueError, match="folder: .* is not a path inside models/tts"):
        run(nodes.Transcribe, audio(speech(0.5)), name)


@pytest.mark.parametrize("problem", BROKEN_FILES)
def test_broken_weights(here, problem):
    spoil, text = BROKEN_FILES[problem]
    path = here / "model.safetensors"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ValueError, match=f"model.safetensors: .*(?:{text})"):
        folder.open_folder(here)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe{}", b"[" * 100_000])
def test_broken_texts(here, file, content):
    (here / file).write_bytes(content)
    with pytest.raises(ValueError, match=f"{file}: (the file is damaged|not a tokenizer).*Download it again"):
        folder.open_folder(here)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("changed", [{"encoder_attention_heads": 3}, {"d_model": "wide"}, {"d_model": 0},
                                     {"vocab_size": -1}, {"encoder_layers": 10**9}, {"decoder_layers": 10**30}])
def test_sizes_that_make_no_network(here, changed):
    sizes = json.loads((here / "config.json").read_text())
    (here / "config.json").write_text(json.dumps(sizes | changed))
    with pytest.raises(ValueError, match="config.json: no network can be made of these sizes|not the tensors of"):
        folder.open_folder(here)


def test_what_a_configuration_must_not_bring(here):
    """As many labels as it told were made, ten million in a quarter of a minute; kernels would come from a hub."""
    sizes = json.loads((here / "config.json").read_text())
    more = {"num_labels": 10**9, "id2label": {}, "label2id": {}, "attn_implementation": "a/kernel", "auto_map": {}}
    (here / "config.json").write_text(json.dumps(sizes | more))
    assert folder.open_folder(here).config.num_labels < 10


def test_weights_of_other_sizes(here):
    tensors = load_file(here / "model.safetensors")
    del tensors["model.encoder.conv1.bias"]
    tensors["model.extra"] = torch.zeros(1)
    tensors["model.decoder.layer_norm.weight"] = torch.zeros(17)
    save_file(tensors, here / "model.safetensors")
    with pytest.raises(ValueError, match="the tensors of Whisper: 1 missing .*conv1.bias.*1 unexpected .*ext.*1 of"):
        folder.open_folder(here)


def test_text_ids_of_another_model(here):
    whisper.write_small(here, eos_token_id=50257)
    with pytest.raises(ValueError, match="the text ids are another model's: 50363, ended by 50256, where conf"):
        folder.open_folder(here)
    shutil.copyfile(whisper.write_moonshine(here.parent / "moon") / "tokenizer.json", here / "tokenizer.json")
    with pytest.raises(ValueError, match=r"tokenizer.json: <\|endoftext\|> is no id of this model; take the"):
        folder.open_folder(here)


def test_pickles(here, tmp_path, monkeypatch):
    """Tensors in one are read; code is not run."""
    whisper.script(monkeypatch, [*ids(" Yes."), END])
    tensors = load_file(here / "model.safetensors")
    (here / "model.safetensors").unlink()
    torch.save(tensors, here / "pytorch_model.bin")
    assert run(nodes.Transcribe, audio(speech(0.5)), NAME) == "Yes."
    for content, text in pickles_with_code(tmp_path / "ran").values():
        (here / "pytorch_model.bin").write_bytes(content)
        with pytest.raises(ValueError, match=f"pytorch_model.bin: .*(?:{text})"):
            run(nodes.Transcribe, audio(speech(0.5)), NAME)
    assert not (tmp_path / "ran").exists()


def test_shards(here):
    """The index is the truth: a file that it does not name is not read, one that it names is needed."""
    tensors = load_file(here / "model.safetensors")
    whole = folder.open_folder(here).build(torch.float32).state_dict()
    (here / "model.safetensors").unlink()
    names = sorted(tensors)
    table = {name: f"model-0000{1 + (index > 9)}-of-00002.safetensors" for index, name in enumerate(names)}
    for file in set(table.values()):
        save_file({name: tensors[name] for name in names if table[name] == file}, here / file)
    save_file({"stray": torch.zeros(1)}, here / "model-00003-of-00003.safetensors")
    (here / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    parts = folder.open_folder(here).build(torch.float32).state_dict()
    assert parts.keys() == whole.keys() and all(torch.equal(parts[name], whole[name]) for name in whole)
    assert here / "model-00002-of-00002.safetensors" in folder.present(here)
    (here / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="these are missing: model-00002-of-00002.safetensors"):
        folder.open_folder(here)
    for odd in ({}, {"weight_map": {}}, {"weight_map": {"a": "../b"}}, {"weight_map": {"a": 5}}):
        (here / "model.safetensors.index.json").write_text(json.dumps(odd))
        with pytest.raises(ValueError, match="the table of files is damaged"):
            folder.open_folder(here)


class TestDownload:
    GIVEN = next(iter(folder.PUBLISHED))

    @pytest.fixture
    def fetched(self, small, two_roots, monkeypatch) -> list:
        """What was fetched, each file from the tiny Whisper; those that it lacks are not there."""
        calls = []

        def fetch(published, target, on_progress):
            calls.append((published.repository, published.file))
            on_progress(1, 2)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(small / published.file, target) if (small / published.file).is_file() else None

        monkeypatch.setattr(files.hub, "fetch", fetch)
        return calls

    def test_off(self, fetched):
        advice = "It is openai/whisper-tiny on Hugging Face: switch `download` on .*config.json, generation_config.json"
        with pytest.raises(FileNotFoundError, match=f"folder: 'whisper/whisper-tiny' is in none of .*{advice}"):
            run(nodes.Transcribe, audio(speech(0.5)), self.GIVEN)
        assert fetched == []

    def test_on(self, fetched, monkeypatch, two_roots):
        whisper.script(monkeypatch, [*ids(" Yes."), END])
        assert run(nodes.Transcribe, audio(speech(0.5)), self.GIVEN, download=True) == "Yes."
        assert fetched == [("openai/whisper-tiny", file) for file in folder.FILES]
        assert (two_roots[0] / self.GIVEN / "model.safetensors").is_file()

    def test_what_is_there_is_not_fetched(self, fetched, monkeypatch, here):
        here.parent.joinpath("whisper-tiny").symlink_to(here)
        whisper.script(monkeypatch, [*ids(" Yes."), END])
        run(nodes.Transcribe, audio(speech(0.5)), self.GIVEN, download=True)
        assert fetched == [("openai/whisper-tiny", "generation_config.json")]
        (here / "model.safetensors").rename(here / "pytorch_model.bin")
        fetched.clear()
        run(nodes.Transcribe, audio(speech(0.5)), self.GIVEN, download=True)
        assert "model.safetensors" not in [file for _, file in fetched]
