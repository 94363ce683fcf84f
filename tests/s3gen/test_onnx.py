"""Published ONNX files: their weights by our names, whatever an exporter did to them, and nothing left out."""
from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kit import onnx_files
from kit.golden import assert_within, golden_state, load_golden, weight_shapes
from kit.onnx_files import campplus_graph, tokenizer_graph, write
from kit.tiny import fill, tiny_config
from kit.voice import golden, golden_weights, tokenizer_manifest
from speechwright.assembly import shapes_of
from speechwright.onnx_weights import OnnxFile, open_onnx
from speechwright.s3gen import onnx
from speechwright.s3gen.config import SpeakerConfig, TokenizerConfig
from speechwright.s3gen.features import log_mel_16k
from speechwright.s3gen.speaker import CAMPPlus
from speechwright.s3gen.tokenizer import S3Tokenizer

CASES = ("0", "1", "2")
VERSIONS = (2, 3)


def tiny_tokenizer_state() -> dict[str, Tensor]:
    return fill(S3Tokenizer(tiny_config().tokenizer, device="meta"), "tokenizer.").state_dict()


def tiny_speaker_state() -> dict[str, Tensor]:
    return fill(CAMPPlus(tiny_config().speaker, device="meta"), "speaker_encoder.").state_dict()


def tokenizer_of(state: dict[str, Tensor]) -> S3Tokenizer:
    module = S3Tokenizer(TokenizerConfig.from_shapes(shapes_of(state)), device="meta")
    module.load_state_dict(state, assign=True)
    return module.eval()


def speaker_of(state: dict[str, Tensor]) -> CAMPPlus:
    module = CAMPPlus(SpeakerConfig.from_shapes(shapes_of(state)), device="meta")
    module.load_state_dict(state, assign=True)
    return module.eval()


def without(file: OnnxFile, tensor: str) -> OnnxFile:
    return replace(file, tensors={name: stored for name, stored in file.tensors.items() if name != tensor})


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == torch.float32 and found[name].is_contiguous()
        assert torch.equal(found[name], value), name


# The speech tokenizer


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_every_stage_of_version_3_is_the_published_one(case):
    expected = {name[6:]: value for name, value in golden("tokenizer_v3").items() if name.startswith(f"{case}.out.")}
    wave, module = golden("tokenizer_v3")[f"{case}.in.wave"], tokenizer_of(golden_weights("tokenizer_v3"))
    assert_within(log_mel_16k(wave), expected["features"], 2e-5)
    hidden = module.hidden(expected["features"][None])
    assert_within(hidden[0], expected["hidden"], 5e-5)
    assert_within(module.quantizer.project(hidden)[0], expected["projected"], 5e-5)
    assert torch.equal(module.quantizer(hidden)[0], expected["codes"].long())
    assert torch.equal(module.encode(wave), expected["codes"].long())


def test_names_of_version_3_are_the_published_ones():
    config = TokenizerConfig.from_shapes(tokenizer_manifest())
    assert config == TokenizerConfig(layers=12)
    assert shapes_of(S3Tokenizer(config, device="meta").state_dict()) == tokenizer_manifest()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("weights", [tiny_tokenizer_state, lambda: golden_weights("tokenizer_v3")])
def test_tokenizer_comes_out_as_it_went_in(version, weights, tmp_path):
    path = write(tmp_path / "a.onnx", tokenizer_graph(weights(), version).file())
    assert_same(onnx.read_speech_tokenizer(path), weights())


@pytest.mark.parametrize("version, tensors", [(2, 102), (3, 198)])
def test_tokenizer_of_the_published_size(version, tensors, tmp_path):
    """Nearly a gigabyte, of which the disk holds the names alone."""
    config = TokenizerConfig(layers=6 if version == 2 else 12)
    state = S3Tokenizer(config, device="meta").state_dict()
    path = write(tmp_path / "a.onnx", tokenizer_graph(state, version).file())
    assert path.stat().st_size == pytest.approx(4 * sum(value.numel() for value in state.values()), rel=1e-3)
    file = open_onnx(path)
    sources = onnx.tokenizer_sources(file)
    assert len(sources) == len(state) == tensors
    for name, source in sources.items():
        shape = file.shape(source.tensor)
        assert (shape[::-1] if source.transposed else shape) == state[name].shape
        assert source.transposed == (name.endswith(".weight") and "ln" not in name and len(shape) == 2)


