"""Headers of .safetensors files: read, or refused in words before anything that they claim is allocated."""
from __future__ import annotations

import math

import safetensors
import safetensors.torch
import torch

from kit.files import LYING_HEADERS, with_header
from speechwright.checkpoint import DTYPES, open_checkpoint
from speechwright.omnifish import inspect

from .choices import Choices
from .laws import assert_in_words, bounded, written

NUMBERS = ("0", "1", "2", "3", "4", "8", "64", "255", "-1", "-0", "1.0", "2.5", "1e3", "1e999", "true", "null", '"2"',
           "NaN", "-Infinity", "4294967296", "2147483648", "9007199254740992", "9007199254740993",
           "4611686018427387904", "9223372036854775808", "18446744073709551616", "1000000000", "-9223372036854775808",
           "[]", "{}", "9" * 400)
KEYS = ("dtype", "shape", "data_offsets", "__metadata__", "a", "b.weight", "", "\\u0000", "ä", "\\ud800", "dtype\\n")
NAMES = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I64", "I32", "I16", "I8", "U8", "U16", "U32", "U64",
         "BOOL", "F4", "f32", "", "C64")
DICTIONARY = ('"dtype":"', '"shape":[', '"data_offsets":[', '"__metadata__":{', *(f'"{name}"' for name in NAMES[:15]))


def seeds() -> list[bytes]:
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b.weight": torch.ones(3).half(), "none": torch.zeros(0, 4)}
    whole = [safetensors.torch.save(tensors, metadata={"format": "pt"}), *(lie for lie, _ in LYING_HEADERS.values())]
    return [b"\0" + content for content in whole if len(content) < 5000] + [
        b"\1" + whole[0][8:], b"\2", b"\2" + bytes(range(60)), b"\3" + bytes(100)]


def content(choices: Choices) -> bytes:
    """Bytes as they are; a header as it is; or a header of pieces, most of which fit."""
    kind = choices.number(4)
    if kind == 0:
        return choices.rest()
    if kind == 1:
        return with_header(choices.rest())
    entries, place = [], 0
    while choices.left and len(entries) < 50:
        entry, place = _entry(choices, place, odd=kind == 3)
        entries.append(entry)
    header = "{" + ",".join(entries) + "}"
    lie = choices.number(32) if kind == 3 else 0
    raw = header.encode()
    return with_header(raw, bytes(max(0, place + (lie == 1) - (lie == 2))), len(raw) + (lie == 3) - (lie == 4))


def _entry(choices: Choices, place: int, odd: bool) -> tuple[str, int]:
    """A tensor's part of the header, and where its bytes would end."""
    name = choices.pick(KEYS) if odd else choices.text(8).encode("ascii", "backslashreplace").decode()
    name = "".join(sign for sign in name if sign not in '"\\' or odd)
    if odd and choices.number(3):
        pairs = [f'"{choices.pick(KEYS)}":{_value(choices)}' for _ in range(choices.number(5))]
        return f'"{name}":{{{",".join(pairs)}}}', place
    dtype = choices.pick(sorted(DTYPES))
    shape = [choices.number(5) for _ in range(choices.number(4))]
    end = place + math.prod(shape) * DTYPES[dtype].itemsize
    return f'"{name}{place}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{place},{end}]}}', end


def _value(choices: Choices) -> str:
    kind = choices.number(4)
    if kind == 0:
        return f'"{choices.pick(NAMES)}"'
    if kind == 1:
        return "[" * choices.number(200)
    return "[" + ",".join(choices.pick(NUMBERS) for _ in range(choices.number(6))) + "]"


def check(raw: bytes) -> None:
    file = content(Choices(raw))
    path = written("fuzzed.safetensors", file)
    with bounded(len(file)):
        try:
            found = open_checkpoint(path)
        except ValueError as error:
            assert_in_words(error, f"{path}: ")
            found = None
    if found is not None and found.spans is not None:
        _check_tensors(found, file)
    with bounded(len(file)):
        try:
            assert inspect.inspect(inspect.read_header(str(path)))
        except ValueError as error:
            assert found is None and str(error)


def _check_tensors(found, file: bytes) -> None:
    """All bytes behind the header, each once, as the format's own library reads them if it does."""
    tensors = found.read()
    assert sum(tensor.numel() * tensor.itemsize for tensor in tensors.values()) == len(file) - 8 - int.from_bytes(
        file[:8], "little")
    try:
        known = safetensors.torch.load(file)
    except safetensors.SafetensorError:
        return      # it knows fewer dtypes, and reads the metadata too
    assert tensors.keys() == known.keys()
    for name, tensor in known.items():
        assert tensors[name].dtype == tensor.dtype and tensors[name].shape == tensor.shape
        assert torch.equal(tensors[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))
