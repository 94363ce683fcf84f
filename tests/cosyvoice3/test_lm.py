"""The language model: the golden values, and the laws of a cache, of padding and of positions."""
from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kit.golden import assert_within
from kit.lm import CASES, golden, golden_facts, golden_lm, golden_prompt, tiny_lm, tiny_lm_state
from speechwright.cosyvoice3.config import LMConfig
from speechwright.cosyvoice3.lm import KVCache, RMSNorm, SpeechLM, rotate, rotation
from speechwright.cosyvoice3.weights import build

GOLDEN_GATE = 5e-5
SAME = 1e-5         # one thing computed in two ways
NO_PADDING = torch.zeros(1, dtype=torch.int64)


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def run(lm: SpeechLM, x: Tensor, steps: list[int], first: Tensor | None = None) -> Tensor:
    """(B, S, D) -> (B, S, D), fed to a new cache of just that length, so many columns at a time."""
    first = torch.zeros(len(x), dtype=torch.int64) if first is None else first
    cache = lm.new_cache(len(x), x.shape[1])
    return torch.cat([lm(part, cache, first) for part in x.split(steps, dim=1)], dim=1)


def each_lm():
    return pytest.mark.parametrize("lm", [golden_lm, lambda: tiny_lm(2), lambda: tiny_lm(3)], ids=["golden", "2", "3"])


# Golden values


@pytest.mark.parametrize("case", CASES)
def test_golden_prefill_and_twenty_cached_steps(case):
    lm, x, forced = golden_lm(), golden_prompt(case), golden()[f"{case}.in.forced"]
    cache = lm.new_cache(1, x.shape[1] + len(forced))
    hidden = lm(x, cache, NO_PADDING)
    assert_within(hidden[0], golden()[f"{case}.out.hidden"], GOLDEN_GATE)
    logits = [lm.logits(hidden[:, -1])]
    for token in forced:
        logits.append(lm.logits(lm(lm.embed_speech(token[None, None]), cache, NO_PADDING)[:, -1]))
    assert_within(torch.cat(logits), golden()[f"{case}.out.logits"], GOLDEN_GATE)


@pytest.mark.parametrize("case", CASES)
def test_golden_greedy_ids(case):
    """Ids that end the speech are blocked at first; what would have been drawn without is golden as well."""
    lm, x, facts = golden_lm(), golden_prompt(case), golden_facts()[int(case)]
    cache = lm.new_cache(1, x.shape[1] + facts["max_len"])
    ids, likeliest, hidden = [], [], lm(x, cache, NO_PADDING)
    while len(ids) < facts["max_len"]:
        scores = lm.logits(hidden[:, -1])[0]
        likeliest.append(int(scores.argmax()))
        allowed = lm.config.ids.vocabulary if len(ids) < facts["min_len"] else len(scores)
        chosen = scores[:allowed].argmax()
        if chosen >= lm.config.ids.vocabulary:
            assert int(chosen) == facts["stop_id"]
            break
        ids.append(int(chosen))
        hidden = lm(lm.embed_speech(chosen[None, None]), cache, NO_PADDING)
    assert ids == golden()[f"{case}.out.greedy"].tolist()
    assert likeliest == golden()[f"{case}.out.greedy_raw_argmax"].tolist()


# The cache


@each_lm()
@pytest.mark.parametrize("steps", [[1] * 14, [13, 1], [1, 12, 1], [5, 1, 1, 1, 6], [7, 7]])
def test_cached_is_uncached_at_every_step(lm, steps):
    """From transformers 4.53 on a mask of one column hid the whole cache, and voices turned to babble."""
    lm = lm()
    x = noise(2, 14, lm.config.width)
    whole = run(lm, x, [14])
    assert_within(run(lm, x, steps), whole, SAME)
    for end in itertools.accumulate(steps):
        assert_within(run(lm, x[:, :end], [end]), whole[:, :end], SAME)


def test_what_comes_later_changes_nothing():
    lm = golden_lm()
    x = noise(1, 9, 64)
    changed = torch.cat((x[:, :6], noise(1, 3, 64, seed=1)), dim=1)
    before, after = run(lm, x, [9]), run(lm, changed, [9])
    assert_within(after[:, :6], before[:, :6], SAME)
    assert ((after - before)[:, 6:].abs().amax(dim=-1) > 0.1).all()


