"""Names and weights of the published flow of CosyVoice3.

Our modules bear the published names but in two places: queries, keys and values are one layer, and the layer
over noisy mel and condition is two. Convolutions over frames are images of one line and gain an axis.
"""
from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from ..assembly import UNFILLED, Shapes, check_names, fill, measured, own, shapes_of
from ..checkpoint import Checkpoint
from .config import FLOW_ESTIMATOR, FLOW_LAYERS, FlowConfig
from .flow import MelFlow

NAME = "CosyVoice3's flow"
TELLTALE = frozenset({
    "input_embedding.weight", "pre_lookahead_layer.conv1.weight", f"{FLOW_LAYERS}0.attn_norm.linear.weight"})
DTYPES = (torch.float32, torch.bfloat16)    # of the matrix products; float16 overflows in some of them

ROTARY = f"{FLOW_ESTIMATOR}rotary_embed.inv_freq"       # computed anew
INPUT = f"{FLOW_ESTIMATOR}input_embed."
_COARSE = re.compile(r"\.(?:conv_pos_embed|attn|ff)\.")      # all else is float32 whatever the precision
_LINE = re.compile(r"\.conv_pos_embed\.conv[12]\.0\.weight$")
_QKV = re.compile(r"\.to_[qkv]\.(?=weight$|bias$)")
_LAYER = re.compile(rf"{re.escape(FLOW_LAYERS)}\d+\.")


def own_name(published: str) -> str | None:
    """The published name, or None for a tensor that inference does not read."""
    return None if published == ROTARY else published


def published_shapes(module: MelFlow) -> dict[str, tuple[int, ...]]:
    """Shapes as in a published file, but for ``ROTARY``."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes_of(module.state_dict()).items():
        if ".to_qkv." in name:
            third = (shape[0] // 3, *shape[1:])
            shapes.update((name.replace("to_qkv", f"to_{letter}"), third) for letter in "qkv")
        elif name == f"{INPUT}known.weight":
            shapes[f"{INPUT}proj.weight"] = (shape[0], shape[1] + module.config.mels)
        elif name == f"{INPUT}known.bias":
            shapes[f"{INPUT}proj.bias"] = shape
        elif name != f"{INPUT}noisy.weight":
            shapes[name] = (shape[0], shape[1], shape[3]) if _LINE.search(name) else shape
    return shapes


def adopt(state: Mapping[str, Tensor], mels: int) -> dict[str, Tensor]:
    """The tensors of a published state dict by our names; a layer's queries, keys and values have to be together."""
    tensors = {}
    for name, tensor in state.items():
        if _LINE.search(name):
            tensors[name] = tensor[:, :, None].contiguous(memory_format=torch.channels_last)
        elif name == f"{INPUT}proj.weight":
            # Columns for the noisy mel come first.
            tensors[f"{INPUT}noisy.weight"], tensors[f"{INPUT}known.weight"] = (
                part.contiguous() for part in tensor.split((mels, 3 * mels), dim=1))
        elif name == f"{INPUT}proj.bias":
            tensors[f"{INPUT}known.bias"] = tensor
        elif ".to_q." in name:
            tensors[_QKV.sub(".to_qkv.", name)] = torch.cat([state[_QKV.sub(f".to_{x}.", name)] for x in "qkv"])
        elif not _QKV.search(name):
            tensors[name] = tensor
    return tensors


def build(
    state: Mapping[str, Tensor], operations=UNFILLED, dtype: torch.dtype = torch.float32,
    config: FlowConfig | None = None, source: str = "state",
) -> MelFlow:
    """A module that holds the tensors of a published state dict, ready for inference.

    config: measured where it is None. dtype: of the matrix products. The tensors are taken over, not copied,
    unless they change. ``ValueError`` names ``source`` and the first tensors that are missing,
    unexpected or of another shape.
    """
    _check_dtype(dtype)
    # Weights made in inference mode could not be used outside it.
    with torch.inference_mode(False):
        tensors = {name: tensor for name, tensor in state.items() if own_name(name)}
        config = _matching(shapes_of(tensors), config, source)
        return _filled(config, adopt(tensors, config.mels), operations, dtype, source)


def load(
    checkpoint: Checkpoint, operations=UNFILLED, dtype: torch.dtype = torch.float32, config: FlowConfig | None = None,
) -> MelFlow:
    """``build`` of a file, in hardly more memory than the flow takes: each layer is joined before the next is read."""
    _check_dtype(dtype)
    source, layers = str(checkpoint.path), {}
    for name in filter(own_name, checkpoint.shapes):
        layer = _LAYER.match(name)
        layers.setdefault(layer and layer[0], []).append(name)
    config = _matching({name: checkpoint.shapes[name] for names in layers.values() for name in names}, config, source)
    tensors: dict[str, Tensor] = {}
    with torch.inference_mode(False):
        for names in layers.values():
            adopted = adopt(checkpoint.read(names), config.mels)
            tensors.update((name, own(tensor, _dtype(name, dtype))) for name, tensor in adopted.items())
        return _filled(config, tensors, operations, dtype, source)


def measure(published: Shapes, source: str) -> FlowConfig:
    """The sizes of a checkpoint, all of whose tensors have to be there and to fit each other."""
    return _matching({name: shape for name, shape in published.items() if own_name(name)}, None, source)


def _matching(shapes: Shapes, config: FlowConfig | None, source: str) -> FlowConfig:
    """The sizes, compared with the shapes by torch's own layers: ComfyUI's may be without weights until filled."""
    config = config or measured(FlowConfig.from_shapes, shapes, source, NAME)
    expected = measured(lambda _: published_shapes(MelFlow(config, UNFILLED, "meta")), shapes, source, NAME)
    check_names(expected, shapes, source, NAME)
    return config


def _check_dtype(dtype: torch.dtype) -> None:
    if dtype not in DTYPES:
        raise ValueError(f"precision: {dtype} is not for {NAME}; it runs in float32 or bfloat16.")


def _dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    return dtype if _COARSE.search(name) else torch.float32


def _filled(config: FlowConfig, tensors: Mapping[str, Tensor], operations, dtype: torch.dtype, source: str) -> MelFlow:
    return fill(MelFlow(config, operations, "meta", dtype), tensors, lambda name: _dtype(name, dtype), source)
