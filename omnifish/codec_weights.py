"""Names and weights of published files of Fish Audio's codec.

Our modules bear the published names. A name is changed where weight norm is folded, in any of its spellings; a
prefix of training scripts is taken off; masks and rotations, which some files hold, are computed instead.
Convolutions are computed as images of one line, those over one frame as linear layers, and transposed ones as
plain ones: their tensors are laid out anew.
"""
from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ..assembly import UNFILLED, Shapes, check_names, fill, measured, own, shapes_of
from ..checkpoint import Checkpoint
from ..weight_norm import fold, folded_name, folded_shapes, unfolded_shapes
from .codec import FishCodec
from .codec_config import DECODER_RATES, QUANTIZER_RATES, CodecConfig

NAME = "Fish Audio's codec"
# By our names (``own_name``): files may have a prefix.
TELLTALE = frozenset({
    "encoder.block.0.conv.bias",
    "quantizer.semantic_quantizer.quantizers.0.codebook.weight",
    "quantizer.post_module.norm.weight",
    "decoder.model.0.conv.bias",
})
DTYPES = (torch.float32,)       # codes sit on borders between table rows, and a wave needs its 16 bits
WRAPPER = "state_dict"          # under which training scripts put the weights
GROUP_BYTES = 2**26             # that are read at a time; the largest tensor has 75 MB

_PREFIX = re.compile(r"^(?:state_dict\.)?(?:generator\.)?")
_UNUSED = re.compile(r"(?:^|\.)(?:causal_mask|freqs_cis)$")
# Convolutions (C', C, taps) that are two-dimensional ones (C', C, 1, taps) here.
_LINE = re.compile(r"(?:^|\.)conv\.weight$")
# Convolutions (C', C, 1) that are linear layers (C', C) here.
_POINT = re.compile(r"\.(?:in|out)_proj\.weight$|^(?:en|de)coder\..*\.block\.\d\.block\.3\.conv\.weight$")
# Transposed convolutions (C, C', reach rate) that are (rate C', C, 1, reach) here; their biases are repeated.
_UP = re.compile(r"^(?:decoder\.model\.(?P<decoder>[1-4])\.block\.1|quantizer\.upsample\.[01]\.0)\.conv\.")
_NORMED = re.compile(r"^(?:en|de)coder\..*\.conv\.weight$")


def own_name(published: str) -> str | None:
    """The name in our modules, or None for a tensor that inference does not read."""
    return None if _UNUSED.search(published) else folded_name(_bare(published))


def _bare(published: str) -> str:
    return _PREFIX.sub("", published)


def _by_bare_name(published: Mapping[str, object], source: str) -> dict:
    """What is read, by names without a prefix. ``ValueError`` where a name is there with one and without."""
    named = {}
    for name, value in published.items():
        if own_name(name) is None:
            continue
        bare = _bare(name)
        if bare in named:
            raise ValueError(f"{source}: {name}: the tensor is there twice, once under another prefix.")
        named[bare] = value
    return named


def own_shapes(published: Shapes, source: str) -> dict[str, tuple[int, ...]]:
    """Shapes by our names and in our layouts; a folded weight has the shape of its direction."""
    on_meta = {name: torch.empty(shape, device="meta") for name, shape in
               folded_shapes(_by_bare_name(published, source)).items()}
    return shapes_of({name: _laid_out(name, tensor) for name, tensor in on_meta.items()})


def _laid_out(name: str, tensor: Tensor) -> Tensor:
    """A folded tensor of a file as our module has it; as it is where it is laid out so, or does not fit."""
    rate = _rate(name)
    if rate and tensor.ndim == 1:
        return tensor.repeat(rate)
    if rate and tensor.ndim == 3 and tensor.shape[2] % rate == 0:
        # Of the taps, those of the first outputs are the input's own; the kernel begins with the oldest input.
        tensor = tensor.unflatten(2, (-1, rate)).flip(2).permute(3, 1, 0, 2).flatten(0, 1)
    elif _POINT.search(name) and tuple(tensor.shape[2:]) == (1,):
        return tensor[:, :, 0]
    if _LINE.search(name) and tensor.ndim == 3:
        return tensor[:, :, None].contiguous(memory_format=torch.channels_last)
    return tensor


def _rate(name: str) -> int:
    """Of a transposed convolution; 0 for any other tensor."""
    up = _UP.match(name)
    return 0 if not up else DECODER_RATES[int(up["decoder"]) - 1] if up["decoder"] else QUANTIZER_RATES[0]


