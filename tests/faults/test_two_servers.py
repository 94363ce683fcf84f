"""Servers with other flags than the tests' own, and two servers at once on the same folders.

Here is every flag of ComfyUI 0.30 about memory, precision and devices that a machine without a graphics card takes.
Two servers with many of them run always; those of ``MORE`` where SPEECHWRIGHT_EVERY_FLAG is set.

With ``--cpu`` ComfyUI refuses ``--novram``, ``--lowvram``, ``--highvram`` and ``--gpu-only``, and without it none of
these starts where torch knows no graphics card: ``test_little_memory.py`` stands for them. Nor does
``--enable-dynamic-vram`` start there.
"""
from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from test_workflows import sounds_of

from kit.onnx_files import tokenizer_graph, write
from kit.server import Comfy, running
from kit.short import NAMES, patchers_of, short
from kit.tiny import fill, tiny_config
from speechwright.s3gen.tokenizer import S3Tokenizer

FAMILIES = ["cosyvoice3_zero_shot", "cosyvoice2_to_s3gen", "ogg_text_to_speech", "voice_conversion"]
SEED = 5
WIDE = 2**16            # channels with which a tiny tokenizer has 67 MB, which take a while to write
LIMIT_S = 60

NOTHING_KEPT = ("--cache-none", "--disable-smart-memory", "--force-fp16", "--fp16-unet", "--fp16-vae",
                "--fp16-text-enc", "--fp16-intermediates", "--force-channels-last", "--cpu-vae")
ONE_KEPT = ("--cache-lru", "1", "--force-fp32", "--bf16-unet", "--bf16-vae", "--bf16-text-enc", "--deterministic",
            "--use-pytorch-cross-attention", "--disable-mmap", "--reserve-vram", "1")
MORE = [
    ("--cache-classic", "--fp32-unet", "--fp32-text-enc", "--fp32-vae", "--use-split-cross-attention",
     "--force-upcast-attention", "--disable-dynamic-vram", "--async-offload", "--mmap-torch-files", "--fast"),
    ("--cache-ram", "4", "--fp64-unet", "--fp8_e4m3fn-text-enc", "--use-quad-cross-attention", "--multi-user",
     "--dont-upcast-attention", "--disable-async-offload", "--force-non-blocking"),
    ("--cache-ram", "4", "8", "--fp8_e4m3fn-unet", "--fp8_e5m2-text-enc", "--supports-fp8-compute", "--fast-disk",
     "--disable-xformers", "--disable-metadata", "--disable-pinned-memory"),
    ("--high-ram", "--fp8_e5m2-unet", "--default-device", "0"),
    ("--cache-lru", "100", "--fp8_e8m0fnu-unet"),
]


def sounds(comfy: Comfy, name: str) -> list[np.ndarray]:
    return [sound.samples for sound in sounds_of(comfy, comfy.queue(short(name, SEED)))]


@pytest.fixture(scope="module")
def plain(comfy: Comfy) -> Callable[[str], list[np.ndarray]]:
    """What a workflow gives without flags, computed once."""
    known: dict[str, list[np.ndarray]] = {}

    def of(name: str) -> list[np.ndarray]:
        if name not in known:
            known[name] = sounds(comfy, name)
        return known[name]

    return of


