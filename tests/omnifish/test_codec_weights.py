"""Published files of the codec: names, weight norm in all its spellings, prefixes, and what is wrong with a file."""
from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from kit.codec import (
    GOLDEN_WINDOW,
    TINY,
    codec_manifest,
    golden_codec,
    golden_codec_state,
    random_codes,
    tiny_codec,
    tiny_codec_state,
    with_windows,
)
from kit.golden import assert_within
from speechwright.assembly import shapes_of
from speechwright.checkpoint import Checkpoint, open_checkpoint
from speechwright.omnifish import codec_weights
from speechwright.omnifish.codec import FishCodec
from speechwright.omnifish.codec_config import CodecConfig
from speechwright.omnifish.codec_demo import DEMOS, demo_config
from speechwright.omnifish.codec_layers import Carry, CausalUpsampling
from speechwright.omnifish.codec_weights import (
    TELLTALE,
    build_codec,
    load_codec,
    measure,
    own_name,
    published_shapes,
)
from speechwright.weight_norm import fold

PUBLISHED_PARAMETERS = 391_430_530
BUFFERS = {f"{prefix}.{name}": torch.ones(4, 4, dtype=torch.bool)
           for prefix in ("quantizer.pre_module", "quantizer.post_module", "encoder.block.4.block.5")
           for name in ("causal_mask", "freqs_cis")}


def assert_alike(one: FishCodec, other: FishCodec) -> None:
    ours, theirs = one.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype and torch.equal(tensor, theirs[name]), name


def renamed(state: dict, **parts: str) -> dict:
    """Names with each keyword, _ for a dot, replaced by its value."""
    for old, new in parts.items():
        state = {name.replace(old.replace("__", "."), new): tensor for name, tensor in state.items()}
    return state


NEWER = {"weight_g": "parametrizations.weight.original0", "weight_v": "parametrizations.weight.original1"}
OLDER = {"parametrizations__weight__original0": "weight_g", "parametrizations__weight__original1": "weight_v"}


def test_full_size_names_and_shapes_are_the_published_ones():
    module = FishCodec(device="meta")
    shapes = published_shapes(module)
    assert shapes == codec_manifest()
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == PUBLISHED_PARAMETERS
    assert measure(shapes, "file") == CodecConfig() == module.config
    assert TELLTALE <= set(map(own_name, shapes))


def test_sizes_are_read_off_a_tiny_file():
    """All but the windows, which no shape tells."""
    shapes = shapes_of(tiny_codec_state())
    assert measure(shapes, "file") == with_windows(encoder=512, quantizer=128)
    assert measure(shapes, "file", quantizer_window=3) == with_windows(encoder=512, quantizer=3)
    assert measure(shapes_of(golden_codec_state()), "file", GOLDEN_WINDOW) == golden_codec().config


def test_a_window_that_is_given_counts():
    assert build_codec(tiny_codec_state(), 7).config == with_windows(512, 7)
    assert build_codec(tiny_codec_state(), config=TINY).config == TINY
    assert build_codec(tiny_codec_state(), 7, config=TINY).config == with_windows(5, 7)


@pytest.mark.parametrize("spelling", [
    lambda state: renamed(state, **NEWER), lambda state: renamed(state, **OLDER), lambda state: fold(state, "state")])
def test_every_spelling_of_weight_norm_loads_alike(spelling):
    state = tiny_codec_state()
    assert any(name.endswith("weight_g") for name in state) and any(name.endswith("original0") for name in state)
    spelled = spelling(state)
    assert spelled.keys() != state.keys()
    assert_alike(build_codec(spelled, config=TINY), tiny_codec())


@pytest.mark.parametrize("wrap", [
    lambda state: {f"generator.{name}": tensor for name, tensor in state.items()},
    lambda state: {f"state_dict.{name}": tensor for name, tensor in state.items()},
    lambda state: {"state_dict": state},
    lambda state: {"state_dict": {f"generator.{name}": tensor for name, tensor in state.items()}, "epoch": 3},
    lambda state: {**state, **BUFFERS},
    lambda state: {f"generator.{name}": tensor for name, tensor in {**state, **BUFFERS}.items()},
])
def test_what_files_have_around_the_weights(wrap):
    assert_alike(build_codec(wrap(tiny_codec_state()), config=TINY), tiny_codec())


