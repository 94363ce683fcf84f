"""Names and weights of published S3Gen checkpoints.

Our modules bear the published names, so a name is changed in two cases only: weight norm, which is
folded (in either of torch's spellings), and counters and tables that inference does not read. Some
convolutions are computed as images of one line, and those over one frame as linear layers: their
weights gain an axis or lose one.
"""
from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

from ..assembly import MISFITS, REMEDY, UNFILLED, Shapes, check_names, fill, shapes_of, sought
from ..hub import Published
from ..weight_norm import fold, folded_name, folded_shapes, unfolded_shapes
from .config import PARTS, S3GenConfig
from .model import S3Token2Wav

Value = TypeVar("Value")

NAME = "S3Gen"
TELLTALE = frozenset({
    "tokenizer.encoder.conv1.weight",
    "speaker_encoder.head.conv1.weight",
    "flow.decoder.estimator.time_mlp.linear_1.weight",
    "mel2wav.conv_pre.bias",
})
GENERATOR = "generator."
ESTIMATOR = "flow.decoder.estimator."
DTYPES = (torch.float32, torch.bfloat16)    # of the estimator; float16's range is untried on it
# Where checkpoints come from, by the place below models/tts that they are fetched to.
PUBLISHED = {
    "s3gen/s3gen.safetensors": Published(
        "ResembleAI/chatterbox", "s3gen.safetensors", 1_056_484_620,
        "2b78103c654207393955e4900aac14a12de8ef25f4b09424f1ef91941f161d4e", "MIT"),
    "s3gen/s3gen_meanflow.safetensors": Published(
        "ResembleAI/chatterbox-turbo", "s3gen_meanflow.safetensors", 1_064_875_036,
        "d65cb687a2ed581ee6cc297e919ffefa63386944f42364ae13b78a594945514f", "MIT"),
    "s3gen/s3gen_v3.safetensors": Published(
        "ResembleAI/chatterbox", "s3gen_v3.safetensors", 1_056_381_804,
        "4a46190f3dccc2230fbb3488a930bccc925862ee68f2662433dfcfe93ce6c2cb", "MIT"),
}

_UNUSED = re.compile(r"\.num_batches_tracked$|^tokenizer\.(?:_mel_filters|window)$")
# Convolutions (C', C, taps) that are two-dimensional ones (C', C, 1, taps) here.
_LINE = re.compile(
    r"^(?:mel2wav\.(?:source_)?resblocks\.\d+\.convs[12]\.\d+"
    r"|flow\.decoder\.estimator\.(?:.*\.block\.0|(?:down|up)_blocks\.0\.2))\.weight$")
# Convolutions (C', C, 1) that are linear layers (C', C) here.
_POINT = re.compile(r"^flow\.decoder\.estimator\.(?:.*\.res_conv|final_proj)\.weight$")
# Weights that files hold as weight norm; all are the vocoder's, which may have a file of its own.
NORMED = re.compile(
    r"^(?:mel2wav\.)?(?:conv_pre|conv_post|ups\.\d+|(?:source_)?resblocks\.\d+\.convs[12]\.\d+"
    r"|f0_predictor\.condnet\.\d+)\.weight$")


def bare(vocoder: Mapping[str, Value], source: str) -> dict[str, Value]:
    """A vocoder's names without the prefix that they bear in files of adversarial training."""
    names = {name.removeprefix(GENERATOR): value for name, value in vocoder.items()}
    if len(names) < len(vocoder):
        twice = min(name for name in names if name in vocoder and GENERATOR + name in vocoder)
        raise ValueError(f"{source}: {GENERATOR}{twice}: the tensor is there a second time, as {twice}.")
    return names


def own_name(published: str) -> str | None:
    """The name in our modules, or None for a tensor that inference does not read."""
    return None if _UNUSED.search(published) else folded_name(published)


