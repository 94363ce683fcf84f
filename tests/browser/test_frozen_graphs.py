"""Graphs that users have saved from the editor open whole, and queue what they queued."""
from __future__ import annotations

import json
from pathlib import Path

import pytest

from browser.frontend import Frontend
from browser.queued import with_defaults, without_titles
from kit import frozen

UI = frozen.files("ui")


@pytest.mark.parametrize("path", UI, ids=map(frozen.label, UI))
def test_opens_and_queues_as_it_was_saved(frontend: Frontend, comfy, path: Path):
    """Widget values stand in a file by position: an input put before another one gave it that one's value."""
    frontend.drop(path.read_text(encoding="utf-8"), path.stem)
    assert frontend.missing() == [] and frontend.marked() == []
    graph = json.loads((path.parents[1] / "api" / path.name).read_text(encoding="utf-8"))
    assert without_titles(frontend.prompt()) == with_defaults(graph, comfy)
