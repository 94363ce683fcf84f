"""Small random language models by the published names, so that every graph can be run without a download.

What they say is noise. Its length is not: by layer 0 attention is even over all that stands in the
context, and measures how much of it is speech. From a share of ``TOKENS_PER_TEXT_ID`` on, the end id
outscores the others, so that a longer text is spoken longer and a prompt counts for what it says.
"""
from __future__ import annotations

import math

import torch
from torch import Tensor

from ..s3gen import demo as s3gen_demo
from ..s3gen.weights import own_name
from . import demo_flow, demo_vocoder
from .config import LAYERS, TEXT_TABLE, LMConfig
from .lm import SpeechLM
from .weights import TEXT_HEAD, published_shapes

SEED = 20
TEXT_ROWS = 151924              # every id of the largest tokenizer
TOKENS_PER_TEXT_ID = 2.5        # of prompt and speech together; with a prompt of usual pace it comes to four
KIND, SHARE = 0, 1              # channels: text or speech, and how much of the context is which
MARK = 2.0                      # in KIND: + for text, - for speech and control
SCORES_STD = 2.2                # of speech ids; the likeliest of 6561 then lies near 8
STOP_SCORE, STOP_SLOPE = 6.0, 40.0      # of the end id, where the share is reached, and around it


def demo_config(version: int) -> LMConfig:
    """Everything that the published model has, each thing as small as it goes; the tables have all rows."""
    return LMConfig(version=version, width=16, layers=2, heads=2, kv_heads=1, hidden=32, text_rows=TEXT_ROWS)


def random_state(config: LMConfig, seed: int = SEED) -> dict[str, Tensor]:
    """A state dict by the published names, 6 MB for ``demo_config``."""
    rng = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in published_shapes(SpeechLM(config, device="meta")).items():
        if name == TEXT_HEAD:
            continue
        if name.endswith("norm.weight"):
            state[name] = torch.ones(shape)
            continue
        spread = 0.1 if name.endswith("bias") else 1 if "embed" in name else 1 / math.sqrt(shape[-1])
        state[name] = spread * torch.randn(shape, generator=rng)
        if "embed" in name:
            state[name][:, KIND], state[name][:, SHARE] = MARK if name == TEXT_TABLE else -MARK, 0
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            state[name][: SHARE + 1] = 0
    _measure_share(state)
    _shape_scores(state, config)
    state[TEXT_TABLE] = state[TEXT_TABLE].half()        # most of the file
    return state


def _measure_share(state: dict[str, Tensor]) -> None:
    """Layer 0 writes the mean of KIND, over all columns so far, to SHARE."""
    attention = f"{LAYERS}0.self_attn."
    for name in ("q_proj.weight", "q_proj.bias"):
        state[attention + name].zero_()
    state[attention + "v_proj.weight"][0].zero_()[KIND] = 1
    state[attention + "v_proj.bias"][0] = 0
    state[attention + "o_proj.weight"][SHARE].zero_()[0] = 1


def _shape_scores(state: dict[str, Tensor], config: LMConfig) -> None:
    """Speech ids score at random, the end id by SHARE alone, and what is neither is never drawn."""
    head, ids = state["llm_decoder.weight"], config.ids
    head *= SCORES_STD
    head[:, : SHARE + 1] = 0
    # KIND is -MARK wherever something is drawn, which makes it a constant to lean on.
    head[ids.vocabulary :] = 0
    head[ids.vocabulary :, KIND] = 100 / MARK
    share = (1 - TOKENS_PER_TEXT_ID) / (1 + TOKENS_PER_TEXT_ID)
    head[ids.eos, SHARE] = -STOP_SLOPE
    head[ids.eos, KIND] = -STOP_SLOPE * share - STOP_SCORE / MARK


def reader_state(part: str) -> dict[str, Tensor]:
    """The speech tokenizer or the speaker encoder of S3Gen's demo, by our names."""
    state = s3gen_demo.random_state(s3gen_demo.demo_config())
    return {name.removeprefix(f"{part}."): tensor for name, tensor in state.items()
            if name.startswith(f"{part}.") and own_name(name)}


# Title -> file -> what makes it. Version 2 is the language model alone: S3Gen's demo has all else that it needs.
DEMOS = {
    "CosyVoice2": {"llm.safetensors": lambda: random_state(demo_config(2))},
    "CosyVoice3": {
        "llm.safetensors": lambda: random_state(demo_config(3)),
        "flow.safetensors": lambda: demo_flow.random_state(demo_flow.demo_config()),
        "hift.safetensors": lambda: demo_vocoder.random_state(demo_vocoder.demo_config()),
        "speech_tokenizer_v3.safetensors": lambda: reader_state("tokenizer"),
        "campplus.safetensors": lambda: reader_state("speaker_encoder"),
    },
}
