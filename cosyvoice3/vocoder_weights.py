"""Names and weights of ``hift.pt``.

Our module bears the published names. Weight norm is folded, and so are the taps behind an upsampling; every
convolution of the decoder is one over an image of one line.
"""
from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..assembly import UNFILLED, Shapes, check_names, fill, measured, shapes_of
from ..s3gen.config import VocoderConfig
from ..s3gen.vocoder import RATES
from ..s3gen.weights import NORMED, bare
from ..weight_norm import fold, folded_shapes, unfolded_shapes
from .vocoder import CausalHiFT, fold_up

NAME = "CosyVoice3's vocoder"
PITCH = "f0_predictor."


def plain_shapes(module: CausalHiFT) -> dict[str, tuple[int, ...]]:
    """name -> shape as in files, but for weight norm, which is folded."""
    shapes = {PITCH + name: shape for name, shape in shapes_of(module.f0_predictor.state_dict()).items()}
    for name, shape in shapes_of(module.state_dict()).items():
        shapes[name] = (shape[0], shape[1], shape[3]) if len(shape) == 4 else shape
    for stage, (rate, kernel) in enumerate(zip(RATES, module.config.up_kernels)):
        weight, bias = f"ups.{stage}.weight", f"ups.{stage}.bias"
        shapes[weight] = (shapes[weight][0] // rate, shapes[weight][1], kernel)
        shapes[bias] = shapes[weight][:1]
    return shapes


def published_shapes(module: CausalHiFT) -> dict[str, tuple[int, ...]]:
    """Shapes by the published names: the name map run backwards."""
    shapes = {}
    for name, shape in plain_shapes(module).items():
        shapes.update(unfolded_shapes(name, shape) if NORMED.match(name) else {name: shape})
    return shapes


def lay_out(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights without norm in the shapes that the module computes in."""
    own = dict(tensors)
    for stage, rate in enumerate(RATES):
        weight, bias = f"ups.{stage}.weight", f"ups.{stage}.bias"
        own[weight], own[bias] = fold_up(own[weight], rate), own[bias].repeat(rate)
    for name, tensor in own.items():
        if tensor.ndim == 3:
            own[name] = tensor[:, :, None].contiguous(memory_format=torch.channels_last)
    return own


def measure(published: Shapes, source: str) -> VocoderConfig:
    """The sizes of a checkpoint, all of whose tensors have to be there and to fit each other."""
    return _matching(published, None, source)


def build(
    state: Mapping[str, Tensor], operations=UNFILLED, config: VocoderConfig | None = None, source: str = "state",
) -> CausalHiFT:
    """A vocoder that holds the tensors of a published state dict, ready for inference, in float32.

    config: measured where it is None. ``ValueError`` names ``source`` and the first tensors that are missing,
    unexpected or of another shape.
    """
    # Weights made in inference mode could not be used outside it.
    with torch.inference_mode(False):
        config = _matching(shapes_of(state), config, source)
        tensors = bare(state, source)
        pitch = {name.removeprefix(PITCH): tensors.pop(name) for name in list(tensors) if name.startswith(PITCH)}
        module = CausalHiFT(config, operations, "meta")
        fill(module.f0_predictor, fold(pitch, source, torch.float64), lambda _: torch.float64, source)
        return fill(module, lay_out(fold(tensors, source)), lambda _: torch.float32, source)


def _matching(published: Shapes, config: VocoderConfig | None, source: str) -> VocoderConfig:
    """The sizes, compared with the shapes by torch's own layers: ComfyUI's may be without weights until filled."""
    shapes = folded_shapes(bare(published, source))
    config = config or measured(VocoderConfig.from_shapes, shapes, source, NAME)
    expected = measured(lambda _: plain_shapes(CausalHiFT(config, UNFILLED, "meta")), shapes, source, NAME)
    check_names(expected, shapes, source, NAME)
    return config
