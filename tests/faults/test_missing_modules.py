"""The pack in a ComfyUI that lacks a module: only what needs it fails, with words."""
from __future__ import annotations

import asyncio
import importlib.util
import shutil
import sys
from pathlib import Path

import folder_paths
import pytest
import torch

from kit.calls import EAR, sound
from kit.checkout import CHECKOUT, shipped
from kit.whisper import write_small

MODULES = ["torchaudio", "transformers", "huggingface_hub", "torchvision", "torchcodec", "soundfile", "scipy",
           "tokenizers", "onnx", "filelock"]
# What each is needed for by us.
NEEDED = {"torchaudio": {"S3Tokenize", "S3Token2Wav", "FishEncode", "Transcribe"}, "transformers": {"Transcribe"},
          "tokenizers": {"LoadModel", "Transcribe"}}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("custom_nodes") / "speechwright"
    for name in shipped():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def ear(comfyui_folder):
    folder = Path(folder_paths.models_dir, "tts", EAR)
    yield write_small(folder, max_target_positions=24)
    shutil.rmtree(folder)


def nodes_without(module: str, unpacked: Path, monkeypatch) -> dict:
    """The pack, imported anew without that module; node id without its prefix -> class."""
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    name = f"speechwright_without_{module}"
    spec = importlib.util.spec_from_file_location(name, unpacked / "__init__.py")
    pack = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, pack)
    spec.loader.exec_module(pack)

    async def listed() -> list:
        return await (await pack.comfy_entrypoint()).get_node_list()
    found = {node.GET_SCHEMA().node_id.removeprefix("Speechwright"): node for node in asyncio.run(listed())}
    for key in [key for key in sys.modules if key.startswith(f"{name}.")]:
        monkeypatch.setitem(sys.modules, key, sys.modules[key])         # goes with the test
    return found


@pytest.mark.parametrize("module", MODULES)
def test_only_what_needs_a_module_fails(unpacked, ear, monkeypatch, module):
    """One pack in a node's import line took all others with it; torchcodec alone cost its users a summer."""
    nodes, failed = nodes_without(module, unpacked, monkeypatch), {}

    def call(name: str, **given) -> object:
        try:
            with torch.inference_mode():
                return nodes[name].execute(**given).args[0]
        except ImportError as error:
            failed[name] = str(error)
            return None

    for demo, tokens in (("S3Gen", "S3Tokenize"), ("OGG TTS", "FishEncode")):
        model = call("LoadModel", family={"family": "Demo", "demo": demo})
        if model is None:
            continue
        read = call(tokens, model=model, audio=sound(0.5))
        voice = call("Voice", audio=sound(1.2), transcript="So he said.")
        if read is not None and voice is not None:
            if demo == "OGG TTS":
                call("FishDecode", model=model, tokens=read)
            else:
                call("S3Token2Wav", model=model, tokens=read, seed=0, voice=voice, steps=1)
    cosy = call("LoadModel", family={"family": "Demo", "demo": "CosyVoice3"})
    if cosy is not None:
        call("RASSampler", model=cosy, prompt=call("EncodePrompt", model=cosy, text="Hi."), seed=0, max_ratio=3.0)
    call("Transcribe", audio=sound(0.5), folder=EAR)
    assert set(failed) <= NEEDED.get(module, set())
    assert all(module in words for words in failed.values())
