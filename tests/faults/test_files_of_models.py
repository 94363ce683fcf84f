"""Broken, foreign, linked and missing files in every place where one is read; nothing else is touched."""
from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import folder_paths
import pytest
import torch
from safetensors.torch import load_file, save_file

from kit.calls import EAR, load, run
from kit.files import BROKEN_FILES, LYING_HEADERS, good_safetensors, pickles_with_code
from kit.whisper import write_small
from speechwright import loader, nodes
from speechwright.checkpoint import Checkpoint
from speechwright.nodes.load import COSYVOICE_OPTION, OGG_OPTION, S3GEN_OPTION

TENSORS = ["s3gen", "llm", "flow", "hift", "speech_tokenizer_v3", "campplus", "ogg_tts", "codec", "ear"]


@pytest.fixture(scope="module")
def published(comfyui_folder, tmp_path_factory) -> Path:
    """A file of every kind that is read, by name: those of the demos, and a tiny ear's."""
    folder = tmp_path_factory.mktemp("published")
    temporary = Path(folder_paths.get_temp_directory())
    for demo in ("S3Gen", "CosyVoice3", "OGG TTS"):
        load(demo)
        for path in (temporary / f"speechwright_demo_{demo.replace(' ', '_')}").glob("*.safetensors"):
            shutil.copyfile(path, folder / path.name)
    write_small(folder / "ear")
    shutil.copyfile(folder / "ear" / "model.safetensors", folder / "ear.safetensors")
    assert sorted(path.stem for path in folder.glob("*.safetensors")) == sorted(TENSORS)
    return folder


def place(root: Path, published: Path, name: str) -> Path:
    """Puts all files there that belong with the one of that name; where that one lies."""
    if name == "ear":
        shutil.copytree(published / "ear", root / EAR)
        return root / EAR / "model.safetensors"
    if name == "s3gen":
        names, folder = ["s3gen"], root
    elif name in ("ogg_tts", "codec"):
        names, folder = ["ogg_tts", "codec"], root
    else:
        names, folder = ["llm", "flow", "hift", "speech_tokenizer_v3", "campplus"], root / "cosy"
    folder.mkdir(exist_ok=True)
    for file in names:
        shutil.copyfile(published / f"{file}.safetensors", folder / f"{file}.safetensors")
    return folder / f"{name}.safetensors"


def use(name: str, scene_audio: dict) -> object:
    """Loads, and builds every part."""
    if name == "ear":
        return run(nodes.Transcribe, audio=scene_audio, folder=EAR)
    if name == "s3gen":
        given = {"family": S3GEN_OPTION, "checkpoint": "s3gen.safetensors"}
    elif name in ("ogg_tts", "codec"):
        given = {"family": OGG_OPTION, "checkpoint": "ogg_tts.safetensors", "codec": "codec.safetensors"}
    else:
        given = {"family": COSYVOICE_OPTION, "folder": "cosy"}
    model, = run(nodes.LoadModel, family=given)
    for part in model._opened.parts:
        with model.loaded(part, 0) as network:
            left = [key for key, tensor in (*network.named_parameters(), *network.named_buffers()) if tensor.is_meta]
            assert left == []
    return model


@pytest.fixture
def sound(scene) -> dict:
    return scene.inputs["Transcribe"]["audio"]


@pytest.mark.parametrize("name", TENSORS)
def test_whole_files_work(published, two_roots, sound, name):
    place(two_roots[0], published, name)
    assert use(name, sound) is not None


@pytest.mark.parametrize("name", TENSORS)
def test_broken_files_are_one_error_with_a_remedy(published, two_roots, sound, name, tmp_path):
    """A download that stopped, a page in place of a file, a header that lies, code in a pickle."""
    path, marker = place(two_roots[0], published, name), tmp_path / "ran"
    contents = {kind: (damage(good_safetensors()), text) for kind, (damage, text) in BROKEN_FILES.items()}
    for kind, (content, text) in {**contents, **LYING_HEADERS, **pickles_with_code(marker)}.items():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=text) as caught:
            use(name, sound)
        assert path.name in str(caught.value), kind
    assert not marker.exists()


