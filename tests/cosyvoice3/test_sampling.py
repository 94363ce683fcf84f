"""Repetition-aware sampling: exact distributions, single rules, laws of the batch."""
from __future__ import annotations

import json
import math
from fractions import Fraction as Q
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kit.ras import motley
from speechwright.cosyvoice3 import sampling
from speechwright.cosyvoice3.sampling import MAX_TOP_K, ras_draw, ras_sample

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/cosyvoice3/ras_cases.json").read_text(encoding="utf-8"))
ROWS = 200_000
CHUNK = 50_000
WIDEST = 10         # ids of history that the tables give at most, and the published window


def knobs(rows: int, ids: int, history=(), blocked=(), **changed) -> dict[str, Tensor]:
    """Everything that ``ras_sample`` takes beside logits, in the published setting, alike for all rows."""
    number = {"temperature": 1.0, "top_p": 0.8, "top_k": 25, "window": 10, "repeat_threshold": 1.0, "step": 0}
    width = max(WIDEST, len(history))
    recent = torch.full((width,), -1)
    if history:
        recent[-len(history):] = torch.tensor(history)
    mask = torch.zeros(ids, dtype=torch.bool)
    mask[list(blocked)] = True
    given = {name: torch.full((rows,), changed.get(name, value)) for name, value in number.items()}
    return {"seed": torch.arange(rows), "history": recent.expand(rows, -1), "blocked": mask.expand(rows, -1), **given}


def frequencies(logits: list[float], rows: int = ROWS, **setting) -> Tensor:
    """How often each id is drawn, float64 (V,)."""
    counts = torch.zeros(len(logits), dtype=torch.float64)
    given = knobs(rows, len(logits), **setting)
    for start in range(0, rows, CHUNK):
        some = {name: tensor[start : start + CHUNK] for name, tensor in given.items()}
        drawn = ras_sample(torch.tensor(logits).expand(len(some["seed"]), -1), **some)
        counts += torch.bincount(drawn, minlength=len(logits))
    return counts / rows


def assert_drawn_as(found: Tensor, expected: list, rows: int = ROWS) -> None:
    """Within 5 standard errors, and what cannot be is never drawn."""
    for drawn, p in zip(found.tolist(), map(float, expected)):
        assert p > 0 or drawn == 0
        assert abs(drawn - p) <= 5 * math.sqrt(p * (1 - p) / rows), f"{found.tolist()} for {expected}"


# Exact distributions


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_golden_distributions(case):
    setting = {name: case[name] for name in
               ("history", "temperature", "top_p", "top_k", "window", "repeat_threshold", "blocked")}
    assert_drawn_as(frequencies(case["logits"], **setting), case["probs"])


HALVES, SIXES = (Q(1, 2), Q(1, 4), Q(1, 8), Q(1, 8)), (Q(6, 10), Q(3, 10), Q(1, 10))
FIFTHS, TENTHS = (Q(1, 5), Q(2, 5), Q(1, 5), Q(1, 5)), (Q(4, 10), Q(3, 10), Q(2, 10), Q(1, 10))
REDRAWN = (0, Q(5, 6), Q(1, 6))


@pytest.mark.parametrize("mass, history, setting, expected", [
    pytest.param(HALVES, [], {}, (Q(4, 7), Q(2, 7), Q(1, 7), 0), id="A"),
    pytest.param([Q(1, 4)] * 4, [], {"top_p": 0.5}, (Q(1, 2), Q(1, 2), 0, 0), id="B"),
    pytest.param(TENTHS, [], {"top_p": 1.0, "top_k": 2}, (Q(4, 7), Q(3, 7), 0, 0), id="C1"),
    pytest.param(TENTHS, [], {"top_p": 0.75, "top_k": 3}, (Q(4, 9), Q(1, 3), Q(2, 9), 0), id="C2"),
    pytest.param(SIXES, [0], {}, REDRAWN, id="D"),
    pytest.param(SIXES, [0, 1], {}, (Q(2, 7), Q(1, 2), Q(3, 14)), id="E"),
    pytest.param(SIXES, [0] + 10 * [2], {}, (Q(2, 3), Q(1, 3), 0), id="F"),
    pytest.param(SIXES, [0], {"repeat_threshold": 2.0}, (Q(2, 3), Q(1, 3), 0), id="G1"),
    pytest.param(SIXES, [0, 2, 0], {"repeat_threshold": 2.0}, REDRAWN, id="G2"),
    pytest.param((Q(95, 100), Q(2, 100), Q(2, 100), Q(1, 100)), [0], {}, (0, Q(2, 5), Q(2, 5), Q(1, 5)), id="H"),
    pytest.param(TENTHS, [], {"blocked": [0]}, (0, Q(3, 5), Q(2, 5), 0), id="I1"),
    pytest.param(TENTHS, [1], {"blocked": [0]}, (0, 0, Q(4, 5), Q(1, 5)), id="I2"),
    pytest.param(FIFTHS, [], {"top_p": 0.601}, (Q(1, 4), Q(1, 2), Q(1, 4), 0), id="J"),
    pytest.param(SIXES, [], {"temperature": 0.5}, (Q(4, 5), Q(1, 5), 0), id="K"),
    pytest.param(SIXES, [0], {"repeat_threshold": 0.0}, (Q(2, 3), Q(1, 3), 0), id="L"),
    pytest.param((Q(1), Q(1), Q(1)), [0], {"blocked": [1, 2]}, (1, 0, 0), id="M"),
    pytest.param(SIXES, [2], {"temperature": 0.0, "blocked": [0]}, (0, 1, 0), id="N"),
])
def test_table_of_distributions(mass, history, setting, expected):
    assert_drawn_as(frequencies([math.log(p) for p in mass], history=history, **setting), expected)


