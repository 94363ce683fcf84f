"""What a run leaves behind: nothing. Seeds, chance, Cancel, two jobs at once, inference mode, precision."""
from __future__ import annotations

import random
import threading
from contextlib import contextmanager

import comfy.model_management
import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from kit.calls import Calls, calls, load, plain, same, sound
from speechwright.cosyvoice3.vocoder import CausalHiFT
from speechwright.s3gen.vocoder import HiFT

SEEDED = ["RASSampler", "BlockDiffusionSampler", "S3Token2Wav", "S3Token2Wav of CosyVoice3"]
WORKING = [*SEEDED, "S3Tokenize", "S3Tokenize of CosyVoice3", "FishEncode", "FishDecode", "EncodePrompt",
           "EncodePrompt of CosyVoice3", "Transcribe", "SpeechReport", "VoiceNode", "VoiceLibrary", "SaveVoice",
           "LoadModel"]
STEPPED = [*SEEDED, "S3Tokenize", "S3Tokenize of CosyVoice3", "FishEncode", "FishDecode", "Transcribe"]
every_node = pytest.mark.parametrize("name", WORKING)
Cancelled = comfy.model_management.InterruptProcessingException


def result(scene: Calls, name: str, **changed) -> list:
    """Tensors and texts; a report of a sampler tells the time that it took, and is left out."""
    return plain(scene.run(name, **changed)[0])


# Seeds


@pytest.mark.parametrize("name", SEEDED)
@pytest.mark.parametrize("seed", [-1, 0, 2**31, 2**32, 2**63, 2**64 - 1, 2**64 + 5, np.int64(-2), 7.0])
def test_every_number_is_a_seed(scene, name, seed):
    """Nodes of other packs send -1, and widgets go up to 2**64 - 1: torch and numpy refused them."""
    found = result(scene, name, seed=seed)
    assert same(found, result(scene, name, seed=int(seed) % 2**64))
    assert not same(found, result(scene, name, seed=int(seed) + 1))


@pytest.mark.parametrize("name", SEEDED)
@pytest.mark.parametrize("seed", [None, "7", 1.5, float("nan"), float("inf"), True, [7]])
def test_what_is_no_seed(scene, name, seed):
    title = scene.node(name).GET_SCHEMA().display_name
    with pytest.raises(ValueError, match=f"^{title}: seed: expected a whole number, got .*; give one, such as 0"):
        scene.run(name, seed=seed)


@every_node
def test_nobody_elses_random_numbers(scene, name):
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    first = result(scene, name)
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
    assert (np.random.get_state()[1] == before[2]).all()
    torch.manual_seed(2)
    random.seed(2)
    np.random.seed(2)
    assert same(first, result(scene, name))


# What is kept


def state_of(scene: Calls) -> dict:
    """Everything that hangs on a model, by name: values of tensors, and what else there is."""
    found = {}
    for title, model in scene.models.items():
        found[title] = sorted(model.__dict__)
        for number, patcher in enumerate(model.get_models()):
            for name, module in patcher.model.named_modules():
                found[title, number, name] = sorted(key for key in module.__dict__ if not key.startswith("_"))
            found |= {(title, number, "=", name): tensor.clone()
                      for name, tensor in patcher.model.state_dict().items()}
    return found


@every_node
def test_inputs_and_models_are_left_alone(scene, name):
    scene.run(name)                     # parts that had not been needed
    before, given = state_of(scene), [torch.clone(t) if torch.is_tensor(t) else t for t in plain(
        {key: value for key, value in scene.inputs[name].items() if key != "model"})]
    scene.run(name)
    after = state_of(scene)
    assert before.keys() == after.keys()
    assert all(same([before[key]], [after[key]]) for key in before)
    assert same(given, plain({key: value for key, value in scene.inputs[name].items() if key != "model"}))


OTHER = {
    "RASSampler": "EncodePrompt of CosyVoice3", "BlockDiffusionSampler": "EncodePrompt",
}


