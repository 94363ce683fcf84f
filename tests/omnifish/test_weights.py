"""Files of OGG TTS: names and aliases, what is skipped, and what is wrong with one, in words."""
from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from kit.blocks import StandIn, golden_model, golden_state
from kit.lm import llm_manifest
from speechwright.assembly import UNFILLED, shapes_of
from speechwright.checkpoint import open_checkpoint
from speechwright.cosyvoice3.weights import TELLTALE as COSYVOICE_TELLTALE
from speechwright.omnifish import codec_demo, codec_weights, tokenizer
from speechwright.omnifish.codec import FishCodec
from speechwright.omnifish.config import CodeIds, OmniFishConfig
from speechwright.omnifish.demo import demo_config, random_state
from speechwright.omnifish.generate import blocks_cached
from speechwright.omnifish.model import OmniFish
from speechwright.omnifish.mtp import MTPConfig
from speechwright.omnifish.weights import TELLTALE, build, is_read, measure, own_name

FULL = shapes_of(OmniFish(OmniFishConfig(), device="meta").state_dict())
NORM = "llm.norm.weight"
DEPTH = "mtp.layers.3.in_proj.weight"


@pytest.fixture(scope="module")
def whole():
    return random_state()


# What is read


def test_golden_weights_and_a_stand_in():
    stand_in, state = StandIn(), golden_state()
    model = build("model", state, heads=2, kv_heads=1, head_dim=16, mtp=stand_in)
    assert model.mtp is stand_in and model.config == golden_model().config and model.config.mtp is None
    assert all(tensor.data_ptr() == state[name].data_ptr() for name, tensor in model.state_dict().items())
    assert not model.training and not any(parameter.requires_grad for parameter in model.parameters())


def test_a_whole_model(whole):
    model = build("model", whole)
    assert model.config == demo_config() == measure(shapes_of(whole), "x")
    assert model.mtp.config.mask_id == 4096
    again = build("model", whole, config=model.config)
    assert shapes_of(again.state_dict()) == shapes_of(model.state_dict()) == shapes_of(whole)


@pytest.mark.parametrize("more", [{"mtp": StandIn()}, {"semantic_only": True}])
def test_the_depth_decoder_may_be_left_out(whole, more):
    """Of the user's own will: then it is not even read."""
    model = build("model", {**whole, DEPTH: torch.ones(3), "mtp.anything": torch.ones(1)}, **more)
    assert model.mtp is more.get("mtp") and not any(name.startswith("mtp.") for name in model.state_dict())
    assert [is_read(name, semantic_only=True) for name in (NORM, DEPTH)] == [True, False] and is_read(DEPTH)


@pytest.mark.parametrize("rename", [
    lambda name: f"module.{name}", lambda name: f"_orig_mod.{name}", lambda name: f"module._orig_mod.{name}",
    lambda name: f"model.{name}", lambda name: name.replace("llm.", "llm.model."), lambda name: name,
], ids=["module", "compiled", "both", "model", "llm.model", "published"])
def test_aliases(whole, rename):
    state = {rename(name): tensor for name, tensor in whole.items()}
    state |= {"codebook_layer_offsets": torch.arange(10) * 4099, "llm.lm_head.weight": torch.ones(3, 5),
              "llm.rotary_emb.inv_freq": torch.ones(8), rename("codebook_layer_offsets"): torch.zeros(1)}
    assert shapes_of(build("model", state).state_dict()) == shapes_of(whole)
    assert own_name(rename("llm.layers.3.self_attn.q_norm.weight")) == "llm.layers.3.self_attn.q_norm.weight"


def test_a_tensor_by_two_names(whole):
    with pytest.raises(ValueError, match="^f: module.llm.norm.weight: the tensor is there twice"):
        build("model", {**whole, f"module.{NORM}": whole[NORM]}, source="f")


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_precision(whole, stored, dtype):
    """Norms and heads are float32 whatever the layers are; nothing else is."""
    model = build("model", {name: tensor.to(stored) for name, tensor in whole.items()}, dtype=dtype)
    for name, tensor in model.state_dict().items():
        exact = "norm" in name or "head" in name
        assert tensor.dtype == (torch.float32 if exact else dtype), name
    assert model.dtype == model.llm.dtype == model.mtp.dtype == dtype


def test_half_precision_is_refused_by_name(whole):
    with pytest.raises(ValueError, match="float16 is not for OGG TTS; it runs in float32 or bfloat16"):
        build("model", whole, dtype=torch.float16)


def test_weights_made_in_inference_mode_serve_outside_it(whole):
    with torch.inference_mode():
        model = build("model", {name: tensor.clone() for name, tensor in whole.items()})
    assert not any(tensor.is_inference() for tensor in model.state_dict().values())


def test_layers_that_comfyui_hands_in(whole):
    import comfy.ops
    spoken = []
    for operations in (comfy.ops.disable_weight_init, comfy.ops.manual_cast, UNFILLED):
        model = build("model", whole, operations=operations)
        assert isinstance(model.semantic_head, operations.Linear)
        assert isinstance(model.llm.embed_tokens, operations.Embedding)
        assert shapes_of(model.state_dict()) == shapes_of(whole)
        with torch.inference_mode():
            spoken.append(list(blocks_cached(model, tokenizer.demo(), None, None, "Hi", "en", max_frames=16))[-1][1])
    assert torch.equal(spoken[0], spoken[2]) and torch.equal(spoken[1], spoken[2]) and spoken[2].numel()


