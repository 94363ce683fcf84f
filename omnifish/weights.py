"""Names of the published model, and of its codec: what of a file is read, and how it becomes a module.

Nothing is loaded in part without a word. A model whose depth decoder does not fit can be loaded as
``semantic_only``, and whoever loads it has to say so.
"""
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..assembly import MISFITS, REMEDY, UNFILLED, Shapes, check_names, fill, shapes_of, sought
from .codec_weights import build_codec
from .config import AUDIO_TABLE, HEAD, MTP_PREFIX, CodeIds, OmniFishConfig
from .inspect import inspect
from .model import OmniFish
from .mtp import MTPConfig

NAME = "OGG TTS"
TELLTALE = frozenset({AUDIO_TABLE, HEAD})       # by our names (``own_name``)
DTYPES = (torch.float32, torch.bfloat16)        # of the layers; float16 overflows in some of them
MAX_NAMES = 5                                   # that an error lists

# Names that files may have for ours: what training adds, and a Qwen3 with a head for text.
ALIASES = (
    (re.compile(r"^(?:_orig_mod\.|module\.|model\.)+"), ""),
    (re.compile(r"^llm\.model\."), "llm."),
)
# Where each codebook begins in its table, which is counted; rotary tables; a head for text, which nobody reads.
_UNUSED = re.compile(r"^codebook_layer_offsets$|\.rotary_emb\.inv_freq$|^llm\.lm_head\.weight$")


def own_name(published: str) -> str | None:
    """The name in our module, or None for a tensor that inference does not read."""
    for pattern, ours in ALIASES:
        published = pattern.sub(ours, published)
    return None if _UNUSED.search(published) else published


def build(kind: str, state: Mapping[str, Tensor], *arguments, **options) -> nn.Module:
    """``build_model`` or ``build_codec``: a module of the kind "model" or "codec"."""
    builders = {"model": build_model, "codec": build_codec}
    if kind not in builders:
        raise ValueError(f"kind: {kind!r} is not one of {', '.join(builders)}.")
    return builders[kind](state, *arguments, **options)


def build_model(
    state: Mapping[str, Tensor], heads: int | None = None, kv_heads: int | None = None, head_dim: int | None = None,
    mtp: object = None, semantic_only: bool = False, ids: CodeIds | None = None, operations=UNFILLED,
    dtype: torch.dtype = torch.float32, config: OmniFishConfig | None = None, source: str = "state",
) -> OmniFish:
    """A model that holds the tensors of a published state dict, ready for inference.

    heads, kv_heads, head_dim, ids: what is measured, or published, where they are None. mtp: stands in for the
    depth decoder, whose tensors are not read then; nor with ``semantic_only``, which speaks codebook 0 alone.
    config: sizes that were measured before. The tensors are taken over, not copied, unless their dtype changes.
    ``ValueError`` names ``source`` and the first tensors that are missing, unexpected or of another shape.
    """
    if dtype not in DTYPES:
        raise ValueError(f"precision: {dtype} is not for {NAME}; it runs in float32 or bfloat16.")
    semantic = semantic_only or mtp is not None
    with torch.inference_mode(False):       # weights made in that mode could not be used outside it
        tensors = _by_own_name(state, source, semantic)
        config = _matching(shapes_of(tensors), shapes_of(state), source, semantic, config,
                           heads=heads, kv_heads=kv_heads, head_width=head_dim, ids=ids)
        plain = OmniFish(config, UNFILLED, "meta", dtype).state_dict()
        module = fill(OmniFish(config, operations, "meta", dtype), tensors, lambda name: plain[name].dtype, source)
    if mtp is not None:
        module.mtp = mtp
    return module


def measure(published: Shapes, source: str, semantic_only: bool = False, ids: CodeIds | None = None) -> OmniFishConfig:
    """The sizes of a checkpoint, all of whose tensors have to be there and to fit each other."""
    return _matching(_by_own_name(published, source, semantic_only), published, source, semantic_only, ids=ids)


def is_read(published: str, semantic_only: bool = False) -> bool:
    """Whether a tensor of a file is read at all."""
    name = own_name(published)
    return name is not None and not (semantic_only and name.startswith(MTP_PREFIX))


def _by_own_name(published: Mapping[str, object], source: str, semantic_only: bool) -> dict:
    named = {}
    for name, value in published.items():
        if is_read(name, semantic_only):
            if own_name(name) in named:
                raise ValueError(f"{source}: {name}: the tensor is there twice, once by another name.")
            named[own_name(name)] = value
    return named


def _matching(
    shapes: Shapes, held: Shapes, source: str, semantic_only: bool, config: OmniFishConfig | None = None, **told,
) -> OmniFishConfig:
    """The sizes, compared with the shapes by torch's own layers: ComfyUI's may be without weights until filled.

    held: the file's own names and shapes, for the report. told: to ``OmniFishConfig.from_shapes``.
    """
    core = {name: shape for name, shape in shapes.items() if not name.startswith(MTP_PREFIX)}
    try:
        spoken = replace(config or OmniFishConfig.from_shapes(core, **told), mtp=None)
        expected = _own_shapes(spoken)
    except MISFITS as problem:
        raise ValueError(f"{source}: not a whole file of {NAME}; looked for {sought(problem)}. {REMEDY} "
                         f"{_report(held)}") from problem
    try:
        check_names(expected, core, source, NAME)
    except ValueError as problem:
        raise ValueError(f"{problem} {_report(held)}") from problem
    if semantic_only:
        return spoken
    try:
        config = config or OmniFishConfig.from_shapes(shapes, **told)
        if config.mtp is None:
            raise ValueError(f"tensors whose names begin with {MTP_PREFIX}, and found none")
        expected = _own_shapes(config)
    except MISFITS as problem:
        known = _own_shapes(replace(spoken, mtp=MTPConfig()))
        stray = [name for name in shapes if name not in known]
        raise ValueError(_no_depth(source, f"looked for {sought(problem)}", shapes, stray, held)) from problem
    try:
        check_names(expected, shapes, source, NAME)
    except ValueError as problem:
        stray = [name for name in shapes if expected.get(name) != shapes[name]]
        raise ValueError(_no_depth(source, str(problem).removeprefix(f"{source}: "), shapes, stray, held)) from problem
    return config


def _own_shapes(config: OmniFishConfig) -> dict[str, tuple[int, ...]]:
    return shapes_of(OmniFish(config, UNFILLED, "meta").state_dict())


def _no_depth(source: str, reason: str, shapes: Shapes, stray: list[str], held: Shapes) -> str:
    names = ", ".join(f"{name} {shapes[name]}" for name in stray[:MAX_NAMES]) or "none"
    more = ", ..." if len(stray) > MAX_NAMES else ""
    return (f"{source}: backbone, embedding and head are those of {NAME}; the depth decoder is none that this pack "
            f"knows: {reason.rstrip('.')}. Tensors without a place: {names}{more}. Choose semantic-only to speak "
            f"without it, rough but intelligible, or another file. {_report(held)}")


def _report(shapes: Shapes) -> str:
    return f"What the file holds:\n{inspect(shapes)}"
