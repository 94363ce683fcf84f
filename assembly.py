"""From the tensors of a checkpoint to a module: built empty, compared by names and shapes, then filled."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TypeVar

import torch
from torch import Tensor, nn

from .products import KINDS, quick

Shapes = Mapping[str, tuple[int, ...]]
Config = TypeVar("Config")

# torch's layers without their random start, which costs more than reading the weights.
UNFILLED = quick(SimpleNamespace(**{
    kind: type(kind, (getattr(nn, kind),), {"reset_parameters": lambda self: None}) for kind in KINDS}))


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """name -> shape"""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def measured(from_shapes: Callable[[Shapes], Config], shapes: Shapes, source: str, model: str) -> Config:
    """The sizes that these shapes tell; ``ValueError`` with what was looked for in vain."""
    try:
        return from_shapes(shapes)
    except (KeyError, ValueError, IndexError) as problem:
        raise ValueError(f"{source}: not a whole file of {model}; looked for {problem}.") from problem


def check_names(expected: Shapes, found: Shapes, source: str, model: str) -> None:
    """Compare names and shapes before anything is read; ``ValueError`` names the first that differ."""
    problems = []
    for title, names in (("missing", expected.keys() - found), ("unexpected", found.keys() - expected)):
        if names:
            more = ", ..." if len(names) > 3 else ""
            problems.append(f"{len(names)} {title} ({', '.join(sorted(names)[:3])}{more})")
    shapes = [
        f"{name} is {found[name]}, not {shape}"
        for name, shape in expected.items() if found.get(name, shape) != shape
    ]
    if shapes:
        problems.append(f"{len(shapes)} of another shape ({'; '.join(shapes[:2])})")
    if problems:
        raise ValueError(
            f"{source}: not the tensors of {model}: {', '.join(problems)}. Download the file again, or choose another.")


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
