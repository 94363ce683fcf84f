"""The stream of blocks: the golden trace, and that its shortcuts change nothing."""
from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kit.blocks import golden, golden_model
from kit.golden import assert_within
from kit.qwen3 import plain
from speechwright.omnifish.generate import Stream
from speechwright.omnifish.model import MASK_ID

GOLDEN_GATE = 2e-5
SAME = 2e-5         # one thing computed in two ways


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def masks(block: int) -> Tensor:
    return torch.full((block,), MASK_ID)


def drawn(block: int, seed: int) -> Tensor:
    """A decided block, int64 (10, F)"""
    codes = torch.randint(0, 4096, (10, block), generator=torch.Generator().manual_seed(seed))
    codes[1:] %= 1024
    return codes


def some_stream(length: int = 9, block: int = 4, blocks: int = 4, guided: bool = True) -> Stream:
    """With a context of text, and codes at its end."""
    ids, audio = drawn(length, 77), torch.arange(length) >= length // 2
    ids[:, ~audio] = ids[0, ~audio] % 256
    return Stream(golden_model(), ids, audio, block, blocks, guided)


def trace_stream(blocks: int = 2) -> Stream:
    return Stream(golden_model(), golden()["trace.ids"], golden()["trace.audio_mask"], 16, blocks, True)


def test_golden_trace():
    data, stream = golden(), trace_stream()
    assert_within(stream.hidden, data["trace.context_hidden"][0], GOLDEN_GATE)
    assert_within(stream.logits(data["trace.block"]), data["trace.logits"], GOLDEN_GATE)
    assert_within(stream.peek(data["trace.block"]), data["trace.peek"], GOLDEN_GATE)
    stream.commit(data["trace.commit"])
    for _ in range(2):      # read together with what was committed, then alone
        assert_within(stream.logits(masks(16)), data["trace.logits_after_commit"], GOLDEN_GATE)


@pytest.mark.parametrize("guided", [True, False])
@pytest.mark.parametrize("length, block", [(9, 4), (2, 1), (5, 7)])
def test_against_whole_sequences_and_no_cache(length, block, guided):
    """By float64: context, three committed blocks, and a look at a fourth."""
    model, stream = golden_model(), some_stream(length, block, 4, guided)
    ids, audio = drawn(length, 77), torch.arange(length) >= length // 2
    ids[:, ~audio] = ids[0, ~audio] % 256
    seen_so_far = model.embed(ids[None], audio[None])[0]
    for number in range(4):
        look = torch.full((10, block), MASK_ID)
        look[0, ::2] = drawn(block, number)[0, ::2]
        logits, peek = stream.logits(look[0]), stream.peek(look[0])
        assert len(logits) == 1 + guided and logits.dtype == torch.float32
        for row, start in enumerate([0, length][: 1 + guided]):
            x = torch.cat((seen_so_far, model.embed_codes(look[None])[0]))[start:]
            group = torch.cat((torch.zeros(length - start), 1 + torch.arange(number + 1).repeat_interleave(block)))
            hidden = plain(model.llm, x, group[:, None] >= group, torch.arange(len(x)))[-block:]
            assert_within(logits[row], hidden @ model.semantic_head.weight.double().T, SAME)
            if row == 0:
                assert_within(peek, hidden, SAME)
        if number < 3:
            stream.commit(drawn(block, number))
            seen_so_far = torch.cat((seen_so_far, model.embed_codes(drawn(block, number)[None])[0]))


@pytest.mark.parametrize("guided", [True, False])
def test_only_a_commit_leaves_a_trace(guided):
    stream, block = some_stream(guided=guided), drawn(4, 1)
    for number in range(4):
        assert stream.length == 9 + 4 * number
        first = stream.logits(masks(4))
        stream.peek(block[0])
        stream.logits(block[0])
        assert_within(stream.logits(masks(4)), first, 1e-6)
        assert stream.length == 9 + 4 * number
        if number < 3:
            stream.commit(block)


def test_two_commits_in_a_row():
    together, apart = some_stream(), some_stream()
    for number in range(3):
        together.commit(drawn(4, number))
        apart.commit(drawn(4, number))
        apart.logits(masks(4))
    assert together.length == apart.length == 9 + 12
    assert_within(together.logits(masks(4)), apart.logits(masks(4)), SAME)
    assert_within(together.peek(drawn(4, 9)[0]), apart.peek(drawn(4, 9)[0]), SAME)


def test_a_peek_may_be_what_reads_a_commit():
    first, second = some_stream(), some_stream()
    for stream in (first, second):
        stream.commit(drawn(4, 0))
    second.logits(masks(4))
    assert_within(first.peek(drawn(4, 1)[0]), second.peek(drawn(4, 1)[0]), SAME)
    assert_within(first.logits(masks(4)), second.logits(masks(4)), SAME)


def test_a_committed_block_is_the_streams_own():
    """The depth decoder goes on writing to the tensor that it came from."""
    stream, other, codes = some_stream(), some_stream(), drawn(4, 0)
    stream.commit(codes)
    other.commit(codes.clone())
    codes.zero_()
    assert torch.equal(stream.logits(masks(4)), other.logits(masks(4)))


def test_a_look_that_broke_off_leaves_no_trace():
    """Interrupted between two layers, with a committed block that waits to be read."""
    stream, other = some_stream(), some_stream()
    for one in (stream, other):
        one.commit(drawn(4, 0))

    def interrupt(*_):
        raise KeyboardInterrupt

    handle = golden_model().llm.layers[1].mlp.register_forward_hook(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            stream.logits(masks(4))
    finally:
        handle.remove()
    assert stream.length == 13
    assert torch.equal(stream.logits(masks(4)), other.logits(masks(4)))


def test_the_row_without_a_context_is_blind_to_it():
    """Whatever its text and codes and however long it is: guidance would lose its opposite."""
    rows = []
    for stream in (some_stream(9), some_stream(31), trace_stream()):
        block = stream.block
        stream.commit(drawn(block, 0)[:, :1].repeat(1, block))
        rows.append(stream.logits(masks(block))[1])
    assert_within(rows[1], rows[0], SAME)
    assert rows[2].shape[0] == 16 and not torch.allclose(rows[2][:4], rows[0], atol=0.01)
    alone = some_stream(1)
    alone.commit(drawn(4, 0)[:, :1].repeat(1, 4))
    assert_within(alone.logits(masks(4))[1], rows[0], SAME)


def test_without_guidance_there_is_one_row():
    assert_within(some_stream(guided=False).logits(masks(4))[0], some_stream().logits(masks(4))[0], SAME)


def test_room_is_made_once_and_for_all_blocks():
    stream = some_stream(blocks=3)
    place = stream._cache.keys.data_ptr()
    for number in range(2):
        stream.commit(drawn(4, number))
        stream.logits(masks(4))
    assert stream._cache.keys.data_ptr() == place and stream._cache.capacity == 9 + 3 * 4
    stream.commit(drawn(4, 2))
    with pytest.raises(ValueError, match=r"17 \+ 8 columns do not fit a cache of 21"):
        stream.logits(masks(4))
