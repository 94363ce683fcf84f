"""Weights inside ONNX files, read without onnx or onnxruntime.

An ONNX file is one protobuf message: a model, in which a graph, in which nodes and the tensors that they start
from. A message is a row of fields. A field is a varint, which tells its number and its kind, and then another
varint, 4 or 8 bytes, or a length and that many bytes, which may be a message again. No table tells where things
lie, so the file is walked once, from field to field, stepping over the weights. They are read when asked for,
straight into memory of their own.
"""
from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .checkpoint import (
    AGAIN,
    FOREIGN,
    MAX_COUNT,
    MAX_RANK,
    new_tensor,
    opened,
    read_into,
    refuse_text,
    short,
    some,
)

MAX_HEADER_BYTES = 2**25        # of all but the weights; published models take a tenth of that
FIELD_BYTES = 64                # that a field counts for beside its text: about what it takes in memory here
MAX_NAME_BYTES = 4096
MAX_VARINT_BYTES = 2**22        # of a tensor whose numbers are varints; large ones are stored as raw bytes
MAX_ALIASES = 64                # from a name to the tensor that it stands for
BUFFER_BYTES = 2**14            # of the walk; a node takes some hundred

VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5        # kinds of fields
RAW_DATA, FLOAT_DATA, INT32_DATA, INT64_DATA = 9, 4, 5, 7   # fields of a tensor that may hold its numbers
EXTERNAL_DATA, DATA_LOCATION = 13, 14                       # or tell that another file does
# ONNX's number of a data type: the dtype, and the field that lists the numbers where they are not raw bytes.
TYPES = {1: (torch.float32, FLOAT_DATA), 10: (torch.float16, INT32_DATA), 16: (torch.bfloat16, INT32_DATA),
         6: (torch.int32, INT32_DATA), 7: (torch.int64, INT64_DATA)}


class Node(NamedTuple):
    """One operation, on tensors by name; an input without a name was left out."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Span(NamedTuple):
    """A range of bytes of the file."""

    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


class Stored(NamedTuple):
    """A tensor of the file, whose bytes lie in ``spans``, one after the other."""

    shape: tuple[int, ...]
    type: int               # ONNX's number of its data type, which may be one that is not read here
    in_varints: bool        # or as they are in memory
    spans: tuple[Span, ...]


@dataclass(frozen=True, eq=False)
class OnnxFile:
    """An ONNX file of which all but the weights has been read.

    ``tensors``: initializers and outputs of Constant nodes, by name. ``aliases``: from the output of each
    Identity node to its input.
    """

    path: Path
    nodes: tuple[Node, ...]
    tensors: dict[str, Stored]
    aliases: dict[str, str]

    def origin(self, name: str) -> str | None:
        """The tensor of the file that ``name`` stands for, or None where it is computed."""
        for _ in range(MAX_ALIASES):
            if name in self.tensors:
                return name
            if name not in self.aliases:
                return None
            name = self.aliases[name]
        raise ValueError(f"{self.path}: the graph is damaged: {MAX_ALIASES} Identity nodes in a row lead to "
                         f"{short(name)}. {AGAIN}")

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor of the file or of an alias of one."""
        return self._stored(name).shape

    def read(self, name: str) -> Tensor:
        """A tensor of the file or an alias of one, on the CPU, in the dtype that was stored, in memory of its own.

        ValueError for a name that the file does not hold, a data type that is not read here, and a file that
        changed since it was opened.
        """
        stored = self._stored(name)
        if stored.type not in TYPES:
            known = ", ".join(f"{number} ({str(dtype)[6:]})" for number, (dtype, _) in TYPES.items())
            raise ValueError(f"{self.path}: tensor {short(name)} has ONNX data type {stored.type}; known are {known}. "
                             "Give the model in one of these.")
        dtype, _ = TYPES[stored.type]
        if not stored.in_varints:
            tensor = new_tensor(stored.shape, dtype)
            if tensor.numel():
                self._read_spans(stored, memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))
            return tensor
        raw = np.empty(sum(span.size for span in stored.spans), np.uint8)
        self._read_spans(stored, memoryview(raw))
        numbers = varints(raw)
        # The halves are stored by their bits, as numbers of 16 bits.
        plain = {torch.int64: np.int64, torch.int32: np.int32}.get(dtype, np.uint16)
        count = math.prod(stored.shape)
        if numbers is None or len(numbers) != count or (numbers != numbers.astype(plain)).any():
            raise ValueError(f"{self.path}: the file is damaged: tensor {short(name)} does not hold {count:,} numbers "
                             f"of its data type. {AGAIN}")
        numbers = numbers.astype(plain)
        signed = numbers.view(np.int16) if plain is np.uint16 else numbers
        return torch.from_numpy(signed).view(dtype).reshape(stored.shape)

    def _stored(self, name: str) -> Stored:
        origin = self.origin(name)
        if origin is None:
            raise ValueError(f"{self.path}: the file holds no tensor {short(name)}; it holds {some(self.tensors)}.")
        return self.tensors[origin]

    def _read_spans(self, stored: Stored, memory: memoryview) -> None:
        done = 0
        with opened(self.path) as file:
            for begin, end in stored.spans:
                file.seek(begin)
                read_into(file, memory[done:done + end - begin], self.path)
                done += end - begin