@pytest.mark.parametrize("name", TENSORS)
def test_files_of_another_model(published, two_roots, sound, name, monkeypatch):
    """Told by names and shapes, before any tensor is read, in words that fit on a screen."""
    path = place(two_roots[0], published, name)
    monkeypatch.setattr(Checkpoint, "read", lambda self, *_: pytest.fail(f"{self.path} was read"))
    for other in TENSORS:
        if other == name:
            continue
        shutil.copyfile(published / f"{other}.safetensors", path)
        with pytest.raises(ValueError) as caught:
            use(name, sound)
        said = str(caught.value).split("What the file holds")[0]       # OGG's report, of 40 lines
        assert path.name in said and len(said) < 1000, other


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_too_few_too_many_or_turned_round(published, two_roots, sound, name, monkeypatch):
    """What a file lacks would be noise, and nobody would know why."""
    path = place(two_roots[0], published, name)
    state = load_file(path)
    # Of S3Gen's some tables are computed; magnitudes of a weight norm are read in any shape.
    names = [key for key in state if not key.endswith("original0") and (name != "s3gen" or key.startswith("flow."))]
    lone = next(key for key in names if state[key].ndim == 1 and state[key].numel() > 1)
    turned = next(key for key in names if state[key].ndim >= 2 and state[key].shape[0] != state[key].shape[1])
    monkeypatch.setattr(Checkpoint, "read", lambda self, *_: pytest.fail(f"{self.path} was read"))
    whole = {**state, "of.another": torch.zeros(2)}
    for changed in ({key: value for key, value in state.items() if key != lone},
                    {**state, turned: state[turned].transpose(0, 1).contiguous()}, whole):
        save_file(changed, path)
        with pytest.raises(ValueError, match="missing|of another shape|unexpected|looked for") as caught:
            use(name, sound)
        assert path.name in str(caught.value)


@pytest.mark.parametrize("name", TENSORS)
def test_links_that_lead_nowhere(published, two_roots, sound, name):
    """Not a traceback from the depths: what is missing, and where it belongs."""
    path = place(two_roots[0], published, name)
    for target in (two_roots[0] / "gone", path):
        path.unlink()
        path.symlink_to(target)
        with pytest.raises((FileNotFoundError, ValueError), match="is in none of|missing|no part of|neither") as caught:
            use(name, sound).require("Node", "lm", "tokenizer", "speaker", "synthesis")
        assert path.stem in str(caught.value) or path.parent.name in str(caught.value)


@pytest.mark.parametrize("name", ["s3gen", "llm", "codec", "ear"])
def test_nothing_is_written_beside_models_and_nobody_is_asked(published, two_roots, sound, name, monkeypatch):
    """Folders of models are read-only or in a cloud, machines have no network: some wrote a cache, or asked the hub."""
    place(two_roots[0], published, name)

    def content() -> dict:
        return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in two_roots[0].parent.rglob("*")}

    def ask(*_, **__):
        raise AssertionError("a socket was opened")

    before = content()
    monkeypatch.setattr(socket, "socket", ask)
    monkeypatch.setattr(socket, "getaddrinfo", ask)
    use(name, sound)
    assert content() == before


def test_lists_never_fail(published, two_roots, monkeypatch):
    """One broken folder took every node of ComfyUI with it."""
    for name in TENSORS:
        place(two_roots[0], published, name) if not (two_roots[0] / EAR).exists() or name != "ear" else None
    (two_roots[0] / "loop").symlink_to(two_roots[0])
    (two_roots[0] / "gone").symlink_to(two_roots[0] / "nowhere")
    (two_roots[0] / "bad").mkdir()
    (two_roots[0] / "bad" / "config.json").write_text(json.dumps([1]), encoding="utf-8")
    (two_roots[0] / "模型 v1").mkdir()
    (two_roots[0] / "模型 v1" / "ä b.safetensors").write_bytes(b"")
    for node in (nodes.LoadModel, nodes.Transcribe, nodes.VoiceLibrary):
        assert node.define_schema().inputs
    assert "模型 v1/ä b.safetensors" in loader.checkpoint_choices() and "cosy" in loader.folder_choices()
    assert EAR in nodes.ears.choices() and "bad" not in nodes.ears.choices()
