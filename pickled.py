"""Pickles by ``torch.save``, looked through before torch makes anything of them.

torch's loader of tensors alone calls few things beside those that make tensors, but some of these grow beyond any
file: arrays of a length that is told, bytes that are encoded again and again, tuples in tuples whose hash takes twice
the time with each. Here a file may name nothing but tensors, their parts, and what holds them by name.
"""
from __future__ import annotations

import pickletools
import re
from collections.abc import Iterator
from typing import BinaryIO

MAX_WEIGHT = 10**5      # parts of a tuple, those of tuples in it included; what makes a tensor takes a few dozen
LEGACY_PICKLES = 5      # a number, a version, the system, what was saved, names of storages; then their bytes

# What makes a tensor, its storage, dtype and layout, and dicts of them.
_PARTS = re.compile(
    r"torch(\.storage)?\.\w+Storage|torch\.(bool|Size|device|[a-z]+\d\w*|per_[a-z_]+)|torch\._utils\._rebuild_\w+"
    r"|torch\._tensor\._rebuild_from_type_v2|torch\.nn\.parameter\.Parameter|torch\.serialization\._get_layout"
    r"|collections\.(OrderedDict|Counter)|(builtins|__builtin__)\.(set|complex)")

# Opcodes by what they take from the stack; those that take nothing and leave one thing are plain values.
_TAKEN = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "REDUCE": 2, "NEWOBJ": 2, "BINPERSID": 1}
_DROPPED = {"APPEND": 1, "SETITEM": 2, "BUILD": 1, "PROTO": 0, "STOP": 1}
_PLAIN = frozenset("NONE NEWFALSE NEWTRUE EMPTY_TUPLE EMPTY_LIST EMPTY_DICT EMPTY_SET BININT BININT1 BININT2 BINFLOAT "
                   "BINUNICODE SHORT_BINSTRING LONG1 GLOBAL".split())


class Foreign(ValueError):
    """What is no part of a tensor: the name of a class or function, or "" for anything else."""


def check(file: BinaryIO, pickles: int = 1) -> None:
    """``Foreign`` unless the next pickles of a file are of tensors; ``ValueError`` and its like for broken ones."""
    for _ in range(pickles):
        _check(pickletools.genops(file))


def _check(opcodes: Iterator) -> None:
    """Follows the weight of everything on the stack: how many parts it has, counted as often as they are reached."""
    stack: list[int] = []
    marks: list[int] = []
    memo: dict[int, int] = {}
    for opcode, argument, _ in opcodes:
        name = opcode.name
        if name == "GLOBAL" and not _PARTS.fullmatch(argument.replace(" ", ".")):
            raise Foreign(argument.replace(" ", "."))
        if name == "MARK":
            marks.append(len(stack))
        elif name in ("TUPLE", "APPENDS", "SETITEMS"):
            start = marks.pop()
            taken = 1 + sum(stack[start:])
            stack[start:] = [taken] if name == "TUPLE" else []
        elif name in _TAKEN:
            start = len(stack) - _TAKEN[name]
            stack[start:] = [1 + sum(stack[start:])]
        elif name in _DROPPED:
            del stack[len(stack) - _DROPPED[name] :]
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name in _PLAIN:
            stack.append(1)
        else:
            raise Foreign("")
        if stack and stack[-1] > MAX_WEIGHT:
            raise Foreign("")
