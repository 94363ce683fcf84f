"""From the tensors of a checkpoint to a module: built empty, compared by names and shapes, then filled."""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TypeVar

import torch
from torch import Tensor, nn

from .products import KINDS, quick

Shapes = Mapping[str, tuple[int, ...]]
Found = TypeVar("Found")

MAX_NAME = 200      # characters of a name that an error tells
REMEDY = "Download the file again, or choose another."
# What is raised where names lack, shapes have other dimensions, or torch makes no layer of such a size.
MISFITS = (KeyError, ValueError, IndexError, ZeroDivisionError, RuntimeError)

# torch's layers without their random start, which costs more than reading the weights.
UNFILLED = quick(SimpleNamespace(**{
    kind: type(kind, (getattr(nn, kind),), {"reset_parameters": lambda self: None}) for kind in KINDS}))


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """name -> shape"""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def measured(tell: Callable[[Shapes], Found], shapes: Shapes, source: str, model: str) -> Found:
    """What these shapes tell, of sizes or of a network; ``ValueError`` with what was looked for in vain."""
    try:
        return tell(shapes)
    except MISFITS as problem:
        raise ValueError(f"{source}: not a whole file of {model}; looked for {sought(problem)}. {REMEDY}") from problem


def sought(problem: Exception) -> str:
    """What was looked for, by what one of the ``MISFITS`` says."""
    said = str(problem).split("\n")[0]
    if unpacked := re.match(r"(?:too many|not enough) values to unpack \(expected (\d+)", said):
        return f"a tensor of {unpacked[1]} dimensions, and found one of more or fewer"
    if isinstance(problem, (IndexError, ZeroDivisionError)):
        return "tensors of more dimensions, or more of them"
    if isinstance(problem, RuntimeError):
        return f"sizes that a network can have, and found others ({said[:80]})"
    return said.rstrip(".")


def last_number(shapes: Shapes, prefix: str) -> int:
    """The highest N of the names ``{prefix}N.``; -1 where there are none.

    ``ValueError`` where there are fewer names than numbers: whoever makes a layer for each would never end.
    """
    last = max((int(name[len(prefix):].split(".")[0]) for name in shapes if name.startswith(prefix)), default=-1)
    if last >= len(shapes):
        raise ValueError(f"tensors of all layers before {prefix}{last}, and found {len(shapes)} in all")
    return last


def check_names(expected: Shapes, found: Shapes, source: str, model: str) -> None:
    """Compare names and shapes before anything is read; ``ValueError`` names the first that differ."""
    problems = []
    for title, names in (("missing", expected.keys() - found), ("unexpected", found.keys() - expected)):
        if names:
            more = ", ..." if len(names) > 3 else ""
            listed = ", ".join(name[:MAX_NAME] for name in sorted(names)[:3])
            problems.append(f"{len(names)} {title} ({listed}{more})")
    shapes = [
        f"{name[:MAX_NAME]} is {found[name]}, not {shape}"
        for name, shape in expected.items() if found.get(name, shape) != shape
    ]
    if shapes:
        problems.append(f"{len(shapes)} of another shape ({'; '.join(shapes[:2])})")
    if problems:
        raise ValueError(
            f"{source}: not the tensors of {model}: {', '.join(problems)}. {REMEDY}")


def own(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in ``dtype``, usable everywhere; itself where it is that already.

    Tensors made in inference mode could not be used outside it, so call this outside of it too.
    """
    if tensor.dtype != dtype:
        return tensor.to(dtype)
    return tensor.clone() if tensor.is_inference() else tensor


def fill(module: nn.Module, tensors: Mapping[str, Tensor], dtype_of: Callable[[str], torch.dtype], source: str):
    """The module, which was built on ``meta``, with these tensors as its own, ready for inference.

    They are taken over, not copied, unless ``dtype_of`` their name is another dtype than theirs.
    """
    module.load_state_dict({name: own(tensor, dtype_of(name)) for name, tensor in tensors.items()},
                           strict=True, assign=True)
    left = [name for name, tensor in module.state_dict().items() if tensor.is_meta]
    if left:
        raise RuntimeError(f"{source}: {left[0]} was never filled.")
    return module.eval().requires_grad_(False)
