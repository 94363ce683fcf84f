"""Graphs that users have saved: as they were, and as good as on their first day."""
from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kit import frozen
from kit.checkout import read

API = frozen.files("api")


def test_a_frozen_file_is_never_edited_or_taken_away():
    """A change that breaks one is to be mended in the nodes: the file stands for graphs on other people's disks."""
    assert {frozen.label(path): frozen.hash_of(path) for path in frozen.files()} == frozen.listed()


def test_every_workflow_of_this_version_is_frozen():
    version = re.search(r'^version = "(.*)"$', read("pyproject.toml"), re.MULTILINE)[1]
    for kind, folder in frozen.KINDS.items():
        kept = {path.name for path in (frozen.FROZEN / version / kind).glob("*.json")}
        assert {path.name for path in folder.glob("*.json")} <= kept, "`python tests/run.py --generate` adds them"


def test_freezing_adds_and_never_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = tmp_path / "api"
    source.mkdir()
    (source / "one.json").write_text("1")
    monkeypatch.setattr(frozen, "FROZEN", tmp_path / "frozen")
    monkeypatch.setattr(frozen, "HASHES", tmp_path / "frozen" / "hashes.txt")
    monkeypatch.setattr(frozen, "KINDS", {"api": source})
    frozen.freeze("0.1.0")
    before = frozen.listed()
    (source / "one.json").write_text("changed")
    (source / "two.json").write_text("2")
    frozen.freeze("0.1.0")
    assert [path.read_text() for path in frozen.files()] == ["1", "2"]
    assert before.items() < frozen.listed().items()
    assert frozen.listed() == {frozen.label(path): frozen.hash_of(path) for path in frozen.files()}
    frozen.freeze("0.10.0")
    frozen.freeze("0.9.0")
    versions = [frozen.label(path).split("/")[0] for path in frozen.files()]
    assert versions == ["0.1.0"] * 2 + ["0.9.0"] * 2 + ["0.10.0"] * 2


@pytest.mark.parametrize("path", API, ids=map(frozen.label, API))
def test_runs_as_it_was_saved(comfy, path: Path):
    run = comfy.queue(json.loads(path.read_text(encoding="utf-8")))
    assert run.completed, run.history["status"]
    assert run.files and all(comfy.path(file).stat().st_size > 1000 for file in run.files)
