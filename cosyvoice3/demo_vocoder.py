"""Small random weights of the vocoder by the published names, so that every graph can be run without a download.

They are honest noise: the lengths and the seeds are real, the voice is not.
"""
from __future__ import annotations

from torch import Tensor

from ..s3gen.config import VocoderConfig
from ..s3gen.demo import SEED, random_tensors
from .vocoder import CausalHiFT
from .vocoder_weights import published_shapes


def demo_config() -> VocoderConfig:
    """Everything that the published vocoder has, each thing as small as it goes."""
    return VocoderConfig(channels=64, f0_channels=32)


def random_state(config: VocoderConfig, seed: int = SEED) -> dict[str, Tensor]:
    """A state dict by the published names whose pitch is a voice's."""
    return random_tensors(published_shapes(CausalHiFT(config, device="meta")), seed)
