"""The speaker encoder: golden embedding, names, batches, and how little it takes."""
from __future__ import annotations

import pytest
import torch
from torch import nn

from kit.golden import assert_within, golden_state, load_golden, weight_shapes
from kit.tiny import fill, tiny_config
from speechwright.s3gen.config import SpeakerConfig
from speechwright.s3gen.speaker import SEGMENT_FRAMES, BatchNorm, CAMPPlus, ContextGate

PREFIX = "speaker_encoder."


@pytest.fixture(scope="module")
def tiny() -> CAMPPlus:
    return fill(CAMPPlus(tiny_config().speaker, device="meta"), PREFIX)


def features(rows: int, frames: int) -> torch.Tensor:
    return torch.randn(rows, frames, 80, generator=torch.Generator().manual_seed(frames))


def test_embedding_is_the_published_one():
    encoder = CAMPPlus(SpeakerConfig(), device="meta")
    encoder.load_state_dict(golden_state(PREFIX), assign=True)
    golden = load_golden()
    with torch.no_grad():
        assert_within(encoder(golden["fbank"]), golden["xvec"], 1e-5)


def test_names_and_shapes_are_the_published_ones():
    shapes = weight_shapes(PREFIX)
    assert SpeakerConfig.from_shapes(shapes) == SpeakerConfig()
    module = CAMPPlus(SpeakerConfig(), device="meta")
    assert {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()} == shapes


def test_sizes_are_read_off_any_shapes(tiny):
    shapes = {name: tuple(tensor.shape) for name, tensor in tiny.state_dict().items()}
    assert SpeakerConfig.from_shapes(shapes) == tiny_config().speaker


@pytest.mark.parametrize("frames", [3, 4, 5, 198, 199, 200, 201, 202, 401])
def test_a_row_is_blind_to_its_neighbours(tiny, frames):
    clips = features(3, frames)
    clips[1] *= 20
    together = tiny(clips)
    assert together.shape == (3, 12)
    assert together.isfinite().all()
    for row in range(3):
        torch.testing.assert_close(together[row], tiny(clips[row : row + 1])[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("frames", [0, 1, 2])
def test_too_few_frames_are_refused(tiny, frames):
    """One frame after the halving has no deviation: the embedding used to be NaN without a word."""
    with pytest.raises(ValueError, match=rf"speaker encoder: found {frames} frames .* at least 3"):
        tiny(features(1, frames))


@pytest.mark.parametrize("frames", [1, 99, 100, 101, 250])
def test_gate_per_segment_is_the_gate_per_frame(frames):
    """The definition computes the gate in each frame, from the means over the clip and its segment."""
    gate = fill(ContextGate(tiny_config().speaker, 2, nn))
    x = torch.randn(2, 20, frames, generator=torch.Generator().manual_seed(0))
    segment = torch.cat([
        piece.mean(dim=2, keepdim=True).expand_as(piece) for piece in x.split(SEGMENT_FRAMES, dim=2)], dim=2)
    context = gate.linear1(x.mean(dim=2, keepdim=True) + segment).relu()
    expected = gate.linear_local(x) * gate.linear2(context).sigmoid()
    torch.testing.assert_close(gate(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("theirs, shape", [
    (nn.BatchNorm1d(6), (2, 6)), (nn.BatchNorm1d(6), (2, 6, 5)), (nn.BatchNorm2d(6), (2, 6, 5, 4)),
    (nn.BatchNorm1d(6, affine=False), (1, 6)),
])
def test_batch_norm_is_torchs_in_evaluation(theirs, shape):
    ours = fill(BatchNorm(6, affine=theirs.affine))
    theirs.load_state_dict({**ours.state_dict(), "num_batches_tracked": torch.tensor(0)})
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(x), theirs.eval()(x))


def test_batch_norm_follows_its_input():
    """ComfyUI's layers cast at each call; the norm, which it does not make, has to do likewise."""
    norm = fill(BatchNorm(6))
    x = torch.randn(2, 6, 5, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(0))
    assert norm(x).dtype == torch.bfloat16
    assert norm(x.to("meta")).is_meta
