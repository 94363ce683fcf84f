"""Each target of the fuzzer for a moment: what it starts from, and what hypothesis makes of its decisions."""
from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz import arguments, graphs, headers, pickles, scripts, shapes

TARGETS = {target.__name__.split(".")[-1]: target for target in (arguments, graphs, headers, pickles, scripts, shapes)}
SLOW = {"pickles": 40, "scripts": 40, "shapes": 20}     # examples, where one takes several hundredths of a second


@pytest.mark.parametrize("name", TARGETS)
def test_what_the_fuzzer_starts_from(name):
    for seed in TARGETS[name].seeds():
        TARGETS[name].check(seed)


@pytest.mark.parametrize("name", TARGETS)
def test_a_moment_of_each_target(name):
    @settings(max_examples=SLOW.get(name, 150), suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 255), st.binary(max_size=8), st.binary(max_size=120))
    def check(kind: int, begin: bytes, rest: bytes) -> None:
        TARGETS[name].check(bytes([kind]) + begin + rest)

    check()
