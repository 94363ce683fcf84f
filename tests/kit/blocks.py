"""The golden scenes of OGG TTS: a tiny model, and the stand-ins for tokenizer and depth decoder that made them."""
from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors import safe_open
from torch import Tensor

from speechwright.omnifish.generate import blocks_cached
from speechwright.omnifish.model import OmniFish
from speechwright.omnifish.weights import build

FILE = Path(__file__).parents[1] / "golden" / "omnifish" / "blocks.safetensors"
SITUATIONS = (
    "plain", "greedy_clone", "no_cfg", "dialogue", "left", "semantic_only", "continuation", "end_at_block_start",
    "no_mtp_prompt", "ends_at_once",
)
FACTS = ("prompt_frames", "target_prefix_frames", "voices", "blocks", "speech_frames", "mtp_calls")
SPECIAL = re.compile(r"<\|[a-z_]+\|>|.", re.DOTALL)


@lru_cache(maxsize=1)
@torch.inference_mode(False)     # whoever asks first
def golden() -> dict[str, Tensor]:
    """Weights as ``w.NAME``, what goes into a scene and what comes out as ``SCENE.NAME``. Not to be changed."""
    with safe_open(FILE, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


@lru_cache(maxsize=1)
def facts() -> dict:
    """Of each scene its arguments and what it gave."""
    with safe_open(FILE, "pt") as file:
        return json.loads(file.metadata()["config"])


def golden_state() -> dict[str, Tensor]:
    return {name[2:]: tensor for name, tensor in golden().items() if name.startswith("w.")}


class StandIn:
    """A depth decoder whose codes are a formula, and which tells what it was asked."""

    def __init__(self) -> None:
        self.calls = []

    def new_state(self, total_frames: int, hidden_size: int, device, dtype: torch.dtype) -> dict:
        return {"codes": torch.full((10, total_frames), 4096, device=device),
                "states": [torch.zeros(1, total_frames, hidden_size, device=device, dtype=dtype)]}

    def prime(self, state: dict, frames: int) -> None:
        self.calls.append(["prime", frames, state["states"][0][0, :frames].double().sum().item()])

    def decode_block(self, state: dict, lo: int, hi: int, block: int, rounds: int, temperature: float, top_k: int,
                     prefix: int) -> None:
        heard = state["states"][0][0, lo:hi].double().sum().item()
        self.calls.append(["block", lo, hi, block, rounds, prefix, heard])
        frame, codebook = torch.arange(lo, hi), torch.arange(1, 10)[:, None]
        state["codes"][1:, lo:hi] = (7 * state["codes"][:1, lo:hi] + 31 * codebook + frame) % 1024


def tokenizer(text: str, return_tensors: str) -> SimpleNamespace:
    """One id for each control token and each character."""
    assert return_tensors == "pt" and text
    special = facts()["special_tokens"]
    ids = [special.index(part) if len(part) > 1 else 20 + ord(part) % 236 for part in SPECIAL.findall(text)]
    return SimpleNamespace(input_ids=torch.tensor([ids]))


@lru_cache(maxsize=1)
def golden_model() -> OmniFish:
    """With a stand-in that all tests share: those that listen to it bring their own."""
    return build("model", golden_state(), mtp=StandIn())


def scene(name: str) -> dict:
    """The arguments of a golden scene beside model and tokenizer."""
    found, data = facts()[name], golden()
    arguments = {key: value for key, value in found.items() if key not in FACTS}
    if found["voices"]:
        arguments["voices"] = [(who, words, data[f"{name}.voice{number}_codes"])
                               for number, (who, words, _) in enumerate(found["voices"])]
    prefix = data.get(f"{name}.target_prefix")
    return {"prompt_codes": data.get(f"{name}.prompt_codes"), "prompt_text": "", "target_prefix": prefix, **arguments}


def speak(model: OmniFish | None = None, **arguments) -> list[tuple[Tensor, Tensor]]:
    """Every yield."""
    given = {"prompt_codes": None, "prompt_text": "", "text": "Hello", "lang": "en", **arguments}
    return list(blocks_cached(model or golden_model(), tokenizer, **given))