@pytest.mark.parametrize("version", VERSIONS)
def test_tokenizer_lacking_any_tensor_is_refused(version, tmp_path):
    """A converter that filled what it could left the rest as it was drawn, and every id was wrong."""
    file = open_onnx(write(tmp_path / "a.onnx", tokenizer_graph(tiny_tokenizer_state(), version).file()))
    for name, source in onnx.tokenizer_sources(file).items():
        with pytest.raises(ValueError, match=f"a.onnx: not (the tensors|a whole file) of the S3 speech.*{name}"):
            onnx.tokenizer_sources(without(file, source.tensor))


@pytest.mark.parametrize("version", VERSIONS)
def test_tokenizer_lacking_a_block_is_refused(version, tmp_path):
    graph = tokenizer_graph(tiny_tokenizer_state(), version)
    graph.drop("/blocks.0/")
    del graph.tensors["blocks.0.attn.fsmn_block.weight"]
    with pytest.raises(ValueError, match="not a whole file of .*; looked for 'encoder.blocks.0.mlp.0.weight'"):
        onnx.read_speech_tokenizer(write(tmp_path / "a.onnx", graph.file()))


def test_weights_the_wrong_way_round_are_refused(tmp_path):
    graph = tokenizer_graph(tiny_tokenizer_state(), 2)
    sources = onnx.tokenizer_sources(open_onnx(write(tmp_path / "a.onnx", graph.file())))
    turned = sources["encoder.blocks.1.mlp.2.weight"].tensor
    graph.tensors[turned] = graph.tensors[turned].T
    with pytest.raises(ValueError, match=r"1 of another shape \(encoder.blocks.1.mlp.2.weight is \(96, 64\), not"):
        onnx.read_speech_tokenizer(write(tmp_path / "a.onnx", graph.file()))


def test_two_tensors_for_one_parameter_are_refused(tmp_path):
    graph = tokenizer_graph(tiny_tokenizer_state(), 2)
    graph.node("/blocks.0/attn/query/Add", "x", graph.stored(torch.ones(64)), output="y")
    with pytest.raises(ValueError, match="a.onnx: the graph takes two tensors for encoder.blocks.0.attn.query.bias, "):
        onnx.read_speech_tokenizer(write(tmp_path / "a.onnx", graph.file()))


def test_biases_may_be_constants(tmp_path):
    graph, state = tokenizer_graph(tiny_tokenizer_state(), 3), tiny_tokenizer_state()
    for name in [name for name in graph.tensors if name.startswith("onnx::Add")]:
        graph.nodes.append((name, onnx_files.constant(name, graph.tensors.pop(name))))
    assert_same(onnx.read_speech_tokenizer(write(tmp_path / "a.onnx", graph.file())), state)


# The speaker encoder


def assert_golden(state: dict[str, Tensor]) -> None:
    module, expected = speaker_of(state), golden("campplus")
    for case in (*CASES, "batch"):
        features = expected[f"{case}.in.fbank"]
        found = module(features if features.ndim == 3 else features[None])
        assert_within(found if features.ndim == 3 else found[0], expected[f"{case}.out.embedding"], 5e-5)


@torch.no_grad()
def test_embedding_is_the_published_one():
    assert_golden(golden_weights("campplus"))


@torch.no_grad()
def test_embedding_with_folded_norms_is_the_published_one(tmp_path):
    """Of the published file's 617 tensors 132 have no name of their own. The bias of the last transition
    comes from a norm; left out, the embedding pointed elsewhere and nothing else was amiss."""
    graph = campplus_graph(golden_weights("campplus"))
    assert len(graph.tensors) == 617
    assert sum(name.startswith("onnx::") for name in graph.tensors) == 132
    state = onnx.read_speaker_encoder(write(tmp_path / "campplus.onnx", graph.file()))
    assert shapes_of(state) == shapes_of(golden_weights("campplus"))
    assert_golden(state)
    assert state["xvector.out_nonlinear.batchnorm.bias"].abs().min() > 0


