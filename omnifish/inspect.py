"""What the header of a checkpoint says about OGG TTS: its names and shapes, none of its numbers.

``python omnifish/inspect.py FILE`` prints it for a .safetensors file. That needs neither torch nor ComfyUI, and
so nothing here may import what itself imports Python's own ``inspect``: run like that, this file stands before it.
"""
from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping

CODEBOOKS, SEMANTIC = 10, 4096      # of the codec: codebooks, and ids of the first of them
MAX_HEADER_BYTES = 100_000_000      # the format's own limit
MAX_MARKS = 2**20                   # , : [ { in a header, of which a tensor takes 16 at most
MAX_NAMES = 60                      # that are listed of a kind, numbers in them being one name

# What OmniVoice's backbone measures, from which the published model was trained.
EXPECTED = {"layers": 28, "width": 1024, "heads": 16, "heads of keys": 8, "channels of a head": 128, "MLP": 3072,
            "text ids": 151676}

_QUERY = re.compile(r"^(.*)layers\.(\d+)\.self_attn\.q_proj\.weight$")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_DEPTH = re.compile(r"^(?:\w+\.)*mtp\.")

Shapes = dict[str, tuple[int, ...]]


def inspect(header: Mapping[str, object]) -> str:
    """A report in lines: backbone, embedding, head, depth decoder, and what none of them is.

    header: name -> shape, or name -> an entry of a .safetensors header.
    """
    shapes = {name: tuple(entry["shape"] if isinstance(entry, Mapping) else entry)
              for name, entry in header.items() if name != "__metadata__"}
    known: set[str] = set()
    lines = [f"{len(shapes)} tensors, {_numbers(shapes):,} numbers in all"]
    for part in (_backbone, _embedding, _head, _depth):
        found, text = part(shapes)
        known |= found
        lines += text
    rest = {name: shape for name, shape in shapes.items() if name not in known}
    if rest:
        lines += [f"beside these: {len(rest)} tensors", *_listed(rest)]
    return "\n".join(lines)


def _backbone(shapes: Shapes) -> tuple[set[str], list[str]]:
    matches = [match for match in map(_QUERY.match, shapes) if match and not _DEPTH.match(match[1])]
    if not matches:
        return set(), ["backbone: none; no tensor is called ...layers.N.self_attn.q_proj.weight"]
    prefix = matches[0][1]
    first = f"{prefix}layers.0."

    def size(name: str, dimension: int = 0) -> int:
        shape = shapes.get(name, ())
        return shape[dimension] if dimension < len(shape) else 0

    head = size(f"{first}self_attn.q_norm.weight")
    inner, keys = (size(f"{first}self_attn.{name}_proj.weight") for name in ("q", "k"))
    found = {
        "layers": 1 + max(int(match[2]) for match in matches if match[1] == prefix),
        "width": size(f"{first}self_attn.q_proj.weight", 1),
        "heads": inner // head if head else 0,
        "heads of keys": keys // head if head else 0,
        "channels of a head": head,
        "MLP": size(f"{first}mlp.gate_proj.weight"),
        "text ids": size(f"{prefix}embed_tokens.weight"),
    }
    other = [f"{name} {EXPECTED[name]}" for name, number in found.items() if number != EXPECTED[name]]
    lines = [f"backbone: {prefix}*, {', '.join(f'{name} {number}' for name, number in found.items())}",
             f"  OmniVoice's differs: {', '.join(other)}" if other else "  the sizes of OmniVoice's, Qwen3-0.6B"]
    if not head:
        lines.append(f"  no {first}self_attn.q_norm.weight, so no Qwen3, and the width of a head is not known")
    owned = (f"{prefix}layers.", f"{prefix}norm.", f"{prefix}embed_tokens.")
    return {name for name in shapes if name.startswith(owned)}, lines


def _embedding(shapes: Shapes) -> tuple[set[str], list[str]]:
    names = {name: shape for name, shape in shapes.items()
             if re.search(r"audio.*embed|code.*embed", name) and not _DEPTH.match(name)}
    tables = {name: shape for name, shape in names.items() if len(shape) == 2}
    if not tables:
        return set(names), ["audio embedding: none; no matrix has audio or code, and embed, in its name"]
    rows = sum(shape[0] for shape in tables.values())
    layout = f"{len(tables)} tables, {rows} rows in all"
    if len(tables) == 1 and rows % CODEBOOKS == 0:
        layout = f"one table, {CODEBOOKS} times {rows // CODEBOOKS} rows"
    elif len(tables) == 1:
        layout = f"one table of {rows} rows, not {CODEBOOKS} times as many as something: codebooks of unequal size"
    return set(names), [f"audio embedding: {layout}", *_listed(names)]


