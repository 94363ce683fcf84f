"""Published files of the flow: names, sizes, what is skipped, wrappers, and what is wrong with one, in words."""
from __future__ import annotations

import re

import pytest
import torch
from safetensors.torch import save_file

from kit.flow import TABLE, flow_manifest, golden_flow_state, tiny_flow, tiny_flow_config, tiny_flow_state
from kit.golden import manifest as s3gen_manifest
from kit.lm import llm_manifest
from speechwright.checkpoint import Checkpoint, open_checkpoint
from speechwright.cosyvoice3.config import FLOW_ESTIMATOR, FLOW_LAYERS, FlowConfig
from speechwright.cosyvoice3.flow import MelFlow, mels
from speechwright.cosyvoice3.flow_weights import (
    DTYPES,
    ROTARY,
    TELLTALE,
    build,
    load,
    measure,
    own_name,
    published_shapes,
)
from speechwright.cosyvoice3.weights import TELLTALE as LM_TELLTALE
from speechwright.s3gen.weights import TELLTALE as S3GEN_TELLTALE

COARSE = ("conv_pos_embed", ".attn.", ".ff.")       # the matrix products and convolutions


def test_full_size_names_and_shapes_are_the_published_ones():
    module = MelFlow(FlowConfig(), device="meta")
    assert {**published_shapes(module), ROTARY: (32,)} == flow_manifest()
    assert measure(flow_manifest(), "flow.pt") == module.config == FlowConfig()
    assert len(flow_manifest()) == 330
    assert sum(p.numel() for p in module.parameters()) + 32 == 332_257_120


def test_sizes_are_read_off_the_shapes():
    assert measure(published_shapes(MelFlow(tiny_flow_config(), device="meta")), "flow.pt") == tiny_flow_config()


def test_families_are_told_apart():
    files = {TELLTALE: flow_manifest(), LM_TELLTALE: llm_manifest(), S3GEN_TELLTALE: s3gen_manifest()}
    for telltale, own in files.items():
        assert [telltale <= names.keys() for names in files.values()] == [names is own for names in files.values()]


def test_rotary_table_is_skipped_whatever_it_is():
    assert own_name(ROTARY) is None and own_name(TABLE) == TABLE
    build({**tiny_flow_state(), ROTARY: torch.full((7,), float("nan"))})


@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
def test_training_files_load(tmp_path, wrapper):
    """Fine-tuned files carry the epoch and the step as numbers, and some put the weights one level down."""
    state = tiny_flow_state()
    content = {**(state if wrapper is None else {wrapper: state}), "epoch": 3, "step": 1200}
    torch.save(content, tmp_path / "flow.pt")
    checkpoint = open_checkpoint(tmp_path / "flow.pt")
    module = build(checkpoint.read(own_name), config=measure(checkpoint.shapes, "flow.pt"), source="flow.pt")
    assert torch.equal(module.input_embedding.weight, state[TABLE])


def test_nothing_is_copied_that_need_not_be():
    """Four fifths: what is laid out anew are the attention's inputs, the input's layer and the convolutions."""
    state = golden_flow_state()
    module = build(state)
    fresh = {name for name, tensor in module.state_dict().items()
             if name not in state or tensor.data_ptr() != state[name].data_ptr()}
    assert {re.sub(r"\d+", "N", name.removeprefix(FLOW_ESTIMATOR)) for name in fresh} == {
        "transformer_blocks.N.attn.to_qkv.weight", "transformer_blocks.N.attn.to_qkv.bias",
        "input_embed.noisy.weight", "input_embed.known.weight", "input_embed.known.bias",
        "input_embed.conv_pos_embed.convN.N.weight"}
    assert not module.training and not any(p.requires_grad for p in module.parameters())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stored", [torch.float32, torch.float16])
