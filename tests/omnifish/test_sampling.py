"""The schedule and the draw: the published numbers, and the ids that torch.multinomial draws."""
from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from speechwright.omnifish.sampling import draw, race, schedule


@pytest.mark.parametrize("steps, counts", {
    1: "16", 4: "2 3 5 6", 6: "1 2 2 3 4 4", 8: "1 1 1 2 3 2 3 3", 12: "1 0 1 1 1 1 2 1 2 2 2 2",
    16: "1 0 0 1 0 1 1 1 1 2 1 1 2 1 2 1",
}.items())
def test_published_schedules(steps, counts):
    assert schedule(16, steps) == [int(count) for count in counts.split()]


@pytest.mark.parametrize("block", [1, 2, 7, 16, 33])
@pytest.mark.parametrize("steps", [1, 2, 3, 6, 50])
def test_every_frame_is_decided_once(block, steps):
    counts = schedule(block, steps)
    assert len(counts) == steps and sum(counts) == block and min(counts) >= 0


def scores(seed: int, rows: int = 50) -> Tensor:
    return 3 * torch.randn(16, rows, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_draws_are_those_of_multinomial(temperature):
    """From the same generator, call after call: so that a seed speaks as it does in the published module."""
    ours, theirs = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    for number in range(30):
        given = scores(number)
        given[:, 7] = -math.inf
        chances = (given / temperature).softmax(dim=-1)
        ids, chance = draw(given, temperature, race(16, 50, ours))
        assert torch.equal(ids, torch.multinomial(chances, 1, generator=theirs)[:, 0])
        assert torch.equal(chance, chances.gather(1, ids[:, None])[:, 0]) and 7 not in ids
    assert torch.equal(ours.get_state(), theirs.get_state())


def test_draws_are_by_probability():
    given, rng = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(20_000, 4), torch.Generator().manual_seed(0)
    ids, _ = draw(given, 1.0, race(20_000, 4, rng))
    assert (ids.bincount() / 20_000 - given[0].exp()).abs().max() < 0.01


def test_the_likeliest_by_their_scores():
    """At a temperature of 0 the probabilities are all 0 or 1; which of two near scores is higher, they do not tell."""
    given = torch.zeros(3, 4100)
    given[0, 4000], given[1, [5, 6]], given[2] = 9, 1, torch.arange(4100) * 1e-14
    ids, chance = draw(given, 0.0, None)
    assert ids.tolist() == [4000, 5, 4099] and chance[0] == 1 and chance[1] == 0.5 and chance[2] < 0.001
