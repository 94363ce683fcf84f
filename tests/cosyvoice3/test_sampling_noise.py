"""The numbers behind the draws of repetition-aware sampling, and the seeds behind those."""
from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from speechwright.cosyvoice3 import sampling
from speechwright.cosyvoice3.sampling import hashed_uniform

SEEDS = [0, 1, 2**31, 2**32, 2**63, 2**64 - 1]


def test_uniform_is_inside_for_every_hash():
    """With 24 bits and a half the largest became 1.0 in float32, and its noise infinite."""
    upper = torch.arange(2**23) - 2**22
    unit = sampling._unit(upper << 41)
    assert unit[0] == 2**-24 and unit[-1] == 1 - 2**-24
    assert torch.equal(unit.diff(), torch.full((2**23 - 1,), 2.0**-23))
    assert torch.equal(sampling._unit((upper << 41) | (2**41 - 1)), unit)
    assert (-unit.log()).log().isfinite().all()


def hash_in_python(seed: int, step: int, salt: int, j: int) -> int:
    def signed(x: int) -> int:
        return (x + 2**63) % 2**64 - 2**63

    def mix(x: int) -> int:
        for shift, factor in zip((30, 27), sampling.MULTIPLIERS):
            x = signed((x ^ (x >> shift)) * factor)
        return x

    return mix(signed(mix(signed(seed * sampling.SEED_STEP + step)) + salt * sampling.SALT_STEP + j)) >> 41


@pytest.mark.parametrize("seed", SEEDS)
def test_hash_wraps_as_integers_do(seed):
    folded = sampling.fold_seed(seed)
    for step, salt in [(0, 1), (7, 2), (2**40, 0), (2**63 - 1, 2**70)]:
        found = hashed_uniform(torch.tensor([folded]), torch.tensor([step]), salt, 9)[0]
        assert (found * 2**23 - 2**22 - 0.5).tolist() == [hash_in_python(folded, step, salt, j) for j in range(9)]


def test_hash_stays_as_it_is():
    """A seed is a promise: the next release says the same with it."""
    drawn = hashed_uniform(torch.tensor([0, 42, -1]), torch.tensor([0, 7, 10**6]), 1, 3) * 2**23 - 0.5
    assert drawn.long().tolist() == [
        [780041, 7061759, 5065163], [7363115, 5214200, 1259666], [3382551, 3850861, 4186459]]


def test_uniform_depends_on_nothing_else():
    seed, step = torch.tensor([5, -7, 5]), torch.tensor([0, 3, 1])
    whole = hashed_uniform(seed, step, 2, 100)
    assert whole.shape == (3, 100) and whole.dtype == torch.float32
    assert torch.equal(hashed_uniform(seed, step, 2, 33), whole[:, :33])
    assert torch.equal(hashed_uniform(seed[1:], step[1:], 2, 100), whole[1:])
    assert hashed_uniform(seed, step, 2, 0).shape == (3, 0)
    assert hashed_uniform(seed[:0], step[:0], 2, 4).shape == (0, 4)


def test_uniform_is_uniform():
    n = 400_000
    u = hashed_uniform(torch.tensor([3]), torch.tensor([4]), 1, n)[0].double()
    assert abs(u.mean() - 1 / 2) < 3 * math.sqrt(1 / 12 / n)
    assert abs(u.var() - 1 / 12) < 3 * math.sqrt(1 / 180 / n)
    for values in (u, u * 256 % 1, u * 2**15 % 1):          # upper, middle and lower bits
        counts = torch.histc(values, 64, 0, 1)
        assert ((counts - n / 64).square() / (n / 64)).sum() < 63 + 4 * math.sqrt(2 * 63)


def test_neighbours_are_unrelated():
    """Seeds, steps, salts and ids that differ by one, or in one far bit only."""
    n = 100_000

    def unrelated(a: Tensor, b: Tensor) -> bool:
        return abs(12 * float(((a.double() - 0.5) * (b.double() - 0.5)).mean())) < 3 / math.sqrt(a.numel())

    keys = [(0, 0, 1), (1, 0, 1), (0, 1, 1), (0, 0, 2), (2**32, 0, 1), (-(2**63), 0, 1), (0, 2**20, 1)]
    first, *others = (hashed_uniform(torch.tensor([seed]), torch.tensor([step]), salt, n) for seed, step, salt in keys)
    assert all(unrelated(first, other) for other in others)
    assert unrelated(first[:, 1:], first[:, :-1])
    count, none = torch.arange(n), torch.zeros(n, dtype=torch.int64)
    for seeds, steps in [(count, none), (none, count)]:
        u = hashed_uniform(seeds, steps, 1, 2)
        assert unrelated(u[1:, 0], u[:-1, 0]) and unrelated(u[:, 0], u[:, 1])


# Seeds


def test_all_bits_of_a_seed_count():
    seeds = [*SEEDS, 7, 2**32 + 7, 2**33 + 7, 2**63 + 7]
    folded = [sampling.fold_seed(seed) for seed in seeds]
    assert all(-(2**63) <= value < 2**63 and value % 2**64 == seed for value, seed in zip(folded, seeds))
    rows = hashed_uniform(torch.tensor(folded), torch.zeros(len(seeds), dtype=torch.int64), 1, 8)
    assert len({tuple(row) for row in rows.tolist()}) == len(seeds)


def test_pieces_add_to_the_seed_and_retries_go_elsewhere():
    """A retry that took the next seed gave the take that the user's next seed gave again."""
    assert sampling.fold_seed(2**64 - 1, piece=1) == sampling.fold_seed(0) == 0
    assert sampling.fold_seed(5, piece=3) == sampling.fold_seed(8) == 8
    takes = {sampling.fold_seed(seed, piece, retry) for seed in range(10) for piece in range(1) for retry in range(3)}
    assert len(takes) == 30
    assert min(abs(sampling.fold_seed(0, 0, retry)) for retry in (1, 2, 3)) > 2**40
