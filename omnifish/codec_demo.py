"""Small random codecs by the published names, so that every graph can be run without a download.

What they decode is noise of the right length; the tables have all rows, so that ids are those of real codes.
"""
from __future__ import annotations

import math
import re

import torch
from torch import Tensor

from .codec import FishCodec
from .codec_config import DECODER_RATES, CodecConfig, TransformerConfig
from .codec_weights import published_shapes

SEED = 20
BRANCH = 0.3            # how loud a residual branch is beside what it is added to
LAST_GAIN = 0.05        # of the decoder's last convolution: what it reads is louder than a wave should be
_LAST = f"decoder.model.{len(DECODER_RATES) + 2}.conv."
_UPSAMPLING = re.compile(r"^decoder\.model\.(\d+)\.block\.1\.conv\.")


def demo_config() -> CodecConfig:
    """Everything that the published codec has, each thing as small as it goes."""
    return CodecConfig(
        encoder_channels=2,
        decoder_channels=16,
        encoder_transformer=TransformerConfig(layers=1, window=512, heads=1, hidden=32),
        quantizer_transformer=TransformerConfig(layers=1, window=128, heads=1, hidden=32),
    )


def random_state(config: CodecConfig, seed: int = SEED) -> dict[str, Tensor]:
    """A state dict by the published names whose activations stay near 1; 1 MB for ``demo_config``."""
    rng = torch.Generator("cpu").manual_seed(seed)
    state = {}
    for name, shape in published_shapes(FishCodec(config, device="meta")).items():
        normal = torch.randn(shape, generator=rng, dtype=torch.float32, device="cpu")
        if name.endswith((".original0", ".weight_g")):
            state[name] = _gain(name) * (1 + 0.1 * normal)
        elif name.endswith(".gamma"):
            state[name] = BRANCH * (1 + 0.1 * normal)
        elif name.endswith((".alpha", "norm.weight")):
            state[name] = 1 + 0.1 * normal
        elif name.endswith(".bias"):
            state[name] = 0.1 * normal
        elif name.endswith("codebook.weight"):
            state[name] = normal
        else:
            state[name] = normal.div_(math.sqrt(normal[0].numel()))
    return state


def _gain(name: str) -> float:
    """About the magnitude of weight norm."""
    if name.startswith(_LAST):
        return LAST_GAIN
    if up := _UPSAMPLING.match(name):
        # Normed over its outputs: of the 2 rate taps for each of half the channels, an output gets two.
        return math.sqrt(DECODER_RATES[int(up[1]) - 1] / 2)
    return BRANCH if ".block.3.conv." in name or ".out_proj." in name else 1.0


DEMOS = {"Fish codec": lambda: random_state(demo_config())}
