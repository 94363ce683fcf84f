"""CosyVoice 2's flow and vocoder: S3Gen's two, in files of their own whose names lack its prefixes.

Weights and networks are the same. What CosyVoice 2 does otherwise with them is for whoever calls them to do:

- The flow starts from one block of noise, the first draw (80, 15000) of a generator seeded with 0, of which a
  piece takes the first frames, its voice's being the first of all. ``S3Token2Wav.flow_inference`` takes them as
  ``z``; its own draw for seed 0 has the same numbers in other places. CosyVoice3's flow starts alike.
- The wave is not faded in, as S3Gen's ``inference`` does; ``hift_inference`` leaves it as it is.
"""
from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..assembly import MISFITS, REMEDY, UNFILLED, Shapes, check_names, shapes_of, sought
from . import weights
from .config import S3GenConfig
from .model import S3Token2Wav
from .weights import Value

NAMES = {"flow": "CosyVoice2's flow", "mel2wav": "CosyVoice2's vocoder"}
FILES = {"flow": "flow.pt", "mel2wav": "hift.pt"}       # part -> the file that holds it


def whole_names(part: str, tensors: Mapping[str, Value], source: str) -> dict[str, Value]:
    """What a file of one part holds, by S3Gen's names."""
    bare = weights.bare(tensors, source) if part == "mel2wav" else tensors
    return {f"{part}.{name}": value for name, value in bare.items()}


def measure(part: str, published: Shapes, source: str) -> S3GenConfig:
    """The sizes of one part, all of whose tensors have to be there and to fit; the published ones of the others.

    ``ValueError`` names ``source`` and the first tensors that are missing, unexpected or of another shape.
    """
    prefix = f"{part}."
    shapes = weights.own_shapes(whole_names(part, published, source))
    try:
        config = S3GenConfig.from_shapes(shapes, (part,))
        whole = weights.expected_shapes(config, (part,))
    except MISFITS as problem:
        looked_for = sought(problem).replace(prefix, "", 1)
        raise ValueError(f"{source}: not a whole file of {NAMES[part]}; looked for {looked_for}. {REMEDY}") from problem
    expected, found = ({name.removeprefix(prefix): shape for name, shape in side.items()} for side in (whole, shapes))
    check_names(expected, found, source, NAMES[part])
    return config


def build(
    flow: Mapping[str, Tensor] | None = None, hift: Mapping[str, Tensor] | None = None, operations=UNFILLED,
    dtype: torch.dtype = torch.float32, flow_source: str = FILES["flow"], hift_source: str = FILES["mel2wav"],
) -> S3Token2Wav:
    """A module with the parts "flow" and "mel2wav", or one of them, that holds the tensors of these files.

    dtype: of the flow's estimator. The tensors are taken over as ``weights.build`` does; errors as of
    ``measure``, each with the source of its file.
    """
    state: dict[str, Tensor] = {}
    parts, sources = [], []
    for part, tensors, source in (("flow", flow, flow_source), ("mel2wav", hift, hift_source)):
        if tensors is not None:
            measure(part, shapes_of(tensors), source)
            state.update(whole_names(part, tensors, source))
            parts.append(part)
            sources.append(source)
    if not parts:
        raise ValueError(f"CosyVoice2: neither flow nor vocoder was given; give {' or '.join(FILES.values())}.")
    return weights.build(state, operations, dtype, tuple(parts), source=" and ".join(sources))