@torch.no_grad()
def test_embedding_of_the_published_size_is_that_of_unfolded_norms(tmp_path):
    weights = golden_state("speaker_encoder.")
    state = onnx.read_speaker_encoder(write(tmp_path / "campplus.onnx", campplus_graph(weights).file()))
    assert_within(speaker_of(state)(load_golden()["fbank"]), load_golden()["xvec"], 1e-4)


@torch.no_grad()
def test_file_of_the_published_graph(tmp_path):
    """All that the exporter did at once: 463 tensors, of which 132 are anonymous weights and biases with norms in
    them, and 154 more names for tensors that are there already, since the norms of this state are new ones."""
    weights = dict(golden_state("speaker_encoder."))
    for name in campplus_graph(weights).tensors:
        if "batchnorm" in name:
            zeros = name.endswith(("bias", "running_mean"))
            weights[name] = torch.full_like(weights[name], 0.0 if zeros else 1.0)
    graph = campplus_graph(weights)
    first: dict[tuple, str] = {}
    for name, value in list(graph.tensors.items()):
        kept = first.setdefault((*value.shape, value.numpy().tobytes()), name)
        if kept != name and len(graph.tensors) > 463:
            graph.share(kept, name)
    assert len(graph.tensors) == 463
    assert sum(name.startswith("onnx::") for name in graph.tensors) == 132
    assert sum(name.startswith("Identity") for name, _ in graph.nodes) == 154
    state = onnx.read_speaker_encoder(write(tmp_path / "campplus.onnx", graph.file()))
    assert shapes_of(state) == weight_shapes("speaker_encoder.")
    assert_within(speaker_of(state)(load_golden()["fbank"]), speaker_of(weights)(load_golden()["fbank"]), 1e-4)


def test_speaker_encoder_without_folding_comes_out_as_it_went_in(tmp_path):
    path = write(tmp_path / "a.onnx", campplus_graph(tiny_speaker_state(), folded=False).file())
    assert_same(onnx.read_speaker_encoder(path), tiny_speaker_state())


def test_equal_tensors_that_are_stored_once(tmp_path):
    """Exporters keep one of them, and lead the other names there."""
    state = tiny_speaker_state()
    layers = ("xvector.block1.tdnnd1.cam_layer", "xvector.block1.tdnnd2.cam_layer")
    pairs = [tuple(f"{layer}.{part}" for layer in layers) for part in ("linear1.bias", "linear2.weight")]
    for kept, alias in pairs:
        state[alias] = state[kept]
    plain, shared = campplus_graph(state), campplus_graph(state)
    for kept, alias in pairs:
        shared.share(kept, alias)
    assert len(shared.tensors) == len(plain.tensors) - len(pairs)
    expected = onnx.read_speaker_encoder(write(tmp_path / "plain.onnx", plain.file()))
    found = onnx.read_speaker_encoder(write(tmp_path / "shared.onnx", shared.file()))
    assert_same(found, expected)
    found[pairs[0][0]].zero_()
    assert torch.equal(found[pairs[0][1]], expected[pairs[0][1]])


@pytest.mark.parametrize("folded", [True, False])
def test_speaker_encoder_lacking_any_tensor_is_refused(folded, tmp_path):
    file = open_onnx(write(tmp_path / "a.onnx", campplus_graph(tiny_speaker_state(), folded).file()))
    sources = {name: source for name, source in onnx.speaker_sources(file).items() if source.tensor}
    assert len(sources) > 100
    for name, source in sources.items():
        with pytest.raises(ValueError, match="a.onnx: not (the tensors|a whole file) of the CAM") as caught:
            onnx.speaker_sources(without(file, source.tensor))
        assert name.rsplit(".", 1)[0] in str(caught.value)