def test_names():
    assert own_name("generator.decoder.model.0.conv.bias") == "decoder.model.0.conv.bias"
    assert own_name("quantizer.quantizer.quantizers.1.in_proj.weight_v").endswith("quantizers.1.in_proj.weight")
    assert all(own_name(name) is None for name in BUFFERS)
    assert own_name("encoder.causal_mask_of_ours") and own_name("a.generator.b") == "a.generator.b"


@pytest.mark.parametrize("reach, rate", [(1, 2), (2, 2), (2, 8), (3, 4)])
def test_upsampling_is_torch_s_transposed_convolution(reach, rate):
    """Its taps are laid out anew; what hangs over the end is cut off, so that nothing waits for what comes."""
    torch_s = torch.nn.ConvTranspose1d(3, 5, reach * rate, rate)
    with torch.no_grad():
        ours = CausalUpsampling(3, 5, reach, rate, torch.nn)
        taps = torch_s.weight.unflatten(2, (reach, rate))                               # (C, C', reach, rate)
        for age in range(reach):
            for late in range(rate):
                ours.conv.weight[late * 5 : late * 5 + 5, :, 0, reach - 1 - age] = taps[:, :, age, late].T
        ours.conv.bias.copy_(torch_s.bias.repeat(rate))
        x = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0))
        expected = torch_s(x)[..., : 7 * rate]
        assert_within(ours(x[:, :, None], Carry())[:, :, 0], expected, 1e-6)
        name = {8: "decoder.model.1.block.1.conv.weight", 4: "decoder.model.3.block.1.conv.weight",
                2: "quantizer.upsample.0.0.conv.weight"}[rate]
        laid_out = codec_weights.adopt({name: torch_s.weight.detach()}, "state")[name]
        assert torch.equal(laid_out, ours.conv.weight)


