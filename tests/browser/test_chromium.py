"""Which browser is taken, and what is said where there is none."""
from __future__ import annotations

import sys
from pathlib import Path

import pytest

from browser import chromium


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without a browser; the folder is its PATH."""
    monkeypatch.delenv(chromium.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(chromium, "PLACES", {})
    return tmp_path


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_none_is_told_with_the_way_to_get_one(bare: Path):
    with pytest.raises(chromium.NoChromium, match="apt-get install chromium"):
        chromium.find()


def test_chromium_goes_before_other_browsers(bare: Path):
    chrome = program(bare / "google-chrome")
    assert chromium.find() == chrome
    assert chromium.find() != program(bare / "chromium") == chromium.find()


def test_one_that_is_named_goes_first(bare: Path, monkeypatch: pytest.MonkeyPatch):
    program(bare / "chromium")
    own = program(bare / "elsewhere" / "mine")
    monkeypatch.setenv(chromium.VARIABLE, str(own))
    assert chromium.find() == own
    monkeypatch.setenv(chromium.VARIABLE, str(own) + "x")
    with pytest.raises(chromium.NoChromium, match="minex, which is no file; correct or unset it"):
        chromium.find()


def test_the_newest_of_playwright_is_found(bare: Path, monkeypatch: pytest.MonkeyPatch):
    program(bare / "chromium-1000" / "chrome")
    newer = program(bare / "chromium-1001" / "chrome")
    monkeypatch.setattr(chromium, "PLACES", {sys.platform: (str(bare / "chromium-*" / "chrome"),)})
    assert chromium.find() == newer


def test_only_root_has_it_installed(bare: Path, monkeypatch: pytest.MonkeyPatch):
    program(bare / "apt-get")
    monkeypatch.setattr(chromium, "is_root", lambda: False)
    with pytest.raises(chromium.NoChromium, match="only root"):
        chromium.install()


def test_an_installation_that_fails_says_why(bare: Path, monkeypatch: pytest.MonkeyPatch):
    (bare / "apt-get").write_text(f"#!{sys.executable}\nprint('no such package')\nraise SystemExit(100)\n")
    (bare / "apt-get").chmod(0o755)
    monkeypatch.setattr(chromium, "is_root", lambda: True)
    with pytest.raises(chromium.NoChromium, match=r"apt-get update -qq failed:\nno such package"):
        chromium.install()
