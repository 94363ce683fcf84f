"""How the time that something takes grows with the size of what it is given."""
from __future__ import annotations

import gc
import time
from collections.abc import Callable

SIZE, TIMES = 10_000, 10
MOST = 15               # times as long for ten times as much; what is quadratic takes a hundred
SLACK_S = 0.02          # for what is too quick to be measured
TRIALS = 5              # as others use the machine


def grows_in_proportion(run: Callable[[str], object], unit: str) -> bool:
    """Whether ten times the text takes ``run`` about ten times the processor time."""
    short, long = unit * (SIZE // len(unit)), unit * (TIMES * SIZE // len(unit))
    return any(_seconds(run, long) <= MOST * _seconds(run, short) + SLACK_S for _ in range(TRIALS))


def _seconds(run: Callable[[str], object], text: str) -> float:
    # The collector looks through all that other tests have left, the more often the more is made.
    gc.disable()
    try:
        start = time.process_time()
        run(text)
        return time.process_time() - start
    finally:
        gc.enable()
