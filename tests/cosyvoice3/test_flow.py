"""The mel flow: golden values, and the laws of blocks, padding, times and noise."""
from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kit.flow import (
    golden_flow,
    golden_flow_cases,
    golden_flow_data,
    ids,
    noise,
    tiny_flow,
    tiny_flow_state,
    voice,
)
from kit.golden import assert_within
from speechwright.cosyvoice3.dit import BLOCK_FRAMES
from speechwright.cosyvoice3.flow import NOISE_FRAMES, mels, start_noise
from speechwright.cosyvoice3.flow_weights import build
from speechwright.s3gen import generate
from speechwright.s3gen.flow import Condition

CASES = range(7)
SAME = 2e-5         # one thing computed in two ways


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


# Golden values


def golden_case(case: int) -> tuple[dict, Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Facts, ids and voice. The published model reads an id below 0 as 0; here nothing below 0 comes in."""
    inputs = {name: golden_flow_data()[f"{case}.in.{name}"]
              for name in ("token", "prompt_token", "prompt_feat", "embedding")}
    return golden_flow_cases()[case], inputs["token"].clamp(min=0), (
        inputs["prompt_token"], inputs["prompt_feat"], inputs["embedding"])


@pytest.mark.parametrize("case", CASES)
def test_golden_condition(case):
    facts, tokens, speaker = golden_case(case)
    found, expected = golden_flow().lay_out([tokens], [speaker], facts["finalize"], "cpu"), golden_flow_data()
    lookahead = expected[f"{case}.out.pre_lookahead"]
    assert_within(found.mu[0], lookahead.repeat_interleave(2, dim=0), 1e-5)
    if f"{case}.out.mu" in expected:
        assert_within(found.mu[0].T, expected[f"{case}.out.mu"], 1e-5)
    assert_within(found.speaker[0], expected[f"{case}.out.spk"], 1e-5)
    assert found.frames == [2 * len(lookahead)] and found.prompt_frames == [facts["prompt_frames"]]


@pytest.mark.parametrize("case", CASES)
def test_golden_mel(case):
    facts, tokens, speaker = golden_case(case)
    mel, = mels(golden_flow(), [tokens], [speaker], finalize=facts["finalize"], streaming=facts["streaming"])
    assert_within(mel, golden_flow_data()[f"{case}.out.mel"], 1e-4)


@pytest.mark.parametrize("name, frames, block", [
    ("est", (40, 40), None), ("est_pad", (40, 27), None), ("est_stream", (70,), BLOCK_FRAMES)])
def test_golden_velocity(name, frames, block):
    """Two rows at times of their own, which here means two calls."""
    data, source = golden_flow_data(), "est" if name == "est_pad" else name
    given = {key: data[f"{source}.in.{key}"] for key in ("x", "mu", "t", "spk", "cond")}
    condition = Condition(given["mu"].mT, given["spk"], given["cond"].mT, list(frames), [0] * len(frames), block)
    estimator = golden_flow().decoder.estimator
    for row, length in enumerate(frames):
        velocity = estimator.under(condition, guided=False)
        found = velocity(given["x"].mT, estimator.embed_time(given["t"][row : row + 1]))[row, :length]
        assert_within(found.T, data[f"{name}.out.v"][row, :, :length], 5e-5)


def test_golden_times():
    assert_within(golden_flow().schedule().grid, golden_flow_data()["out.t_span"], 1e-7)
    expected = [0, .012312, .048943, .108993, .190983, .292893, .412215, .546009, .690983, .843566, 1]
    assert golden_flow().schedule().grid.tolist() == pytest.approx(expected, abs=1e-6)


# The noise


def test_golden_noise():
    """The published model draws it from torch's global generator, seeded with 0, and keeps it for good."""
    drawn = start_noise(80, 106)
    assert torch.equal(drawn, golden_flow_data()["in.noise"])
    assert drawn[0, :4].tolist() == pytest.approx([-1.1258398, -1.1523602, -0.2505786, -0.4338788], abs=1e-6)
    assert drawn[1, :3].tolist() == pytest.approx([0.8691784, 0.5761968, -0.4119531], abs=1e-6)
    assert drawn[2, :3].tolist() == pytest.approx([-1.7485445, -0.3959684, 0.9449085], abs=1e-6)


@pytest.mark.parametrize("seed", [0, 5, 2**64 - 1])
@pytest.mark.parametrize("frames", [1, 106, NOISE_FRAMES, NOISE_FRAMES + 1])
def test_noise_of_a_frame_is_the_same_for_any_length(frames, seed):
    """Pieces of 300 s and more made the published model fail; the noise goes on with the generator's next draw."""
    longest = start_noise(80, 2 * NOISE_FRAMES + 7, seed)
    assert torch.equal(start_noise(80, frames, seed), longest[:, :frames])
    first, second = longest[:, :NOISE_FRAMES], longest[:, NOISE_FRAMES : 2 * NOISE_FRAMES]
    assert abs(float((first * second).mean())) < 0.01 and abs(float(second.std()) - 1) < 0.01


def test_seeds_have_noise_of_their_own():
    state = torch.get_rng_state()
    drawn = [start_noise(80, 500, seed) for seed in (0, 1, 2**32, 2**63)]
    for index, one in enumerate(drawn):
        assert all(abs(float((one * other).mean())) < 0.03 for other in drawn[index + 1 :])
    assert torch.equal(torch.get_rng_state(), state)


# Streaming, padding, neighbours


def test_streamed_prefix_is_the_whole():
    """Blocks of 50 frames from the prompt's first on: what is complete stays as it is, whatever comes after."""
    flow = tiny_flow()
    tokens, speaker = ids(70), voice(flow, 10)
    whole, = mels(flow, [tokens], [speaker], streaming=True)
    for count in (18, 43, 68):      # with the prompt's 10, less the lookahead: 1, 2 and 3 blocks of 25
        part, = mels(flow, [tokens[:count]], [speaker], streaming=True, finalize=False)
        assert part.shape == (20, 2 * count - 6)
        assert_within(part, whole[:, : part.shape[1]], SAME)


def test_without_streaming_all_see_all():
    flow = tiny_flow()
    tokens, speaker = ids(70), voice(flow, 10)
    whole, = mels(flow, [tokens], [speaker])
    changed, = mels(flow, [torch.cat((tokens[:-1], tokens[:1]))], [speaker])
    streamed, = mels(flow, [tokens], [speaker], streaming=True)
    assert (whole - changed).abs().amax(dim=0).min() > 1e-4
    assert (whole - streamed).abs().max() > 1e-2


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("finalize", [True, False])
def test_row_is_blind_to_its_neighbours(finalize, streaming):
    """Rows of unlike length, each in a voice of its own, as one padded batch."""
    flow = tiny_flow()
    lengths = (4, 7, 50) if not finalize else (3, 7, 50)
    rows = [ids(length, seed) for seed, length in enumerate(lengths)]
    voices = [voice(flow, 30, 7), voice(flow, 0, 8), voice(flow, 12, 9, frames=23)]
    draws = [start_noise(20, 200, seed) for seed in range(3)]
    options = {"finalize": finalize, "streaming": streaming}
    together = mels(flow, rows, voices, draws, **options)
    for row, speaker, draw, found in zip(rows, voices, draws, together):
        alone, = mels(flow, [row], [speaker], [draw], **options)
        assert_within(found, alone, SAME)


def test_odd_prompt_mel():
    """Of an odd number of frames: what is spoken begins right behind them."""
    flow = tiny_flow()
    mel, = mels(flow, [ids(6)], [voice(flow, 5, frames=9)])
    assert mel.shape == (20, 13)


def test_one_token_speaks():
    flow = tiny_flow()
    mel, = mels(flow, [ids(1)], [voice(flow, 0)])
    assert mel.shape == (20, 2) and mel.isfinite().all()


def test_pieces_a_b_a():
    """Nothing of a call stays on the model, and nothing that is passed in changes."""
    flow = tiny_flow()
    tokens, speaker = ids(9), voice(flow, 4)
    before, kept = [part.clone() for part in speaker], set(flow.decoder.estimator.__dict__)
    first, = mels(flow, [tokens], [speaker])
    mels(flow, [ids(30, 1), ids(2)], [voice(flow, 9, 5)] * 2, streaming=True, guidance=0)
    again, = mels(flow, [tokens], [speaker])
    assert torch.equal(first, again) and all(torch.equal(*pair) for pair in zip(before, speaker))
    assert set(flow.decoder.estimator.__dict__) == kept and torch.equal(tokens, ids(9))


@pytest.mark.parametrize("row, text", [
    ([], "row 0 has 0 tokens, so there is nothing to speak. .* another seed .* signs alone, a transcript"),
    ([6561], "id 6561 at position 0 of row 0; speech ids are 0..6560. Drop start, stop"),
    ([5, 6760, 3], "id 6760 at position 1"),
    ([5, -1], "id -1 at position 1"),
    ([0.5], "expected integer ids"),
])
def test_what_is_no_speech(row, text):
    """On a GPU an id beyond the table poisons the process; 0 tokens failed in a convolution that named no cause."""
    flow = tiny_flow()
    with pytest.raises(ValueError, match=text):
        mels(flow, [row], [voice(flow, 3)])


@pytest.mark.parametrize("count", [1, 3])
def test_too_few_tokens_to_hold_some_back(count):
    flow = tiny_flow()
    with pytest.raises(ValueError, match=f"{count} tokens with finalize=False, which holds back 3; give at least 4"):
        mels(flow, [ids(9), ids(count)], [voice(flow, 3)] * 2, finalize=False)


# The solver


def test_guidance_weighs_with_and_without():
    flow, x = tiny_flow(), noise(1, 26, 20)
    condition = flow.lay_out([ids(8)], [voice(flow, 5)], True, "cpu")
    nothing = replace(condition, mu=condition.mu * 0, speaker=condition.speaker * 0, prompt=condition.prompt * 0)
    estimator = flow.decoder.estimator
    schedule = generate.schedule(estimator, 2, torch.device("cpu"))
    expected = x
    for step in range(2):
        time = schedule.embedded[step : step + 1]
        told, untold = (estimator.under(under, False)(expected, time) for under in (condition, nothing))
        expected = expected + (1.7 * told - 0.7 * untold) * (schedule.grid[step + 1] - schedule.grid[step])
    assert_within(generate.solve(estimator, condition, x, schedule, 0.7), expected, SAME)


def test_guidance_of_zero_is_half_the_work():
    flow, rows = tiny_flow(), []
    handle = flow.decoder.estimator.proj_out.register_forward_hook(lambda _, given, __: rows.append(len(given[0])))
    try:
        plain, = mels(flow, [ids(8)], [voice(flow, 5)], guidance=0)
        faint, = mels(flow, [ids(8)], [voice(flow, 5)], guidance=1e-7)
    finally:
        handle.remove()
    assert rows == [1] * 10 + [2] * 10
    assert_within(plain, faint, 1e-4)


def test_progress_counts_steps_and_may_cancel():
    flow, seen = tiny_flow(), []

    def cancel(done, total):
        seen.append((done, total))
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mels(flow, [ids(4)], [voice(flow, 5)], schedule=flow.schedule(6), on_step=cancel)
    assert seen == [(1, 6), (2, 6), (3, 6)]


def test_what_does_not_change_is_computed_once():
    """What is read off the times serves all pieces, and the condition's part of the input all steps of one."""
    flow, calls = tiny_flow(), []
    estimator = flow.decoder.estimator
    layers = {"time": estimator.time_embed, "read": estimator.transformer_blocks[1].attn_norm,
              "known": estimator.input_embed.known, "noisy": estimator.input_embed.noisy}
    handles = [layer.register_forward_hook(lambda _, given, __, name=name: calls.append((name, len(given[0]))))
               for name, layer in layers.items()]
    try:
        schedule = flow.schedule(4)
        for piece in range(3):
            mels(flow, [ids(5, piece)], [voice(flow, 3)], schedule=schedule)
    finally:
        for handle in handles:
            handle.remove()
    assert calls == [("time", 4), ("read", 4)] + 3 * ([("known", 2)] + 4 * [("noisy", 1)])


def test_inference_mode_inside_and_out():
    """ComfyUI runs nodes in inference mode; what a run leaves behind must serve outside it as well."""
    flow = build(tiny_flow_state(1))
    inside, = mels(flow, [ids(4)], [voice(flow, 3)])
    with torch.inference_mode(False):
        outside, = mels(flow, [ids(4)], [tuple(part.clone() for part in voice(flow, 3))])
    assert torch.equal(inside, outside)
