"""Sizes and ids of both versions and of the flow, read off shapes."""
from __future__ import annotations

import dataclasses

import pytest

from kit.flow import flow_manifest
from kit.lm import llm_manifest
from speechwright.cosyvoice3.config import FLOW_LAYERS, IDS, LAYERS, FlowConfig, LMConfig

QUERIES, KEYS = (f"{LAYERS}0.self_attn.{letter}_proj.weight" for letter in "qk")
SPEECH = "speech_embedding.weight"
POSITIONS = "decoder.estimator.input_embed.conv_pos_embed.conv1.0.weight"


def without(name: str) -> dict:
    return {key: shape for key, shape in llm_manifest().items() if key != name}


def test_published_shapes_give_the_default_sizes():
    config = LMConfig.from_shapes(llm_manifest())
    assert config == LMConfig()
    assert (config.heads, config.kv_heads, config.layers, config.speech_rows) == (14, 2, 24, 6761)


def test_versions_are_told_apart_by_the_control_table():
    shapes = {**llm_manifest(), "llm_embedding.weight": (2, 896), "llm_decoder.bias": (6564,),
              "llm_decoder.weight": (6564, 896), "speech_embedding.weight": (6564, 896)}
    assert LMConfig.from_shapes(shapes) == dataclasses.replace(LMConfig(), version=2)


@pytest.mark.parametrize("version, rows, eos, fill, control", [
    (2, 6564, 6561, 6563, (None, None)), (3, 6761, 6562, 6564, (6561, 6563))])
def test_ids(version, rows, eos, fill, control):
    ids = LMConfig(version=version).ids
    assert (ids.rows, ids.eos, ids.fill, (ids.sos, ids.task)) == (rows, eos, fill, control)
    assert ids.vocabulary == 3**8 and ids is IDS[version]


@pytest.mark.parametrize("name", [
    SPEECH, QUERIES, KEYS, "llm.model.model.embed_tokens.weight", f"{LAYERS}0.mlp.gate_proj.weight"])
def test_what_is_missing_is_named(name):
    with pytest.raises(KeyError, match=name):
        LMConfig.from_shapes(without(name))


@pytest.mark.parametrize("changed, text", [
    ({SPEECH: (6564, 896)}, "6761 rows in speech_embedding.weight, as in CosyVoice3, and found 6564"),
    ({SPEECH: (4096, 896), "llm_embedding.weight": (2, 896)}, "6564 rows .* CosyVoice2, and found 4096"),
    ({QUERIES: (900, 896)}, "heads of 64 channels, and found 900 of queries and 128 of keys"),
    ({KEYS: (0, 896)}, "and found 896 of queries and 0 of keys"),
    ({KEYS: (192, 896)}, "and found 896 of queries and 192 of keys"),
])
def test_odd_shapes(changed, text):
    with pytest.raises(ValueError, match=text):
        LMConfig.from_shapes({**llm_manifest(), **changed})


def test_published_shapes_give_the_default_sizes_of_the_flow():
    config = FlowConfig.from_shapes(flow_manifest())
    assert config == FlowConfig() and (config.heads, config.layers, config.position_groups) == (16, 22, 16)


@pytest.mark.parametrize("changed, text", [
    ({f"{FLOW_LAYERS}0.attn.to_q.weight": (1024, 512)}, "heads of 64 channels .* found 1024 and 512"),
    ({f"{FLOW_LAYERS}0.attn.to_q.weight": (32, 32)}, "heads of 64 channels .* found 32 and 32"),
    ({POSITIONS: (1024, 60, 31)}, "groups that make up the width, 1024, and found some of 60 channels"),
    ({POSITIONS: (1024, 0, 31)}, "found some of 0 channels"),
])
def test_odd_shapes_of_the_flow(changed, text):
    with pytest.raises(ValueError, match=text):
        FlowConfig.from_shapes({**flow_manifest(), **changed})