@pytest.mark.parametrize("name", SEEDED)
def test_a_b_a(scene, name):
    """Another text, voice and seed between two equal runs; the second was once spoken by the voice between."""
    voice, = scene.run("VoiceNode", audio=sound(1.4, 210.0), name="Bo")
    changed = {"seed": 9}
    if name in OTHER:
        changed["prompt"] = scene.run(OTHER[name], text="Another one.", voices={"voice0": voice})[0]
        without = {**changed, "prompt": scene.run(OTHER[name], text="Another one.", voices=None)[0]}
    else:
        changed["voice"], without = voice, changed
    first = result(scene, name)
    between, bare = result(scene, name, **changed), result(scene, name, **without)
    assert not same(first, between) and same(first, result(scene, name))
    titles = {"RASSampler": "CosyVoice3", "BlockDiffusionSampler": "OGG TTS", "S3Token2Wav": "S3Gen"}
    fresh = load(titles.get(name, "CosyVoice3"))
    assert same(bare, result(scene, name, **without, model=fresh))


# Cancel


@contextmanager
def pressed(monkeypatch, at: int | None, with_: type = Cancelled):
    """Cancel at that step, counted from 0; None counts only."""
    steps = []

    def press() -> None:
        steps.append(1)
        if len(steps) - 1 == at:
            raise with_("pressed")

    with monkeypatch.context() as patch:
        patch.setattr(comfy.model_management, "throw_exception_if_processing_interrupted", press)
        yield steps


@pytest.mark.parametrize("error", [Cancelled, MemoryError])
@pytest.mark.parametrize("name", STEPPED)
def test_cancel_at_the_first_second_and_last_step(scene, name, error, monkeypatch):
    with pressed(monkeypatch, None) as steps:
        expected = result(scene, name)
    before = state_of(scene)
    assert steps
    for at in sorted({0, min(1, len(steps) - 1), len(steps) - 1}):
        with pressed(monkeypatch, at, error) as done, pytest.raises(error):
            scene.run(name)
        assert len(done) == at + 1
        after = state_of(scene)
        assert before.keys() == after.keys() and all(same([before[key]], [after[key]]) for key in before)
        assert same(expected, result(scene, name))


# Two at once


@pytest.mark.parametrize("name", STEPPED)
def test_two_at_once_on_one_model(scene, name, monkeypatch):
    """The second begins in the middle of the first, and ends before it: state on a model would be the other's."""
    other = {"seed": 8} if "seed" in scene.inputs[name] else {}
    if "audio" in scene.inputs[name]:
        other["audio"] = sound(0.8, 170.0)
    if name == "FishDecode":
        other["tokens"] = scene.run("FishEncode")[0]
    alone = result(scene, name), result(scene, name, **other)
    assert not same(*alone) or name == "Transcribe"
    inside = []

    def press() -> None:
        if not inside:
            inside.append(None)
            inside[0] = result(scene, name, **other)

    monkeypatch.setattr(comfy.model_management, "throw_exception_if_processing_interrupted", press)
    assert same(result(scene, name), alone[0]) and same(inside[0], alone[1])