def published_shapes(module: FishCodec) -> dict[str, tuple[int, ...]]:
    """Shapes by the published names: the name map run backwards."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes_of(module.state_dict()).items():
        rate = _rate(name)
        if rate:
            shape = (shape[0] // rate,) if len(shape) == 1 else (shape[1], shape[0] // rate, shape[3] * rate)
        elif _POINT.search(name):
            shape = (*shape, 1)
        elif _LINE.search(name):
            shape = (shape[0], shape[1], shape[3])
        if _NORMED.search(name):
            shapes.update(unfolded_shapes(name, shape))
        elif _POINT.search(name):       # in torch's older spelling
            magnitude, direction = unfolded_shapes(name, shape).values()
            shapes.update({f"{name}_g": magnitude, f"{name}_v": direction})
        else:
            shapes[name] = shape
    return shapes


def adopt(state: Mapping[str, Tensor], source: str, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Tensors by our names, weight norm folded, each in the layout and the dtype that its module computes in."""
    tensors = fold(_by_bare_name(state, source), source, dtype)
    for name, tensor in tensors.items():
        tensors[name] = own(_laid_out(name, tensor), dtype)
    return tensors


def build_codec(
    state: Mapping[str, Tensor], quantizer_window: int | None = None, operations=UNFILLED,
    dtype: torch.dtype = torch.float32, config: CodecConfig | None = None, source: str = "state",
) -> FishCodec:
    """A codec that holds the tensors of a published state dict, ready for inference.

    quantizer_window: positions that the quantizer's transformers see, which no shape tells; None for the
    published one or ``config``'s. config: measured where it is None. The tensors are taken over, not copied,
    unless they are convolutions or their dtype changes. ``ValueError`` names ``source`` and the first tensors
    that are missing, unexpected or of another shape.
    """
    if isinstance(state.get(WRAPPER), Mapping):
        state = state[WRAPPER]
    _check_dtype(dtype)
    config = _matching(shapes_of(state), quantizer_window, config, source)
    with torch.inference_mode(False):       # weights made in that mode could not be used outside it
        return _filled(config, adopt(state, source, dtype), operations, dtype, source)


def load_codec(checkpoint: Checkpoint, quantizer_window: int | None = None, operations=UNFILLED,
               dtype: torch.dtype = torch.float32) -> FishCodec:
    """``build_codec`` of a file, in hardly more memory than the codec takes: each group of tensors goes when it is
    folded and in its dtype.
    """
    _check_dtype(dtype)
    source = str(checkpoint.path)
    config = _matching(checkpoint.shapes, quantizer_window, None, source)
    tensors: dict[str, Tensor] = {}
    with torch.inference_mode(False):
        for group in _groups(checkpoint):
            tensors |= adopt(checkpoint.read(group), source, dtype)
        return _filled(config, tensors, operations, dtype, source)


def _groups(checkpoint: Checkpoint) -> Iterator[list[str]]:
    """The names that are read, some megabytes at a time; those of one weight stay together."""
    weights: dict[str, list[str]] = {}
    for name in checkpoint.shapes:
        if own_name(name) is not None:
            weights.setdefault(own_name(name), []).append(name)
    group, size = [], 0
    for names in weights.values():
        group += names
        size += sum(math.prod(checkpoint.shapes[name]) * checkpoint.dtypes[name].itemsize for name in names)
        if size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def measure(published: Shapes, source: str, quantizer_window: int | None = None) -> CodecConfig:
    """The sizes of a checkpoint, all of whose tensors have to be there and to fit each other."""
    return _matching(published, quantizer_window, None, source)


def _check_dtype(dtype: torch.dtype) -> None:
    if dtype not in DTYPES:
        raise ValueError(f"precision: {dtype} is not for {NAME}; it runs in float32.")


def _matching(published: Shapes, quantizer_window: int | None, config: CodecConfig | None, source: str) -> CodecConfig:
    """The sizes, compared with the shapes by torch's own layers: ComfyUI's may be without weights until filled."""
    shapes = own_shapes(published, source)
    config = config or measured(CodecConfig.from_shapes, shapes, source, NAME)
    if quantizer_window is not None:
        config = replace(config, quantizer_transformer=replace(config.quantizer_transformer, window=quantizer_window))
    expected = measured(lambda _: shapes_of(FishCodec(config, UNFILLED, "meta").state_dict()), shapes, source, NAME)
    check_names(expected, shapes, source, NAME)
    return config


def _filled(config: CodecConfig, tensors: Mapping[str, Tensor], operations, dtype: torch.dtype,
            source: str) -> FishCodec:
    return fill(FishCodec(config, operations, "meta", dtype), tensors, lambda name: dtype, source)