def test_a_file_is_read_layer_by_layer(tmp_path, monkeypatch, stored, dtype):
    """Joining queries, keys and values of all layers at once took half as much memory again as the flow."""
    state = {name: tensor.to(stored) for name, tensor in tiny_flow_state().items()}
    save_file({**state, ROTARY: torch.ones(32)}, tmp_path / "flow.safetensors")
    asked, read = [], Checkpoint.read
    monkeypatch.setattr(Checkpoint, "read", lambda self, names: asked.append(list(names)) or read(self, names))
    checkpoint = open_checkpoint(tmp_path / "flow.safetensors")
    with torch.inference_mode():
        module = load(checkpoint, dtype=dtype)
    expected = build(state, dtype=dtype).state_dict()
    assert module.state_dict().keys() == expected.keys()
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, expected[name]) and tensor.dtype == expected[name].dtype
        assert tensor.stride() == expected[name].stride() and not tensor.is_inference(), name
    assert sorted(sum(asked, [])) == sorted(state) and len(asked) == 1 + module.config.layers
    for names in asked:
        layers = {name.removeprefix(FLOW_LAYERS).split(".")[0] for name in names if name.startswith(FLOW_LAYERS)}
        assert len(layers) == (1 if names[0].startswith(FLOW_LAYERS) else 0), names


def test_a_file_that_does_not_fit_is_not_read(tmp_path, monkeypatch):
    save_file(changed(f"{FLOW_LAYERS}1.attn.to_k.bias"), tmp_path / "flow.safetensors")
    monkeypatch.setattr(Checkpoint, "read", lambda self, names: pytest.fail("read"))
    with pytest.raises(ValueError, match=r"flow.safetensors: .*1 missing \(decoder.*blocks.1.attn.to_k.bias\)"):
        load(open_checkpoint(tmp_path / "flow.safetensors"))
    with pytest.raises(ValueError, match="float16 is not for CosyVoice3's flow"):
        load(open_checkpoint(tmp_path / "flow.safetensors"), dtype=torch.float16)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", DTYPES)
def test_precision(stored, dtype):
    """Matrix products alone are coarse: not what reads the time, nor what stands at either end."""
    module = build({name: tensor.to(stored) for name, tensor in tiny_flow_state().items()}, dtype=dtype)
    for name, tensor in module.state_dict().items():
        coarse = any(part in name for part in COARSE)
        assert tensor.dtype == (dtype if coarse else torch.float32), name


def test_half_precision_is_refused_by_name():
    """As published, half precision has given silence and NaN."""
    with pytest.raises(ValueError, match="float16 is not for CosyVoice3's flow; it runs in float32 or bfloat16"):
        build(tiny_flow_state(), dtype=torch.float16)


def test_weights_made_in_inference_mode_serve_outside_it():
    with torch.inference_mode():
        module = build({name: tensor.clone() for name, tensor in tiny_flow_state().items()})
    assert not any(tensor.is_inference() for tensor in module.state_dict().values())


def test_comfyui_s_layers_compute_the_same(comfyui_folder):
    import comfy.ops

    module = build(tiny_flow_state(), operations=comfy.ops.disable_weight_init)
    rows, voices = [torch.arange(5)], [(torch.arange(2), torch.ones(4, 20), torch.ones(12))]
    assert torch.equal(mels(module, rows, voices)[0], mels(tiny_flow(), rows, voices)[0])


def changed(drop: str = "", **tensors: torch.Tensor) -> dict:
    return {**{name: tensor for name, tensor in tiny_flow_state().items() if name != drop}, **tensors}


@pytest.mark.parametrize("state, text", [
    (lambda: changed(f"{FLOW_LAYERS}1.attn.to_k.bias"), r"1 missing \(decoder.*blocks.1.attn.to_k.bias\)"),
    (lambda: changed(TABLE), f"not a whole file .* looked for '{TABLE}'"),
    (lambda: changed(**{"encoder.embed.weight": torch.ones(3)}), r"1 unexpected \(encoder.embed.weight\)"),
    (lambda: changed(**{f"{FLOW_LAYERS}0.attn.to_q.weight": torch.ones(96, 96)}),
     "heads of 64 channels that make up the width, and found 96 and 96"),
    (lambda: changed(**{f"{FLOW_LAYERS}1.ff.ff.2.weight": torch.ones(128, 97)}),
     r"blocks.1.ff.ff.2.weight is \(128, 97\), not \(128, 96\)"),
    (lambda: changed(**{"decoder.estimator.input_embed.proj.weight": torch.ones(128, 81)}),
     r"input_embed.proj.weight is \(128, 81\), not \(128, 80\)"),
])
def test_files_that_do_not_fit(state, text):
    with pytest.raises(ValueError, match=text) as caught:
        build(state(), source="flow.pt")
    assert str(caught.value).startswith("flow.pt: ") and len(str(caught.value)) < 500