def test_slots_that_are_not_filled_shout():
    lm = tiny_lm()
    cache = lm.new_cache(2, 6)
    assert cache.keys.isnan().all() and cache.values.isnan().all()
    lm(noise(2, 4, 16), cache, torch.zeros(2, dtype=torch.int64))
    for kept in (cache.keys, cache.values):
        assert kept[..., :4, :].isfinite().all() and kept[..., 4:, :].isnan().all()


def test_a_cache_is_made_once():
    """Growing by ``cat`` copied every key at every token, and left the old ones to the allocator."""
    lm = tiny_lm()
    cache = lm.new_cache(1, 12)
    places = cache.keys.data_ptr(), cache.values.data_ptr()
    for length in range(1, 13):
        lm(noise(1, 1, 16), cache, NO_PADDING)
        assert cache.length == length
    assert (cache.keys.data_ptr(), cache.values.data_ptr()) == places


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_is_linear_in_the_columns(dtype):
    lm = build(tiny_lm_state(), dtype=dtype)
    for rows, capacity in ((1, 0), (1, 1), (1, 2), (3, 50)):
        cache = lm.new_cache(rows, capacity)
        assert cache.keys.nbytes + cache.values.nbytes == lm.cache_bytes(rows, capacity)
        assert lm.cache_bytes(rows, capacity) == rows * capacity * lm.cache_bytes(1, 1)
    assert SpeechLM(LMConfig(), device="meta").cache_bytes(1, 1) == 24_576


def test_a_full_cache_names_both_numbers_and_stays_as_it_is():
    lm = tiny_lm()
    cache, x = lm.new_cache(1, 5), noise(1, 5, 16)
    lm(x[:, :3], cache, NO_PADDING)
    with pytest.raises(ValueError, match=r"3 \+ 3 columns do not fit a cache of 5; shorten the text or the prompt"):
        lm(noise(1, 3, 16, seed=1), cache, NO_PADDING)
    assert cache.length == 3
    assert_within(lm(x[:, 3:], cache, NO_PADDING), run(lm, x, [5])[:, 3:], SAME)


