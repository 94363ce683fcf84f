"""Published files of the causal vocoder: names, spellings, prefixes, and what is wrong with one, in words."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kit.golden import assert_within, manifest
from kit.vocoder import demo_vocoder, golden_vocoder, random_mel, vocoder_manifest
from kit.voice import golden_weights
from speechwright.checkpoint import open_checkpoint
from speechwright.cosyvoice3.demo_vocoder import demo_config, random_state
from speechwright.cosyvoice3.vocoder import CausalHiFT, fold_up, up_taps
from speechwright.cosyvoice3.vocoder_weights import build, measure, plain_shapes, published_shapes
from speechwright.s3gen.config import VocoderConfig

PITCH = "f0_predictor.condnet.0"


def demo_state() -> dict[str, torch.Tensor]:
    return random_state(demo_config())


def respelled(state: dict) -> dict:
    return {name.replace("parametrizations.weight.original0", "weight_g")
                .replace("parametrizations.weight.original1", "weight_v"): tensor for name, tensor in state.items()}


def prefixed(state: dict) -> dict:
    return {f"generator.{name}": tensor for name, tensor in state.items()}


def same_wave(a: CausalHiFT, b: CausalHiFT) -> bool:
    mel = random_mel(6)
    return torch.equal(a(mel), b(mel))


def test_full_size_names_and_shapes_are_the_published_ones():
    module = CausalHiFT(device="meta")
    assert published_shapes(module) == vocoder_manifest() and len(vocoder_manifest()) == 328
    assert measure(vocoder_manifest(), "hift.pt") == VocoderConfig() == module.config


def test_sizes_are_read_off_a_small_file():
    assert build(demo_state()).config == demo_config()
    assert golden_vocoder().config == VocoderConfig(channels=64, f0_channels=64)


@pytest.mark.parametrize("change", [respelled, prefixed, lambda state: prefixed(respelled(state))])
def test_every_spelling_loads_alike(change):
    """Training adversarially leaves a prefix, and older versions of torch spell weight norm another way."""
    assert same_wave(build(change(demo_state())), demo_vocoder())


def test_files_by_torch_load(tmp_path):
    torch.save({"state_dict": prefixed(demo_state()), "epoch": 3, "step": 1}, tmp_path / "hift.pt")
    checkpoint = open_checkpoint(tmp_path / "hift.pt")
    module = build(checkpoint.read(), config=measure(checkpoint.shapes, "hift.pt"), source="hift.pt")
    assert same_wave(module, demo_vocoder())


def test_only_the_pitch_is_double_and_stays_on_the_cpu():
    """Few devices beside the CPU have float64, and ComfyUI moves whatever a module calls its own."""
    module = build(demo_state())
    assert {tensor.dtype for tensor in module.f0_predictor.state_dict().values()} == {torch.float64}
    assert {tensor.dtype for tensor in module.state_dict().values()} == {torch.float32}
    assert not any("f0_predictor" in name for name in module.state_dict())
    module.to("meta")
    assert all(parameter.is_meta for parameter in module.parameters())
    assert not any(parameter.is_meta for parameter in module.f0_predictor.parameters())


def test_ready_for_inference():
    with torch.inference_mode():
        module = build({name: tensor.clone() for name, tensor in demo_state().items()})
    for part in (module, module.f0_predictor):
        assert not part.training and not any(parameter.requires_grad for parameter in part.parameters())
        assert not any(tensor.is_inference() for tensor in part.state_dict().values())


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_half_precision_files_load(stored):
    module = build({name: tensor.to(stored) for name, tensor in demo_state().items()})
    assert {tensor.dtype for tensor in module.state_dict().values()} == {torch.float32}
    assert_within(module(random_mel(3)), demo_vocoder()(random_mel(3)), 1)


def test_layers_of_comfyui(comfyui_folder):
    import comfy.ops
    module = build(demo_state(), operations=comfy.ops.disable_weight_init)
    assert sum(isinstance(layer, comfy.ops.CastWeightBiasOp) for layer in module.modules()) == 81
    assert same_wave(module, demo_vocoder())


@pytest.mark.parametrize("kernel, rate", [(16, 8), (11, 5), (7, 3), (2, 3), (1, 4), (9, 4), (10, 4)])
def test_folded_upsampling_is_upsampling(kernel, rate):
    """Each frame repeated, then a convolution over the past, by the definition."""
    rng = torch.Generator().manual_seed(kernel)
    weight, x = torch.randn(5, 4, kernel, generator=rng), torch.randn(2, 4, 6, generator=rng)
    expected = F.conv1d(F.pad(x.repeat_interleave(rate, dim=2), (kernel - 1, 0)), weight)
    folded = fold_up(weight, rate)
    assert folded.shape == (rate * 5, 4, up_taps(kernel, rate))
    found = F.conv1d(F.pad(x, (folded.shape[2] - 1, 0)), folded)        # (B, rate C', F)
    assert_within(found.unflatten(1, (rate, 5)).permute(0, 2, 3, 1).flatten(2), expected, 1e-5)


def without(name: str) -> dict:
    return {key: tensor for key, tensor in demo_state().items() if key != name}


@pytest.mark.parametrize("state, text", [
    (lambda: without("conv_post.bias"), r"1 missing \(conv_post.bias\)"),
    (lambda: without(f"{PITCH}.bias"), rf"1 missing \({PITCH}.bias\)"),
    (lambda: without("conv_pre.parametrizations.weight.original1"), "not a whole file .* looked for 'conv_pre.weight'"),
    (lambda: without("conv_pre.parametrizations.weight.original0"), "a direction but no magnitude"),
    (lambda: without(f"{PITCH}.parametrizations.weight.original0"), "a direction but no magnitude"),
    (lambda: {**demo_state(), "extra.weight": torch.zeros(1)}, r"1 unexpected \(extra.weight\)"),
    (lambda: {**demo_state(), "conv_post.bias": torch.zeros(3)}, r"\(conv_post.bias is \(3,\), not \(18,\)\)"),
    (lambda: {**demo_state(), "generator.conv_post.bias": torch.zeros(18)},
     "generator.conv_post.bias: the tensor is there a second time, as conv_post.bias"),
    (lambda: {**demo_state(), "conv_pre.parametrizations.weight.original0": torch.ones(3, 1, 1)},
     r"a magnitude of \(3, 1, 1\) does not fit"),
])
def test_files_that_do_not_fit(state, text):
    with pytest.raises(ValueError, match=text) as caught:
        build(state(), source="hift.pt")
    assert str(caught.value).startswith("hift.pt: ") and len(str(caught.value)) < 500


def test_sizes_of_another_file_do_not_fit():
    with pytest.raises(ValueError, match=r"hift.pt: not the tensors of CosyVoice3's vocoder: .* of another shape"):
        build(demo_state(), config=VocoderConfig(), source="hift.pt")


def test_the_vocoder_of_cosyvoice2_is_told_apart():
    """It has the same names, in other shapes."""
    older = {name.removeprefix("mel2wav."): shape for name, shape in manifest().items() if name.startswith("mel2wav.")}
    assert older.keys() == vocoder_manifest().keys()
    with pytest.raises(ValueError, match=r"hift.pt: .*of another shape \(.*conv_pre.weight is \(512, 80, 7\), not"):
        measure(older, "hift.pt")


def test_demo_is_small_and_the_same_each_time():
    state = demo_state()
    assert sum(tensor.nbytes for tensor in state.values()) < 2e6
    assert all(torch.equal(tensor, again) for tensor, again in zip(state.values(), demo_state().values()))
    f0 = demo_vocoder().pitch(random_mel(100))
    assert (f0 > 10).any() and 50 < f0.mean() < 300


def test_whatever_is_filled_has_a_name():
    assert set(plain_shapes(demo_vocoder())) == {
        name.replace("parametrizations.weight.original1", "weight") for name in vocoder_manifest()
        if not name.endswith("original0")}


def test_golden_weights_are_those_of_this_module():
    assert set(golden_weights("vocoder")) == vocoder_manifest().keys()
