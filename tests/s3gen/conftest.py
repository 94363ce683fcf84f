"""A tiny model and a voice that it has read, for all tests of S3Gen."""
from __future__ import annotations

import pytest

from kit.tiny import speechlike, tiny_state
from speechwright.s3gen.weights import build


@pytest.fixture(scope="session")
def tiny():
    return build(tiny_state())


@pytest.fixture(scope="session")
def tiny_voice(tiny):
    return tiny.embed_ref(speechlike(1.3), 24000)
