"""Sizes and ids of CosyVoice's language models, version 2 and 3, measured from the shapes of a checkpoint.

The defaults are those of the published models, whose decoder is Qwen2's of 0.5 billion parameters. What no
shape tells (the width of a head, the base of the rotary positions, the norms' epsilon) is the same in both.
"""
from __future__ import annotations

from dataclasses import dataclass

from ..assembly import Shapes
from ..s3gen.config import count

HEAD_WIDTH = 64     # channels of one attention head
LAYERS = "llm.model.model.layers."
TEXT_TABLE = "llm.model.model.embed_tokens.weight"
CONTROL_TABLE = "llm_embedding.weight"      # in version 2 alone


@dataclass(frozen=True)
class SpeechIds:
    """What the rows of the speech table mean. Every id from ``vocabulary`` on ends the speech."""

    sos: int | None         # before the text; None where a table of its own has it
    task: int | None        # between text and speech; the same
    eos: int                # the end
    fill: int               # asks for more text, where text comes in pieces
    rows: int
    vocabulary: int = 6561  # of S3 tokens, 3 ** 8


IDS = {
    2: SpeechIds(sos=None, task=None, eos=6561, fill=6563, rows=6564),
    3: SpeechIds(sos=6561, eos=6562, task=6563, fill=6564, rows=6761),
}


@dataclass(frozen=True)
class LMConfig:
    """Sizes of a language model."""

    version: int = 3            # 2 or 3
    width: int = 896            # D
    layers: int = 24
    heads: int = 14             # H, of the queries
    kv_heads: int = 2           # of keys and values
    hidden: int = 4864          # width of the MLP
    text_rows: int = 151936     # of the table of text ids, more than any tokenizer has
    head_width: int = HEAD_WIDTH
    rope_theta: float = 1e6
    norm_eps: float = 1e-6

    @property
    def ids(self) -> SpeechIds:
        return IDS[self.version]

    @property
    def group(self) -> int:
        """Heads of queries that share one of keys."""
        return self.heads // self.kv_heads

    @property
    def speech_rows(self) -> int:
        return self.ids.rows

    @classmethod
    def from_shapes(cls, shapes: Shapes) -> LMConfig:
        """Read the sizes off ``name -> shape``; ``KeyError`` names what is missing, ``ValueError`` what is odd."""
        version = 2 if CONTROL_TABLE in shapes else 3
        rows, width = shapes["speech_embedding.weight"]
        if rows != IDS[version].rows:
            raise ValueError(f"{IDS[version].rows} rows in speech_embedding.weight, as in CosyVoice{version}, "
                             f"and found {rows}")
        first = f"{LAYERS}0."
        inner, kv_inner = (shapes[f"{first}self_attn.{name}_proj.weight"][0] for name in ("q", "k"))
        if inner % HEAD_WIDTH or not kv_inner or inner % kv_inner or kv_inner % HEAD_WIDTH:
            raise ValueError(f"heads of {HEAD_WIDTH} channels, and found {inner} of queries and {kv_inner} of keys")
        return cls(
            version=version,
            width=width,
            layers=count(shapes, LAYERS),
            heads=inner // HEAD_WIDTH,
            kv_heads=kv_inner // HEAD_WIDTH,
            hidden=shapes[f"{first}mlp.gate_proj.weight"][0],
            text_rows=shapes[TEXT_TABLE][0],
        )
