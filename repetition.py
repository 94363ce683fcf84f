"""When a decoder has fallen into a loop: the end of its ids repeats one block back to back.

``stop`` is asked after each token, ``trim_at_budget`` once where the tokens ran out, which asks for fewer
copies: a decode that found no end by itself is suspect. ``Guard`` gives the verdicts of ``stop`` for a
fraction of the work. The list must hold all that was drawn, silent runs included.
"""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """How many copies of a block make a loop; all lengths in tokens."""

    max_block: int      # the longest block that is looked for
    copies: int         # that a block of middling length needs
    min_tokens: int     # that the copies of a short block must fill
    max_tokens: int     # beyond which a long block needs no more copies
    min_copies: int     # that any block needs

    def span(self, block: int) -> int:
        """How many tokens of back-to-back copies of a ``block`` make a loop."""
        span = min(max(self.copies * block, self.min_tokens), self.max_tokens)
        return block * max(self.min_copies, -(-span // block))


# Of speech at 25 tokens per second: 2.56 s of one sound, 8 s of a block of one second.
STOP = Rule(max_block=128, copies=8, min_tokens=64, max_tokens=192, min_copies=4)
TRIM = Rule(max_block=256, copies=3, min_tokens=32, max_tokens=768, min_copies=3)


def stop(ids: list[int]) -> bool:
    """Whether ``ids`` end in a loop; if so, one copy of its block is left in the list."""
    return _trim(ids, STOP)


def trim_at_budget(ids: list[int]) -> bool:
    """As ``stop``, for a list that ended because its tokens ran out."""
    return _trim(ids, TRIM)


def _trim(ids: list[int], rule: Rule) -> bool:
    block = _looping_block(ids, rule)
    while block and ids[-block:] == ids[-2 * block : -block]:
        del ids[-block:]
    return block > 0


def _looping_block(ids: list[int], rule: Rule) -> int:
    """The length of the shortest block that loops at the end of ``ids``, or 0."""
    for block in range(1, min(rule.max_block, len(ids) - 1) + 1):
        start = len(ids) - rule.span(block)
        # The comparison of two ids spares most blocks that of their spans.
        if start >= 0 and ids[-1] == ids[-1 - block] and ids[start + block :] == ids[start:-block]:
            return block
    return 0


class Guard:
    """``stop`` after each token, from how long each block has been repeating so far.

    ``ids`` are those pushed, less what loops have lost.
    """

    def __init__(self, rule: Rule = STOP):
        self.ids: list[int] = []
        self._rule = rule
        self._matches = [0] + [rule.span(block) - block for block in range(1, rule.max_block + 1)]
        self._runs: dict[int, int] = {}     # block -> how many ids at the end equal the id one block earlier

    def push(self, token: int) -> bool:
        """Append a token; whether a loop is complete with it, which then has lost all copies but one."""
        earlier = reversed(self.ids[-self._rule.max_block :])
        runs = self._runs
        self._runs = {
            block: runs.get(block, 0) + 1 for block, other in enumerate(earlier, 1) if other == token
        }
        self.ids.append(token)
        for block, run in self._runs.items():       # shortest first
            if run >= self._matches[block]:
                del self.ids[len(self.ids) - run // block * block :]
                self._recount()
                return True
        return False

    def _recount(self) -> None:
        ids, self._runs = self.ids, {}
        for block in range(1, min(self._rule.max_block, len(ids) - 1) + 1):
            run = 0
            while run + block < len(ids) and ids[-1 - run] == ids[-1 - run - block]:
                run += 1
            if run:
                self._runs[block] = run
