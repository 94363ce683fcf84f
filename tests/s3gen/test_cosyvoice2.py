"""CosyVoice2's files of flow and vocoder as parts of S3Gen: names, prefixes, and what is wrong with one, in words."""
from __future__ import annotations

from functools import lru_cache

import pytest
import torch

from kit.golden import manifest
from kit.tiny import tiny_config, tiny_state
from speechwright.checkpoint import open_checkpoint
from speechwright.s3gen.config import S3GenConfig
from speechwright.s3gen.cosyvoice2 import FILES, build, measure
from speechwright.s3gen.model import SYNTHESIS_PARTS, S3Token2Wav
from speechwright.s3gen.weights import build as build_s3gen

PREFIXES = {"flow": "flow.", "mel2wav": "mel2wav."}


def file_of(part: str, tensors: dict | None = None) -> dict:
    """What the file of one part holds."""
    tensors = tiny_state() if tensors is None else tensors
    prefix = PREFIXES[part]
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


@lru_cache(maxsize=1)
def flow() -> dict:
    return file_of("flow")


@lru_cache(maxsize=1)
def hift() -> dict:
    return file_of("mel2wav")


def assert_same(found: S3Token2Wav, expected: S3Token2Wav) -> None:
    found, expected = found.state_dict(), expected.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


@pytest.mark.parametrize("part, tensors", [("flow", 1121), ("mel2wav", 328)])
def test_full_size_names_and_shapes_are_those_of_s3gen(part, tensors):
    """``measure`` compares them with those of the module, which is not told what to expect."""
    shapes = file_of(part, manifest())
    assert len(shapes) == tensors
    assert measure(part, shapes, FILES[part]) == S3GenConfig.default()
    name = max(shapes)
    with pytest.raises(ValueError, match="not the tensors of CosyVoice2's"):
        measure(part, {**shapes, name: (*shapes[name], 2)}, FILES[part])


def test_both_files_are_the_speaking_half_of_s3gen():
    module = build(flow(), hift())
    assert [name for name, _ in module.named_children()] == list(SYNTHESIS_PARTS)
    assert_same(module, build_s3gen(tiny_state(), parts=SYNTHESIS_PARTS, config=tiny_config()))
    assert module.config.encoder == tiny_config().encoder and module.config.vocoder == tiny_config().vocoder
    assert not module.training and not any(parameter.requires_grad for parameter in module.parameters())


@pytest.mark.parametrize("part, files", [("flow", {"flow": flow}), ("mel2wav", {"hift": hift})])
def test_either_file_alone(part, files):
    module = build(**{name: make() for name, make in files.items()})
    assert [name for name, _ in module.named_children()] == [part]
    assert_same(module, build_s3gen(tiny_state(), parts=(part,)))


def test_prefix_of_adversarial_training():
    assert_same(build(hift={f"generator.{name}": tensor for name, tensor in hift().items()}), build(hift=hift()))


def test_files_by_torch(tmp_path):
    paths = {part: tmp_path / name for part, name in FILES.items()}
    torch.save({**flow(), "epoch": 3, "step": 1}, paths["flow"])
    torch.save({f"generator.{name}": tensor for name, tensor in hift().items()}, paths["mel2wav"])
    read = {part: open_checkpoint(path) for part, path in paths.items()}
    assert measure("flow", read["flow"].shapes, "flow.pt").estimator == tiny_config().estimator
    assert_same(build(read["flow"].read(), read["mel2wav"].read()), build(flow(), hift()))


def test_what_it_says_is_what_s3gen_says(tiny, tiny_voice):
    ids = torch.arange(40, 46)[None]
    found, _ = build(flow(), hift()).inference(ids, ref_dict=tiny_voice, seed=2)
    assert torch.equal(found, tiny.inference(ids, ref_dict=tiny_voice, seed=2)[0])


def test_start_noise_of_the_published_model(tiny, tiny_voice):
    """One block of 300 s drawn row by row: S3Gen's own draw for seed 0 has its numbers in other places."""
    model, ids = build(flow()), torch.arange(40, 46)[None]
    frames = 2 * (ids.shape[1] + int(tiny_voice["prompt_token_len"][0]))
    block = torch.randn(1, 80, 15000, generator=torch.Generator().manual_seed(0))[..., :frames]
    given = model.flow_inference(ids, ref_dict=tiny_voice, finalize=True, z=block)
    drawn = model.flow_inference(ids, ref_dict=tiny_voice, finalize=True, seed=0)
    assert given.shape == drawn.shape and not torch.allclose(given, drawn, atol=1e-2)


def test_precision_is_that_of_the_estimator():
    module = build(flow(), hift(), dtype=torch.bfloat16)
    coarse = {name for name, tensor in module.state_dict().items() if tensor.dtype == torch.bfloat16}
    assert coarse and all(name.startswith("flow.decoder.estimator.") for name in coarse)
    with pytest.raises(ValueError, match="float16 is not for S3Gen"):
        build(flow(), dtype=torch.float16)


def test_layers_of_comfyui(comfyui_folder):
    import comfy.ops
    assert_same(build(flow(), hift(), operations=comfy.ops.disable_weight_init), build(flow(), hift()))


def test_neither_file():
    with pytest.raises(ValueError, match="neither flow nor vocoder was given; give flow.pt or hift.pt"):
        build()


@pytest.mark.parametrize("files, text", [
    (lambda: {"flow": hift()}, "^a/flow.pt: not a whole file of CosyVoice2's .*; looked for 'spk_embed_affine"),
    (lambda: {"hift": flow()}, "^a/hift.pt: not a whole file of CosyVoice2's .*; looked for 'conv_pre.weight'"),
    (lambda: {"flow": {f"flow.{name}": tensor for name, tensor in flow().items()}}, "^a/flow.pt: not a whole file"),
    (lambda: {"flow": {n: t for n, t in flow().items() if n != "encoder.after_norm.bias"}, "hift": hift()},
     r"^a/flow.pt: not the tensors of CosyVoice2's .*: 1 missing \(encoder.after_norm.bias\)"),
    (lambda: {"flow": flow(), "hift": {**hift(), "extra": torch.ones(1)}},
     r"^a/hift.pt: not the tensors of CosyVoice2's .*: 1 unexpected \(extra\)"),
    (lambda: {"hift": {**hift(), "conv_post.bias": torch.ones(3)}}, r"^a/hift.pt: .*conv_post.bias is \(3,\), not"),
    (lambda: {"hift": {**hift(), "generator.conv_post.bias": torch.ones(18)}},
     "^a/hift.pt: generator.conv_post.bias: the tensor is there a second time"),
    (lambda: {"hift": {n: t for n, t in hift().items() if n != "conv_pre.parametrizations.weight.original0"}},
     "^a/hift.pt: .*conv_pre.parametrizations.weight.original1: weight norm has a direction but no magnitude"),
])
def test_files_that_do_not_fit(files, text):
    with pytest.raises(ValueError, match=text) as caught:
        build(**files(), flow_source="a/flow.pt", hift_source="a/hift.pt")
    assert len(str(caught.value)) < 500
