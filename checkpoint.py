"""Checkpoint files, header first: names, shapes and dtypes before any weight is read.

What a file is, its content decides and not its suffix. Weights are read straight into memory of their own
rather than mapped: a mapped file stays on the books of the process as long as any of its tensors lives.

A ``.safetensors`` file is a u64 (little endian) with the length of the header, the header as a JSON object
{name: {dtype, shape, data_offsets}}, then the bytes of all tensors without a gap. ``.pt`` files go through
torch's own tensors-only loader: code in them does not run.
"""
from __future__ import annotations

import errno
import io
import json
import math
import mmap
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from . import torch_files
from .words import AGAIN, short, some

MAX_HEADER_BYTES = 100_000_000      # the format's own limit; published headers stay below one million
MAX_MARKS = 2**20                   # , : [ { in a header, of which a tensor takes 16 at most; models have some thousand
MAX_COUNT = 2**53                   # of a dimension or an offset: JSON's safe integers
MAX_NAME = 500                      # characters of a tensor's
MAX_RANK = 16                       # dimensions; models use up to 5
MAPPED_BYTES = 2**28                # of a .pt file that are mapped at a time while it is read
OWN_MAPPING_BYTES = 2**16           # 16 pages; smaller tensors are cheaper from the allocator

# The format's names; one that this torch lacks is an unknown dtype.
DTYPES = {name: getattr(torch, attribute) for name, attribute in {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8",
    "U16": "uint16", "U32": "uint32", "U64": "uint64", "BOOL": "bool",
}.items() if hasattr(torch, attribute)}

FOREIGN = {b"GGUF": "a GGUF file", b"\x1f\x8b": "a gzip archive", b"7z\xbc\xaf": "a 7-zip archive",
            b"Rar!": "a RAR archive", b"\x08": "perhaps an ONNX graph"}


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint file of which only the header has been read.

    ``spans``: where each tensor's bytes begin and end in the file; None when torch has to read it (``.pt``).
    """
    path: Path
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, torch.dtype]
    spans: dict[str, tuple[int, int]] | None

    def read(self, wanted: Callable[[str], bool] | Iterable[str] | None = None) -> dict[str, Tensor]:
        """The tensors that ``wanted`` names or accepts (None: all), on the CPU, in the dtype that was stored.

        They own their memory: peak use is what was asked for, and it goes when they go. ValueError for a name
        that the file lacks, and for a file that changed since its header was read.
        """
        if wanted is None:
            names = list(self.shapes)
        elif callable(wanted):
            names = [name for name in self.shapes if wanted(name)]
        else:
            names = list(dict.fromkeys(wanted))
            missing = [name for name in names if name not in self.shapes]
            if missing:
                raise ValueError(f"{self.path}: tensors that are not in the file: {some(missing)}.")
        return self._read_torch(names) if self.spans is None else self._read_spans(names)

    def _read_spans(self, names: list[str]) -> dict[str, Tensor]:
        tensors = {}
        with opened(self.path) as file:
            for name in sorted(names, key=self.spans.__getitem__):
                begin, end = self.spans[name]
                tensor = new_tensor(self.shapes[name], self.dtypes[name])
                if end > begin:
                    file.seek(begin)
                    read_into(file, memoryview(tensor.reshape(-1).view(torch.uint8).numpy()), self.path)
                tensors[name] = tensor
        return {name: tensors[name] for name in names}

    def _read_torch(self, names: list[str]) -> dict[str, Tensor]:
        """Copies out of the mapped file, in groups, after each of which the mapping is let go."""
        tensors = {}
        for group in self._groups(names):
            mapped = _torch_tensors(self.path)
            for name in group:
                tensor = mapped.get(name)
                if tensor is None or tuple(tensor.shape) != self.shapes[name]:
                    raise ValueError(f"{self.path}: the file changed while it was read. Load it again.")
                tensors[name] = new_tensor(self.shapes[name], self.dtypes[name]).copy_(tensor.detach())
            del mapped
        return tensors

    def _groups(self, names: list[str]) -> Iterator[list[str]]:
        group, size = [], 0
        for name in names:
            group.append(name)
            size += math.prod(self.shapes[name]) * self.dtypes[name].itemsize
            if size >= MAPPED_BYTES:
                yield group
                group, size = [], 0
        if group:
            yield group


def open_checkpoint(path: str | os.PathLike) -> Checkpoint:
    """Reads and checks the header of ``path`` (.safetensors, .pt, .pth, .bin), no weights.

    FileNotFoundError where there is no such file, PermissionError where it may not be read, ValueError for
    what is no checkpoint or a broken one. Each says what was found and what to do.
    """
    path = Path(path)
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(512)
        refuse_text(path, head, size)
        if not (head.startswith(b"PK") or (head.startswith(b"\x80") and head[8:9] != b"{")):
            return _open_safetensors(path, file, head, size)
    tensors = _torch_tensors(path)
    return Checkpoint(path, {name: tuple(tensor.shape) for name, tensor in tensors.items()},
                      {name: tensor.dtype for name, tensor in tensors.items()}, None)


def opened(path: Path) -> io.FileIO:
    """The file, unbuffered. Whatever stands in the way is said in words."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise ValueError(f"{path}: this is a folder; name the checkpoint file inside.")
        if not stat.S_ISREG(mode):
            raise ValueError(f"{path}: this is a device or a pipe, not a file.")
        return open(path, "rb", buffering=0)
    except PermissionError as error:
        raise PermissionError(f"{path}: this file may not be read; change its permissions or its "
                              "folder's.") from error
    except OSError as error:
        if os.path.islink(path):
            raise FileNotFoundError(f"{path}: this is a link to {os.readlink(path)}, which leads nowhere; "
                                    "mend the link or put the file there.") from error
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
            raise
        raise FileNotFoundError(f"{path}: there is no such file; check the name, or download it.") from error