def exact(mass: list[Q], history: list[int], top_p: Q, top_k: int, window: int, threshold: int) -> list[Q]:
    """The probability of each id, by walking through every pair of draws."""
    order = sorted(range(len(mass)), key=lambda i: (-mass[i], i))
    nucleus = [i for rank, i in enumerate(order) if rank < top_k and sum(mass[j] for j in order[:rank]) < top_p]
    kept = sum(mass[i] for i in nucleus)
    drawn = [Q(0)] * len(mass)
    for first in nucleus:
        if history[-window:].count(first) < threshold:
            drawn[first] += mass[first] / kept
            continue
        for other in set(order) - {first}:
            drawn[other] += mass[first] / kept * mass[other] / (1 - mass[first])
    return drawn


@pytest.mark.parametrize("case", range(6))
def test_any_distribution(case):
    """Masses in 64ths, so that every sum that meets top_p is exact in float32 as well."""
    rng = torch.Generator().manual_seed(case)
    weights = 1 + torch.randint(0, 9, (7,), generator=rng)
    mass = [Q(int(w), 64) for w in weights] + [Q(64 - int(weights.sum()), 64)]
    mass = [mass[i] for i in torch.randperm(8, generator=rng).tolist()]
    history = torch.randint(0, 8, (8,), generator=rng).tolist()
    top_p, top_k = Q(int(torch.randint(8, 64, (1,), generator=rng)), 64), 3 + case
    window, threshold = 3 + case % 4, 1 + case % 2
    found = frequencies([math.log(p) for p in mass], 50_000, history=history, top_p=float(top_p) - 1e-4, top_k=top_k,
                        window=window, repeat_threshold=float(threshold))
    assert_drawn_as(found, exact(mass, history, top_p, top_k, window, threshold), 50_000)


def test_redraw_beside_a_certain_id():
    """exp(-200) is 0 in float32. The second draw once took the lowest id where all the mass lay on the first."""
    found = frequencies([200.0, 0.0, math.log(3), -math.inf], 50_000, history=[0])
    assert_drawn_as(found, [0, Q(1, 4), Q(3, 4), 0], 50_000)


# Single rules


def test_equal_ids_are_ranked_by_id():
    logits = torch.zeros(500, 300)
    drawn = ras_sample(logits, **knobs(500, 300, top_p=1.0, top_k=MAX_TOP_K))
    assert set(drawn.tolist()) == set(range(MAX_TOP_K))
    shuffled = torch.tensor([3.0, 1.0, 3.0, 1.0, 1.0, 3.0, 1.0]).repeat(500, 40)
    drawn = ras_sample(shuffled, **knobs(500, 280, top_p=1.0, top_k=5))
    assert set(drawn.tolist()) == {0, 2, 5, 7, 9}


@pytest.mark.parametrize("changed", [{"top_p": 0.0}, {"top_k": 0}])
def test_the_likeliest_id_is_always_kept(changed):
    assert ras_sample(torch.tensor([[0.0, 2.0, 1.0]] * 50), **knobs(50, 3, **changed)).tolist() == [1] * 50


def test_greedy_rows():
    """Exactly the largest score, the lowest id among equals, and never a redraw."""
    logits = torch.tensor([[1.0, 3.0, 3.0, -1.0], [1.0, 1.0 + 2**-23, 0.0, 1.0], [-5e-9, 0.0, -1e-9, -2.0]])
    many, setting = logits.repeat(100, 1), knobs(300, 4, history=[1, 1, 1], temperature=0.0)
    ids, redrawn = ras_draw(many, **setting)
    assert ids.tolist() == [1, 1, 1] * 100 and not redrawn.any()
    assert ras_sample(many, **knobs(300, 4, temperature=0.0, blocked=[1])).tolist() == [2, 0, 2] * 100


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 1e6])
def test_extreme_temperatures(temperature):
    drawn = ras_sample(torch.tensor([[0.0, 9.0, -9.0, 1.0]]).expand(4000, -1),
                       **knobs(4000, 4, temperature=temperature, top_p=1.0))
    counts = torch.bincount(drawn, minlength=4).tolist()
    assert counts == [0, 4000, 0, 0] if temperature < 1 else min(counts) > 900


