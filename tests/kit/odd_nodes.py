"""Custom nodes for the ComfyUI under test: outputs that say nothing of what they give, and give anything.

``OddValue`` makes a value by its name, ``OddTokens`` spoils tokens, and ``Look`` tells what it is given as JSON.
"""
from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from kit.audio import BAD_AUDIO, RATE_HZ, UNSPEAKABLE, audio, good_audio, speechlike, tone

NUMBERS: dict[str, object] = {
    "0": 0, "1": 1, "2": 2, "-1": -1, "0.5": 0.5, "3.0": 3.0, "-0.0": -0.0, "1e-320": 1e-320, "1e308": 1e308,
    "2**63": 2**63, "2**64": 2**64, "-10**30": -10**30, "10**400": 10**400, "10**4000": 10**4000, "nan": math.nan,
    "inf": math.inf, "-inf": -math.inf, "np.int64 3": np.int64(3), "np.float32 0.5": np.float32(0.5),
    "np.uint8 200": np.uint8(200), "np nan": np.float64("nan"), "np.bool_": np.bool_(True), "1/3": Fraction(1, 3),
    "Decimal 2": Decimal(2), "Decimal NaN": Decimal("NaN"), "1j": 1j, "torch 2": torch.tensor(2),
    "torch 0.5": torch.tensor(0.5), "torch nan": torch.tensor(math.nan), "np array of one": np.array([2]),
}

OTHERS: dict[str, object] = {
    "None": None, "True": True, "False": False, "text": "yes", "text 7": "7", "text False": "False", "no text": "",
    "text None": "None", "half an emoji": "a\ud83d", "long text": "ab " * 40_000, "bytes": b"7", "list": [1, 2],
    "no list": [], "deep list": json.loads("[" * 80 + "]" * 80), "dict": {"a": 1}, "no dict": {},
    "set": {1},
    "tuple": (1, 2), "tensor": torch.ones(2, 3), "no tensor": torch.zeros(0), "meta": torch.zeros(3, device="meta"),
    "array": np.arange(3), "array of text": np.array(["a", "b"]), "class": int, "function": len, "object": object(),
    "error": ValueError("a value"), "network": torch.nn.Linear(1, 1), "generator": torch.Generator(),
    "latent": {"samples": torch.zeros(1, 4, 8, 8)}, "image": torch.zeros(1, 8, 8, 3), "range": range(3),
}


def _clipped() -> Tensor:
    return (speechlike(1.0) * 50).clamp(-1, 1)


SOUNDS: dict[str, Callable[[], object]] = {
    "speech": lambda: audio(speechlike(1.2)),
    "other speech": lambda: audio(speechlike(1.0, pitch_hz=210.0)),
    "loud": lambda: audio(speechlike(1.0) * 1e6),
    "clipped": lambda: audio(_clipped()),
    "five channels": lambda: audio(speechlike(1.0).repeat(5, 1)),
    "three rows": lambda: audio(torch.stack([speechlike(0.5, pitch_hz=hz) for hz in (90, 130, 300)])[:, None]),
    "31 seconds": lambda: audio(speechlike(31.0)),
    "0.05 seconds": lambda: audio(speechlike(0.05)),
    "0.11 seconds": lambda: audio(speechlike(0.11)),
    "2000 Hz": lambda: audio(speechlike(1.0, 2000), 2000),
    "192 kHz": lambda: audio(speechlike(1.0, 192_000), 192_000),
    "768 kHz": lambda: audio(speechlike(0.3, 768_000), 768_000),
    "767999 Hz": lambda: audio(speechlike(0.2, 767_999), 767_999),
    "8000 Hz": lambda: audio(speechlike(1.0, 8000), 8000),
    "one sample at 1 Hz": lambda: audio(torch.ones(1), 1),
    "int16 at its limits": lambda: audio(torch.tensor([-2**15, 2**15 - 1] * 6000, dtype=torch.int16)),
    "sparse": lambda: {"waveform": torch.ones(1, 1, 5).to_sparse(), "sample_rate": RATE_HZ},
    "on meta": lambda: audio(torch.zeros(RATE_HZ, device="meta")),
    "a frozen view": lambda: audio(torch.from_numpy(speechlike(1.0).numpy()[::-1].copy())),
    "keys of another pack": lambda: {"samples": tone(), "rate": RATE_HZ},
    "a list of audio": lambda: [audio(tone())],
    **{f"good: {name}": (lambda name=name: good_audio()[name]) for name in good_audio(0.01)},
    **{f"bad: {name}": make for name, (make, _) in BAD_AUDIO.items()},
    **{f"mute: {name}": make for name, (make, _) in UNSPEAKABLE.items()},
}

LISTS: dict[str, list] = {
    "two texts": ["Yes.", "No."], "two numbers": [1, 2], "two kinds": [1, "a"], "two nothings": [None, None],
}


