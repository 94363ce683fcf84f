"""Names of the published language models, which our module bears, and what of their files is not read."""
from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from ..assembly import UNFILLED, Shapes, check_names, fill, measured, own, shapes_of
from .config import TEXT_TABLE, LMConfig
from .lm import SpeechLM

NAME = "CosyVoice's language model"
TELLTALE = frozenset({TEXT_TABLE, "llm_decoder.weight", "speech_embedding.weight"})
DTYPES = (torch.float32, torch.bfloat16)    # of the layers; float16 overflows in some of them

TEXT_HEAD = "llm.model.lm_head.weight"      # the text table once more, or what training left of it
_UNUSED = re.compile(rf"^{re.escape(TEXT_HEAD)}$|\.rotary_emb\.inv_freq$|^(?:epoch|step)$")
_FLOAT32 = re.compile(r"norm\.weight$|^llm_decoder\.")


def own_name(published: str) -> str | None:
    """The name in our module, or None for a tensor that inference does not read."""
    return None if _UNUSED.search(published) else published


def own_shapes(module: SpeechLM) -> dict[str, tuple[int, ...]]:
    """name -> shape of all that has to be filled."""
    return {TEXT_TABLE: tuple(module.text_table.shape), **shapes_of(module.state_dict())}


def published_shapes(module: SpeechLM) -> dict[str, tuple[int, ...]]:
    """Shapes as in a published file, which has a head for text too."""
    shapes = own_shapes(module)
    return {**shapes, TEXT_HEAD: shapes[TEXT_TABLE]}


def build(
    state: Mapping[str, Tensor], operations=UNFILLED, dtype: torch.dtype = torch.float32,
    config: LMConfig | None = None, source: str = "state",
) -> SpeechLM:
    """A module that holds the tensors of a published state dict, ready for inference.

    config: sizes that no shape tells; measured where it is None. The tensors are taken over, not copied,
    unless their dtype changes. ``ValueError`` names ``source`` and the first tensors that are missing,
    unexpected or of another shape.
    """
    if dtype not in DTYPES:
        raise ValueError(f"precision: {dtype} is not for {NAME}; it runs in float32 or bfloat16.")
    # Weights made in inference mode could not be used outside it.
    with torch.inference_mode(False):
        tensors = {name: tensor for name, tensor in state.items() if own_name(name)}
        config = _matching(shapes_of(tensors), config, source)
        module = SpeechLM(config, operations, "meta", dtype)
        module.text_table = own(tensors.pop(TEXT_TABLE), dtype).detach()
        return fill(module, tensors, lambda name: torch.float32 if _FLOAT32.search(name) else dtype, source)


def measure(published: Shapes, source: str) -> LMConfig:
    """The sizes of a checkpoint, all of whose tensors have to be there and to fit each other."""
    return _matching({name: shape for name, shape in published.items() if own_name(name)}, None, source)


def _matching(shapes: Shapes, config: LMConfig | None, source: str) -> LMConfig:
    """The sizes, compared with the shapes by torch's own layers: ComfyUI's may be without weights until filled."""
    config = config or measured(LMConfig.from_shapes, shapes, source, NAME)
    expected = measured(lambda _: own_shapes(SpeechLM(config, UNFILLED, "meta")), shapes, source, NAME)
    check_names(expected, shapes, source, NAME)
    return config
