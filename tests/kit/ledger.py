"""What every operation of a run is computed in, below autograd: a ledger of the kinds of numbers and of the places."""
from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kit.checkout import CHECKOUT, shipped

COARSE = (torch.bfloat16, torch.float16)
CASTS = ("to", "type_as", "_to_copy", "copy_")
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


class Ledger(TorchDispatchMode):
    """Notes wide numbers by the place in our code, and operations on 16 bits and on ids by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.wide: dict[str, set[str]] = {}         # "file: function" -> float64, complex64 ...
        self.coarse: dict[str, set[str]] = {}       # operation -> places
        self.casts: set[str] = set()                # places where numbers of 32 bits become 16
        self.ids: set[str] = set()                  # and where whole numbers do

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        for tensor in _tensors(made):
            if tensor.dtype == torch.float64 or tensor.is_complex():
                self.wide.setdefault(_place(), set()).add(f"{tensor.dtype} on {tensor.device.type}")
        given = [tensor.dtype for tensor in _tensors((args, kwargs or {}))]
        results = [tensor.dtype for tensor in _tensors(made)]
        if any(dtype in COARSE for dtype in (*given, *results)):
            self.coarse.setdefault(name, set()).add(_place())
            if any(dtype in COARSE for dtype in results) and name in CASTS:
                if torch.float32 in given:
                    self.casts.add(_place())
                if any(dtype in WHOLE for dtype in given):
                    self.ids.add(_place())
        return made


def _tensors(value: object) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))


@cache
def _names() -> dict[str, str]:
    """Of our files by where they are: an environment, too, may lie in the checkout."""
    return {str(CHECKOUT / name): name for name in shipped() if name.endswith(".py")}


def _place() -> str:
    """The innermost function of ours that is at work, or of a test's where none is."""
    frame = sys._getframe(2)
    while frame is not None:
        if name := _names().get(frame.f_code.co_filename):
            return f"{name}: {frame.f_code.co_name}"
        frame = frame.f_back
    return "tests"