def open_onnx(path: str | os.PathLike) -> OnnxFile:
    """Reads and checks all of ``path`` but the weights.

    FileNotFoundError where there is no such file, PermissionError where it may not be read, ValueError for what
    is no ONNX file, a broken one, or one whose weights lie in another file. Each says what was found and what
    to do.
    """
    path = Path(path)
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(512)
        refuse_text(path, head, size)
        if head[:1] != b"\x08":         # field 1, the version of the format
            known = {**FOREIGN, b"PK": "a zip archive, perhaps by PyTorch", b"\x80": "perhaps a file by PyTorch"}
            found = next((what for magic, what in known.items() if head.startswith(magic)), "something else")
            found = "a safetensors file" if head[8:9] == b"{" else found
            raise ValueError(f"{path}: this is no ONNX file but {found} ({size:,} bytes that start with "
                             f"{head[:8].hex(' ')}). Give the model's .onnx file.")
        walk = _Walk(path, io.BufferedReader(file, BUFFER_BYTES))
        walk.model(Span(0, size))
    return OnnxFile(path, tuple(walk.nodes), walk.tensors, walk.aliases)


class _Field(NamedTuple):
    number: int
    value: int | None       # of a varint
    span: Span              # of its content


@dataclass
class _Walk:
    """Collects what a file is about, once from its begin to its end."""

    path: Path
    file: io.BufferedReader
    nodes: list[Node] = field(default_factory=list)
    tensors: dict[str, Stored] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    spent_bytes: int = 0

    def model(self, message: Span) -> None:
        graphs = [span for number, _, span in self.fields(message, lengths=(7,)) if number == 7]
        if not graphs:
            raise self.damaged("it holds no graph")
        for graph in graphs:
            for number, _, span in self.fields(graph, lengths=(1, 5)):
                if number == 1:
                    self.node(span)
                elif number == 5:
                    self.tensor(span)

    def node(self, message: Span) -> None:
        texts: dict[int, list[str]] = {1: [], 2: [], 3: [], 4: []}     # inputs, outputs, name, operation
        attributes = []
        for number, _, span in self.fields(message, lengths=(1, 2, 3, 4, 5)):
            if number in texts:
                texts[number].append(self.text(span))
            elif number == 5:
                attributes.append(span)
        inputs, outputs, names, ops = map(tuple, texts.values())
        node = Node("".join(names[-1:]), "".join(ops[-1:]), inputs, outputs)
        self.nodes.append(node)
        if node.op == "Identity" and inputs and outputs:
            self.aliases[outputs[0]] = inputs[0]
        elif node.op == "Constant" and outputs:
            for attribute in attributes:
                for number, _, span in self.fields(attribute, lengths=(5,)):
                    if number == 5:     # a tensor; a Constant that is a single number or text is no weight
                        self.tensor(span, outputs[0])

    def tensor(self, message: Span, name: str | None = None) -> None:
        """``name``: of a Constant node's output, by which it is known then."""
        dims: list[int] = []
        kind, external, own_name = 0, False, ""
        spans: dict[int, list[Span]] = {}
        for number, value, span in self.fields(message, lengths=(8, RAW_DATA, EXTERNAL_DATA)):
            if number == 1:
                dims += self.dimensions(value, span)
            elif number == 2:
                kind = value or 0
            elif number in (RAW_DATA, FLOAT_DATA, INT32_DATA, INT64_DATA):
                spans.setdefault(number, []).append(span)
            elif number == 8:
                own_name = self.text(span)
            elif number == EXTERNAL_DATA or (number == DATA_LOCATION and value == 1):
                external = True
        name = own_name if name is None else name
        if not name or name in self.tensors:
            raise self.damaged(f"tensor {short(name)} stands there twice" if name else "a tensor has no name")
        if external:
            raise ValueError(f"{self.path}: the numbers of tensor {short(name)} lie in another file, which is not "
                             "supported. Give a model that is one file.")
        self.tensors[name] = self.stored(f"tensor {short(name)}", dims, kind, spans)

    def stored(self, what: str, dims: list[int], kind: int, spans: dict[int, list[Span]]) -> Stored:
        """What the fields of a tensor say, if it can be so."""
        if len(dims) > MAX_RANK or min(dims, default=0) < 0 or math.prod(n or 1 for n in dims) > MAX_COUNT:
            raise self.damaged(f"{what} has shape {short(dims)}")
        shape, count = tuple(dims), math.prod(dims)
        if kind not in TYPES:
            return Stored(shape, kind, False, ())
        dtype, listed = TYPES[kind]
        if len(spans) > 1 or spans.keys() - {RAW_DATA, listed}:
            raise self.damaged(f"{what} of data type {kind} has numbers in its fields {short(sorted(spans))}")
        where, found = next(iter(spans.items()), (RAW_DATA, []))
        size = sum(span.size for span in found)
        if where in (INT32_DATA, INT64_DATA):
            if not count <= size <= min(10 * count, MAX_VARINT_BYTES):
                raise self.damaged(f"{what} (shape {short(dims)}) has varints of {size:,} bytes")
            return Stored(shape, kind, True, tuple(found))
        if size != count * dtype.itemsize:
            raise self.damaged(f"{what} (shape {short(dims)}) needs {count * dtype.itemsize:,} bytes and has {size:,}")
        return Stored(shape, kind, False, tuple(found))

    def dimensions(self, value: int | None, span: Span) -> list[int]:
        """One number, or several in a row."""
        if value is not None:
            return [value - 2**64 if value >= 2**63 else value]
        if span.size > 10 * MAX_RANK:
            raise self.damaged(f"the shape at byte {span.begin:,} takes {span.size:,} bytes")
        numbers = varints(np.frombuffer(self.raw(span), np.uint8))
        if numbers is None:
            raise self.damaged(f"the shape at byte {span.begin:,} does not end")
        return numbers.tolist()

    def fields(self, message: Span, lengths: tuple[int, ...]) -> Iterator[_Field]:
        """The fields of a message. ``lengths``: the numbers of those that have to be of that kind."""
        place, end = message
        while place < end:
            head = self.raw(Span(place, min(end, place + 20)))      # two varints at most
            key, width = _varint(head)
            value, more = _varint(head[width:])
            number, kind = key >> 3, key & 7
            known = width and (more if kind in (VARINT, LENGTH) else kind in (EIGHT_BYTES, FOUR_BYTES))
            if not known or not number or (number in lengths and kind != LENGTH):
                raise self.damaged(f"no field begins at byte {place:,}")
            begin = place + width + (more if kind == LENGTH else 0)
            size = {VARINT: more, EIGHT_BYTES: 8, LENGTH: value, FOUR_BYTES: 4}[kind]
            if size > end - begin:
                raise self.damaged(f"a field of {size:,} bytes begins at byte {begin:,}, and {end - begin:,} are left")
            self.spend(FIELD_BYTES, place)
            yield _Field(number, value if kind == VARINT else None, Span(begin, begin + size))
            place = begin + size

    def text(self, span: Span) -> str:
        if span.size > MAX_NAME_BYTES:
            raise self.damaged(f"the name at byte {span.begin:,} has {span.size:,} bytes")
        self.spend(span.size, span.begin)
        try:
            return self.raw(span).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.damaged(f"the name at byte {span.begin:,} is no text") from error

    def spend(self, size: int, place: int) -> None:
        self.spent_bytes += size
        if self.spent_bytes > MAX_HEADER_BYTES:
            raise self.damaged(f"up to byte {place:,} it has more fields and names than any model")

    def raw(self, span: Span) -> bytes:
        self.file.seek(span.begin)
        found = self.file.read(span.size)
        if len(found) < span.size:
            raise self.damaged("it ended while it was read")
        return found

    def damaged(self, what: str) -> ValueError:
        return ValueError(f"{self.path}: the file is cut or damaged: {what}. {AGAIN}")


def _varint(raw: bytes) -> tuple[int, int]:
    """The number that begins the bytes and its length, which is 0 where none ends within ten bytes."""
    value = 0
    for index, byte in enumerate(raw[:10]):
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value, index + 1
    return 0, 0


def varints(raw: np.ndarray) -> np.ndarray | None:
    """(bytes,) uint8 -> (numbers,) int64, or None where the bytes are no row of varints."""
    ends = np.flatnonzero(raw < 128) + 1
    begins = np.concatenate(([0], ends))
    lengths = ends - begins[:-1]
    if begins[-1] != len(raw) or (lengths > 10).any():
        return None
    numbers = np.zeros(len(ends), np.uint64)
    for index in range(lengths.max(initial=0)):
        longer = lengths > index
        numbers[longer] |= (raw[begins[:-1][longer] + index] & 127).astype(np.uint64) << np.uint64(7 * index)
    return numbers.view(np.int64)
