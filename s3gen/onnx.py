"""Weights of the published ONNX files by our names: speech tokenizers, versions 2 and 3, and the speaker encoder.

An exporter loses the names of most tensors, but a node's name tells where in the network it stands, and a node
takes its weights in a fixed order. It transposes the weights of linear layers, and folds a batch norm into the
convolution before it, which gains a bias thereby: such a norm becomes one that only adds this bias.
"""
from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ..assembly import MISFITS, UNFILLED, Shapes, check_names, shapes_of, sought
from ..checkpoint import new_tensor
from ..onnx_weights import Node, OnnxFile, open_onnx
from .config import SpeakerConfig, TokenizerConfig
from .speaker import NORM_EPSILON, CAMPPlus
from .tokenizer import S3Tokenizer

Config = TypeVar("Config")

TOKENIZER, SPEAKER = "the S3 speech tokenizer (version 2 or 3)", "the CAM++ speaker encoder"

# What a node takes at which place.
_PLACES = {
    "Conv": {1: "weight", 2: "bias"},
    "MatMul": {1: "weight"},
    "LayerNormalization": {1: "weight", 2: "bias"},
    "BatchNormalization": {1: "weight", 2: "bias", 3: "running_mean", 4: "running_var"},
}
# Nodes that linear layers and layer norms are taken apart into; either of their inputs may be the weight.
_SINGLE = {"Mul": "weight", "Add": "bias"}

_TOKENIZER_LAYER = re.compile(
    r"conv[12]|blocks\.\d+\.(attn\.(query|key|value|out|fsmn_block)|attn_ln|mlp_ln|mlp\.[02])")
_PROJECTION = "quantizer._codebook.project_down"
_PROJECTION_BIAS = "quantizer.project_in.bias"

# A convolution of the speaker encoder, and the norm that its output goes into with nothing between.
_FOLLOWED_BY = (
    (re.compile(r"(head\.(?:layer\d+\.\d+\.)?)conv(\d)"), r"\1bn\2"),
    (re.compile(r"(head\.layer\d+\.\d+\.shortcut)\.0"), r"\1.1"),
    (re.compile(r"xvector\.tdnn\.linear"), "xvector.tdnn.nonlinear.batchnorm"),
    (re.compile(r"(xvector\.block\d+\.tdnnd\d+)\.linear1"), r"\1.nonlinear2.batchnorm"),
    (re.compile(r"xvector\.transit3\.linear"), "xvector.out_nonlinear.batchnorm"),
)
_LAST_NORM = "xvector.dense.nonlinear.batchnorm"    # has no weights; a file may give it ones and zeros


class Source(NamedTuple):
    """Where a parameter comes from: a tensor of the file, or, without one, ``channels`` times ``constant``."""

    tensor: str | None
    transposed: bool = False
    channels: int = 0
    constant: float = 0.0


def read_speech_tokenizer(path: str | os.PathLike) -> dict[str, Tensor]:
    """speech_tokenizer_v2.onnx or _v3.onnx: float32 tensors by the names of ``S3Tokenizer``.

    The errors of ``open_onnx``; ValueError names the first tensors that are missing, unexpected or of another
    shape, before any is read.
    """
    file = open_onnx(path)
    return _read(file, tokenizer_sources(file))


def read_speaker_encoder(path: str | os.PathLike) -> dict[str, Tensor]:
    """campplus.onnx: float32 tensors by the names of ``CAMPPlus``; errors as of ``read_speech_tokenizer``."""
    file = open_onnx(path)
    return _read(file, speaker_sources(file))


def tokenizer_sources(file: OnnxFile) -> dict[str, Source]:
    """Where each parameter of ``S3Tokenizer`` comes from; ValueError as of ``read_speech_tokenizer``."""
    found: dict[str, Source] = {}
    for node in file.nodes:
        layer = layer_of(node.name)
        if _TOKENIZER_LAYER.fullmatch(layer):
            _take(found, file, node, f"encoder.{layer}")
        elif layer.startswith("quantizer") and node.op == "MatMul":
            _take(found, file, node, _PROJECTION)
    # These few have names of their own, which serve where the nodes are called otherwise.
    for name in file.tensors:
        if name.startswith("blocks.") and name.endswith(".fsmn_block.weight"):
            found.setdefault(f"encoder.{name}", Source(name))
    if file.origin(_PROJECTION_BIAS):
        found[f"{_PROJECTION}.bias"] = Source(file.origin(_PROJECTION_BIAS))
    shapes = _shapes(file, found)
    config = _measured(TokenizerConfig.from_shapes, shapes, file, TOKENIZER)
    expected = _measured(
        lambda _: shapes_of(S3Tokenizer(config, UNFILLED, "meta").state_dict()), shapes, file, TOKENIZER)
    check_names(expected, shapes, str(file.path), TOKENIZER)
    return found