@pytest.mark.parametrize("window", [0, 1, 3, 10])
def test_window_counts_the_newest(window):
    history = [0, 2, 2, 2, 2, 2, 2, 2, 2, 1]
    _, redrawn = ras_draw(torch.tensor([[9.0, 0.0, 0.0]] * 20), **knobs(20, 3, history=history, window=window))
    assert redrawn.tolist() == [window == 10] * 20


def test_no_token_is_no_repetition():
    _, redrawn = ras_draw(torch.zeros(50, 1), **knobs(50, 1))
    assert not redrawn.any()


def test_history_narrower_than_a_window_and_none_at_all():
    setting = knobs(9, 3)
    for width in (0, 1):
        setting["history"] = torch.zeros(9, width, dtype=torch.int32)
        _, redrawn = ras_draw(torch.tensor([[9.0, 0.0, 0.0]] * 9), **setting)
        assert redrawn.tolist() == [width == 1] * 9


def test_both_draws_are_always_made(monkeypatch):
    salts = []
    uniform = sampling._uniform
    monkeypatch.setattr(sampling, "_uniform", lambda key, salt, ids: salts.append(salt) or uniform(key, salt, ids))
    for history in ([], [0]):
        ras_sample(torch.tensor([[9.0, 0.0]]), **knobs(1, 2, history=history))
    assert salts == 2 * [sampling.FIRST_DRAW, sampling.SECOND_DRAW]


# The batch


@pytest.mark.parametrize("threads", [1, 2])
def test_row_is_blind_to_its_neighbours(threads):
    logits, setting = motley()
    torch.set_num_threads(threads)
    try:
        ids, redrawn = ras_draw(logits, **setting)
        assert 3 < redrawn.sum() < 20
        backwards = torch.arange(len(ids) - 1, -1, -1)
        some = {name: tensor[backwards] for name, tensor in setting.items()}
        assert torch.equal(ras_sample(logits[backwards], **some), ids[backwards])
        for row in range(len(ids)):
            alone = {name: tensor[row : row + 1] for name, tensor in setting.items()}
            assert torch.equal(ras_sample(logits[row : row + 1], **alone), ids[row : row + 1])
        twice = {name: torch.cat((tensor[3:], tensor)) for name, tensor in setting.items()}
        assert torch.equal(ras_sample(torch.cat((logits[3:], logits)), **twice), torch.cat((ids[3:], ids)))
    finally:
        torch.set_num_threads(1)


def test_nothing_given_is_changed():
    logits, setting = motley(4, 50)
    before = [tensor.clone() for tensor in (logits, *setting.values())]
    ras_sample(logits, **setting)
    assert all(map(torch.equal, before, (logits, *setting.values())))


def test_seed_and_step_decide():
    logits, setting = torch.zeros(400, 60), knobs(400, 60, top_p=1.0, top_k=60)
    ids = ras_sample(logits, **setting)
    assert torch.equal(ras_sample(logits, **setting), ids)
    for name in ("seed", "step"):
        other = ras_sample(logits, **{**setting, name: setting[name] + 1})
        assert (other == ids).float().mean() < 0.06


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_drawn_from_in_float32(dtype):
    logits, setting = motley(8)
    logits = logits.to(dtype)
    assert torch.equal(ras_sample(logits, **setting), ras_sample(logits.float(), **setting))


# Logits from which nothing can be drawn


@pytest.mark.parametrize("row, words", [
    ([math.nan, 1.0, 2.0], "row 1 has 1 NaN, 0 \\+inf and 2 usable"),
    ([-math.inf] * 3, "row 1 has 0 NaN, 0 \\+inf and 0 usable scores among its 3 allowed"),
    ([math.inf, 1.0, 2.0], "row 1 has 0 NaN, 1 \\+inf"),
])
def test_unusable_logits_are_named(row, words):
    logits = torch.tensor([[0.0, -math.inf, 1.0], row])
    with pytest.raises(ValueError, match=words + ".*fp32 or bf16"):
        sampling.check_logits(logits)
    assert sampling.drawable(logits, torch.zeros(2, 3, dtype=torch.bool)).tolist() == [True, False]


def test_what_is_left_when_ids_are_blocked_counts():
    logits = torch.tensor([[0.0, -math.inf], [math.nan, 0.0], [0.0, 1.0]])
    blocked = torch.tensor([[True, False], [True, False], [True, False]])
    assert sampling.drawable(logits, blocked).tolist() == [False, False, True]
    with pytest.raises(ValueError, match="row 0 has 0 NaN, 0 \\+inf and 0 usable scores among its 1 allowed"):
        sampling.check_logits(logits, blocked)


def test_good_logits_pass():
    sampling.check_logits(torch.tensor([[0.0, -math.inf], [-1e30, 3e38]]))
    sampling.check_logits(torch.zeros(0, 5))
