"""The published tokenizers of both versions, for all tests of CosyVoice."""
from __future__ import annotations

import pytest

from kit.vocabulary import published


@pytest.fixture(scope="module")
def version2(comfyui_folder):
    return published(comfyui_folder, 2)


@pytest.fixture(scope="module")
def version3(comfyui_folder):
    return published(comfyui_folder, 3)
