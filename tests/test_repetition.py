"""The rule that ends loops: published vectors, the plain definition, and the guard beside it."""
from __future__ import annotations

import random

import pytest

from speechwright.repetition import STOP, TRIM, Guard, Rule, stop, trim_at_budget


def plain(ids: list[int], rule: Rule) -> int | None:
    """How many ids stay after a loop, by counting copies of every block; None for no loop."""
    for block in range(1, rule.max_block + 1):
        span = min(max(rule.copies * block, rule.min_tokens), rule.max_tokens)
        needed = max(rule.min_copies, -(-span // block))
        tail, copies = ids[len(ids) - block :], 1
        if len(ids) < needed * block:
            continue
        while len(ids) >= (copies + 1) * block and ids[-(copies + 1) * block : -copies * block] == tail:
            copies += 1
        if copies >= needed:
            return len(ids) - (copies - 1) * block
    return None


def planted(rng: random.Random) -> list[int]:
    """A few words over a small alphabet, and often a block said again and again, whole or cut, then perhaps more."""
    alphabet = rng.choice([1, 2, 3, 50, 6561])
    ids = [rng.randrange(alphabet) for _ in range(rng.randrange(60))]
    if rng.random() < 0.9:
        length = rng.choice([1, 1, 2, 3, 4, 5, 8, 11, 16, 25, 32, 48, 100, 128, 200])
        block = [rng.randrange(alphabet) for _ in range(length)]
        needed = rng.choice([STOP, TRIM]).span(len(block))
        ids += (block * (needed // len(block) + 2))[: needed + rng.choice([-1, 0, 0, 0, 1, len(block)])]
    if rng.random() < 0.2:
        ids += [rng.randrange(alphabet) for _ in range(rng.randrange(1, 4))]
    return ids


@pytest.mark.parametrize("part", range(4))
def test_verdicts_of_the_plain_definition(part):
    """10 000 lists in four parts; about half of them end in a loop."""
    rng, hits = random.Random(part), 0
    for _ in range(2500):
        ids = planted(rng)
        for rule, trim in [(STOP, stop), (TRIM, trim_at_budget)]:
            kept, found = plain(ids, rule), list(ids)
            assert trim(found) == (kept is not None)
            assert found == ids[:kept]
            hits += kept is not None
    assert 1000 < hits < 4000


def test_copies_that_each_block_needs():
    def copies(rule: Rule, *blocks: int) -> list[int]:
        return [rule.span(block) // block for block in blocks]

    assert copies(STOP, 1, 2, 3, 4, 5, 8, 16, 24, 25, 32, 48, 64, 128) == [64, 32, 22, 16, 13, 8, 8, 8, 8, 6, 4, 4, 4]
    assert copies(TRIM, 1, 2, 4, 8, 10, 11, 25, 256) == [32, 16, 8, 4, 4, 3, 3, 3]


BEFORE = [900, 901, 902]


@pytest.mark.parametrize("trim, block, copies, loops", [
    (stop, [7], 63, False), (stop, [7], 64, True), (stop, range(8), 7, False), (stop, range(8), 8, True),
    (stop, range(48), 3, False), (stop, range(48), 4, True), (stop, range(128), 4, True), (stop, range(129), 9, False),
    (trim_at_budget, range(11), 3, True), (trim_at_budget, range(10), 3, False), (trim_at_budget, range(10), 4, True),
    (trim_at_budget, [7], 31, False), (trim_at_budget, [7], 32, True), (trim_at_budget, range(256), 3, True),
])
def test_published_vectors(trim, block, copies, loops):
    ids = BEFORE + copies * list(block)
    assert trim(ids) == loops
    assert ids == BEFORE + (1 if loops else copies) * list(block)


@pytest.mark.parametrize("ids", [[], [5], [5, 5], list(range(300))])
def test_nothing_to_find(ids):
    kept = list(ids)
    assert not stop(kept) and not trim_at_budget(kept) and kept == ids


def test_shortest_block_wins():
    ids = 40 * [1, 2, 1, 2]
    assert stop(ids) and ids == [1, 2]


def test_list_is_trimmed_in_place():
    ids = 64 * [3]
    same = ids
    assert stop(ids) and same is ids and same == [3]


@pytest.mark.parametrize("part", range(4))
def test_guard_says_what_stop_says(part):
    """After each token, and on after a loop, which leaves a shorter list behind."""
    rng, hits = random.Random(100 + part), 0
    guard, ids = Guard(), []
    for _ in range(30):
        for token in planted(rng):
            ids.append(token)
            verdict = stop(ids)
            assert guard.push(token) == verdict
            hits += verdict
            assert not verdict or guard.ids == ids
        assert guard.ids == ids
    assert hits > 10


def test_guard_of_another_rule():
    rule = Rule(max_block=3, copies=2, min_tokens=1, max_tokens=6, min_copies=2)
    guard = Guard(rule)
    assert [guard.push(token) for token in [1, 2, 3, 1, 2]] == [False] * 5
    assert guard.push(3) and guard.ids == [1, 2, 3]
    assert guard.push(3) and guard.ids == [1, 2, 3]


class Watched(list):
    """A list that remembers the most that was ever read from it at once."""

    most = 0

    def __getitem__(self, where):
        found = super().__getitem__(where)
        self.most = max(self.most, len(found) if isinstance(where, slice) else 1)
        return found


def test_guard_looks_back_no_further_than_its_blocks():
    """The work of a token must not grow with those before it."""
    guard = Guard()
    guard.ids = Watched()
    assert not any(guard.push(token) for token in range(2000))
    assert guard.ids.most == STOP.max_block
