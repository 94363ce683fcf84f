"""The pack in a ComfyUI that lacks a module: only what needs it fails, with words."""
from __future__ import annotations

import asyncio
import importlib.util
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import folder_paths
import pytest
import torch

from kit.calls import EAR, VOICE, run, sound
from kit.checkout import CHECKOUT, shipped
from kit.whisper import write_small
from speechwright import nodes
from speechwright.nodes.load import S3GEN_OPTION

# What each is needed for by us.
NEEDED = {
    "torchaudio": {"S3Tokenize", "S3Tokenize of CosyVoice3", "S3Token2Wav of CosyVoice3", "FishEncode", "Transcribe",
                   "Report"},
    "transformers": {"Transcribe"}, "tokenizers": {"LoadModel of CosyVoice3", "Transcribe"},
    "scipy": {"S3Tokenize of an odd rate"}, "av": {"SaveVoice", "VoiceLibrary"},
    "huggingface_hub": {"LoadModel with download"}, "filelock": {"SaveVoice"},
}
# What other packs need, and ComfyUI for pictures: all of them are missing at once.
NOT_OURS = ("torchvision", "torchcodec", "soundfile", "librosa", "onnx", "onnxruntime", "einops", "kornia", "spandrel")


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


@pytest.fixture(scope="module")
def kept(comfyui_folder):
    voice, = run(nodes.VoiceNode, audio=sound(1.2), name=VOICE)
    run(nodes.SaveVoice, voice=voice, name=VOICE, overwrite=True)
    yield
    for path in Path(folder_paths.models_dir, "voices").glob(f"{VOICE}.*"):
        path.unlink()


def nodes_without(modules: tuple[str, ...], unpacked: Path, monkeypatch) -> dict:
    """The pack, imported anew without those modules; node id without its prefix -> class."""
    for name in [name for name in sys.modules if name.split(".")[0] in modules]:
        monkeypatch.delitem(sys.modules, name)
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    name = f"speechwright_without_{modules[0]}"
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


class Chain:
    """Every node, each with what those before it gave. One that fails is noted, and so are those that need what it
    gives, by None."""

    def __init__(self, nodes: dict) -> None:
        self.nodes, self.called, self.failed = nodes, set(), {}

    def call(self, called: str, **given) -> object:
        node = self.nodes[called.split(" ")[0]]
        if any(value is None for value in given.values()):
            return None
        self.called.add(node)
        try:
            with torch.inference_mode():
                return node.execute(**given).args[0]
        except ImportError as error:
            self.failed[called] = str(error)
            return None

    def run(self) -> None:
        models = {title: self.call(f"LoadModel of {title}", family={"family": "Demo", "demo": title})
                  for title in ("S3Gen", "CosyVoice3", "OGG TTS")}
        voice = self.call("Voice", audio=sound(1.2), transcript="So he said.", name="Ada")
        self.call("SaveVoice", voice=voice, name=VOICE, overwrite=True)
        self.call("VoiceLibrary", name=VOICE)
        s3gen, cosy, ogg = models.values()
        self.call("S3Token2Wav", model=s3gen, tokens=self.call("S3Tokenize", model=s3gen, audio=sound(0.5)), seed=0,
                  voice=voice, steps=1)
        self.call("S3Tokenize of CosyVoice3", model=cosy, audio=sound(0.5))
        prompt = self.call("EncodePrompt of CosyVoice3", model=cosy, text="Hi.")
        drawn = self.call("RASSampler", model=cosy, prompt=prompt, seed=0, max_ratio=3.0)
        self.call("S3Token2Wav of CosyVoice3", model=cosy, tokens=drawn, seed=0, voice=voice, steps=1)
        codes = self.call("FishEncode", model=ogg, audio=sound(0.5))
        prompt = self.call("EncodePrompt", model=ogg, text="Hi.")
        drawn = self.call("BlockDiffusionSampler", model=ogg, prompt=prompt, seed=0, max_seconds=0.5, steps=1)
        self.call("Report", tokens=drawn, audio=self.call("FishDecode", model=ogg, tokens=drawn or codes))
        self.call("Transcribe", audio=sound(0.5), folder=EAR)
        with suppress(FileNotFoundError):       # tests are offline, and the words say so
            self.call("LoadModel with download", family={
                "family": S3GEN_OPTION, "checkpoint": "s3gen/s3gen.safetensors"}, download=True)
        odd = {**sound(1.2), "sample_rate": 44101}
        self.call("S3Tokenize of an odd rate", model=s3gen, audio=odd)


@pytest.mark.parametrize("module", NEEDED)
def test_only_what_needs_a_module_fails(unpacked, ear, kept, monkeypatch, module):
    """One pack in a node's import line took all others with it."""
    chain = Chain(nodes_without((module,), unpacked, monkeypatch))
    chain.run()
    assert set(chain.failed) == NEEDED[module]
    assert all(module in words and re.search("[Ii]nstall", words) for words in chain.failed.values())


def test_every_node_runs_without_what_is_not_ours(unpacked, ear, kept, monkeypatch):
    """torchcodec alone cost the users of other packs a summer."""
    chain = Chain(nodes_without(NOT_OURS, unpacked, monkeypatch))
    chain.run()
    assert chain.failed == {} and chain.called == set(chain.nodes.values())