def test_a_call_that_broke_off_leaves_no_trace():
    """Interrupted between two layers: the columns that some of them had written are written again."""
    lm = golden_lm()
    cache, x = lm.new_cache(1, 8), noise(1, 8, 64)
    lm(x[:, :5], cache, NO_PADDING)

    def interrupt(*_):
        raise KeyboardInterrupt

    handle = lm.decoder.layers[1].mlp.register_forward_hook(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            lm(noise(1, 2, 64, seed=1), cache, NO_PADDING)
    finally:
        handle.remove()
    assert cache.length == 5
    assert_within(lm(x[:, 5:], cache, NO_PADDING), run(lm, x, [8])[:, 5:], SAME)


def test_nothing_is_left_on_the_model():
    lm = golden_lm()
    first = run(lm, noise(1, 6, 64), [6])
    run(lm, noise(3, 9, 64, seed=1), [4, 5], torch.tensor([0, 1, 3]))
    assert torch.equal(run(lm, noise(1, 6, 64), [6]), first)


# Rows beside each other


LENGTHS = [[9], [1, 9], [9, 9], [4, 9, 1, 6]]


def beside_and_alone(lm: SpeechLM, lengths: list[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Each row of a batch and the same by itself: left padding, which may hold anything, then five cached steps."""
    longest = max(lengths)
    rows = [noise(1, length + 5, lm.config.width, seed=seed) for seed, length in enumerate(lengths)]
    x = torch.cat([F.pad(row, (0, 0, longest - length, 0), value=float("nan")) for row, length in zip(rows, lengths)])
    together = run(lm, x, [longest, 1, 1, 1, 1, 1], torch.tensor([longest - length for length in lengths]))
    for row, length, found in zip(rows, lengths, together):
        yield found[longest - length :], run(lm, row, [length, 1, 1, 1, 1, 1])[0]


@each_lm()
@pytest.mark.parametrize("lengths", LENGTHS)
def test_row_is_blind_to_its_neighbours(lm, lengths):
    for beside, alone in beside_and_alone(lm(), lengths):
        assert_within(beside, alone, SAME)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_scores_of_a_row_are_its_own(lengths):
    lm = golden_lm()
    for beside, alone in beside_and_alone(lm, lengths):
        assert_within(lm.logits(beside), lm.logits(alone), SAME)


def test_rows_may_stand_in_any_order():
    lm = golden_lm()
    x, first, order = noise(3, 7, 64), torch.tensor([0, 2, 5]), torch.tensor([2, 0, 1])
    together, turned = run(lm, x, [6, 1], first), run(lm, x[order], [6, 1], first[order])
    for place, row in enumerate(order.tolist()):
        assert_within(turned[place, first[row] :], together[row, first[row] :], SAME)


def test_no_columns_are_no_columns():
    lm = tiny_lm()
    cache = lm.new_cache(2, 3)
    assert lm(noise(2, 0, 16), cache, torch.zeros(2, dtype=torch.int64)).shape == (2, 0, 16)
    assert cache.length == 0


# Positions, norms, precision


def test_rotation_is_the_plain_one():
    """Against complex numbers in float64, a minute of speech into the context."""
    config = LMConfig()
    position = torch.tensor([[0, 1, 77, 1500]])
    x = noise(1, 4, 3, 64)
    angle = position.double()[..., None, None] * 1e6 ** (-torch.arange(32, dtype=torch.float64) / 32)
    pairs = torch.complex(*x.double().chunk(2, dim=-1)) * torch.polar(torch.ones_like(angle), angle)
    expected = torch.cat((pairs.real, pairs.imag), dim=-1)
    assert_within(rotate(x, *rotation(position, config)), expected, 5e-4)
    assert torch.equal(rotate(x, *rotation(position * 0, config)), x)


def test_norm_is_computed_in_float32():
    """The square of 300 is no float16, and bfloat16 would keep three digits of the mean."""
    norm = RMSNorm(4, 1e-6)
    norm.weight.copy_(torch.tensor([1.0, 2.0, 0.5, 1.0]))
    x = torch.tensor([300.0, -300.0, 1.0, 0.0])
    expected = x / (x.square().mean() + 1e-6).sqrt() * norm.weight
    assert_within(norm(x), expected, 1e-6)
    assert_within(norm(x.half()).float(), expected, 2e-3)
    assert torch.equal(norm(torch.zeros(2, 4)), torch.zeros(2, 4))


def test_bfloat16_is_near_float32():
    state = tiny_lm_state()
    exact, coarse = build(state), build(state, dtype=torch.bfloat16)
    x = noise(2, 9, 16)
    first = torch.tensor([0, 4])
    near, far = (lm.logits(run(lm, x.to(lm.dtype), [8, 1], first)[:, -1]) for lm in (exact, coarse))
    assert near.dtype == far.dtype == torch.float32
    assert 0 < (near - far).std() < 0.03 * near.std()


# Embeddings


def test_control_embeddings_of_both_versions():
    second, third = tiny_lm(2), tiny_lm(3)
    assert torch.equal(torch.cat((second.start(), second.task())), second.llm_embedding.weight)
    assert torch.equal(torch.cat((third.start(), third.task())), third.speech_embedding.weight[[6561, 6563]])


def test_text_table_stays_behind():
    """It is a quarter of the weights and read once per text: it takes no room on the device."""
    lm = build(tiny_lm_state())
    lm.to("meta")
    assert all(parameter.is_meta for parameter in lm.parameters()) and lm.text_table.device.type == "cpu"
    assert lm.embed_text(torch.tensor([3], device="cpu")).device.type == "cpu"
    assert not any("embed_tokens" in name for name in lm.state_dict())


@pytest.mark.parametrize("ids", [[], [0], [299, 0, 299]])
def test_text_embeddings_are_rows_of_the_table(ids):
    lm = tiny_lm()
    assert torch.equal(lm.embed_text(torch.tensor(ids, dtype=torch.int64)), lm.text_table[ids])


@pytest.mark.parametrize("ids", [[300], [-1, 5]])
def test_text_ids_outside_the_table(ids):
    """A tokenizer of another model knows more ids than the table has rows."""
    with pytest.raises(ValueError, match=rf"text: ids {ids[0]} to {ids[-1]} are not in .* has 300 rows; take the"):
        tiny_lm().embed_text(torch.tensor(ids))


def test_a_cache_of_its_own_sizes():
    config = dataclasses.replace(LMConfig(), layers=3, kv_heads=5, head_width=8)
    cache = KVCache.empty(config, 2, 7, "cpu", torch.bfloat16)
    assert cache.keys.shape == cache.values.shape == (3, 2, 5, 7, 8)
    assert cache.capacity == 7 and cache.keys.dtype == torch.bfloat16
