"""Checkpoint files as users have them: downloads that failed, files of other kinds, and headers that lie."""
from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor


def some_tensors() -> dict[str, Tensor]:
    """A few tensors of unlike shapes and dtypes; about 300 kB, one large enough for memory of its own."""
    rng = torch.Generator().manual_seed(0)
    return {
        "net.weight": torch.randn(64, 1024, generator=rng),
        "net.bias": torch.randn(64, generator=rng),
        "half": torch.randn(3, 5, generator=rng).half(),
        "brain": torch.randn(7, generator=rng).bfloat16(),
        "ids": torch.arange(11).reshape(1, 11),
        "scale": torch.tensor(0.5),
        "none": torch.zeros(0, 4),
        "mask": torch.tensor([True, False, True]),
    }


def good_safetensors() -> bytes:
    return safetensors.torch.save(some_tensors(), metadata={"format": "pt"})


def saved_by_torch(value: object, legacy: bool = False) -> bytes:
    """``value`` as torch.save writes it: a zip archive, or the pickles of before torch 1.6."""
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=not legacy)
    return buffer.getvalue()


def with_header(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with any header (bytes, or what becomes JSON) and a length that may lie."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


class Shell:
    """Pickled, this asks whoever unpickles it to run a command, which here makes the file ``marker``."""
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {self.marker}",)


def pickles_with_code(marker: Path) -> dict[str, tuple[bytes, str]]:
    """Pickles that torch must not unpack, with what the error has to name. ``marker`` exists if one ran."""
    evil = {"net.weight": torch.zeros(2), "extra": Shell(marker)}
    options = {"net.weight": torch.zeros(2), "args": argparse.Namespace(lr=1)}
    return {
        "shell command": (saved_by_torch(evil), "system, a Python class or function"),
        "shell command, legacy": (saved_by_torch(evil, legacy=True), "system, a Python class or function"),
        "shell command, bare pickle": (pickle.dumps({"a": Shell(marker)}, 2), "tensors or is damaged|system"),
        "training options": (saved_by_torch(options), "argparse.Namespace, a Python class or function"),
        "a whole module": (saved_by_torch(torch.nn.Linear(2, 2)), "torch.nn.modules.linear.Linear, a Py"),
    }


def torch_script() -> bytes:
    """A TorchScript archive, as far as its table of contents tells."""
    return zip_of(dict.fromkeys(("net/data.pkl", "net/constants.pkl", "net/code/net.py"), b""))


def zip_of(files: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 1056484620\n"
PAGE = b"\n<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>...</body></html>"

# What happened -> the good file's bytes made into what users have, and what the error has to say.
BROKEN_FILES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda good: b"", r"empty \(0 bytes\).*Download it again"),
    "git-LFS pointer": (lambda good: POINTER, r"pointer \(135 bytes\).*1,056,484,620 bytes.*git lfs pull"),
    "git-LFS pointer, CRLF": (lambda good: POINTER.replace(b"\n", b"\r\n"), r"of 1,056,484,620 bytes"),
    "git-LFS pointer without a size": (lambda good: POINTER[:60], "pointer.*git lfs pull"),
    "web page": (lambda good: PAGE, "web page.*Download the file itself"),
    "web page with a byte order mark": (lambda good: b"\xef\xbb\xbf" + PAGE, "web page"),
    "XML error": (lambda good: b'<?xml version="1.0"?><Error>AccessDenied</Error>', "web page"),
    "JSON error": (lambda good: b'{"error":"Repository not found"}', "is text.*Repository not found"),
    "one line of text": (lambda good: b"Entry not found", "is text.*'Entry not found'"),
    "two letters": (lambda good: b"no", r"is text \(2 bytes\)"),
    "cut in its data": (lambda good: good[:-1000], r"is cut: expected [\d,]+ bytes, found [\d,]+\. Download"),
    "one byte short": (lambda good: good[:-1], "is cut: expected"),
    "cut in its header": (lambda good: good[:100], r"header alone takes [\d,]+ bytes, found 100\."),
    "cut in its first number": (lambda good: good[:5], "no safetensors or PyTorch file.*5 bytes"),
    "bytes at the end": (lambda good: good + bytes(3), "has bytes after its last tensor: expected"),
    "random bytes": (lambda good: b"\x93\xfa\x11" * 99, "no safetensors or PyTorch file.*93 fa 11"),
    "gzip": (gzip.compress, "a gzip archive"),
    "GGUF": (lambda good: b"GGUF\x03\x00\x00\x00" + bytes(99), "a GGUF file"),
    "ONNX": (lambda good: b"\x08\x08\x12\x07pytorch\x1a\x05" + bytes(99), "perhaps an ONNX graph"),
    "zip without weights": (lambda good: zip_of({"model.safetensors": good}), "Unpack it"),
    "compressed again": (lambda good: zip_of({"a/data.pkl": bytes(10**6)}, zipfile.ZIP_DEFLATED), "Unpack"),
    "TorchScript": (lambda good: torch_script(), "TorchScript program"),
    "cut zip": (lambda good: saved_by_torch(some_tensors())[:-500], "is cut or damaged.*Download"),
    "cut to a zip's first bytes": (lambda good: b"PK\x03\x04", "is cut or damaged"),
    "cut legacy pickle": (lambda good: saved_by_torch(some_tensors(), True)[:-500], "is cut or damaged"),
    "legacy pickle cut early": (lambda good: saved_by_torch(some_tensors(), True)[:150], "is cut or damaged"),
    "pickle without tensors": (lambda good: saved_by_torch({"epoch": 3}), "no tensors, only 'epoch'"),
    "pickle of one tensor": (lambda good: saved_by_torch(torch.zeros(3)), "one Tensor, not tensors by name"),
    "pickle of a list": (lambda good: saved_by_torch([torch.zeros(3)]), "one list, not tensors by name"),
    "sparse tensor": (lambda good: saved_by_torch({"a": torch.eye(9).to_sparse()}), "'a' is sparse"),
    "expanded tensor": (lambda good: saved_by_torch({"a": torch.zeros(1).expand(10**9)}), "larger than"),
}