def test_a_bias_that_nothing_explains_is_refused(tmp_path):
    """Where the norm stands in the file as well, the convolution before it has no bias."""
    graph, name = campplus_graph(tiny_speaker_state(), folded=False), "xvector.transit3.linear"
    graph.node("/xvector/transit3/linear/Conv", "x", f"{name}.weight", graph.stored(torch.ones(12)), output="y")
    with pytest.raises(ValueError, match=rf"1 unexpected \({name}.bias\)"):
        onnx.read_speaker_encoder(write(tmp_path / "a.onnx", graph.file()))


@pytest.mark.parametrize("part, value", [("weight", 1.0), ("bias", 0.0)])
def test_last_norm_has_no_weights(part, value, tmp_path):
    graph, name = campplus_graph(tiny_speaker_state()), "xvector.dense.nonlinear.batchnorm"
    usual = {"weight": torch.ones(12), "bias": torch.zeros(12)} | {part: torch.full((12,), value + 2)}
    graph.drop("/xvector/dense/nonlinear/")
    graph.node("/xvector/dense/nonlinear/batchnorm/BatchNormalization", "x", *map(graph.stored, usual.values()),
               f"{name}.running_mean", f"{name}.running_var")
    with pytest.raises(ValueError, match=f"a.onnx: {name}.{part} is not {value:g} throughout"):
        onnx.read_speaker_encoder(write(tmp_path / "a.onnx", graph.file()))


# Both


def test_files_in_half_precision_are_read_in_single(tmp_path):
    graph = campplus_graph(tiny_speaker_state(), folded=False)
    graph.tensors = {name: value.half() for name, value in graph.tensors.items()}
    found = onnx.read_speaker_encoder(write(tmp_path / "a.onnx", graph.file()))
    assert_same(found, {name: value.half().float() for name, value in tiny_speaker_state().items()})


@pytest.mark.parametrize("read, graph, model", [
    (onnx.read_speech_tokenizer, lambda: campplus_graph(tiny_speaker_state()), "the S3 speech tokenizer"),
    (onnx.read_speaker_encoder, lambda: tokenizer_graph(tiny_tokenizer_state(), 3), r"the CAM\+\+ speaker encoder"),
])
def test_one_in_place_of_the_other_is_refused(read, graph, model, tmp_path):
    path = write(tmp_path / "a.onnx", graph().file())
    with pytest.raises(ValueError, match=f"a.onnx: not .* of {model}.*(as published|Download the file again)"):
        read(path)


@pytest.mark.parametrize("node, layer", [
    ("/conv1/Conv", "conv1"), ("/blocks.11/mlp/mlp.2/MatMul", "blocks.11.mlp.2"), ("", ""), ("/Add", ""),
    ("/head/layer1/layer1.0/shortcut/shortcut.0/Conv", "head.layer1.0.shortcut.0"), ("/a/ab.0/Conv", "a.ab.0"),
])
def test_layers_by_the_names_of_their_nodes(node, layer):
    assert onnx.layer_of(node) == layer


MEASURE_MEMORY = """
import resource, sys, types
package = types.ModuleType("speechwright")
package.__path__ = [sys.argv[1]]
sys.modules["speechwright"] = package
from speechwright.s3gen import onnx
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
file = onnx.open_onnx(sys.argv[2])
onnx.tokenizer_sources(file)
before = peak()
state = onnx.read_speech_tokenizer(sys.argv[2])
print(sum(value.numel() for value in state.values()) >> 18, peak() - before)
"""


def test_a_file_is_in_memory_once(tmp_path):
    """Its 968 MB used to take twice as much, once as the file and once as tensors."""
    state = S3Tokenizer(TokenizerConfig(mels=16, width=640, layers=12, hidden=2560), device="meta").state_dict()
    path = write(tmp_path / "a.onnx", tokenizer_graph(state, 3).file())
    command = [sys.executable, "-c", MEASURE_MEMORY, str(Path(onnx.__file__).parents[1]), str(path)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    size, taken = map(int, output.split())
    assert 230 <= size and taken <= size + 20, f"{taken} MB for {size} MB"
