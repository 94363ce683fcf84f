"""The depth decoder: the plain computation once more, and the laws of blocks, prompts and caches."""
from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kit.golden import assert_within
from kit.mtp import TINY, blocks, decode, kept, plain_block, speech, spoken, state_for, tiny_mtp
from speechwright.omnifish.mtp import State, race
from speechwright.omnifish.sampling import schedule

SAME = 1e-5         # one thing computed in two ways
# (prompt, frames in all, block): block sizes, no prompt, and a last block of one frame or a few
SITUATIONS = [(0, 36, 16), (7, 24, 8), (5, 8, 1), (21, 38, 16), (3, 12, 4), (1, 17, 16)]


def read(codes: Tensor, hidden: Tensor, prompt: int, block: int) -> State:
    """The state after the chain has read all whole blocks, whose codes are known."""
    total = codes.shape[1]
    state = state_for(codes, hidden, total)
    tiny_mtp().decode_block(state, prompt + (total - 1 - prompt) // block * block, total, block, prefix=prompt)
    return state


def changes(before: State, after: State) -> Tensor:
    """bool (9, F), where a layer's keys or values are not the same; what was never written counts as the same."""
    moved = [(one - other).abs().nan_to_num().amax(dim=(1, 2, 4)) for one, other in zip(kept(before), kept(after))]
    return torch.maximum(*moved) > SAME


# The plain computation


@pytest.mark.parametrize("prompt, total, block, rounds", [
    *((*situation, rounds) for situation in SITUATIONS for rounds in (1, 2, 4)), (3, 8, 4, 40), (5, 7, 1, 40)])
def test_cached_is_uncached(prompt, total, block, rounds):
    hidden, state = speech(total)[1], state_for(*speech(total), prompt)
    tiny_mtp().prime(state, prompt)
    for lo, hi in blocks(prompt, total, block):
        expected = plain_block(state["codes"], hidden, lo, hi, block, rounds, prompt)
        decode(state, prompt, hi, block, start=lo, rounds=rounds)
        assert torch.equal(state["codes"][1:, lo:hi], expected)


@pytest.mark.parametrize("prompt, total, block", SITUATIONS[:2])
def test_cached_is_uncached_with_warmth(prompt, total, block):
    state, rounds = state_for(*speech(total), prompt, seed=5), 4
    tiny_mtp().prime(state, prompt)
    for lo, hi in blocks(prompt, total, block):
        deciding = sum(count > 0 for count in schedule(hi - lo, rounds))
        noise = -race(5, lo, (hi - lo, 9, deciding, TINY.residual_rows)).log()
        expected = plain_block(state["codes"], speech(total)[1], lo, hi, block, rounds, prompt, 0.7, noise)
        decode(state, prompt, hi, block, start=lo, temperature=0.7)
        assert torch.equal(state["codes"][1:, lo:hi], expected)


# What is changed, and what is not


@pytest.mark.parametrize("prompt, total, block", SITUATIONS)
@pytest.mark.parametrize("temperature", [0.0, 3.0])
def test_a_block_writes_its_own_codes_alone(prompt, total, block, temperature):
    """The prompt and all that came before stay as they are; so does what the caller wrote."""
    (codes, hidden), state = speech(total), state_for(*speech(total), prompt)
    for lo, hi in blocks(prompt, total, block):
        before = state["codes"].clone()
        decode(state, prompt, hi, block, start=lo, temperature=temperature)
        found = state["codes"].clone()
        assert 0 <= int(found[1:, lo:hi].min()) <= int(found[1:, lo:hi].max()) <= 1023
        found[1:, lo:hi] = before[1:, lo:hi]
        assert torch.equal(found, before)
    assert torch.equal(state["codes"][:, :prompt], codes[:, :prompt]) and torch.equal(state["codes"][0], codes[0])
    assert torch.equal(state["states"][0], hidden) and len(state["states"]) == 1 and state["seed"] == 0


def test_a_state_is_made_once_and_nothing_is_left_on_the_model():
    """Growing by ``cat`` would copy all keys at every block, and leave the old ones to the allocator."""
    state = state_for(*speech(24), 8)
    names, places = set(state), [tensor.data_ptr() for tensor in (state["codes"], *state["states"], *kept(state))]
    weights = {name: tensor.clone() for name, tensor in tiny_mtp().state_dict().items()}
    attributes = {name: set(vars(module)) for name, module in tiny_mtp().named_modules()}
    decode(state, 8, 24, 8, temperature=1.0)
    assert [tensor.data_ptr() for tensor in (state["codes"], *state["states"], *kept(state))] == places
    assert set(state) == names
    assert all(torch.equal(tensor, weights[name]) for name, tensor in tiny_mtp().state_dict().items())
    assert {name: set(vars(module)) for name, module in tiny_mtp().named_modules()} == attributes


@pytest.mark.parametrize("at", [5, 21, 24])
def test_no_frames_are_no_frames(at):
    state = state_for(*speech(24), 5)
    before = copy.deepcopy(state)
    tiny_mtp().decode_block(state, at, at, 16, prefix=5)
    assert torch.equal(state["codes"], before["codes"]) and kept(state)[0].isnan().all() and state["ready"] == 0


def test_a_prompt_of_no_frames():
    state = state_for(*speech(20), 0)
    tiny_mtp().prime(state, 0)
    assert state["ready"] == 0 and state["borders"] == [0] and kept(state)[0].isnan().all()
    assert torch.equal(decode(state, 0, 20, 16), spoken(0, 20, 16, primed=False)["codes"])


def test_a_state_without_frames():
    state = tiny_mtp().new_state(0, TINY.width, "cpu", torch.float32)
    tiny_mtp().prime(state, 0)
    tiny_mtp().decode_block(state, 0, 0, 16)
    assert state["codes"].shape == (10, 0) and state["states"][0].shape == (1, 0, TINY.width)


def test_a_new_state():
    state = tiny_mtp().new_state(6, TINY.width, "cpu", torch.bfloat16)
    assert state["codes"].dtype == torch.int64 and state["codes"].eq(4096).all() and state["codes"].shape == (10, 6)
    assert state["states"][0].dtype == torch.bfloat16 and state["states"][0].eq(0).all()
    assert all(tensor.isnan().all() for tensor in kept(state))


def test_states_know_nothing_of_each_other():
    first, again, other = (state_for(*speech(24, seed), 8) for seed in (0, 0, 1))
    decode(first, 8, 24, 8)
    for lo, hi in blocks(8, 24, 8):
        decode(other, 8, hi, 8, start=lo)
        decode(again, 8, hi, 8, start=lo)
    assert torch.equal(first["codes"], again["codes"]) and not torch.equal(first["codes"], other["codes"])
    assert torch.equal(spoken(8, 24, 8)["codes"], first["codes"])


# Who sees whom


@pytest.mark.parametrize("frame, seen_from", [(0, 0), (4, 0), (5, 5), (12, 5), (13, 13), (20, 13)])
@pytest.mark.parametrize("what", ["state", "code"])
def test_a_frame_is_seen_by_its_own_group_and_by_later_ones(frame, seen_from, what):
    """Five frames of prompt and blocks of eight: all layers below the first tell what the first has seen."""
    codes, hidden = speech(29)
    before = read(codes, hidden, 5, 8)
    if what == "state":
        hidden[:, frame] += 1
    else:
        codes[1, frame] = (codes[1, frame] + 1) % TINY.residual_rows
    changed = changes(before, read(codes, hidden, 5, 8))[:, :21]
    assert not changed[:, :seen_from].any() and changed[2:, seen_from:].all()
    own = torch.arange(21) == frame
    assert torch.equal(changed[0], own)


@pytest.mark.parametrize("codebook", range(10))
def test_a_code_reaches_its_own_layer_and_those_below(codebook):
    codes, hidden = speech(13)
    before = read(codes, hidden, 5, 4)
    codes[codebook, 2] = (codes[codebook, 2] + 1) % TINY.residual_rows
    changed = changes(before, read(codes, hidden, 5, 4))[:, 2]
    assert changed.tolist() == [depth + 1 >= codebook for depth in range(9)]


def test_what_comes_later_changes_nothing():
    """Every later frame is another one, decided or not: what was decided before them is the same."""
    codes, hidden = speech(40)
    early = decode(state_for(codes, hidden, 8), 8, 24, 8).clone()
    changed, moved = speech(40, seed=1)
    changed[:, :24], moved[:, :24] = codes[:, :24], hidden[:, :24]
    late = decode(state_for(changed, moved, 8), 8, 40, 8)
    assert torch.equal(late[:, :24], early[:, :24]) and not torch.equal(late[1:, 24:], early[1:, 24:])


# The prompt and the beginning are read once


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("primed", [True, False])
@pytest.mark.parametrize("prompt, total, block", SITUATIONS)
def test_a_given_beginning_is_a_generated_one(prompt, total, block, primed, temperature):
    """A beginning was written to the state and never primed: the chain's deeper states had a gap there."""
    whole = spoken(prompt, total, block, temperature=temperature)
    last = blocks(prompt, total, block)[-1][0]
    state = state_for(*speech(total), prompt)
    state["codes"][1:, :last] = whole["codes"][1:, :last]
    if primed:
        tiny_mtp().prime(state, prompt)
    decode(state, prompt, total, block, start=last, temperature=temperature)
    assert torch.equal(state["codes"], whole["codes"]) and state["ready"] == whole["ready"] == total
    for found, expected in zip(kept(state), kept(whole)):
        assert_within(found, expected, SAME)


def test_what_was_read_is_not_read_again():
    """Four rounds and a last look, of eight frames each, however long the speech is; 21 frames only once."""
    state, steps = state_for(*speech(45), 21), []
    handles = [layer.register_forward_pre_hook(lambda _, inputs: steps.append(inputs[0].shape[1]))
               for layer in tiny_mtp().layers]
    try:
        tiny_mtp().prime(state, 21)
        assert steps == [21] * 9 and state["ready"] == 21
        for lo, hi in blocks(21, 45, 8):
            steps.clear()
            decode(state, 21, hi, 8, start=lo)
            assert steps == [8] * 45
    finally:
        for handle in handles:
            handle.remove()


def test_a_state_may_be_primed_anew():
    """For another prompt of the same length: what was read of the first one is forgotten, and all blocks with it."""
    state, fresh = spoken(5, 21, 8), state_for(*speech(21, seed=1), 5)
    state["codes"].copy_(fresh["codes"])
    state["states"][0].copy_(fresh["states"][0])
    tiny_mtp().prime(state, 5)
    assert state["ready"] == 5 and state["borders"] == [0, 5]
    assert torch.equal(decode(state, 5, 21, 8), decode(fresh, 5, 21, 8))


def test_ready_may_be_lowered_after_a_change():
    codes, hidden = speech(29)
    state = state_for(codes, hidden, 21)
    decode(state, 5, 29, 8, start=21)
    changed = codes.clone()
    changed[3, 14] = (changed[3, 14] + 1) % TINY.residual_rows
    state["codes"][3, 14] = changed[3, 14]
    state["ready"] = 14
    found = decode(state, 5, 29, 8, start=21)
    assert torch.equal(found, decode(state_for(changed, hidden, 21), 5, 29, 8, start=21))


@pytest.mark.parametrize("primed, prompt, block", [(3, 5, 8), (9, 5, 8), (5, 0, 8), (5, 5, 4)])
def test_what_was_read_in_other_groups_is_read_again(primed, prompt, block):
    """Frames that were read without seeing all that they may see, or more, would be heard as a seam."""
    state = state_for(*speech(21), prompt + 8)
    tiny_mtp().prime(state, primed) if prompt != primed else decode(state, prompt, prompt + 8, 8)
    found = decode(state, prompt, prompt + 8 + block, block, start=prompt + 8)
    fresh = state_for(*speech(21), 0)
    fresh["codes"][:, : prompt + 8] = found[:, : prompt + 8]
    assert torch.equal(found, decode(fresh, prompt, prompt + 8 + block, block, start=prompt + 8))


def test_a_short_block_that_was_not_the_last():
    """Its frames have not seen those that the caller adds to it."""
    codes, hidden = speech(21)
    state = state_for(codes, hidden, 5)
    tiny_mtp().decode_block(state, 5, 8, 8, prefix=5)
    state["codes"][:, 8:13] = codes[:, 8:13]
    fresh = state_for(codes, hidden, 5)
    fresh["codes"][:, :13] = state["codes"][:, :13]
    assert torch.equal(decode(state, 5, 21, 8, start=13), decode(fresh, 5, 21, 8, start=13))


def test_a_block_may_be_drawn_anew():
    state = spoken(5, 29, 8, temperature=1.0)
    whole = state["codes"].clone()
    state["seed"] = 1
    assert not torch.equal(decode(state, 5, 21, 8, start=13, temperature=1.0), whole)
    assert state["ready"] == 21
    state["seed"] = 0
    assert torch.equal(decode(state, 5, 29, 8, start=13, temperature=1.0), whole)


def test_a_call_that_broke_off_leaves_no_trace():
    state, fresh = spoken(5, 21, 8, temperature=1.0), spoken(5, 21, 8, temperature=1.0)
    before = state["codes"].clone()

    def interrupt(*_):
        raise KeyboardInterrupt

    handle = tiny_mtp().layers[4].mlp.register_forward_hook(interrupt)
    try:
        state["seed"] = 1
        with pytest.raises(KeyboardInterrupt):
            decode(state, 5, 13, 8, temperature=1.0)
    finally:
        handle.remove()
    assert torch.equal(state["codes"], before) and state["ready"] == 5
    state["seed"] = 0
    decode(state, 5, 21, 8, start=13, temperature=1.0)
    assert torch.equal(state["codes"], fresh["codes"])
    for found, expected in zip(kept(state), kept(fresh)):
        assert_within(found, expected, SAME)


# Memory


def test_slots_that_are_not_filled_shout():
    state = state_for(*speech(30), 5)
    decode(state, 5, 21, 8)
    decode(state, 5, 13, 8)
    for found in kept(state):
        assert found[..., :13, :].isfinite().all() and found[..., 13:, :].isnan().all()


class Largest(TorchDispatchMode):
    """Notes the most numbers that a result of any operation holds."""
    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.numbers = max(self.numbers, *sizes, 0)
        return result


@pytest.mark.parametrize("prompt, frames", [(0, 64), (128, 128)])
def test_memory_is_linear_in_the_frames(prompt, frames):
    """Scores of every frame for every other, or a mask of that size, took gigabytes for a minute of prompt."""
    def run(times: int) -> tuple[int, int]:
        codes, hidden = speech(frames * times + 16)
        state = state_for(codes, hidden, frames * times)
        with Largest() as largest:
            tiny_mtp().prime(state, prompt * times)
            tiny_mtp().decode_block(state, frames * times, frames * times + 16, 16, 1, prefix=prompt * times)
        return largest.numbers, sum(tensor.nbytes for tensor in (state["codes"], *state["states"], *kept(state)))

    for once, more in zip(run(1), run(4)):
        assert more <= 4.01 * once