def test_from_a_file(whole, tmp_path):
    save_file(whole, tmp_path / "ogg_tts.safetensors")
    checkpoint = open_checkpoint(tmp_path / "ogg_tts.safetensors")
    config = measure(checkpoint.shapes, "ogg_tts.safetensors", semantic_only=True)
    tensors = checkpoint.read(lambda name: is_read(name, semantic_only=True))
    model = build("model", tensors, semantic_only=True, config=config)
    assert model.mtp is None and torch.equal(model.llm.norm.weight, whole[NORM])


def test_other_ids(whole):
    ids = CodeIds(mask=4098, end=4096, pad=4097)
    model = build("model", whole, ids=ids)
    assert model.config.ids == ids and model.mtp.config.mask_id == 4098


def test_families_are_told_apart():
    codec = {codec_weights.own_name(name) for name in codec_demo.random_state(codec_demo.demo_config())}
    ours = {own_name(name) for name in FULL}
    for telltale, owner in ((TELLTALE, ours), (codec_weights.TELLTALE, codec)):
        assert [telltale <= names for names in (ours, codec, llm_manifest().keys())] == [
            owner is ours, owner is codec, False]
    assert not COSYVOICE_TELLTALE <= ours


def test_codecs_are_built_here_too():
    state = codec_demo.random_state(codec_demo.demo_config())
    codec = build("codec", state, quantizer_window=9)
    assert isinstance(codec, FishCodec) and codec.config.quantizer_transformer.window == 9


def test_what_cannot_be_built():
    with pytest.raises(ValueError, match="kind: 'voice' is not one of model, codec"):
        build("voice", {})


# What does not fit


def changed(whole: dict, *drop: str, **tensors) -> dict:
    return {**{name: tensor for name, tensor in whole.items() if name not in drop}, **tensors}


@pytest.mark.parametrize("change, text", [
    (lambda w: changed(w, NORM), r"1 missing \(llm.norm.weight\)"),
    (lambda w: changed(w, "llm.embed_tokens.weight"), "not a whole file .* looked for 'llm.embed_tokens.weight'"),
    (lambda w: changed(w, "semantic_head.weight"), "not a whole file .* looked for 'semantic_head.weight'"),
    (lambda w: changed(w, **{"text_head.weight": torch.ones(2)}), r"1 unexpected \(text_head.weight\)"),
    (lambda w: changed(w, **{"audio_embeddings.weight": torch.ones(40989, 32)}), "10 times the 4099 rows .* 40989"),
    (lambda w: changed(w, **{"llm.layers.1.mlp.up_proj.weight": torch.ones(47, 32)}),
     r"llm.layers.1.mlp.up_proj.weight is \(47, 32\), not \(48, 32\)"),
])
def test_a_backbone_that_does_not_fit(whole, change, text):
    """Then there is nothing that could be loaded, and the report tells what the file is."""
    for semantic_only in (False, True):
        with pytest.raises(ValueError, match=text) as caught:
            build("model", change(whole), semantic_only=semantic_only, source="ogg.safetensors")
        said = str(caught.value)
        assert said.startswith("ogg.safetensors: ") and "semantic-only" not in said
        assert "What the file holds:\n" in said and "depth decoder: 1" in said and "audio embedding: " in said


@pytest.mark.parametrize("change, texts", [
    (lambda w: {name: tensor for name, tensor in w.items() if not name.startswith("mtp.")},
     ["begin with mtp., and found none", "without a place: none.", "depth decoder: none"]),
    (lambda w: changed(w, DEPTH), ["1 missing (mtp.layers.3.in_proj.weight)", "without a place: none."]),
    (lambda w: changed(w, **{DEPTH: torch.ones(32, 63)}), ["without a place: mtp.layers.3.in_proj.weight (32, 63)."]),
    (lambda w: changed(w, **{f"mtp.blocks.{n}.w": torch.ones(n + 1) for n in range(7)}),
     ["7 unexpected", "without a place: mtp.blocks.0.w (1,), mtp.blocks.1.w (2,), ", "mtp.blocks.4.w (5,), ....",
      "  mtp.blocks.3.w (4,)"]),
    (lambda w: {name.replace("mtp.layers.", "mtp.depth."): tensor for name, tensor in w.items()},
     ["looked for 'layers.0.attention.q_proj.weight'", "without a place: ", "mtp.depth.0.",
      "  mtp.depth.0-8.in_proj.weight (32, 64), 9 times"]),
    (lambda w: {name: torch.ones(16, 16) if name.endswith("attention.q_proj.weight") and "mtp" in name else tensor
                for name, tensor in w.items()}, ["a depth decoder as wide as the backbone, 32, and found 16"]),
])
def test_a_depth_decoder_that_does_not_fit(whole, change, texts):
    """Half of it in place would be noise that looks like a fault of ours: refuse, name what is odd, offer the rest."""
    state = change(whole)
    for load in (lambda: build("model", state, source="ogg"), lambda: measure(shapes_of(state), "ogg")):
        with pytest.raises(ValueError) as caught:
            load()
        said = str(caught.value)
        assert said.startswith("ogg: backbone, embedding and head are those of OGG TTS; the depth decoder is none")
        assert "Choose semantic-only to speak without it" in said
        assert [text for text in texts if text not in said] == []
    assert build("model", state, semantic_only=True).mtp is None


def test_full_size_names_are_measured():
    assert measure(FULL, "x") == OmniFishConfig() and MTPConfig() == OmniFishConfig().mtp
    assert shapes_of(OmniFish(OmniFishConfig(), UNFILLED, "meta", torch.bfloat16).state_dict()) == FULL