def test_nothing_is_copied_that_need_not_be():
    state = tiny_codec_state()
    before = {name: tensor.clone() for name, tensor in state.items()}
    module = build_codec(state, config=TINY)
    for name in ("quantizer.pre_module.layers.0.attention.wqkv.weight", "decoder.model.5.alpha"):
        assert module.state_dict()[name].data_ptr() == state[name].data_ptr()
    assert not module.training and not any(p.requires_grad for p in module.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in state.items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_files_are_computed_in_float32(dtype, tmp_path):
    state = {name: tensor.to(dtype) for name, tensor in tiny_codec_state().items()}
    built = build_codec(state, config=TINY)
    assert {tensor.dtype for tensor in built.state_dict().values()} == {torch.float32}
    assert_alike(built, build_codec({name: tensor.float() for name, tensor in state.items()}, config=TINY))
    save_file(state, tmp_path / "codec.safetensors")
    assert_alike(load_codec(open_checkpoint(tmp_path / "codec.safetensors"), 3), built)


def test_half_precision_is_refused_by_name():
    for call in (build_codec, lambda state, dtype: load_codec(None, dtype=dtype)):
        with pytest.raises(ValueError, match="bfloat16 is not for Fish Audio's codec; it runs in float32"):
            call(tiny_codec_state(), dtype=torch.bfloat16)


@pytest.mark.parametrize("file, group_bytes, parts", [
    ("codec.safetensors", 1, 317), ("codec.safetensors", 100_000, 13), ("codec.safetensors", 2**30, 1),
    ("codec.pth", 300_000, 5)])
def test_a_file_is_read_in_groups(file, group_bytes, parts, tmp_path, monkeypatch):
    """Read at once and then folded, the published file would be in memory one time and a quarter."""
    monkeypatch.setattr(codec_weights, "GROUP_BYTES", group_bytes)
    state = {f"generator.{name}": tensor for name, tensor in {**tiny_codec_state(), **BUFFERS}.items()}
    path = tmp_path / file
    save_file(state, path) if path.suffix == ".safetensors" else torch.save({"state_dict": state}, path)
    asked = []
    read = Checkpoint.read
    monkeypatch.setattr(Checkpoint, "read", lambda self, names: asked.append(names) or read(self, names))
    codec = load_codec(open_checkpoint(path), 3)
    assert codec.config == with_windows(512, 3)
    assert_alike(codec, tiny_codec())
    assert len(asked) == parts
    assert sorted(sum(asked, [])) == sorted(state.keys() - {f"generator.{name}" for name in BUFFERS})


def test_comfyui_s_layers_compute_the_same(comfyui_folder):
    import comfy.ops
    codec = build_codec(tiny_codec_state(), operations=comfy.ops.disable_weight_init, config=TINY)
    codes = random_codes(5)
    assert_within(codec.decode(codes), tiny_codec().decode(codes), 1e-6)
    sound = 0.1 * torch.randn(1, 5000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(codec.encode(sound), tiny_codec().encode(sound))


def without(name: str) -> dict:
    return {key: tensor for key, tensor in tiny_codec_state().items() if key != name}


@pytest.mark.parametrize("state, text", [
    (lambda: without("decoder.model.5.alpha"), r"1 missing \(decoder.model.5.alpha\)"),
    (lambda: without("encoder.block.0.conv.bias"), r"1 missing \(encoder.block.0.conv.bias\)"),
    (lambda: without("quantizer.semantic_quantizer.quantizers.0.codebook.weight"),
     "not a whole file .* looked for 'quantizer.semantic_quantizer.quantizers.0.codebook.weight'"),
    (lambda: without("quantizer.quantizer.quantizers.1.codebook.weight"),
     r"1 missing \(quantizer.quantizer.quantizers.1.codebook.weight\)"),
    (lambda: without("decoder.model.0.conv.parametrizations.weight.original0"), "a direction but no magnitude"),
    (lambda: without("quantizer.quantizer.quantizers.0.in_proj.weight_v"),
     r"1 missing \(quantizer.quantizer.quantizers.0.in_proj.weight\)"),
    (lambda: {**tiny_codec_state(), "decoder.extra.weight": torch.zeros(1)}, r"1 unexpected \(decoder.extra.weight\)"),
    (lambda: {**tiny_codec_state(), "discriminator.a.weight": torch.zeros(1)}, r"1 unexpected \(discriminator.a"),
    (lambda: {**tiny_codec_state(), "decoder.model.5.alpha": torch.zeros(2)},
     r"1 of another shape \(decoder.model.5.alpha is \(2,\), not \(1, 2, 1\)"),
    (lambda: {**tiny_codec_state(), "quantizer.upsample.0.0.conv.weight": torch.zeros(48, 48, 3)},
     "1 of another shape .quantizer.upsample.0.0.conv.weight is"),
    (lambda: {**tiny_codec_state(), "quantizer.pre_module.layers.0.attention.wo.weight": torch.zeros(48, 60)},
     "heads of 64 channels in quantizer.pre_module.layers.0.attention, and found 60"),
    (lambda: {**tiny_codec_state(), "generator.decoder.model.5.alpha": torch.zeros(2)},
     "generator.decoder.model.5.alpha: the tensor is there twice"),
])
def test_files_that_do_not_fit(state, text):
    with pytest.raises(ValueError, match=text) as caught:
        build_codec(state(), source="codec.safetensors")
    assert str(caught.value).startswith("codec.safetensors: ") and len(str(caught.value)) < 500


def test_the_demo_is_small_and_has_all_codes():
    make, = DEMOS.values()
    state = make()
    assert sum(tensor.nbytes for tensor in state.values()) < 2e6
    codec = build_codec(state)
    assert codec.config == demo_config() and codec.config.rows == CodecConfig().rows
    sound = 0.2 * torch.randn(1, 44100, generator=torch.Generator().manual_seed(0))
    codes = codec.encode(sound)
    assert codes.shape == (1, 10, 22) and all(len(ids.unique()) > 10 for ids in codes[0])
    assert 0.02 < codec.decode(codes).std() < 0.3