def new_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor with nothing in it yet.

    Large ones are mappings of no file, which the system takes back as soon as the tensor goes; C's allocator,
    once it has seen a few, keeps such blocks for itself.
    """
    count = math.prod(shape)
    if count * dtype.itemsize < OWN_MAPPING_BYTES or not hasattr(mmap, "MAP_ANONYMOUS"):
        return torch.empty(shape, dtype=dtype)
    memory = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype, count=count).reshape(shape)


def read_into(file: io.FileIO, memory: memoryview, path: Path) -> None:
    """Fills ``memory`` from where ``file`` stands; one call of the system gives 2 GB at most."""
    done = 0
    while done < len(memory):
        count = file.readinto(memory[done:])
        if not count:
            raise ValueError(f"{path}: the file ended while it was read. {AGAIN}")
        done += count


def refuse_text(path: Path, head: bytes, size: int) -> None:
    """Empty files and text are failed downloads.

    No checkpoint starts with 8 printable characters: the length of a header has zeros there, zip and pickle
    have control bytes.
    """
    if not size:
        raise ValueError(f"{path}: the file is empty (0 bytes). {AGAIN}")
    if not re.fullmatch(rb"(\xef\xbb\xbf)?[\t\n\r\x20-\x7e]+", head[:8]):
        return
    text = head.decode("utf-8", errors="replace").lstrip("\ufeff \t\r\n")
    if text.startswith("version https://git-lfs"):
        stated = re.search(r"^size (\d{1,20})\s*$", text, re.MULTILINE)
        real = f" of {int(stated[1]):,} bytes" if stated else ""
        raise ValueError(f"{path}: this is a git-LFS pointer ({size} bytes) that stands for a file{real}. "
                         "Run `git lfs pull` in its folder, or download the file itself.")
    if text[:9].lower().startswith(("<!doctype", "<html", "<head", "<?xml")):
        raise ValueError(f"{path}: this is a web page ({size:,} bytes), not weights: a login or error page "
                         "was saved in their place. Download the file itself, logged in if need be.")
    line = " ".join(text.split())[:80]
    raise ValueError(f"{path}: this is text ({size:,} bytes), not weights; it reads {line!r}. {AGAIN}")


def _open_safetensors(path: Path, file: io.FileIO, head: bytes, size: int) -> Checkpoint:
    header, start = _read_header(path, file, head, size)
    shapes, dtypes, spans = {}, {}, {}
    for name, entry in header.items():
        if name != "__metadata__":
            shapes[name], dtypes[name], (begin, end) = _entry(path, name, entry)
            spans[name] = (start + begin, start + end)
    if not spans:
        raise ValueError(f"{path}: the file holds no tensors. Give the file with the model's weights.")
    _check_names(path, spans)
    expected = start
    for name, (begin, end) in sorted(spans.items(), key=lambda item: item[1]):
        if begin != expected:
            fault = "overlaps the one before" if begin < expected else "leaves a gap before it"
            raise ValueError(f"{path}: the header is damaged: tensor {short(name)} {fault}. {AGAIN}")
        expected = end
    if size != expected:
        fault = "is cut" if size < expected else "has bytes after its last tensor"
        raise ValueError(f"{path}: the file {fault}: expected {expected:,} bytes, found {size:,}. {AGAIN}")
    return Checkpoint(path, shapes, dtypes, spans)


def _read_header(path: Path, file: io.FileIO, head: bytes, size: int) -> tuple[dict, int]:
    """The header and where the data begins. Nothing is read before its length is known to be sane."""
    length = int.from_bytes(head[:8], "little")
    if size < 8 or head[8:9] not in (b"{", b""):
        found = next((what for magic, what in FOREIGN.items() if head.startswith(magic)), "something else")
        raise ValueError(f"{path}: this is no safetensors or PyTorch file but {found} ({size:,} bytes that "
                         f"start with {head[:8].hex(' ')}). Give the model's .safetensors or .pt file.")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"{path}: the header is damaged: it claims {length:,} bytes, and at most "
                         f"{MAX_HEADER_BYTES:,} are allowed. {AGAIN}")
    if length > size - 8:
        raise ValueError(f"{path}: the file is cut: its header alone takes {length:,} bytes, "
                         f"found {size:,}. {AGAIN}")
    raw = bytearray(length)
    file.seek(8)
    read_into(file, memoryview(raw), path)
    # Each mark may stand for an object, which takes many times the bytes that its text does.
    if sum(map(raw.count, (b",", b":", b"[", b"{"))) > MAX_MARKS:
        raise ValueError(f"{path}: the header is damaged: it has more entries than any model. {AGAIN}")
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: the header is damaged ({short(error)}). {AGAIN}") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path}: the header is damaged (no JSON object). {AGAIN}")
    return header, 8 + length


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        (name, count), = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"{short(name)} stands there {count} times")
    return entries


def _entry(path: Path, name: str, entry: object) -> tuple[tuple[int, ...], torch.dtype, tuple[int, int]]:
    """One tensor's shape, dtype and span (within the data) from the header."""
    where = f"{path}: the header is damaged: tensor {short(name)}"
    if not isinstance(entry, dict):
        raise ValueError(f"{where} is described by {short(entry)}. {AGAIN}")
    dtype, shape, span = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"{path}: tensor {short(name)} has dtype {short(dtype)}; known are "
                         f"{', '.join(DTYPES)}. Give the model in one of these.")
    if not _are_counts(shape) or len(shape) > MAX_RANK or math.prod(n or 1 for n in shape) > MAX_COUNT:
        raise ValueError(f"{where} has shape {short(shape)}. {AGAIN}")
    if not _are_counts(span) or len(span) != 2 or span[0] > span[1]:
        raise ValueError(f"{where} lies at {short(span)}. {AGAIN}")
    needed, found = math.prod(shape) * DTYPES[dtype].itemsize, span[1] - span[0]
    if needed != found:
        raise ValueError(f"{where} ({dtype}, shape {short(shape)}) needs {needed:,} bytes "
                         f"and has {found:,}. {AGAIN}")
    return tuple(shape), DTYPES[dtype], (span[0], span[1])


def _are_counts(values: object) -> bool:
    return isinstance(values, list) and all(type(n) is int and 0 <= n <= MAX_COUNT for n in values)


def _torch_tensors(path: Path) -> dict[str, Tensor]:
    """The named tensors of a file by ``torch.save``."""
    with opened(path) as file:
        tensors = torch_files.tensors(path, file)
    _check_names(path, tensors)
    return tensors


def _check_names(path: Path, names: Iterable[str]) -> None:
    """Errors tell them, and so they have to be short, and such as can be written."""
    for name in names:
        if len(name) > MAX_NAME or not name.isascii() and name != name.encode("utf-8", "replace").decode():
            raise ValueError(f"{path}: the file is damaged: {short(name)} is no name of a tensor. {AGAIN}")
