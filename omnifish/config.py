"""Sizes and ids of OGG TTS, measured from the shapes of a checkpoint.

The defaults are those of the published model, whose backbone is Qwen3's of 0.6 billion parameters as OmniVoice
has it. What no shape tells (the base of the rotary positions, the norms' epsilon, which id means what) is a
default that a caller may replace.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..assembly import Shapes
from .codec_config import layers
from .mtp import MTPConfig

NUM_CODEBOOKS = 10          # K: one semantic codebook, and nine that tell the rest of the sound
LAYERS = "llm.layers."
TEXT_TABLE = "llm.embed_tokens.weight"
AUDIO_TABLE = "audio_embeddings.weight"
HEAD, HEAD_BIAS = "semantic_head.weight", "semantic_head.bias"
MTP_PREFIX = "mtp."


@dataclass(frozen=True)
class CodeIds:
    """What ids mean. In codebook 0 every id from ``end`` on ends the speech."""

    mask: int = 4096        # a code that is not known, in every codebook
    end: int = 4097         # the first frame after the speech
    pad: int = 4098         # the frames after that one
    semantic: int = 4096    # ids that sound: in codebook 0,
    residual: int = 1024    # and in each of the others

    def sounding(self, codebook: int) -> int:
        """How many ids of a codebook sound: those from 0 on."""
        return self.residual if codebook else self.semantic


@dataclass(frozen=True)
class BackboneConfig:
    """Sizes of the Qwen3 decoder."""

    width: int = 1024           # D
    layers: int = 28
    heads: int = 16             # H, of the queries
    kv_heads: int = 8           # of keys and values
    head_width: int = 128       # channels of one head
    hidden: int = 3072          # width of the MLP
    text_rows: int = 151676     # of the table of text ids
    rope_theta: float = 1e6
    norm_eps: float = 1e-6

    @property
    def group(self) -> int:
        """Heads of queries that share one of keys."""
        return self.heads // self.kv_heads

    @property
    def hidden_size(self) -> int:
        """D, by the name that the published module uses."""
        return self.width

    @classmethod
    def from_shapes(
        cls, shapes: Shapes, heads: int | None = None, kv_heads: int | None = None, head_width: int | None = None,
    ) -> BackboneConfig:
        """Sizes that are not given are read off ``name -> shape``."""
        text_rows, width = shapes[TEXT_TABLE]
        first = f"{LAYERS}0.self_attn."
        inner, kv_inner = (shapes[f"{first}{name}_proj.weight"][0] for name in ("q", "k"))
        head_width = head_width or shapes[f"{first}q_norm.weight"][0]
        if head_width < 2 or head_width % 2 or not kv_inner or kv_inner % head_width or inner % kv_inner:
            raise ValueError(f"heads of {head_width} channels, and found {inner} of queries and {kv_inner} of keys")
        return cls(
            width=width,
            layers=layers(shapes, LAYERS),
            heads=heads or inner // head_width,
            kv_heads=kv_heads or kv_inner // head_width,
            head_width=head_width,
            hidden=shapes[f"{LAYERS}0.mlp.gate_proj.weight"][0],
            text_rows=text_rows,
        )


@dataclass(frozen=True)
class OmniFishConfig:
    """Sizes of the whole model; ``mtp`` is None where the semantic codebook is all that it speaks."""

    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    mtp: MTPConfig | None = field(default_factory=MTPConfig)
    codebook_rows: int = 4099   # V, of the head and of each codebook's part of the audio table
    head_bias: bool = False
    ids: CodeIds = field(default_factory=CodeIds)

    @classmethod
    def from_shapes(
        cls, shapes: Shapes, heads: int | None = None, kv_heads: int | None = None, head_width: int | None = None,
        ids: CodeIds | None = None,
    ) -> OmniFishConfig:
        """Read the sizes off ``name -> shape``; ``KeyError`` names what is missing, ``ValueError`` what is odd."""
        ids = ids or CodeIds()
        backbone = BackboneConfig.from_shapes(shapes, heads, kv_heads, head_width)
        rows = shapes[HEAD][0]
        if rows <= max(ids.mask, ids.end):
            raise ValueError(f"more than {max(ids.mask, ids.end)} rows in {HEAD}, for mask and end, and found {rows}")
        if shapes[AUDIO_TABLE][0] != NUM_CODEBOOKS * rows:
            raise ValueError(f"{NUM_CODEBOOKS} times the {rows} rows of {HEAD} in {AUDIO_TABLE}, and found "
                             f"{shapes[AUDIO_TABLE][0]}")
        depth = below(shapes, MTP_PREFIX)
        mtp = replace(MTPConfig.from_shapes(depth), mask_id=ids.mask) if depth else None
        if mtp and mtp.width != backbone.width:
            raise ValueError(f"a depth decoder as wide as the backbone, {backbone.width}, and found {mtp.width}")
        return cls(backbone, mtp, rows, HEAD_BIAS in shapes, ids)


def below(tensors: Mapping[str, object], prefix: str) -> dict:
    """What has a name that begins with ``prefix``, named without it."""
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
