"""Files by ``torch.save``: looked through first, then read by torch's own loader of tensors alone.

Nothing in them runs, and nothing is made that is larger than they are.
"""
from __future__ import annotations

import io
import os
import pickle
import re
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from . import pickled
from .words import AGAIN, short, some

WRAPPERS = ("state_dict", "model")  # keys under which training scripts put the weights
MAX_SHARED = 4      # times the size of a file that its tensors may take, as some of them share their numbers
MAX_NAME = 100      # characters of a class or function that an error tells

# What torch raises for damaged or foreign files, whichever layer notices first.
_TORCH_ERRORS = (RuntimeError, EOFError, ValueError, LookupError, AttributeError, TypeError, AssertionError)


class _Bounded(io.BufferedReader):
    """A file of which nobody reads more than is there: Python makes room for what is asked for, and a pickle may
    claim a text of any length."""

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, os.fstat(self.fileno()).st_size - self.tell())
        return super().read(left if size is None or size < 0 else min(size, left))


def tensors(path: Path, file: io.FileIO) -> dict[str, Tensor]:
    """The named tensors of a file, which is open; mapped, not read, where it is a zip (torch 1.6 on)."""
    with _Bounded(file) as bounded:
        head = bounded.read(tarfile.BLOCKSIZE)
        zipped = head.startswith(b"PK")
        _refuse_tar(path, head)
        if zipped:
            _check_zip(path, bounded)
        else:
            bounded.seek(0)
            _check_pickle(path, bounded, pickled.LEGACY_PICKLES)
        bounded.seek(0)
        # Only paths can be mapped. From 2.13 on torch goes by the suffix, though, so that a .pt file with the
        # wrong one has to be handed over open.
        mapped = zipped and path.suffix != ".safetensors"
        loaded = _torch_load(path, path if mapped else bounded, mapped)
    return _named_tensors(path, loaded)


def _torch_load(path: Path, source: Path | BinaryIO, mapped: bool) -> object:
    try:
        return torch.load(source, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        # torch's own text goes on to say how to run the code all the same.
        named = re.search(r"(?:GLOBAL|[Cc]lass) ([\w.]+)", str(error))
        raise _foreign(path, named[1] if named else "") from error
    except _TORCH_ERRORS as error:
        raise ValueError(f"{path}: the file is cut or damaged (torch: {short(error)}). {AGAIN}") from error


def _foreign(path: Path, name: str) -> ValueError:
    """The error for a pickle that holds something else, a class or function of that name if there is one."""
    what = f"{name[:MAX_NAME]}, a Python class or function" if name else "more than tensors or is damaged"
    return ValueError(f"{path}: the file holds {what}. It was not loaded: that could run a stranger's "
                      "program. Give a .safetensors file, or a .pt file of tensors alone.")


def _check_pickle(path: Path, file: BinaryIO, pickles: int) -> None:
    try:
        pickled.check(file, pickles)
    except pickled.Foreign as error:
        raise _foreign(path, str(error)) from error
    except _TORCH_ERRORS as error:
        raise ValueError(f"{path}: the file is cut or damaged ({short(error)}). {AGAIN}") from error


def _refuse_tar(path: Path, head: bytes) -> None:
    """Before torch 0.1.10 files were tar archives, of which torch up to 2.5 runs whatever they hold."""
    with suppress(tarfile.HeaderError):
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
        raise ValueError(f"{path}: this is a tar archive, not a file of weights. Give the model's .safetensors or .pt "
                         "file.")


def _check_zip(path: Path, file: _Bounded) -> None:
    size = os.fstat(file.fileno()).st_size
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
        if any(not 0 <= entry.header_offset <= size - entry.compress_size for entry in entries):
            raise zipfile.BadZipFile("an entry beyond the file")
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise ValueError(f"{path}: the file is cut or damaged: a zip archive of {size:,} "
                         f"bytes without its table of contents. {AGAIN}") from error
    names = {entry.filename.rsplit("/", 1)[-1] for entry in entries}
    if "constants.pkl" in names:
        raise ValueError(f"{path}: this is a TorchScript program, not a file of weights. Give the model's "
                         ".safetensors or .pt file.")
    if "data.pkl" not in names or any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError(f"{path}: this is a zip archive, but not one by PyTorch; it holds "
                         f"{some(sorted(names))}. Unpack it and give the file inside.")
    for entry in entries:
        if entry.filename.rsplit("/", 1)[-1] == "data.pkl":
            file.seek(entry.header_offset)
            head = file.read(30)        # ends with the lengths of a name and of more, which stand before the content
            file.seek(int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:], "little"), os.SEEK_CUR)
            _check_pickle(path, io.BytesIO(file.read(entry.file_size)), 1)


def _named_tensors(path: Path, loaded: object) -> dict[str, Tensor]:
    """The tensors of a loaded dict, or of one that a training script put inside; counters are left out."""
    if not isinstance(loaded, dict):
        raise ValueError(f"{path}: the file holds one {type(loaded).__name__}, not tensors by name. "
                         "Give the file with the model's weights.")
    for candidate in [*(loaded.get(key) for key in WRAPPERS), loaded]:
        if isinstance(candidate, dict):
            tensors = {name: value for name, value in candidate.items()
                       if isinstance(name, str) and isinstance(value, Tensor)}
            if tensors:
                break
    else:
        raise ValueError(f"{path}: the file holds no tensors, only {some(map(str, loaded))}. "
                         "Give the file with the model's weights.")
    size = path.stat().st_size
    for name, tensor in tensors.items():
        plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
        if not plain or tensor.numel() * tensor.itemsize > size:
            raise ValueError(f"{path}: tensor {short(name)} is sparse, quantised or larger than the file. "
                             "Give a file of plain tensors.")
    taken = sum(tensor.numel() * tensor.itemsize for tensor in tensors.values())
    if taken > MAX_SHARED * size:
        raise ValueError(f"{path}: its tensors share their numbers: {taken:,} bytes in a file of {size:,}. "
                         "Give a file of plain tensors.")
    return tensors