@pytest.mark.parametrize("name", STEPPED)
def test_two_threads_on_one_model(scene, name):
    other = {"seed": 8} if "seed" in scene.inputs[name] else {}
    alone, found, begin = [result(scene, name), result(scene, name, **other)], [None, None], threading.Barrier(2)

    def work(index: int, changed: dict) -> None:
        begin.wait()
        found[index] = result(scene, name, **changed)

    threads = [threading.Thread(target=work, args=job) for job in enumerate(({}, other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same(*pair) for pair in zip(alone, found))


# Inference mode


@pytest.mark.parametrize("family, names", [
    ("S3Gen", ["S3Tokenize", "S3Token2Wav"]), ("OGG TTS", ["FishEncode", "FishDecode", "BlockDiffusionSampler"]),
    ("CosyVoice3", ["S3Tokenize of CosyVoice3", "RASSampler", "S3Token2Wav of CosyVoice3"])])
def test_inside_and_outside_inference_mode(scene, family, names):
    """Tensors kept from inside could not be changed outside: 'Inplace update to inference tensor'."""
    expected = {name: result(scene, name) for name in names}
    for modes in ((True, False), (False, True)):
        with torch.inference_mode(modes[0]):
            model = load(family)
        for mode in (modes[0], *modes):
            for name in names:
                node, given = scene.node(name), {**scene.inputs[name], "model": model}
                with torch.inference_mode(mode), torch.no_grad():
                    assert same(plain(node.execute(**given).args[0]), expected[name]), (name, modes)
        for patcher in model.get_models():
            assert not any(tensor.is_inference() or tensor.is_meta for tensor in (
                *patcher.model.parameters(), *patcher.model.buffers()))
            patcher.model.load_state_dict(patcher.model.state_dict())


# Precision


class NoWide(TorchFunctionMode):
    """Raises where a tensor is made of which Apple's GPUs know nothing: float64 or complex128."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.dtype in (torch.float64, torch.complex128):
            raise AssertionError(f"{func} makes {made.dtype}")
        return made


@pytest.fixture
def double_pitch(scene, monkeypatch):
    """CosyVoice3's pitch is computed in float64, on the CPU wherever the rest is; a stand-in says so."""
    pitch = CausalHiFT.pitch

    def on_cpu(self, mel, *args, **kwargs):
        with torch._C.DisableTorchFunction():
            assert {tensor.device.type for tensor in self.f0_predictor.parameters()} == {"cpu"}
            found = pitch(self, mel, *args, **kwargs)
        return found.float()

    monkeypatch.setattr(CausalHiFT, "pitch", on_cpu)


@every_node
def test_no_tensor_is_double(scene, name, double_pitch):
    with NoWide():
        scene.run(name)


@pytest.mark.parametrize("make", [lambda: torch.zeros(2).double(), lambda: torch.zeros(2, dtype=torch.complex128)])
def test_doubles_are_seen(make):
    with pytest.raises(AssertionError, match="makes torch"), NoWide():
        make()


# How far bf16 may move the mel of a decoder, as a share of its size; what follows the mel is float32.
BOUNDS = {"S3Token2Wav": 0.05, "S3Token2Wav of CosyVoice3": 0.05}


@pytest.mark.parametrize("name", BOUNDS)
def test_bf16_is_near_fp32(scene, coarse, name, monkeypatch):
    vocoder, mels = CausalHiFT if "CosyVoice3" in name else HiFT, []
    pitch = vocoder.pitch
    monkeypatch.setattr(vocoder, "pitch", lambda self, mel, *args: mels.append(mel) or pitch(self, mel, *args))
    waves = [scene.run(name, model=model)[0]["waveform"] for model in (
        scene.inputs[name]["model"], coarse.inputs[name]["model"])]
    fine, other = torch.cat(mels[: len(mels) // 2], -1), torch.cat(mels[len(mels) // 2 :], -1)
    assert not torch.equal(fine, other) and (other - fine).norm() < BOUNDS[name] * fine.norm()
    assert waves[1].dtype == torch.float32 and waves[0].shape == waves[1].shape and waves[1].isfinite().all()


@pytest.mark.parametrize("name", ["S3Tokenize", "S3Tokenize of CosyVoice3", "FishEncode", "FishDecode"])
def test_what_reads_and_decodes_is_float32_beside_bf16(scene, coarse, name):
    assert same(result(scene, name), result(scene, name, model=coarse.inputs[name]["model"]))


@pytest.mark.parametrize("name", ["RASSampler", "BlockDiffusionSampler"])
def test_ids_of_bf16_are_ids(scene, coarse, name):
    """As a float of 16 bits 4095 is 4096: ids are int64 everywhere, and most of those that are drawn are the same."""
    found, other = (plain(scene.run(name, model=given.inputs[name]["model"])[0])[1:] for given in (scene, coarse))
    assert all(ids.dtype == torch.int64 for ids in other)
    assert float((found[0][0] == other[0][0]).float().mean()) >= 0.5


@pytest.fixture(scope="module")
def coarse():
    return calls("bf16")