def speaker_sources(file: OnnxFile) -> dict[str, Source]:
    """Where each parameter of ``CAMPPlus`` comes from; ValueError as of ``read_speaker_encoder``."""
    found: dict[str, Source] = {}
    for node in file.nodes:
        if node.op in ("Conv", "BatchNormalization"):
            _take(found, file, node, layer_of(node.name))
    _drop_constant_weights(found, file)
    for name in [name for name in found if name.endswith(".bias")]:
        norm = followed_by(name.removesuffix(".bias"))
        if norm and f"{norm}.bias" not in found:
            bias = found.pop(name)
            channels = file.shape(bias.tensor)[0] if file.shape(bias.tensor) else 0
            found |= {
                f"{norm}.weight": Source(None, channels=channels, constant=1.0),
                f"{norm}.bias": bias,
                f"{norm}.running_mean": Source(None, channels=channels, constant=0.0),
                # The norm adds its epsilon again, and divides by one.
                f"{norm}.running_var": Source(None, channels=channels, constant=1.0 - NORM_EPSILON),
            }
    shapes = _shapes(file, found)
    config = _measured(SpeakerConfig.from_shapes, shapes, file, SPEAKER)
    expected = _measured(lambda _: shapes_of(CAMPPlus(config, UNFILLED, "meta").state_dict()), shapes, file, SPEAKER)
    check_names(expected, shapes, str(file.path), SPEAKER)
    return found


def followed_by(convolution: str) -> str | None:
    """The norm that is folded into a convolution of the speaker encoder, or None."""
    for pattern, norm in _FOLLOWED_BY:
        if match := pattern.fullmatch(convolution):
            return match.expand(norm)
    return None


def layer_of(node: str) -> str:
    """/head/layer1/layer1.0/conv1/Conv -> head.layer1.0.conv1: a member of a list is named after the list again."""
    layer: list[str] = []
    for part in node.strip("/").split("/")[:-1]:
        if layer and part.startswith(f"{layer[-1]}."):
            layer.pop()
        layer.append(part)
    return ".".join(layer)


def _take(found: dict[str, Source], file: OnnxFile, node: Node, layer: str) -> None:
    """Note the tensors that a node takes as parameters of its layer."""
    if node.op in _SINGLE:
        taken: Iterable[tuple[str, str]] = ((_SINGLE[node.op], name) for name in node.inputs)
    else:
        places = _PLACES.get(node.op, {})
        taken = ((part, node.inputs[place]) for place, part in places.items() if place < len(node.inputs))
    for part, name in taken:
        origin = file.origin(name)
        # Layer norms that were taken apart add their epsilon, too: a single number.
        if origin is None or (node.op in _SINGLE and math.prod(file.shape(origin)) == 1):
            continue
        source = Source(origin, transposed=node.op == "MatMul")
        if found.setdefault(f"{layer}.{part}", source) != source:
            raise ValueError(f"{file.path}: the graph takes two tensors for {layer}.{part}, {origin} and "
                             f"{found[f'{layer}.{part}'].tensor}. Give the model's .onnx file as published.")


def _drop_constant_weights(found: dict[str, Source], file: OnnxFile) -> None:
    for part, value in (("weight", 1), ("bias", 0)):
        source = found.pop(f"{_LAST_NORM}.{part}", None)
        if source and (file.read(source.tensor) != value).any():
            raise ValueError(f"{file.path}: {_LAST_NORM}.{part} is not {value} throughout, as in {SPEAKER}. "
                             "Give campplus.onnx as published.")


def _shapes(file: OnnxFile, found: dict[str, Source]) -> dict[str, tuple[int, ...]]:
    """Shapes in our orientation."""
    shapes = {}
    for name, source in found.items():
        shape = (source.channels,) if source.tensor is None else file.shape(source.tensor)
        shapes[name] = shape[::-1] if source.transposed else shape
    return shapes


def _measured(from_shapes: Callable[[Shapes], Config], shapes: Shapes, file: OnnxFile, model: str) -> Config:
    try:
        return from_shapes(shapes)
    except MISFITS as problem:
        raise ValueError(f"{file.path}: not a whole file of {model}; looked for {sought(problem)}. Give the model's "
                         ".onnx file as published.") from problem


def _read(file: OnnxFile, sources: dict[str, Source]) -> dict[str, Tensor]:
    """One tensor at a time, so that no more than one of them is in memory twice."""
    state = {}
    for name, source in sources.items():
        if source.tensor is None:
            state[name] = torch.full((source.channels,), source.constant)
            continue
        stored = file.read(source.tensor)
        stored = stored.T if source.transposed else stored
        plain = stored.dtype == torch.float32 and not source.transposed
        state[name] = stored if plain else new_tensor(tuple(stored.shape), torch.float32).copy_(stored)
    return state
