"""The golden language model, and small ones of both versions."""
from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from speechwright.cosyvoice3.config import LMConfig
from speechwright.cosyvoice3.demo import demo_config, random_state
from speechwright.cosyvoice3.lm import SpeechLM
from speechwright.cosyvoice3.weights import build

FOLDER = Path(__file__).parents[1] / "golden" / "cosyvoice3"
CASES = ("0", "1")
# Its heads are narrower than those of published models, which its shapes do not tell.
GOLDEN_CONFIG = LMConfig(width=64, layers=3, heads=4, kv_heads=2, hidden=96, text_rows=400, head_width=16)


@lru_cache(maxsize=1)
def llm_manifest() -> dict[str, tuple[int, ...]]:
    """Published name -> shape of all 293 tensors of CosyVoice3's file, all float32."""
    entries = json.loads((FOLDER / "llm_manifest.json").read_text(encoding="utf-8"))
    return {name: tuple(shape) for name, shape in entries.items()}


@lru_cache(maxsize=1)
@torch.inference_mode(False)     # whoever asks first
def golden() -> dict[str, Tensor]:
    """Weights as ``w.NAME``, inputs and outputs of case N as ``N.in.NAME`` and ``N.out.NAME``. Not to be changed."""
    with safe_open(FOLDER / "lm.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


@lru_cache(maxsize=1)
def golden_facts() -> list[dict]:
    """min_len, max_len, stop_id (-1: none) and more of each case."""
    with safe_open(FOLDER / "lm.safetensors", "pt") as file:
        return json.loads(file.metadata()["config"])["cases"]


def golden_state() -> dict[str, Tensor]:
    """The golden weights by their published names."""
    return {name[2:]: tensor for name, tensor in golden().items() if name.startswith("w.")}


@lru_cache(maxsize=1)
def golden_lm() -> SpeechLM:
    return build(golden_state(), config=GOLDEN_CONFIG)


def golden_prompt(case: str) -> Tensor:
    """(1, S, D), what a case begins with"""
    lm, inputs = golden_lm(), golden()
    text = (lm.embed_text(inputs[f"{case}.in.{name}"]) for name in ("prompt_text", "text"))
    return torch.cat((lm.start(), *text, lm.task(), lm.embed_speech(inputs[f"{case}.in.prompt_speech"])))[None]


def tiny_lm_state(version: int = 3, text_rows: int = 300) -> dict[str, Tensor]:
    """A new state dict of the demo's sizes, with a short text table."""
    return random_state(replace(demo_config(version), text_rows=text_rows))


@lru_cache(maxsize=2)
def tiny_lm(version: int = 3) -> SpeechLM:
    return build(tiny_lm_state(version))
