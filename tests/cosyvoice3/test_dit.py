"""The transformer of the mel flow: masks, rotation, the order of what is read off the time, and precision."""
from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kit.flow import ids, noise, tiny_flow_state, voice
from kit.golden import assert_within
from speechwright.cosyvoice3.dit import DiT, norm, rotate_, rotation, visible
from speechwright.cosyvoice3.flow import mels
from speechwright.cosyvoice3.flow_weights import build
from speechwright.s3gen.flow import Condition


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


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
