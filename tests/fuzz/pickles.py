"""Files by ``torch.save``: their tensors and nothing else, and nothing larger than the file is made."""
from __future__ import annotations

import io
import warnings
import zipfile
from functools import cache

import torch

from kit.files import pickles_with_code, saved_by_torch
from speechwright.checkpoint import open_checkpoint

from .choices import Choices
from .laws import FOLDER, assert_in_words, bounded, written

MARKER = FOLDER / "ran"
NUMBERS = (0, 1, 2, 3, 4, 255, 2**16 - 1, 2**31 - 1)
GLOBALS = (
    "torch._utils\n_rebuild_tensor_v2", "torch._utils\n_rebuild_tensor", "torch._utils\n_rebuild_parameter",
    "torch._utils\n_rebuild_sparse_tensor", "torch._utils\n_rebuild_qtensor", "torch._utils\n_rebuild_tensor_v3",
    "torch._utils\n_rebuild_meta_tensor_no_storage", "torch._utils\n_rebuild_nested_tensor", "torch\nFloatStorage",
    "torch\nByteStorage", "torch.storage\nUntypedStorage", "torch\nSize", "torch\ndevice", "torch\nfloat32",
    "torch\nint64", "torch\nFloatTensor", "torch.nn.parameter\nParameter", "torch._tensor\n_rebuild_from_type_v2",
    "collections\nOrderedDict", "collections\nCounter", "builtins\nset", "builtins\nbytearray", "_codecs\nencode",
    "builtins\neval", "posix\nsystem", "numpy\nfrombuffer", "torch\nload", "torch.serialization\nload",
)
TEXTS = ("storage", "0", "1", "cpu", "cuda", "meta", "a", "state_dict", "model", "hex", "latin1", "", "net.weight")
OPCODES = b"(t\x85\x86\x87}])N\x88\x89RbQsuae.\x80"     # tuples, dicts, calls, persistent ids, ...
DICTIONARY = ("storage", "FloatStorage", "OrderedDict", "_rebuild_tensor_v2", "data.pkl", "byteorder", ".data/",
              *(name.replace("\n", "\n") for name in GLOBALS[:3]))


def state() -> dict:
    weight = torch.arange(6.0).reshape(2, 3)
    return {"a": weight, "turned": weight.T, "ids": torch.arange(3), "none": torch.zeros(0, 2), "epoch": 3}


@cache
def good(legacy: bool = False) -> bytes:
    return saved_by_torch(state(), legacy)


@cache
def pickled() -> bytes:
    with zipfile.ZipFile(io.BytesIO(good())) as archive:
        return next(archive.read(name) for name in archive.namelist() if name.endswith("data.pkl"))


def seeds() -> list[bytes]:
    code = [content for content, _ in pickles_with_code(MARKER).values()]
    return [b"\0" + content for content in (good(), good(legacy=True), *code)] + [
        b"\1" + pickled(), b"\2" + bytes(50), b"\2" + bytes(range(100)), b"\3\x05\x09\x11", b"\4" + bytes(20)]


def content(choices: Choices) -> bytes:
    """Bytes as they are; a whole archive of any pickle, or of a few opcodes; a good file with some bytes changed."""
    kind = choices.number(5)
    if kind == 0:
        return choices.rest()
    if kind == 1:
        return archive_of(choices.rest())
    if kind == 2:
        return archive_of(opcodes(choices))
    if kind == 3:
        return _damaged(choices, good(choices.number(2) == 1))
    return archive_of(_damaged(choices, pickled()))


def archive_of(raw: bytes) -> bytes:
    """The good file with another pickle in it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(good())) as source, zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as target:
        for name in source.namelist():
            target.writestr(name, raw if name.endswith("data.pkl") else source.read(name))
    return buffer.getvalue()


def opcodes(choices: Choices) -> bytes:
    parts = [b"\x80\x02"]
    while choices.left and len(parts) < 200:
        kind = choices.number(6)
        if kind == 0:
            parts.append(b"c" + choices.pick(GLOBALS).encode() + b"\n")
        elif kind == 1:
            text = choices.pick(TEXTS).encode()
            parts.append(b"X" + len(text).to_bytes(4, "little") + text)
        elif kind == 2:
            parts.append(b"J" + choices.pick(NUMBERS).to_bytes(4, "little"))
        elif kind == 3:
            parts.append(choices.pick((b"q", b"h")) + choices.bytes(1))
        else:
            place = choices.number(len(OPCODES))
            parts.append(OPCODES[place : place + 1] + (b"\x02" if OPCODES[place] == 0x80 else b""))
    return b"".join(parts) + b"."


def _damaged(choices: Choices, raw: bytes) -> bytes:
    raw = bytearray(raw)
    while choices.left:
        place = (choices.number(256) * 256 + choices.number(256)) % len(raw)
        raw[place] = choices.number(256)
    return bytes(raw)


def check(raw: bytes) -> None:
    file = content(Choices(raw))
    path = written("fuzzed.pt", file)
    with bounded(len(file)), warnings.catch_warnings():
        warnings.simplefilter("ignore")         # torch warns of odd protocols
        try:
            found = open_checkpoint(path)
            tensors = found.read()
        except ValueError as error:
            assert_in_words(error, f"{path}: ")
        else:
            assert sum(tensor.numel() * tensor.itemsize for tensor in tensors.values()) <= 4 * len(file)
            assert {name: tensor.shape for name, tensor in tensors.items()} == found.shapes
    assert not MARKER.exists()
