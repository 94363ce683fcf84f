"""Sizes of every part of S3Gen, measured from the shapes of a checkpoint.

The defaults are those of the published models (Chatterbox, Chatterbox Turbo, CosyVoice 2). What no
shape tells (strides, window lengths, the 64 channels of one attention head) is the same in all of
them and stands as a constant beside the module that needs it.
"""
from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from ..assembly import Shapes

PARTS = ("tokenizer", "speaker_encoder", "flow", "mel2wav")
HEAD_WIDTH = 64  # channels of one attention head, in the tokenizer and in the estimator


def count(shapes: Shapes, prefix: str, first: int = 0) -> int:
    """How many consecutive ``prefix{first}.``, ``prefix{first + 1}.`` ... the names hold."""
    indices = {int(name[len(prefix):].split(".")[0]) for name in shapes if name.startswith(prefix)}
    number = 0
    while first + number in indices:
        number += 1
    return number


@dataclass(frozen=True)
class TokenizerConfig:
    """Sizes of the S3 speech tokenizer."""

    mels: int = 128         # M, bins of its log-mel
    width: int = 1280       # D
    layers: int = 6
    hidden: int = 5120      # width of the MLP
    kernel: int = 31        # taps of the FSMN memory
    digits: int = 8         # ternary digits of one token

    @property
    def heads(self) -> int:
        return self.width // HEAD_WIDTH

    @classmethod
    def from_shapes(cls, shapes: Shapes) -> TokenizerConfig:
        width, mels, _ = shapes["encoder.conv1.weight"]
        return cls(
            mels=mels,
            width=width,
            layers=count(shapes, "encoder.blocks."),
            hidden=shapes["encoder.blocks.0.mlp.0.weight"][0],
            kernel=shapes["encoder.blocks.0.attn.fsmn_block.weight"][2],
            digits=shapes["quantizer._codebook.project_down.weight"][0],
        )


