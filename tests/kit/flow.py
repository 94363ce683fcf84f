"""The golden flow, the demo's, and a small one with every part of it."""
from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from speechwright.cosyvoice3.config import FlowConfig
from speechwright.cosyvoice3.demo_flow import demo_config, random_state
from speechwright.cosyvoice3.flow import MelFlow
from speechwright.cosyvoice3.flow_weights import build, published_shapes

from .golden import named_tensor

FOLDER = Path(__file__).parents[1] / "golden" / "cosyvoice3"
TABLE = "input_embedding.weight"


@lru_cache(maxsize=1)
def flow_manifest() -> dict[str, tuple[int, ...]]:
    """Published name -> shape of all 330 tensors of the file, all float32."""
    entries = json.loads((FOLDER / "flow_manifest.json").read_text(encoding="utf-8"))
    return {name: tuple(shape) for name, shape in entries.items()}


@lru_cache(maxsize=1)
@torch.inference_mode(False)     # whoever asks first
def golden_flow_data() -> dict[str, Tensor]:
    """Weights as ``w.NAME``, inputs and outputs of case N as ``N.in.NAME`` and ``N.out.NAME``. Not to be changed."""
    with safe_open(FOLDER / "flow.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


@lru_cache(maxsize=1)
def golden_flow_cases() -> list[dict]:
    """n_token, n_prompt, finalize, streaming of each case."""
    with safe_open(FOLDER / "flow.safetensors", "pt") as file:
        return json.loads(file.metadata()["config"])["cases"]


def golden_flow_state() -> dict[str, Tensor]:
    """The golden weights by their published names. Of the token table only the rows that are used are not zero."""
    data = golden_flow_data()
    state = {name[2:]: tensor for name, tensor in data.items() if name.startswith("w.")}
    state[TABLE] = torch.zeros(6561, 80).index_copy(0, data["table.ids"], data["table.rows"])
    return state


@lru_cache(maxsize=1)
def golden_flow() -> MelFlow:
    return build(golden_flow_state())


@lru_cache(maxsize=1)
def demo_flow() -> MelFlow:
    return build(random_state(demo_config()))


def tiny_flow_config() -> FlowConfig:
    """Unequal numbers wherever the model allows it, so that none can stand in for another."""
    return FlowConfig(mels=20, speaker=12, lookahead_width=24, width=128, layers=2, heads=2, hidden=96,
                      time_channels=40, position_taps=5, position_groups=8)


def tiny_flow_state(seed: int = 0) -> dict[str, Tensor]:
    shapes = published_shapes(MelFlow(tiny_flow_config(), device="meta"))
    return {name: named_tensor(name, shape, seed) for name, shape in shapes.items()}


@lru_cache(maxsize=1)
def tiny_flow() -> MelFlow:
    return build(tiny_flow_state())


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ids(count: int, seed: int = 0) -> Tensor:
    """int64 (N,) speech ids"""
    return torch.randint(0, 6561, (count,), generator=torch.Generator().manual_seed(seed))


def voice(flow: MelFlow, tokens: int, seed: int = 100, frames: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mel and embedding of nobody."""
    frames = 2 * tokens if frames is None else frames
    return ids(tokens, seed), noise(frames, flow.config.mels, seed=seed), noise(flow.config.speaker, seed=seed + 1)