def _head(shapes: Shapes) -> tuple[set[str], list[str]]:
    names = {name: shape for name, shape in shapes.items() if "semantic_head" in name and not _DEPTH.match(name)}
    widths = [shape[0] for shape in names.values() if len(shape) == 2]
    if not widths:
        return set(names), ["semantic head: none; no matrix has semantic_head in its name"]
    extra = widths[0] - SEMANTIC
    others = [f"mask {SEMANTIC}", f"end {SEMANTIC + 1}", f"pad {SEMANTIC + 2}"][: max(0, extra)]
    told = f"{widths[0]} ids, {extra} beside the {SEMANTIC} of speech: taken for {', '.join(others)}"
    if extra > len(others):
        told += f", and {extra - len(others)} more"
    if extra < 2:
        told = f"{widths[0]} ids, too few for the {SEMANTIC} of speech, mask and end"
    told += "; no shape tells their order"
    return set(names), [f"semantic head: {told}", *_listed(names)]


def _depth(shapes: Shapes) -> tuple[set[str], list[str]]:
    names = {name: shape for name, shape in shapes.items() if _DEPTH.match(name)}
    if not names:
        return set(), ["depth decoder: none; no name begins with mtp."]
    return set(names), [f"depth decoder: {len(names)} tensors, {_numbers(names):,} numbers", *_listed(names)]


def _listed(shapes: Shapes) -> Iterator[str]:
    """A line for each kind of name, numbers in it being ranges."""
    kinds: dict[tuple, list[list[int]]] = {}
    for name, shape in shapes.items():
        kinds.setdefault((*_NUMBER.split(name), shape), []).append([int(n) for n in _NUMBER.findall(name)])
    for (start, *words, shape), numbers in list(kinds.items())[:MAX_NAMES]:
        ranges = [f"{min(column)}-{max(column)}" if min(column) < max(column) else f"{column[0]}"
                  for column in zip(*numbers)]
        name = start + "".join(map("".join, zip(ranges, words)))
        yield f"  {name} {shape}" + (f", {len(numbers)} times" if len(numbers) > 1 else "")
    if len(kinds) > MAX_NAMES:
        yield f"  and {len(kinds) - MAX_NAMES} kinds more"


def _numbers(shapes: Shapes) -> int:
    return sum(map(math.prod, shapes.values()))


def read_header(path: str) -> dict:
    """The header of a .safetensors file: u64 with its length, then JSON."""
    with open(path, "rb") as file:
        start, size = file.read(9), os.fstat(file.fileno()).st_size
        length = int.from_bytes(start[:8], "little")
        if start[8:] != b"{" or length > MAX_HEADER_BYTES:
            raise ValueError("this is no .safetensors file; give one, such as the published model.safetensors")
        if length > size - 8:
            raise ValueError(f"the file is cut: its header alone takes {length:,} bytes; download it again")
        text = start[8 : 8 + length] + file.read(max(0, length - 1))
    try:
        if sum(map(text.count, (b",", b":", b"[", b"{"))) > MAX_MARKS:
            raise ValueError("it has more entries than any model")
        header = json.loads(text)
        if not all(name == "__metadata__" or _is_shape(entry["shape"]) for name, entry in header.items()):
            raise ValueError("not every tensor has a shape")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise ValueError(f"its header is damaged ({str(problem)[:80]}); download it again") from problem
    return header


def _is_shape(found: object) -> bool:
    return (isinstance(found, list) and len(found) <= 16
            and all(type(size) is int and 0 <= size < 2**53 for size in found))


def main(arguments: list[str]) -> int:
    """Print the report of each file; 1 where one could not be read."""
    if not arguments:
        sys.stderr.write("usage: python omnifish/inspect.py FILE.safetensors ...\n")
        return 1
    failed = 0
    for path in arguments:
        try:
            sys.stdout.write(f"{path}\n{inspect(read_header(path))}\n")
        except (OSError, ValueError) as problem:
            sys.stderr.write(f"{path}: {problem}\n")
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
