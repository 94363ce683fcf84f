"""Published checkpoints: names, weight norm in all its spellings, and what is wrong with a file, in words."""
from __future__ import annotations

import pytest
import torch

from kit.golden import DERIVED, MIXER, assert_within, golden_state, is_counter, manifest
from kit.tiny import tiny_config, tiny_state
from speechwright.s3gen.config import S3GenConfig
from speechwright.s3gen.demo import DEMOS, demo_config
from speechwright.s3gen.model import PARTS, SYNTHESIS_PARTS, S3Token2Wav
from speechwright.s3gen.weights import TELLTALE, adopt, build, measure, own_name, published_shapes


@pytest.mark.parametrize("meanflow", [False, True])
def test_full_size_names_and_shapes_are_the_published_ones(meanflow):
    shapes = dict(manifest())
    if meanflow:
        shapes[MIXER] = (1024, 2048)
    module = S3Token2Wav(meanflow, device="meta")
    assert published_shapes(module) == shapes
    assert measure(shapes, "file") == S3GenConfig.default(meanflow) == module.config
    assert TELLTALE <= shapes.keys()


def test_sizes_are_read_off_a_tiny_checkpoint():
    for meanflow in (False, True):
        shapes = {name: tuple(tensor.shape) for name, tensor in tiny_state(meanflow=meanflow).items()}
        assert measure(shapes, "file") == tiny_config(meanflow)


def respelled(state: dict, direction: str, magnitude: str) -> dict:
    return {
        name.replace("parametrizations.weight.original1", direction)
            .replace("parametrizations.weight.original0", magnitude): tensor
        for name, tensor in state.items()
    }


def test_every_spelling_of_weight_norm_loads_alike():
    state = tiny_state()
    new = build(state).state_dict()
    old = build(respelled(state, "weight_v", "weight_g")).state_dict()
    folded = build({**adopt(state)}).state_dict()
    for name, tensor in new.items():
        assert torch.equal(tensor, old[name]) and torch.equal(tensor, folded[name])


def test_folding_is_torch_s_weight_norm():
    """The norm is over all axes but the first, for transposed convolutions too, whose first axis is the input."""
    state = golden_state("mel2wav.ups.0.parametrizations.")
    v, g = state["weight.original1"], state["weight.original0"]
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.ConvTranspose1d(512, 256, 16), dim=0)
    layer.parametrizations.weight.original0.data.copy_(g)
    layer.parametrizations.weight.original1.data.copy_(v)
    assert_within(adopt({"x.weight_v": v, "x.weight_g": g})["x.weight"], layer.weight.detach(), 1e-6)


def test_what_newer_files_lack_may_lack():
    """Later checkpoints come without the tokenizer's filterbank and window; strict loaders refused them."""
    state = tiny_state()
    lean = {name: tensor for name, tensor in state.items() if name not in DERIVED and not is_counter(name)}
    assert len(lean) < len(state)
    whole = build(state).state_dict()
    assert all(torch.equal(tensor, whole[name]) for name, tensor in build(lean).state_dict().items())


def test_unread_tensors_have_no_name_of_ours():
    assert all(own_name(name) is None for name in (*DERIVED, "speaker_encoder.head.bn1.num_batches_tracked"))


def test_nothing_is_copied_that_need_not_be():
    state = tiny_state()
    module = build(state)
    name = "flow.input_embedding.weight"
    assert module.state_dict()[name].data_ptr() == state[name].data_ptr()
    assert not module.training and not any(p.requires_grad for p in module.parameters())


def test_parts_alone():
    state = tiny_state()
    speech = build(state, parts=SYNTHESIS_PARTS, config=tiny_config())
    assert [name for name, _ in speech.named_children()] == list(SYNTHESIS_PARTS)
    assert set(PARTS) - set(SYNTHESIS_PARTS) == {"tokenizer", "speaker_encoder"}


def without(name: str) -> dict:
    return {key: tensor for key, tensor in tiny_state().items() if key != name}


@pytest.mark.parametrize("state, text", [
    (lambda: without("flow.encoder.after_norm.bias"), r"1 missing \(flow.encoder.after_norm.bias\)"),
    (lambda: without("flow.input_embedding.weight"), "looked for 'flow.input_embedding.weight'"),
    (lambda: without("mel2wav.conv_pre.parametrizations.weight.original0"), "a direction but no magnitude"),
    (lambda: {**tiny_state(), "flow.extra.weight": torch.zeros(1)}, r"1 unexpected \(flow.extra.weight\)"),
    (lambda: {**tiny_state(), "flow.encoder.after_norm.bias": torch.zeros(3)},
     r"1 of another shape \(flow.encoder.after_norm.bias is \(3,\), not \(32,\)"),
    (lambda: {**tiny_state(), "flow.encoder_proj.weight": tiny_state()["flow.encoder_proj.weight"].T},
     r"encoder_proj.weight is \(32, 80\), not \(80, 32\)"),
])
def test_files_that_do_not_fit(state, text):
    with pytest.raises(ValueError, match=text) as caught:
        build(state(), source="voice.safetensors")
    assert len(str(caught.value)) < 500


def test_meanflow_weight_in_a_base_model_is_told_apart_by_its_name_alone():
    assert build(tiny_state(meanflow=True)).flow.decoder.estimator.meanflow
    assert not build(tiny_state()).flow.decoder.estimator.meanflow


def test_half_precision_is_refused_by_name():
    with pytest.raises(ValueError, match=r"float16 is not for S3Gen; it runs in float32 or bfloat16"):
        build(tiny_state(), dtype=torch.float16)


def test_half_precision_files_load():
    """Some people store halves; everything but the estimator is computed in float32 all the same."""
    state = {name: t.half() if t.is_floating_point() else t for name, t in tiny_state().items()}
    assert {tensor.dtype for tensor in build(state).state_dict().values()} == {torch.float32}


def test_demos_are_small_and_differ():
    base, meanflow = (make() for make in DEMOS.values())
    assert sum(tensor.nbytes for tensor in base.values()) < 8e6
    assert MIXER in meanflow and MIXER not in base
    assert build(base).config == demo_config()