def _entry(dtype: object = "F32", shape: object = (1,), span: object = (0, 4)) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": span}


# Headers that no writer makes, and what the error has to say; the data is 8 bytes long.
_LIES: dict[str, tuple[object, str]] = {
    "not JSON": (b"{not json at all}", "header is damaged"),
    "not UTF-8": (b'{"\xff\xfe": 1}', "header is damaged"),
    "nested without end": (b'{"a":' + b"[" * 100_000, "header is damaged"),
    "no tensors": ({}, "holds no tensors"),
    "metadata alone": ({"__metadata__": {"a": "b"}}, "holds no tensors"),
    "entry is a number": ({"a": 5}, "'a' is described by 5"),
    "entry is a list": ({"a": [0, 1]}, "'a' is described by"),
    "no dtype": ({"a": {"shape": [2], "data_offsets": [0, 8]}}, "'a' has dtype None; known are F64"),
    "strange dtype": ({"a": _entry("F12")}, "'a' has dtype 'F12'; known are F64"),
    "dtype is a list": ({"a": _entry(["F32"])}, "'a' has dtype"),
    "shape is a number": ({"a": _entry(shape=2)}, "'a' has shape 2"),
    "shape below 0": ({"a": _entry(shape=[-2, -1], span=[0, 8])}, r"'a' has shape \[-2, -1\]"),
    "shape of floats": ({"a": _entry(shape=[2.0])}, r"'a' has shape \[2.0\]"),
    "shape of truths": ({"a": _entry(shape=[True])}, r"'a' has shape \[True\]"),
    "shape beyond 64 bits": ({"a": _entry(shape=[2**62, 2**62])}, "'a' has shape"),
    "shape that wraps to 0": ({"a": _entry(shape=[2**32, 2**32], span=[0, 0])}, "'a' has shape"),
    "huge empty shape": ({"a": _entry(shape=[0, 2**40, 2**40], span=[0, 0])}, "'a' has shape"),
    "too many dimensions": ({"a": _entry(shape=[1] * 10_000)}, "'a' has shape"),
    "digits without end": (b'{"a":{"shape":[' + b"9" * 9000 + b"]}}", "header is damaged"),
    "large tensor in a small file": ({"a": _entry(shape=[10**9], span=[0, 8])}, "4,000,000,000 bytes and"),
    "large file that is not there": ({"a": _entry(shape=[10**9], span=[0, 4 * 10**9])}, "is cut: expected"),
    "no span": ({"a": {"dtype": "F32", "shape": [2]}}, "'a' lies at None"),
    "span of one": ({"a": _entry(span=[4])}, r"'a' lies at \[4\]"),
    "span below 0": ({"a": _entry(span=[-4, 0])}, r"'a' lies at \[-4, 0\]"),
    "span backwards": ({"a": _entry(span=[4, 0])}, r"'a' lies at \[4, 0\]"),
    "span too short": ({"a": _entry(shape=[2], span=[0, 4])}, "needs 8 bytes and has 4"),
    "overlap": ({"a": _entry(shape=[2], span=[0, 8]), "b": _entry(span=[4, 8])}, "'b' overlaps"),
    "gap at the start": ({"a": _entry(span=[4, 8])}, "'a' leaves a gap"),
    "gap between": ({"a": _entry("U8", span=[0, 1]), "b": _entry(span=[4, 8])}, "'b' leaves a gap"),
    "bytes left over": ({"a": _entry(span=[0, 4])}, "bytes after its last tensor"),
    "name twice": (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{}}', "'a' stands there 2"),
    "key twice": (b'{"a":{"dtype":"F32","dtype":"I32"}}', "'dtype' stands there 2 times"),
    "name of a page": ({"a" * 5000: 5}, "aaa\\.\\.\\. is described"),
}
LYING_HEADERS = {name: (with_header(header, bytes(8)), text) for name, (header, text) in _LIES.items()} | {
    "length beyond the file": (with_header({}, length=10**7), "header alone takes 10,000,000 bytes"),
    "length beyond the limit": (with_header({}, length=2**40), "claims 1,099,511,627,776 bytes"),
    "length of all ones": (with_header({}, length=2**64 - 1), "claims 18,446,744,073,709,551,615 bytes"),
    "a list": (with_header([1, 2]), "no safetensors or PyTorch file"),
    "length 0": (with_header(b""), "header is damaged|no safetensors"),
}