def _ids(change: Callable[[Tensor], Tensor]) -> Callable:
    """Tokens with other ids in all pieces."""
    return lambda tokens: replace(tokens, batch=tuple(
        tuple(replace(piece, ids=change(piece.ids)) for piece in row) for row in tokens.batch))


SPOILT: dict[str, Callable] = {
    "as they are": lambda tokens: tokens,
    "one frame": _ids(lambda ids: ids[:, :1]),
    "two frames": _ids(lambda ids: ids[:, :2]),
    "one id": _ids(torch.zeros_like),
    "ids beyond all": _ids(lambda ids: ids + 10**6),
    "the next id": _ids(lambda ids: ids.clamp(min=6561)),
    "last control id": _ids(lambda ids: torch.full_like(ids, 4096)),
    "1024 in every row": _ids(lambda ids: torch.full_like(ids, 1024)),
    "ids of 2**62": _ids(lambda ids: torch.full_like(ids, 2**62)),
    "eleven codebooks": _ids(lambda ids: ids[:1].repeat(11, 1)),
    "three rows": lambda tokens: replace(tokens, batch=tokens.batch[:1] * 3),
    "three pieces": lambda tokens: replace(tokens, batch=(tokens.batch[0][:1] * 3,)),
    "a pause": lambda tokens: replace(tokens, batch=((replace(tokens.batch[0][0], pause_s=1.5, lead_s=0.5),) * 2,)),
    "no voice": lambda tokens: replace(tokens, batch=tuple(
        tuple(replace(piece, voice=None) for piece in row) for row in tokens.batch)),
}


class OddValue:
    """A value by its name; ``nonce`` makes it another node to ComfyUI's cache."""

    CATEGORY, FUNCTION, RETURN_TYPES = "test", "make", ("*",)

    @classmethod
    def INPUT_TYPES(cls) -> dict:
        return {"required": {"what": ("STRING", {})}, "optional": {"nonce": ("INT", {})}}

    def make(self, what: str, nonce: int = 0) -> tuple:
        kind, _, name = what.partition(" ")
        if kind == "sound":
            return (SOUNDS[name](),)
        return ({"number": NUMBERS, "other": OTHERS}[kind][name],)


class OddList:
    """Several values, for each of which ComfyUI runs what follows."""

    CATEGORY, FUNCTION, RETURN_TYPES, OUTPUT_IS_LIST = "test", "make", ("*",), (True,)

    @classmethod
    def INPUT_TYPES(cls) -> dict:
        return {"required": {"what": ("STRING", {})}}

    def make(self, what: str) -> tuple:
        return (LISTS[what],)


class OddTokens:
    """Tokens as no node of ours makes them."""

    CATEGORY, FUNCTION, RETURN_TYPES = "test", "spoil", ("SPEECH_TOKENS",)

    @classmethod
    def INPUT_TYPES(cls) -> dict:
        return {"required": {"tokens": ("*",), "how": ("STRING", {})}}

    def spoil(self, tokens: object, how: str) -> tuple:
        return (SPOILT[how](tokens),)


class Look:
    """Where a value ends, and what it is."""

    CATEGORY, FUNCTION, OUTPUT_NODE, RETURN_TYPES = "test", "look", True, ()

    @classmethod
    def INPUT_TYPES(cls) -> dict:
        return {"required": {"value": ("*",)}}

    def look(self, value: object) -> dict:
        return {"ui": {"seen": [json.dumps(seen(value))]}}


def seen(value: object) -> dict:
    """What a test may ask of an output."""
    if isinstance(value, Tensor):
        finite = bool(value.isfinite().all())
        return {"is": "tensor", "dtype": str(value.dtype), "device": str(value.device), "shape": list(value.shape),
                "contiguous": value.is_contiguous(), "finite": finite, "grad": value.requires_grad,
                "low": float(value.min()) if finite else None, "high": float(value.max()) if finite else None,
                "digest": hashlib.sha256(value.contiguous().view(torch.uint8).numpy()).hexdigest()}
    if isinstance(value, str):
        return {"is": "text", "length": len(value), "begin": value[:200]}
    if type(value) is dict and set(value) == {"waveform", "sample_rate"}:
        return {"is": "audio", "rate": value["sample_rate"], "kind of rate": type(value["sample_rate"]).__name__,
                "wave": seen(value["waveform"])}
    if isinstance(value, Mapping):
        return {"is": "mapping"}
    kind = type(value).__name__
    if kind == "SpeechTokens":
        return {"is": kind, "kind": value.kind, "ids": [seen(piece.ids) for row in value.batch for piece in row]}
    if kind == "SpeechPrompt":
        return {"is": kind, "family": value.family, "texts": [piece.text for piece in value.pieces]}
    if kind == "Voice":
        return {"is": kind, "name": value.name, "rate": value.clip.rate_hz, "wave": seen(value.clip.wave)}
    return {"is": kind}


NODE_CLASS_MAPPINGS = {"OddValue": OddValue, "OddList": OddList, "OddTokens": OddTokens, "Look": Look}
