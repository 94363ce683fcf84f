"""Weight norm, folded as a checkpoint is read: w = g v / |v| (Salimans and Kingma 2016, https://arxiv.org/abs/1602.07868).

The norm is over all axes but the first. Files spell magnitude g and direction v in either of torch's ways,
``X.parametrizations.weight.original0`` and ``1``, or ``X.weight_g`` and ``X.weight_v``; both are ``X.weight`` here.
"""
from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from .assembly import Shapes

_MAGNITUDE = re.compile(r"\.(?:parametrizations\.weight\.original0|weight_g)$")
_DIRECTION = re.compile(r"\.(?:parametrizations\.weight\.original1|weight_v)$")


def folded_name(name: str) -> str:
    """The name of the weight that a tensor is or is part of."""
    return _DIRECTION.sub(".weight", _MAGNITUDE.sub(".weight", name))


def folded_shapes(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Shapes by folded names; a weight has that of its direction."""
    return {folded_name(name): tuple(shape) for name, shape in shapes.items() if not _MAGNITUDE.search(name)}


def unfolded_shapes(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """``X.weight`` in torch's newer spelling: the shapes of its magnitude and its direction."""
    stem = name.removesuffix("weight") + "parametrizations.weight.original"
    return {f"{stem}0": (shape[0], *[1] * (len(shape) - 1)), f"{stem}1": tuple(shape)}


def fold(state: Mapping[str, Tensor], source: str, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Tensors by folded names, the folded ones new and in ``dtype``, all others as they are.

    ``ValueError``, which names ``source``, for a magnitude without its direction, the reverse, two that do
    not fit, or a weight that is there twice.
    """
    magnitudes = {name: tensor for name, tensor in state.items() if _MAGNITUDE.search(name)}
    by_weight = {folded_name(name): name for name in magnitudes}
    folded: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name in magnitudes:
            continue
        weight = folded_name(name)
        if weight in folded:
            raise ValueError(f"{source}: {weight}: the weight is there twice, the second time as {name}.")
        if _DIRECTION.search(name):
            if weight not in by_weight:
                raise ValueError(f"{source}: {name}: weight norm has a direction but no magnitude.")
            magnitude = by_weight.pop(weight)
            tensor = _scaled(tensor.to(dtype), magnitudes[magnitude].to(dtype), f"{source}: {magnitude}")
        folded[weight] = tensor
    if by_weight:
        raise ValueError(f"{source}: {min(by_weight.values())}: weight norm has a magnitude but no direction.")
    return folded


def _scaled(v: Tensor, g: Tensor, name: str) -> Tensor:
    if v.ndim < 2 or g.numel() != len(v):
        raise ValueError(f"{name}: a magnitude of {tuple(g.shape)} does not fit a direction of {tuple(v.shape)}.")
    scale = g.flatten() / v.flatten(1).norm(dim=1)
    return v * scale.view(-1, *[1] * (v.ndim - 1))