@dataclass(frozen=True)
class SpeakerConfig:
    """Sizes of the CAM++ speaker encoder."""

    head_channels: int = 32                     # C of the two-dimensional front
    channels: int = 128                         # C after the first time-delay layer
    growth: int = 32                            # C that each dense layer adds
    bottleneck: int = 128                       # C inside a dense layer
    blocks: tuple[int, ...] = (12, 24, 16)      # dense layers of each block
    embedding: int = 192                        # D of the speaker embedding

    @classmethod
    def from_shapes(cls, shapes: Shapes) -> SpeakerConfig:
        blocks = count({name.replace("block", "block."): () for name in shapes}, "xvector.block.", first=1)
        local = shapes["xvector.block1.tdnnd1.cam_layer.linear_local.weight"]
        return cls(
            head_channels=shapes["head.conv1.weight"][0],
            channels=shapes["xvector.tdnn.linear.weight"][0],
            growth=local[0],
            bottleneck=local[1],
            blocks=tuple(
                count(shapes, f"xvector.block{index}.tdnnd", first=1) for index in range(1, blocks + 1)
            ),
            embedding=shapes["xvector.dense.linear.weight"][0],
        )


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes of the upsampling conformer that reads tokens."""

    width: int = 512        # D
    heads: int = 8          # H
    hidden: int = 2048      # width of the feed-forward
    layers: int = 6         # at 25 frames per second
    up_layers: int = 4      # at 50 frames per second

    @classmethod
    def from_shapes(cls, shapes: Shapes) -> EncoderConfig:
        hidden, width = shapes["encoders.0.feed_forward.w_1.weight"]
        return cls(
            width=width,
            heads=shapes["encoders.0.self_attn.pos_bias_u"][0],
            hidden=hidden,
            layers=count(shapes, "encoders."),
            up_layers=count(shapes, "up_encoders."),
        )


@dataclass(frozen=True)
class EstimatorConfig:
    """Sizes of the network that estimates the velocity of the mel."""

    mels: int = 80          # M
    width: int = 256        # D
    heads: int = 8          # H
    hidden: int = 1024      # width of the feed-forward
    time_width: int = 1024  # D of the time embedding
    mid_blocks: int = 12
    transformers: int = 4   # in each block
    meanflow: bool = False  # takes the interval (t, r) in place of one time t

    @classmethod
    def from_shapes(cls, shapes: Shapes) -> EstimatorConfig:
        inner, width = shapes["mid_blocks.0.1.0.attn1.to_q.weight"]
        return cls(
            mels=shapes["final_proj.weight"][0],
            width=width,
            heads=inner // HEAD_WIDTH,
            hidden=shapes["mid_blocks.0.1.0.ff.net.0.proj.weight"][0],
            time_width=shapes["time_mlp.linear_1.weight"][0],
            mid_blocks=count(shapes, "mid_blocks."),
            transformers=count(shapes, "mid_blocks.0.1."),
            meanflow="time_embed_mixer.weight" in shapes,
        )


@dataclass(frozen=True)
class VocoderConfig:
    """Sizes of the HiFT vocoder, whose upsampling rates are 8, 5 and 3."""

    mels: int = 80                                  # M
    channels: int = 512                             # C before the first upsampling, which halves it
    up_kernels: tuple[int, ...] = (16, 11, 7)
    source_kernels: tuple[int, ...] = (7, 7, 11)    # of the residual block on each source branch
    kernels: tuple[int, ...] = (3, 7, 11)           # of the residual blocks at each rate
    f0_channels: int = 512

    @classmethod
    def from_shapes(cls, shapes: Shapes) -> VocoderConfig:
        """``shapes`` with weight norm folded: ``conv_pre.weight`` and the like."""
        channels, mels, _ = shapes["conv_pre.weight"]
        ups = count(shapes, "ups.")
        kernels = count(shapes, "resblocks.") // ups
        return cls(
            mels=mels,
            channels=channels,
            up_kernels=tuple(shapes[f"ups.{i}.weight"][2] for i in range(ups)),
            source_kernels=tuple(shapes[f"source_resblocks.{i}.convs1.0.weight"][-1] for i in range(ups)),
            kernels=tuple(shapes[f"resblocks.{i}.convs1.0.weight"][-1] for i in range(kernels)),
            f0_channels=shapes["f0_predictor.condnet.0.weight"][0],
        )


@dataclass(frozen=True)
class S3GenConfig:
    """Sizes of the whole model."""

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    speaker: SpeakerConfig = field(default_factory=SpeakerConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    estimator: EstimatorConfig = field(default_factory=EstimatorConfig)
    vocoder: VocoderConfig = field(default_factory=VocoderConfig)
    vocabulary: int = 6561  # V, 3 ** digits

    @classmethod
    def default(cls, meanflow: bool = False) -> S3GenConfig:
        """The published sizes."""
        return cls(estimator=EstimatorConfig(meanflow=meanflow))

    @classmethod
    def from_shapes(cls, shapes: Shapes, parts: Collection[str] = PARTS) -> S3GenConfig:
        """Read the sizes of these parts off ``name -> shape``, weight norm folded; the others have the published.

        ``KeyError`` names what is missing.
        """
        def under(prefix: str) -> dict[str, tuple[int, ...]]:
            return {name[len(prefix):]: shape for name, shape in shapes.items() if name.startswith(prefix)}

        sizes: dict = {}
        if "tokenizer" in parts:
            sizes["tokenizer"] = TokenizerConfig.from_shapes(under("tokenizer."))
        if "speaker_encoder" in parts:
            sizes["speaker"] = SpeakerConfig.from_shapes(under("speaker_encoder."))
        elif "flow" in parts:
            sizes["speaker"] = SpeakerConfig(embedding=shapes["flow.spk_embed_affine_layer.weight"][1])
        if "flow" in parts:
            sizes["encoder"] = EncoderConfig.from_shapes(under("flow.encoder."))
            sizes["estimator"] = EstimatorConfig.from_shapes(under("flow.decoder.estimator."))
            sizes["vocabulary"] = shapes["flow.input_embedding.weight"][0]
        if "mel2wav" in parts:
            sizes["vocoder"] = VocoderConfig.from_shapes(under("mel2wav."))
        return cls(**sizes)
