"""Converted weights are kept by content, and their absence is no obstacle."""
from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from kit.files import some_tensors
from speechwright import converted
from speechwright.converted import cached

CONTENT = b"a model of another kind"
NAME = f"{hashlib.sha256(CONTENT).hexdigest()}.safetensors"


class Converter:
    """Gives a few tensors, and counts how often it is asked."""

    def __init__(self):
        self.paths: list[Path] = []

    def __call__(self, path: Path) -> dict[str, Tensor]:
        self.paths.append(path)
        return some_tensors()


@pytest.fixture
def source(tmp_path) -> Path:
    path = tmp_path / "模型.onnx"
    path.write_bytes(CONTENT)
    return path


def assert_same(found: dict[str, Tensor]) -> None:
    expected = some_tensors()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and torch.equal(found[name], value), name


def test_a_file_is_converted_once(source, tmp_path):
    convert, folder = Converter(), tmp_path / "user" / "cache"
    for _ in range(3):
        assert_same(cached(source, folder, convert))
    assert convert.paths == [source]
    assert os.listdir(folder) == [NAME]
    assert_same(safetensors.torch.load_file(folder / NAME))


def test_the_content_decides_and_not_the_name(source, tmp_path):
    convert = Converter()
    cached(str(source), str(tmp_path / "cache"), convert)
    moved = source.rename(tmp_path / "b.onnx")
    cached(moved, tmp_path / "cache", convert)
    assert len(convert.paths) == 1
    moved.write_bytes(CONTENT + b"!")
    cached(moved, tmp_path / "cache", convert)
    assert len(convert.paths) == 2 and len(os.listdir(tmp_path / "cache")) == 2


def test_weights_lie_on_whole_words(source, tmp_path):
    """Readers that map a file warn of weights that do not, or copy them."""
    cached(source, tmp_path, Converter())
    assert int.from_bytes((tmp_path / NAME).read_bytes()[:8], "little") % 8 == 0


def test_tensors_in_any_layout_are_written(source, tmp_path):
    weight = torch.randn(4, 6, 2, generator=torch.Generator().manual_seed(0))
    state = {"turned": weight.transpose(0, 2), "part": weight[:, 1::2], "tied": weight, "again": weight}
    cached(source, tmp_path, lambda path: state)
    for name, value in safetensors.torch.load_file(tmp_path / NAME).items():
        assert torch.equal(value, state[name])


@pytest.mark.parametrize("damage", [lambda good: good[:-1], lambda good: b"", lambda good: b"<html>"])
def test_a_damaged_copy_is_made_again(damage, source, tmp_path, caplog):
    convert = Converter()
    cached(source, tmp_path, convert)
    good = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(damage(good))
    assert_same(cached(source, tmp_path, convert))
    assert f"Converting {source.name} again: {tmp_path / NAME}" in caplog.text
    assert (tmp_path / NAME).read_bytes() == good


def test_where_nothing_can_be_kept_it_is_converted_each_time(source, tmp_path, caplog):
    (tmp_path / "file").write_bytes(b"")
    convert = Converter()
    for _ in range(2):
        assert_same(cached(source, tmp_path / "file" / "cache", convert))
    assert len(convert.paths) == 2
    assert "What was converted from 模型.onnx is not kept, so it is converted each time: " in caplog.text


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_nothing(failure, source, tmp_path, monkeypatch):
    def fail(descriptor):
        raise failure

    monkeypatch.setattr(converted.os, "fsync", fail)
    if isinstance(failure, OSError):
        assert_same(cached(source, tmp_path / "cache", Converter()))
    else:
        with pytest.raises(KeyboardInterrupt):
            cached(source, tmp_path / "cache", Converter())
    assert os.listdir(tmp_path / "cache") == []


def test_what_cannot_be_converted_is_the_converters_error(source, tmp_path):
    def refuse(path):
        raise ValueError(f"{path}: no")

    with pytest.raises(ValueError, match="模型.onnx: no"):
        cached(source, tmp_path / "cache", refuse)
    assert not (tmp_path / "cache").exists()
    with pytest.raises(FileNotFoundError, match="gone.onnx: there is no such file"):
        cached(tmp_path / "gone.onnx", tmp_path / "cache", Converter())