def own_shapes(published: Shapes) -> dict[str, tuple[int, ...]]:
    """Shapes by our names; a folded weight has the shape of its direction."""
    shapes = folded_shapes({name: shape for name, shape in published.items() if own_name(name)})
    for name, shape in shapes.items():
        if _LINE.match(name) and len(shape) == 3:
            shapes[name] = (shape[0], shape[1], 1, shape[2])
        elif _POINT.match(name) and shape[2:] == (1,):
            shapes[name] = shape[:2]
    return shapes


def published_shapes(module: S3Token2Wav) -> dict[str, tuple[int, ...]]:
    """Shapes by the published names, for a module with all its parts: the name map run backwards."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, tensor in module.state_dict().items():
        shape = tuple(tensor.shape)
        if _LINE.match(name):
            shape = (shape[0], shape[1], shape[3])
        if NORMED.match(name):
            shapes.update(unfolded_shapes(name, shape))
            continue
        shapes[name] = (*shape, 1) if _POINT.match(name) else shape
        if name.endswith(".running_var"):
            shapes[name.removesuffix("running_var") + "num_batches_tracked"] = ()
    mels = module.config.tokenizer.mels
    shapes["tokenizer._mel_filters"], shapes["tokenizer.window"] = (mels, 201), (400,)
    return shapes


def adopt(state: Mapping[str, Tensor], source: str = "state") -> dict[str, Tensor]:
    """Tensors by our names, weight norm folded, each in the layout that its module computes in."""
    tensors = fold({name: tensor for name, tensor in state.items() if own_name(name)}, source)
    for name, tensor in tensors.items():
        if _LINE.match(name) and tensor.ndim == 3:
            tensors[name] = tensor[:, :, None].contiguous(memory_format=torch.channels_last)
        elif _POINT.match(name) and tuple(tensor.shape[2:]) == (1,):
            tensors[name] = tensor[:, :, 0]
    return tensors


def build(
    state: Mapping[str, Tensor], operations=UNFILLED, dtype: torch.dtype = torch.float32,
    parts: tuple[str, ...] = PARTS, config: S3GenConfig | None = None, source: str = "state",
) -> S3Token2Wav:
    """A module that holds the tensors of a published state dict, ready for inference.

    parts: which of the four to build; their tensors must be all there, others are not looked at.
    config: measured of these parts where it is None. dtype: of the estimator. The tensors are
    taken over, not copied, unless they are folded or their dtype changes. ``ValueError`` names
    ``source`` and the first tensors that are missing, unexpected or of another shape.
    """
    if dtype not in DTYPES:
        raise ValueError(f"precision: {dtype} is not for S3Gen; it runs in float32 or bfloat16.")
    # Weights made in inference mode could not be used outside it.
    with torch.inference_mode(False):
        wanted = tuple(f"{part}." for part in parts)
        read = {name: tensor for name, tensor in state.items() if name.startswith(wanted)}
        if config is None:
            config = measure(shapes_of(state if parts == PARTS else read), source, parts)
        tensors = adopt(read, source)
        module = S3Token2Wav(config.estimator.meanflow, config, operations, "meta", dtype, parts)
        expected = shapes_of(module.state_dict()) if operations is UNFILLED else expected_shapes(config, parts)
        check_names(expected, shapes_of(tensors), source, NAME)
        return fill(module, tensors, lambda name: dtype if name.startswith(ESTIMATOR) else torch.float32, source)


def measure(published: Shapes, source: str, parts: tuple[str, ...] = PARTS) -> S3GenConfig:
    """The sizes of these parts, all of whose tensors have to be there and to fit each other, and no others."""
    shapes = own_shapes(published)
    try:
        config = S3GenConfig.from_shapes(shapes, parts)
        expected = expected_shapes(config, parts)
    except MISFITS as problem:
        raise ValueError(f"{source}: not a whole S3Gen checkpoint; looked for {sought(problem)}. {REMEDY}") from problem
    check_names(expected, shapes, source, NAME)
    return config


def expected_shapes(config: S3GenConfig, parts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Names and shapes by torch's own layers: ComfyUI's may have no weights before they are filled."""
    return shapes_of(S3Token2Wav(config.estimator.meanflow, config, UNFILLED, "meta", parts=parts).state_dict())
