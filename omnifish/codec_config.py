"""Sizes of Fish Audio's 44.1 kHz codec, measured from the shapes of a checkpoint.

The defaults are those of the published codec (S1-mini, S2-Pro and Drama 3 share one design). What no shape
tells is the same in all of them: the strides, the dilations, the 64 channels of one attention head; and how far
the transformers look back, which a caller may set.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

from ..assembly import Shapes, last_number

SAMPLE_RATE_HZ = 44100
ENCODER_RATES = (2, 4, 8, 8)                    # of the strided convolutions
DECODER_RATES = ENCODER_RATES[::-1]             # of the transposed ones
QUANTIZER_RATES = (2, 2)                        # between latents and frames, down and up
LATENTS_PER_FRAME = math.prod(QUANTIZER_RATES)
LATENT_SAMPLES = math.prod(ENCODER_RATES)       # 512, of one column of the encoder's output
FRAME_SAMPLES = LATENTS_PER_FRAME * LATENT_SAMPLES  # 2048, of one column of codes
FRAMES_PER_SECOND = SAMPLE_RATE_HZ / FRAME_SAMPLES
DILATIONS = (1, 3, 9)                           # of the residual units at each rate
KERNEL = 7                                      # taps of convolutions that change no rate
HEAD_WIDTH = 64                                 # channels of one attention head
ENCODER_WINDOW = 512                            # positions at 86 per second, of one's own and those before
QUANTIZER_WINDOW = 128                          # positions at 21.5 per second


def layers(shapes: Shapes, prefix: str) -> int:
    """One more than the highest N of the names ``{prefix}N.``; 0 where there are none."""
    return 1 + last_number(shapes, prefix)


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes of a transformer that looks back over a window."""

    layers: int
    window: int             # positions that one sees: the last ones, its own included
    heads: int = 16         # H
    hidden: int = 3072      # width of the feed-forward

    @classmethod
    def from_shapes(cls, shapes: Shapes, prefix: str, window: int) -> TransformerConfig:
        inner = shapes[f"{prefix}layers.0.attention.wo.weight"][1]
        if inner % HEAD_WIDTH:
            raise ValueError(f"heads of {HEAD_WIDTH} channels in {prefix}layers.0.attention, and found {inner}")
        return cls(
            layers=layers(shapes, f"{prefix}layers."),
            window=window,
            heads=inner // HEAD_WIDTH,
            hidden=shapes[f"{prefix}layers.0.feed_forward.w1.weight"][0],
        )


@dataclass(frozen=True)
class CodecConfig:
    """Sizes of the whole codec."""

    encoder_channels: int = 64      # C at 44.1 kHz; doubled at each rate
    decoder_channels: int = 1536    # C at the latents' rate; halved at each rate
    semantic_rows: int = 4096       # of the first codebook
    residual_rows: int = 1024       # of each of the others
    residual_codebooks: int = 9
    code_width: int = 8             # channels of one code
    encoder_transformer: TransformerConfig = TransformerConfig(layers=4, window=ENCODER_WINDOW)
    quantizer_transformer: TransformerConfig = TransformerConfig(layers=8, window=QUANTIZER_WINDOW)

    def __post_init__(self) -> None:
        for name in ("encoder_transformer", "quantizer_transformer"):
            window = getattr(self, name).window
            if window < 1:
                raise ValueError(f"{name}: a window of {window} positions; it takes at least 1, its own.")

    @property
    def width(self) -> int:
        """D, channels of the latents"""
        return self.encoder_channels * 2 ** len(ENCODER_RATES)

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of each of the K codebooks."""
        return (self.semantic_rows, *[self.residual_rows] * self.residual_codebooks)

    @classmethod
    def from_shapes(cls, shapes: Shapes, quantizer_window: int = QUANTIZER_WINDOW) -> CodecConfig:
        """Read the sizes off ``name -> shape``, weight norm folded; ``KeyError`` names what is missing."""
        semantic_rows, code_width = shapes["quantizer.semantic_quantizer.quantizers.0.codebook.weight"]
        return cls(
            encoder_channels=shapes["encoder.block.0.conv.weight"][0],
            decoder_channels=shapes["decoder.model.0.conv.weight"][0],
            semantic_rows=semantic_rows,
            residual_rows=shapes["quantizer.quantizer.quantizers.0.codebook.weight"][0],
            residual_codebooks=layers(shapes, "quantizer.quantizer.quantizers."),
            code_width=code_width,
            encoder_transformer=TransformerConfig.from_shapes(shapes, "encoder.block.4.block.5.", ENCODER_WINDOW),
            quantizer_transformer=TransformerConfig.from_shapes(shapes, "quantizer.pre_module.", quantizer_window),
        )
