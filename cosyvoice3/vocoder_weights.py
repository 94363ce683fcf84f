"""Names and weights of ``hift.pt``. Our module bears the published names; weight norm is folded."""
from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..assembly import UNFILLED, Shapes, check_names, fill, shapes_of
from ..s3gen.config import VocoderConfig
from ..s3gen.weights import NORMED
from ..weight_norm import fold, folded_shapes, unfolded_shapes
from .vocoder import CausalHiFT

NAME = "CosyVoice3's vocoder"
PITCH = "f0_predictor."


def bare(tensors: Mapping, source: str) -> dict:
    """Without the prefix that the vocoder's names bear in files of adversarial training."""
    names = {name.removeprefix("generator."): value for name, value in tensors.items()}
    if len(names) < len(tensors):
        twice = min(name for name in names if name in tensors and f"generator.{name}" in tensors)
        raise ValueError(f"{source}: generator.{twice}: the tensor is there a second time, as {twice}.")
    return names


def own_shapes(module: CausalHiFT) -> dict[str, tuple[int, ...]]:
    """name -> shape of all that has to be filled, weight norm folded."""
    pitch = {PITCH + name: shape for name, shape in shapes_of(module.f0_predictor.state_dict()).items()}
    return {**shapes_of(module.state_dict()), **pitch}


def published_shapes(module: CausalHiFT) -> dict[str, tuple[int, ...]]:
    """Shapes by the published names: the name map run backwards."""
    shapes = {}
    for name, shape in own_shapes(module).items():
        shapes.update(unfolded_shapes(name, shape) if NORMED.match(name) else {name: shape})
    return shapes


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
        return fill(module, fold(tensors, source), lambda _: torch.float32, source)


def _matching(published: Shapes, config: VocoderConfig | None, source: str) -> VocoderConfig:
    """The sizes, compared with the shapes by torch's own layers: ComfyUI's may be without weights until filled."""
    shapes = folded_shapes(bare(published, source))
    try:
        config = config or VocoderConfig.from_shapes(shapes)
    except (KeyError, ValueError, IndexError) as problem:
        raise ValueError(f"{source}: not a whole file of {NAME}; looked for {problem}.") from problem
    check_names(own_shapes(CausalHiFT(config, UNFILLED, "meta")), shapes, source, NAME)
    return config
