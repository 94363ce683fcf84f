"""Small random weights of OGG TTS by the published names, so that every graph can be run without a download.

What they say is noise. Its length is not: layer 0 measures how much of what a frame sees is text, and whether
there is any. Where the share of text falls so far that there are ``FRAMES_PER_TEXT_ID``, the end outscores every
other id. Without any text, as guidance has it, the end scores like nothing in particular.
"""
from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from .config import AUDIO_TABLE, HEAD, LAYERS, MTP_PREFIX, NUM_CODEBOOKS, TEXT_TABLE, BackboneConfig, OmniFishConfig
from .model import OmniFish
from .mtp import MTPConfig
from .mtp import random_state as random_mtp
from .tokenizer import demo as demo_tokenizer

SEED = 20
FRAMES_PER_TEXT_ID = 1.4        # where the end begins to score; some more are spoken until it wins
KIND, SHARE, PRESENCE = 0, 1, 2     # channels: text or code; the mean of that over what is seen; any text at all
MARK = 2.0                      # in KIND: + for text, - for codes
SCORES_STD = 0.8                # of semantic ids
STOP_SLOPE = 20.0               # of the end, in SHARE
FOCUS = 1.5                     # by which text draws the second head; it is squared


def demo_config() -> OmniFishConfig:
    """Everything that the published model has, each thing as small as it goes; the tables of codes have all rows."""
    sizes = {"width": 32, "heads": 2, "kv_heads": 1, "head_width": 16, "hidden": 48}
    return OmniFishConfig(BackboneConfig(layers=2, text_rows=demo_tokenizer().size, **sizes), MTPConfig(**sizes))


def random_state(config: OmniFishConfig | None = None, seed: int = SEED) -> dict[str, Tensor]:
    """A state dict by the published names, 6 MB for ``demo_config``, whose head widths no shape has to tell."""
    config = config or demo_config()
    rng = torch.Generator().manual_seed(seed)
    state = {}
    for name, tensor in OmniFish(replace(config, mtp=None), device="meta").state_dict().items():
        shape = tuple(tensor.shape)
        if name.endswith("norm.weight"):
            state[name] = torch.ones(shape)
            continue
        table = {TEXT_TABLE: 1.0, AUDIO_TABLE: 1 / math.sqrt(NUM_CODEBOOKS)}
        state[name] = table.get(name, 1 / math.sqrt(shape[-1])) * torch.randn(shape, generator=rng)
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            state[name][: PRESENCE + 1] = 0
    for name, mark in ((TEXT_TABLE, MARK), (AUDIO_TABLE, -MARK / NUM_CODEBOOKS)):
        state[name][:, KIND], state[name][:, SHARE : PRESENCE + 1] = mark, 0
    _measure_text(state, config.backbone.head_width)
    _shape_scores(state, config)
    state |= {f"{MTP_PREFIX}{name}": tensor for name, tensor in random_mtp(config.mtp, seed).items()}
    # Tables are most of the file.
    return {name: tensor.half() if "embed" in name or "own_code" in name else tensor for name, tensor in state.items()}


def _measure_text(state: dict[str, Tensor], head: int) -> None:
    """The first head of layer 0 looks at all alike, the second at text if there is any; both read KIND."""
    attention = f"{LAYERS}0.self_attn."
    slow = head // 2 - 1        # the channel that positions turn least
    for name, row, sign in (("q_proj", head + slow, -1), ("k_proj", slow, 1)):
        state[f"{attention}{name}.weight"].zero_()[row, KIND] = sign
        state[f"{attention}{name[0]}_norm.weight"].fill_(FOCUS)
    state[f"{attention}v_proj.weight"][0].zero_()[KIND] = 1
    out = state[f"{attention}o_proj.weight"]
    out[:, 0], out[:, head] = 0, 0
    out[SHARE, 0], out[PRESENCE, head] = 1, 1


def _shape_scores(state: dict[str, Tensor], config: OmniFishConfig) -> None:
    """Semantic ids score at random, the end by SHARE and PRESENCE alone, and what is neither is never drawn."""
    head, ids = state[HEAD], config.ids
    head *= SCORES_STD
    head[:, : PRESENCE + 1] = 0
    # KIND is -MARK wherever something is drawn, which makes it a constant to lean on.
    head[ids.semantic :] = 0
    head[ids.semantic :, KIND] = 100 / MARK
    share = MARK * (1 - FRAMES_PER_TEXT_ID) / (1 + FRAMES_PER_TEXT_ID)
    presence = (share + MARK) / (2 * MARK)
    head[ids.end, SHARE], head[ids.end, PRESENCE] = -STOP_SLOPE, STOP_SLOPE * presence
    head[ids.end, KIND] = -STOP_SLOPE * (share / MARK - presence)
