"""Small random weights by the published names, so that every graph can be run without a download.

They are honest noise: the wiring, the lengths and the seeds are real, the voice is not.
"""
from __future__ import annotations

import math

import torch
from torch import Tensor

from ..assembly import Shapes
from .config import EncoderConfig, EstimatorConfig, S3GenConfig, SpeakerConfig, TokenizerConfig, VocoderConfig
from .model import S3Token2Wav
from .weights import published_shapes

SEED = 20
PITCH_HZ = 120.0


def demo_config(meanflow: bool = False) -> S3GenConfig:
    """Everything that the published model has, each thing as small as it goes."""
    return S3GenConfig(
        tokenizer=TokenizerConfig(width=64, layers=1, hidden=128),
        speaker=SpeakerConfig(head_channels=8, channels=32, growth=8, bottleneck=32, blocks=(2, 2, 2)),
        encoder=EncoderConfig(width=64, heads=1, hidden=128, layers=1, up_layers=1),
        estimator=EstimatorConfig(
            width=64, heads=1, hidden=128, time_width=64, mid_blocks=1, transformers=1, meanflow=meanflow),
        vocoder=VocoderConfig(channels=64, f0_channels=32),
    )


def random_state(config: S3GenConfig, seed: int = SEED) -> dict[str, Tensor]:
    """A state dict by the published names whose activations stay near 1 and whose pitch is a voice's."""
    return random_tensors(published_shapes(S3Token2Wav(config.estimator.meanflow, config, device="meta")), seed)


def random_tensors(shapes: Shapes, seed: int) -> dict[str, Tensor]:
    """Weights of these names, each drawn by what its name says that it is."""
    rng = torch.Generator("cpu").manual_seed(seed)
    state = {}
    for name, shape in shapes.items():
        normal = torch.randn(shape, generator=rng, dtype=torch.float32, device="cpu")
        if name.endswith("num_batches_tracked"):
            state[name] = torch.zeros(shape, dtype=torch.int64, device="cpu")
        elif name.endswith(("running_var", "alpha")):
            state[name] = 1 + 0.2 * normal.abs()
        elif name.endswith("f0_predictor.classifier.bias"):
            state[name] = torch.full_like(normal, PITCH_HZ)
        elif name.endswith("classifier.weight"):
            state[name] = normal * PITCH_HZ / math.sqrt(shape[-1])
        elif name.endswith((".bias", "running_mean", "pos_bias_u", "pos_bias_v")):
            state[name] = 0.1 * normal
        elif name.endswith("original0"):
            # Magnitudes of the last layer are exponents of the spectrum.
            state[name] = (0.25 if "conv_post" in name else 1) * (1 + 0.1 * normal)
        elif len(shape) < 2:
            state[name] = 1 + 0.1 * normal
        else:
            state[name] = normal / math.sqrt(normal[0].numel())
    return state


DEMOS = {
    "S3Gen": lambda: random_state(demo_config()),
    "S3Gen meanflow": lambda: random_state(demo_config(meanflow=True)),
}
