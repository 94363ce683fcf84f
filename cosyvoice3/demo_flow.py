"""Small random weights of the flow by the published names, so that every graph can be run without a download.

They are honest noise: the lengths and the seeds are real, the voice is not.
"""
from __future__ import annotations

import math

from torch import Tensor

from ..s3gen.demo import SEED, random_tensors
from .config import FlowConfig
from .flow import MelFlow
from .flow_weights import published_shapes

TABLE = "input_embedding.weight"


def demo_config() -> FlowConfig:
    """Everything that the published flow has, each thing as small as it goes; the table has all rows."""
    return FlowConfig(lookahead_width=32, width=64, layers=2, heads=1, hidden=128)


def random_state(config: FlowConfig, seed: int = SEED) -> dict[str, Tensor]:
    """A state dict by the published names, 2 MB for ``demo_config``."""
    state = random_tensors(published_shapes(MelFlow(config, device="meta")), seed)
    # Tokens have to be heard beside the noise. The table is most of the file.
    state[TABLE] = (math.sqrt(config.mels) * state[TABLE]).half()
    return state
