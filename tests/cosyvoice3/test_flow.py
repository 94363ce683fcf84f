"""The mel flow: golden values, and the laws of blocks, padding, times and noise."""
from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kit.flow import golden_flow, golden_flow_cases, golden_flow_data, tiny_flow, tiny_flow_state
from kit.golden import assert_within
from speechwright.cosyvoice3.dit import BLOCK_FRAMES, DiT, norm, rotate_, rotation, visible
from speechwright.cosyvoice3.flow import NOISE_FRAMES, MelFlow, mels, start_noise
from speechwright.cosyvoice3.flow_weights import build
from speechwright.s3gen import generate
from speechwright.s3gen.flow import Condition

CASES = range(7)
SAME = 2e-5         # one thing computed in two ways
VOCABULARY = 6561


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ids(count: int, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed))


def voice(flow: MelFlow, tokens: int, seed: int = 100, frames: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    frames = 2 * tokens if frames is None else frames
    return ids(tokens, seed), noise(frames, flow.config.mels, seed=seed), noise(flow.config.speaker, seed=seed + 1)


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


def test_no_mask_where_all_is_visible():
    """A mask keeps fast kernels of attention away."""
    mu = torch.zeros(2, 100, 4)
    plain = Condition(mu, mu[:, 0], mu, [100, 100], [0, 0])
    assert visible(plain) is None and visible(replace(plain, block_frames=100)) is None
    assert visible(replace(plain, frames=[100, 60])).shape == (2, 1, 1, 100)
    blocks = visible(replace(plain, block_frames=50))
    assert blocks.shape == (1, 1, 100, 100)
    assert blocks[0, 0].sum(dim=1).tolist() == [50] * 50 + [100] * 50
    both = visible(replace(plain, frames=[100, 60], block_frames=50))
    assert both.shape == (2, 1, 100, 100)
    assert both[1, 0].sum(dim=1).tolist() == [50] * 50 + [60] * 50


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
    ([], "row 0 has 0 tokens, so there is nothing to speak. .* ended at once .* another seed"),
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


# The transformer


def test_rotation_turns_pairs_of_the_first_head_alone():
    x = noise(2, 9, 192)
    turned = x.clone()
    rotate_(turned, *rotation(9, torch.device("cpu")))
    assert torch.equal(turned[..., 64:], x[..., 64:]) and torch.equal(turned[:, 0], x[:, 0])
    assert (turned != x)[:, 1:, :64].all()
    angle = torch.arange(9).double()[:, None] * 10000 ** (-torch.arange(0, 64, 2).double() / 64)
    pairs = torch.view_as_complex(x[..., :64].double().unflatten(-1, (-1, 2)))
    expected = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
    assert_within(turned[..., :64], expected, 1e-5)


def told(estimator: DiT, x: Tensor, seed: int = 0) -> Tensor:
    """(B, F, M) -> its velocity under a condition of that seed"""
    condition = Condition(noise(*x.shape, seed=seed), noise(len(x), 20, seed=seed + 1), torch.zeros_like(x),
                          [x.shape[1]] * len(x), [0] * len(x))
    return estimator.under(condition, False)(x, estimator.embed_time(torch.tensor([0.3])))


def modulated(**parts: list[float]) -> DiT:
    """The tiny estimator with constants in place of what it reads off the time, in the order in which they stand."""
    state = tiny_flow_state()
    for name, values in parts.items():
        for key in state:
            if key.endswith(f"{name}.linear.weight"):
                state[key] = torch.zeros_like(state[key])
            elif key.endswith(f"{name}.linear.bias"):
                state[key] = torch.tensor(values, dtype=torch.float32).repeat_interleave(128)
    return build(state).decoder.estimator


def test_blocks_read_shift_scale_and_gate():
    """With a scale of -1 nothing is left of a frame but the shift, which is the same for all."""
    x = noise(1, 7, 20)
    attention, feed = [], []
    estimator = modulated(attn_norm=[0.5, -1, 1, 0.25, -1, 1])
    for block in estimator.transformer_blocks:
        block.attn.to_out[0].register_forward_hook(lambda _, __, found: attention.append(found))
        block.ff.register_forward_hook(lambda _, given, __: feed.append(given[0]))
    told(estimator, x)
    assert len(attention) == len(feed) == 2
    for found in attention:
        assert_within(found, found[:, :1].expand(-1, 7, -1), 1e-6)
    for given in feed:
        assert_within(given, torch.full_like(given, 0.25), 0)


def test_gates_of_zero_shut_a_block():
    """Then the end sees the input alone, whatever shift and scale are."""
    x = noise(1, 7, 20)
    one, other = (told(modulated(attn_norm=[shift, 0.3, 0, shift, 0.1, 0]), x) for shift in (0.0, 2.0))
    assert torch.equal(one, other)
    attention, feed = (told(modulated(attn_norm=[0, 0, *gates]), x) for gates in ((1, 0, 0, 0), (0, 0, 0, 1)))
    assert (attention - one).abs().max() > 0.1 and (feed - one).abs().max() > 0.1
    assert (attention - feed).abs().max() > 0.1


def test_the_end_reads_scale_and_then_shift():
    estimator = modulated(norm_out=[-1, 0.5])
    expected = estimator.proj_out(torch.full((1, 7, 128), 0.5))
    assert_within(told(estimator, noise(1, 7, 20)), expected, 1e-6)


def test_a_frame_reaches_no_earlier_one_but_by_attention():
    """Convolutions are causal: with attention shut, what comes later changes nothing."""
    estimator = modulated(attn_norm=[0, 0, 0, 0, 0, 1])
    x = noise(1, 12, 20)
    changed = torch.cat((x[:, :6], noise(1, 6, 20, seed=3)), dim=1)
    before, after = told(estimator, x), told(estimator, changed)
    assert_within(before[:, :6], after[:, :6], 1e-6)
    assert ((before - after)[:, 6:].abs().amax(dim=-1) > 1e-2).all()


# Precision


def test_bfloat16_is_near_float32():
    state = tiny_flow_state()
    exact, coarse = build(state), build(state, dtype=torch.bfloat16)
    near, = mels(exact, [ids(20)], [voice(exact, 10)])
    far, = mels(coarse, [ids(20)], [voice(exact, 10)])
    assert far.dtype == torch.float32
    assert 1e-4 * near.norm() < (near - far).norm() < 0.003 * near.norm()


def test_only_products_are_coarse(monkeypatch):
    """In half precision the published transformer gave silence: its norms and its sums have to be exact."""
    flow, seen, in_place = build(tiny_flow_state(), dtype=torch.bfloat16), {}, []
    estimator = flow.decoder.estimator

    def note(name: str, *tensors: Tensor) -> None:
        seen.setdefault(name, set()).update(tensor.dtype for tensor in tensors)

    def plain_norm(*given: Tensor) -> Tensor:
        note("norm", *given)
        return norm(*given)

    monkeypatch.setattr("speechwright.cosyvoice3.dit.norm", plain_norm)
    for name in ("time_embed", "norm_out", "proj_out", "input_embed.noisy", "input_embed.known",
                 "input_embed.conv_pos_embed", "transformer_blocks.1.attn", "transformer_blocks.1.ff",
                 "transformer_blocks.1.attn_norm", "transformer_blocks.1"):
        estimator.get_submodule(name).register_forward_hook(
            lambda _, given, found, name=name: note(name, given[0], found))
    estimator.transformer_blocks[1].register_forward_hook(
        lambda _, given, found: in_place.append(given[0].data_ptr() == found.data_ptr()))
    mels(flow, [ids(5)], [voice(flow, 3)], schedule=flow.schedule(1))
    assert {name: dtypes for name, dtypes in seen.items() if dtypes != {torch.float32}} == {
        name: {torch.bfloat16}
        for name in ("input_embed.conv_pos_embed", "transformer_blocks.1.attn", "transformer_blocks.1.ff")}
    assert len(seen) == 11 and in_place == [True], "the residual stream is added to where it lies"


def test_inference_mode_inside_and_out():
    """ComfyUI runs nodes in inference mode; what a run leaves behind must serve outside it as well."""
    flow = build(tiny_flow_state(1))
    inside, = mels(flow, [ids(4)], [voice(flow, 3)])
    with torch.inference_mode(False):
        outside, = mels(flow, [ids(4)], [tuple(part.clone() for part in voice(flow, 3))])
    assert torch.equal(inside, outside)
