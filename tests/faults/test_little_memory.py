"""A graphics card without room: with --novram ComfyUI keeps weights in the main memory, and fetches them by layers.

Without such a card, a device of no data stands for it, and weights that are not numbers for those that are elsewhere.
"""
from __future__ import annotations

from collections.abc import Iterator

import comfy.model_management as management
import pytest
import torch
from torch import nn

from kit.calls import Calls, plain, same
from speechwright import loader

CARD = torch.device("meta")
ROOM_BYTES = 10**12
COMPUTING = ["RASSampler", "BlockDiffusionSampler", "S3Token2Wav", "S3Token2Wav of CosyVoice3", "S3Tokenize",
             "S3Tokenize of CosyVoice3", "FishEncode", "FishDecode", "EncodePrompt", "EncodePrompt of CosyVoice3"]


def tensors_of(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def fetched(network: nn.Module) -> list[nn.Module]:
    """The layers of ComfyUI's own kind."""
    return [module for module in network.modules() if hasattr(module, "comfy_cast_weights")]


@pytest.fixture
def no_room(monkeypatch):
    monkeypatch.setattr(management, "vram_state", management.VRAMState.NO_VRAM)
    monkeypatch.setattr(management, "get_free_memory", lambda device=None, torch_free_too=False: (
        (ROOM_BYTES, ROOM_BYTES) if torch_free_too else ROOM_BYTES))


@pytest.mark.parametrize("demo", loader.demo_titles())
def test_what_is_not_fetched_is_brought(comfyui_folder, no_room, demo):
    """With --novram norms, activations and running means stayed in the main memory while the rest computed on the
    card: every model of ours stopped at its first norm."""
    model = loader.load_demo(demo)
    model.device = CARD
    for part, patcher in model._patchers.items():
        patcher.load_device = CARD
        with model.loaded(part, 0) as network:
            own = fetched(network)
            rest = [tensor for module in network.modules() if module not in own for tensor in tensors_of(module)]
            assert network.model_lowvram and rest and all(tensor.device == CARD for tensor in rest)
            assert own and all(module.comfy_cast_weights for module in own)
            assert not any(tensor.is_meta for module in own for tensor in tensors_of(module))


@pytest.fixture
def elsewhere(scene: Calls) -> Iterator[Calls]:
    """Weights of ComfyUI's layers are NaN until its layers fetch them."""
    kept = []
    for model in scene.models.values():
        for patcher in model.get_models():
            for module in fetched(patcher.model):
                for name, weight in module.named_parameters(recurse=False):
                    kept.append((module, name, weight.data))
                    setattr(module, f"{name}_function", [lambda _, there=weight.data: there])
                    weight.data = torch.full_like(weight.data, torch.nan)
    try:
        yield scene
    finally:
        for module, name, data in kept:
            getattr(module, name).data = data
            delattr(module, f"{name}_function")


@pytest.fixture(scope="module")
def expected(scene: Calls) -> dict[str, list]:
    return {name: plain(scene.run(name)[0]) for name in COMPUTING}


@pytest.mark.parametrize("name", COMPUTING)
def test_no_weight_is_taken_past_its_layer(expected, elsewhere, name):
    """A weight that is read beside its layer's own call is where ComfyUI left it, not where the others compute."""
    for model in elsewhere.models.values():
        model._voices.clear()           # what was heard before
    assert same(plain(elsewhere.run(name)[0]), expected[name])
