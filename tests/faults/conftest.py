"""One set of calls for all tests of a file: models that have run before are what users have."""
from __future__ import annotations

import pytest

from kit.calls import calls, with_files


@pytest.fixture(scope="module")
def scene(comfyui_folder):
    with with_files(calls()) as found:
        yield found
