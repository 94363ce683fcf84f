"""Names of the published flow of CosyVoice3, which our module bears, and what of its file is not read."""
from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from ..assembly import UNFILLED, Shapes, check_names, fill, shapes_of
from .config import FLOW_ESTIMATOR, FLOW_LAYERS, FlowConfig
from .flow import MelFlow

NAME = "CosyVoice3's flow"
TELLTALE = frozenset({
    "input_embedding.weight", "pre_lookahead_layer.conv1.weight", f"{FLOW_LAYERS}0.attn_norm.linear.weight"})
DTYPES = (torch.float32, torch.bfloat16)    # of the matrix products; float16 overflows in some of them

ROTARY = f"{FLOW_ESTIMATOR}rotary_embed.inv_freq"       # computed anew
# All else is float32 whatever the precision.
_COARSE = re.compile(r"\.(?:conv_pos_embed|attn|ff)\.")


def own_name(published: str) -> str | None:
    """The name in our module, or None for a tensor that inference does not read."""
    return None if published == ROTARY else published


def published_shapes(module: MelFlow) -> dict[str, tuple[int, ...]]:
    """Shapes as in a published file, but for ``ROTARY``."""
    return shapes_of(module.state_dict())


def build(
    state: Mapping[str, Tensor], operations=UNFILLED, dtype: torch.dtype = torch.float32,
    config: FlowConfig | None = None, source: str = "state",
) -> MelFlow:
    """A module that holds the tensors of a published state dict, ready for inference.

    config: measured where it is None. dtype: of the matrix products. The tensors are taken over, not copied,
    unless their dtype changes. ``ValueError`` names ``source`` and the first tensors that are missing,
    unexpected or of another shape.
    """
    if dtype not in DTYPES:
        raise ValueError(f"precision: {dtype} is not for {NAME}; it runs in float32 or bfloat16.")
    # Weights made in inference mode could not be used outside it.
    with torch.inference_mode(False):
        tensors = {name: tensor for name, tensor in state.items() if own_name(name)}
        config = _matching(shapes_of(tensors), config, source)
        module = MelFlow(config, operations, "meta", dtype)
        return fill(module, tensors, lambda name: dtype if _COARSE.search(name) else torch.float32, source)


def measure(published: Shapes, source: str) -> FlowConfig:
    """The sizes of a checkpoint, all of whose tensors have to be there and to fit each other."""
    return _matching({name: shape for name, shape in published.items() if own_name(name)}, None, source)


def _matching(shapes: Shapes, config: FlowConfig | None, source: str) -> FlowConfig:
    """The sizes, compared with the shapes by torch's own layers: ComfyUI's may be without weights until filled."""
    try:
        config = config or FlowConfig.from_shapes(shapes)
    except (KeyError, ValueError, IndexError) as problem:
        raise ValueError(f"{source}: not a whole file of {NAME}; looked for {problem}.") from problem
    check_names(published_shapes(MelFlow(config, UNFILLED, "meta")), shapes, source, NAME)
    return config