def assert_same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(found) == len(expected) and all(map(np.array_equal, found, expected))


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    """The folders of models and of the user that two servers have in common."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "user").mkdir()
    return folder


@pytest.fixture(scope="module")
def pair(comfyui_folder: Path, shared: Path) -> Iterator[tuple[Comfy, Comfy]]:
    with ExitStack() as stack:
        yield tuple(stack.enter_context(running(
            comfyui_folder, *flags, "--user-directory", str(shared / "user"), "--temp-directory", str(shared / "temp"),
            models=shared / "models")) for flags in (NOTHING_KEPT, ONE_KEPT))


@pytest.mark.parametrize("name", NAMES)
def test_a_server_that_keeps_nothing(pair, plain, name: str):
    """With --cache-none nobody but the run itself holds a model: one that was freed amid it, or outlived it."""
    comfy, _ = pair
    assert_same(sounds(comfy, name), plain(name))
    left = comfy.census()
    assert (left["models"], left["patchers"]) == ([], 0), left


@pytest.mark.parametrize("name", FAMILIES)
def test_a_server_that_keeps_one(pair, plain, name: str):
    """With --cache-lru 1 the models of a graph stay until another graph begins."""
    _, comfy = pair
    assert_same(sounds(comfy, name), plain(name))
    kept = comfy.census()
    assert kept["models"] and kept["patchers"] == patchers_of(short(name, SEED)), kept


def node(kind: str, **inputs) -> dict:
    return {"class_type": kind, "inputs": inputs}


def save_voice(name: str, clip: str, overwrite: bool) -> dict:
    return {"1": node("LoadAudio", audio=clip),
            "2": node("SpeechwrightVoice", audio=["1", 0], transcript=f"These are the words of {clip}.", name=name),
            "3": node("SpeechwrightSaveVoice", voice=["2", 0], overwrite=overwrite)}


def test_a_name_is_given_once(pair, shared: Path):
    """Two servers that save a voice of one name at once both found the name free."""
    folder = shared / "models" / "voices"
    with ThreadPoolExecutor(2) as pool:
        for name in ("Cleo", "Dora", "Emil"):
            jobs = [pool.submit(comfy.queue, save_voice(name, clip, False))
                    for comfy, clip in zip(pair, ("ada.flac", "bruno.flac"))]
            runs = [job.result() for job in jobs]
            errors = [run.of("execution_error")[0]["exception_message"] for run in runs if not run.completed]
            assert len(errors) == 1 and f"{name}.flac already" in errors[0], errors
            winner = next(clip for run, clip in zip(runs, ("ada", "bruno")) if run.completed)
            assert winner in (folder / f"{name}.txt").read_text(encoding="utf-8")
    # Other voices were there before.
    assert {path.stem for path in folder.glob("*.flac")} == {"ada", "bruno", "Cleo", "Dora", "Emil"}


def test_one_is_killed_amid_its_work(pair, shared: Path, plain):
    """The last test of this pair. What the killed server had begun to convert is no model, what it saved is a voice,
    and the other one goes on: no lock stays behind."""
    doomed, comfy = pair
    config = tiny_config().tokenizer
    network = fill(S3Tokenizer(replace(config, hidden=WIDE), device="meta"), "tokenizer")
    folder = shared / "models" / "tts" / "converts"
    folder.mkdir(parents=True)
    write(folder / "speech_tokenizer_v3.onnx", tokenizer_graph(network.state_dict(), 3).file())
    graph = {"1": node("SpeechwrightLoadModel", family="CosyVoice", **{"family.folder": "converts"}),
             "2": node("LoadAudio", audio="ada.flac"),
             "3": node("SpeechwrightS3Tokenize", model=["1", 0], audio=["2", 0]),
             "4": node("PreviewAny", source=["3", 0])}
    cache = shared / "user" / "speechwright" / "cache"
    doomed.post("/prompt", {"prompt": graph})
    doomed.post("/prompt", {"prompt": save_voice("Cleo", "bruno.flac", True)})
    limit = time.monotonic() + LIMIT_S
    while not list(cache.glob("*")):
        assert time.monotonic() < limit, doomed.log()[-2000:]
    os.kill(doomed.booted.process.pid, signal.SIGKILL)
    begun = [path.suffix for path in cache.iterdir()]
    run = comfy.queue(graph)
    assert run.completed, run.history["status"]
    assert begun and len(list(cache.glob("*.safetensors"))) == 1
    for path in cache.glob("*.safetensors"):
        assert sum(tensor.numel() for tensor in load_file(path).values()) > 4 * WIDE * config.width
    assert comfy.queue(save_voice("Cleo", "ada.flac", True)).completed
    assert "ada" in (shared / "models" / "voices" / "Cleo.txt").read_text(encoding="utf-8")
    assert_same(sounds(comfy, "voice_conversion"), plain("voice_conversion"))


if os.environ.get("SPEECHWRIGHT_EVERY_FLAG"):
    @pytest.mark.parametrize("flags", MORE, ids=" ".join)
    def test_every_flag(comfyui_folder: Path, plain, flags: tuple[str, ...]):
        with running(comfyui_folder, *flags) as comfy:
            for name in FAMILIES:
                assert_same(sounds(comfy, name), plain(name))
