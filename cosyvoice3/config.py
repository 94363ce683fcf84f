"""Sizes and ids of CosyVoice's language models, version 2 and 3, and of the flow of version 3, measured from shapes.

The defaults are those of the published models, whose language model is Qwen2's of 0.5 billion parameters. What no
shape tells (the width of a head, the base of the rotary positions, the norms' epsilon) is the same in all.
"""
from __future__ import annotations

from dataclasses import dataclass

from ..assembly import Shapes
from ..s3gen.config import count

HEAD_WIDTH = 64     # channels of one attention head
LAYERS = "llm.model.model.layers."
TEXT_TABLE = "llm.model.model.embed_tokens.weight"
FLOW_ESTIMATOR = "decoder.estimator."
FLOW_LAYERS = f"{FLOW_ESTIMATOR}transformer_blocks."
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


@dataclass(frozen=True)
class FlowConfig:
    """Sizes of the mel flow of CosyVoice3."""

    vocabulary: int = 6561          # V, rows of the token table
    mels: int = 80                  # M, which is also the width of a token's embedding
    speaker: int = 192              # D of the speaker embedding
    lookahead_width: int = 1024     # C between the two convolutions over tokens
    width: int = 1024               # D of the transformer
    layers: int = 22
    heads: int = 16                 # H
    hidden: int = 2048              # width of the feed-forward
    time_channels: int = 256        # sinusoids of a time
    position_taps: int = 31         # frames that each convolution for positions sees
    position_groups: int = 16

    @classmethod
    def from_shapes(cls, shapes: Shapes) -> FlowConfig:
        """Read the sizes off ``name -> shape``; ``KeyError`` names what is missing, ``ValueError`` what is odd."""
        vocabulary, mels = shapes["input_embedding.weight"]
        first = f"{FLOW_LAYERS}0."
        inner, width = shapes[f"{first}attn.to_q.weight"]
        if inner != width or width % HEAD_WIDTH:
            raise ValueError(f"heads of {HEAD_WIDTH} channels that make up the width, and found {inner} and {width}")
        _, group, taps = shapes[f"{FLOW_ESTIMATOR}input_embed.conv_pos_embed.conv1.0.weight"]
        if not group or width % group:
            raise ValueError(f"groups that make up the width, {width}, and found some of {group} channels")
        return cls(
            vocabulary=vocabulary,
            mels=mels,
            speaker=shapes["spk_embed_affine_layer.weight"][1],
            lookahead_width=shapes["pre_lookahead_layer.conv1.weight"][0],
            width=width,
            layers=count(shapes, FLOW_LAYERS),
            heads=width // HEAD_WIDTH,
            hidden=shapes[f"{first}ff.ff.0.0.weight"][0],
            time_channels=shapes[f"{FLOW_ESTIMATOR}time_embed.time_mlp.0.weight"][1],
            position_taps=taps,
            position_groups=width // group,
        )
