"""What a server holds: six runs of each workflow, memory that is asked back, and graphs that take another's place."""
from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from test_workflows import sounds_of

from kit.server import Comfy
from kit.short import NAMES, patchers_of, short
from kit.tiny import tiny_config, tiny_state
from speechwright.s3gen.tokenizer import S3Tokenizer

SLACK_BYTES = 8 * 2**20             # of the process, beside its tensors: allocators keep what they had
LEAST_BACK = 0.8                    # of a large model's bytes
LARGE = 2**17                       # channels with which a tiny tokenizer has 134 MB
SETTLE_S = 20
CONSTANTS = 40                      # tensors that are made once: windows, filters


def state_after(comfy: Comfy, graph: dict) -> dict:
    run = comfy.queue(graph)
    assert run.completed, run.history["status"]
    return comfy.census()


@pytest.mark.parametrize("name", NAMES)
def test_six_runs_use_what_two_did(comfy: Comfy, name: str):
    """Memory that grows run by run, until other models are pushed out, was the most reported fault of all. And what
    was asked back with /free stayed, because a table of the pack's own held the weights."""
    comfy.free(free_memory=True)
    empty = comfy.census()
    for seed in range(6):
        run = comfy.queue(short(name, seed))
        assert run.completed, run.history["status"]
        if seed == 1:
            second = comfy.census()
    last = comfy.census()
    assert last["models"] and last["patchers"] == patchers_of(short(name, 0))
    for what in ("models", "patchers", "tensors", "bytes"):
        assert last[what] == second[what], (what, second, last)
    assert last["held"] <= second["held"] + SLACK_BYTES, (second, last)
    comfy.free(unload_models=True)
    unloaded = comfy.census()
    assert (unloaded["models"], unloaded["patchers"], unloaded["tensors"]) == ([], last["patchers"], last["tensors"])
    comfy.free(free_memory=True)
    freed = comfy.census()
    assert (freed["models"], freed["patchers"]) == ([], 0), freed
    assert freed["tensors"] <= empty["tensors"] + CONSTANTS, (empty, freed)


@pytest.fixture
def large(comfy: Comfy) -> Iterator[str]:
    """A tokenizer whose layers are so large that no allocator keeps their pages."""
    config = tiny_config()
    config = replace(config, tokenizer=replace(config.tokenizer, hidden=LARGE))
    state = tiny_state()
    wide = S3Tokenizer(config.tokenizer, device="meta").state_dict()
    for name, tensor in wide.items():
        if state[f"tokenizer.{name}"].shape != tensor.shape:
            state[f"tokenizer.{name}"] = torch.zeros(tensor.shape)
    file = comfy.booted.base / "models" / "tts" / "large.safetensors"
    file.parent.mkdir(exist_ok=True)
    save_file(state, file)
    yield file.name
    file.unlink()


def test_free_gives_the_bytes_back(comfy: Comfy, large: str):
    """A model that nobody names any more is not always gone: what the system sees is what counts."""
    graph = {
        "1": node("SpeechwrightLoadModel", family="S3Gen (Chatterbox / CosyVoice2)", **{"family.checkpoint": large}),
        "2": node("LoadAudio", audio="ada.flac"),
        "3": node("SpeechwrightS3Tokenize", model=["1", 0], audio=["2", 0]),
        "4": node("SpeechwrightReport", tokens=["3", 0]),
        "5": node("PreviewAny", source=["4", 1]),
    }
    comfy.free(free_memory=True)
    told = []
    for _ in range(2):
        run = comfy.queue(graph)
        assert run.completed and not run.cached, run.history["status"]
        told.append(run.history["outputs"]["5"])
        full = comfy.census()
        comfy.free(free_memory=True)
        assert full["bytes"] > 4 * LARGE * 64 * 4
        limit = time.monotonic() + SETTLE_S     # the worker may be amid it
        while (empty := comfy.census())["held"] > full["held"] - LEAST_BACK * full["bytes"]:
            assert time.monotonic() < limit, (full, empty)
        assert empty["models"] == []
    assert told[0] == told[1]


def node(kind: str, **inputs) -> dict:
    return {"class_type": kind, "inputs": inputs}


def loader(demo: str, **inputs) -> dict:
    return node("SpeechwrightLoadModel", family="Demo", **{"family.demo": demo}, **inputs)


def four_loaders(seed: int) -> dict:
    """Voice conversion by one file that is loaded twice alike and once otherwise, and by another family."""
    graph = {
        "1": loader("S3Gen"), "2": loader("S3Gen"), "3": loader("S3Gen", device="cpu"), "4": loader("CosyVoice3"),
        "5": node("LoadAudio", audio="ada.flac"), "6": node("SpeechwrightVoice", audio=["5", 0]),
        "7": node("SpeechwrightS3Tokenize", model=["1", 0], audio=["5", 0]),
        "8": node("SpeechwrightS3Tokenize", model=["4", 0], audio=["5", 0]),
    }
    for key, model, tokens in (("11", "2", "7"), ("12", "3", "7"), ("13", "4", "8")):
        graph[key] = node("SpeechwrightS3Token2Wav", model=[model, 0], tokens=[tokens, 0], voice=["6", 0], seed=seed,
                          steps=2)
        graph[f"2{key}"] = node("SaveAudio", audio=[key, 0], filename_prefix="audio/loaders")
    return graph


def test_several_loaders_in_one_graph(comfy: Comfy):
    """A second loader of one file pushed the first model out, or shared what one of them had changed."""
    comfy.free(free_memory=True)
    seen = []
    for seed in range(3):
        run = comfy.queue(four_loaders(seed))
        one, other, third = (sound.samples for sound in sounds_of(comfy, run))
        assert np.array_equal(one, other) and not np.array_equal(one, third)
        seen.append(comfy.census())
    # Two loaders that are alike are one to ComfyUI.
    assert seen[1]["patchers"] == seen[2]["patchers"] == patchers_of(four_loaders(0)) == 3 + 3 + 4, seen
    assert seen[1]["models"] == seen[2]["models"] and seen[1]["tensors"] == seen[2]["tensors"], seen


def test_another_graph_takes_the_place(comfy: Comfy):
    """The model of the graph before stayed until ComfyUI was ended. ComfyUI gives back old models first, here at once:
    the server's share of memory for what no graph uses is all that there is."""
    alone = state_after(comfy, short("voice_conversion", 7))
    for before in ("ogg_text_to_speech", "cosyvoice2_to_s3gen"):
        assert state_after(comfy, short(before, 7))["models"] != alone["models"]
        after = state_after(comfy, short("voice_conversion", 7))
        assert (after["models"], after["patchers"]) == (alone["models"], alone["patchers"]), (before, alone, after)
