"""Models that have every part of the real one in sizes that a test can afford, with weights by name."""
from __future__ import annotations

import torch
from torch import Tensor, nn

from speechwright.s3gen.config import (
    EncoderConfig,
    EstimatorConfig,
    S3GenConfig,
    SpeakerConfig,
    TokenizerConfig,
    VocoderConfig,
)
from speechwright.s3gen.model import S3Token2Wav
from speechwright.s3gen.weights import published_shapes

from .audio import speechlike as speechlike
from .golden import is_counter, named_tensor


def tiny_config(meanflow: bool = False) -> S3GenConfig:
    """Unequal numbers wherever the model allows it, so that none can stand in for another."""
    return S3GenConfig(
        tokenizer=TokenizerConfig(mels=16, width=64, layers=2, hidden=96, kernel=7),
        speaker=SpeakerConfig(
            head_channels=4, channels=24, growth=8, bottleneck=20, blocks=(2, 1, 3), embedding=12),
        encoder=EncoderConfig(width=32, heads=2, hidden=48, layers=2, up_layers=1),
        estimator=EstimatorConfig(
            width=40, heads=1, hidden=56, time_width=72, mid_blocks=2, transformers=1, meanflow=meanflow),
        vocoder=VocoderConfig(channels=64, f0_channels=28),
    )


def fill(module: nn.Module, prefix: str = "", seed: int = 0) -> nn.Module:
    """Give every weight of a module, on ``meta`` or not, the values that ``prefix`` and its name draw."""
    state = {
        name: named_tensor(prefix + name, tuple(tensor.shape), seed)
        for name, tensor in module.state_dict().items()
    }
    module.load_state_dict(state, assign=True)
    return module.eval().requires_grad_(False)


def tiny_state(seed: int = 0, meanflow: bool = False) -> dict[str, Tensor]:
    """A state dict of the tiny model as files hold it: published names, weight norm, counters, tables."""
    module = S3Token2Wav(meanflow, tiny_config(meanflow), device="meta")
    return {
        name: torch.zeros(shape, dtype=torch.int64) if is_counter(name) else named_tensor(name, shape, seed)
        for name, shape in published_shapes(module).items()
    }


def ids(count: int, seed: int = 0, rows: int = 1) -> torch.Tensor:
    return torch.randint(0, 6561, (rows, count), generator=torch.Generator().manual_seed(seed))
