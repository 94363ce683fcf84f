"""Checkpoint files: what is read equals what was saved, and what cannot be read is said in words."""
from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
import warnings
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from kit.files import (
    BROKEN_FILES,
    LYING_HEADERS,
    good_safetensors,
    pickles_with_code,
    saved_by_torch,
    some_tensors,
    with_header,
)
from speechwright import checkpoint as reader
from speechwright import pickled
from speechwright.checkpoint import open_checkpoint

FORMATS = {
    "safetensors": good_safetensors(),
    "torch": saved_by_torch(some_tensors()),
    "legacy": saved_by_torch(some_tensors(), legacy=True),
}


@pytest.fixture(params=FORMATS)
def good_file(request, tmp_path) -> Path:
    path = tmp_path / "model.weights"
    path.write_bytes(FORMATS[request.param])
    return path


def assert_same(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name
        assert found[name].is_contiguous() and not found[name].requires_grad


def test_what_was_saved_is_read(good_file):
    expected = some_tensors()
    found = open_checkpoint(good_file)
    assert found.shapes == {name: tuple(tensor.shape) for name, tensor in expected.items()}
    assert found.dtypes == {name: tensor.dtype for name, tensor in expected.items()}
    assert_same(found.read(), expected)


@pytest.mark.parametrize("dtype", sorted(reader.DTYPES))
def test_every_dtype_of_the_format_survives(dtype, tmp_path):
    raw = torch.arange(64, dtype=torch.uint8)
    tensor = raw % 2 == 0 if dtype == "BOOL" else raw.view(reader.DTYPES[dtype])
    safetensors.torch.save_file({"a": tensor, "b": tensor[:1].clone()}, tmp_path / "a.safetensors")
    found = open_checkpoint(tmp_path / "a.safetensors").read()
    assert found["a"].dtype == tensor.dtype
    assert torch.equal(found["a"].view(torch.uint8), tensor.view(torch.uint8))
    assert torch.equal(found["b"].view(torch.uint8), tensor[:1].view(torch.uint8))


def test_a_selection_by_rule_or_name(good_file):
    found, expected = open_checkpoint(good_file), some_tensors()
    by_rule = found.read(lambda name: name.startswith("net."))
    assert_same(by_rule, {name: expected[name] for name in ("net.weight", "net.bias")})
    by_name = found.read(["ids", "scale", "ids"])
    assert_same(by_name, {name: expected[name] for name in ("ids", "scale")})
    assert list(by_name) == ["ids", "scale"]
    assert found.read([]) == found.read(lambda name: False) == {}


def test_names_that_the_file_lacks_are_told(good_file):
    with pytest.raises(ValueError, match=r"model\.weights: .*not in the file: 'x0', .*'x4' and 2 more"):
        open_checkpoint(good_file).read(["ids", *(f"x{index}" for index in range(7))])


def test_two_reads_share_nothing(good_file):
    found = open_checkpoint(good_file)
    first = found.read()
    for tensor in first.values():
        tensor.zero_()
    assert_same(found.read(), some_tensors())


def test_the_suffix_is_not_believed(tmp_path):
    """Files get renamed, and a pickle called .safetensors met an error about an impossible header length."""
    for name, content in (("a.safetensors", FORMATS["torch"]), ("b.safetensors", FORMATS["legacy"]),
                          ("c.pt", FORMATS["safetensors"]), ("d", FORMATS["safetensors"])):
        (tmp_path / name).write_bytes(content)
        assert_same(open_checkpoint(str(tmp_path / name)).read(), some_tensors())


def test_a_header_of_640_bytes_is_no_pickle(tmp_path):
    """640 is 80 02 in bytes, with which a pickle starts, too."""
    raw = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'.ljust(640)
    (tmp_path / "a.safetensors").write_bytes(with_header(raw, bytes(4)))
    assert open_checkpoint(tmp_path / "a.safetensors").read()["a"].tolist() == [0.0]


@pytest.mark.parametrize("wrapper", ["state_dict", "model"])
@pytest.mark.parametrize("legacy", [False, True])
def test_weights_inside_a_training_state_are_found(wrapper, legacy, tmp_path):
    state = {"epoch": 3, wrapper: {**some_tensors(), "version": 2}, "optimizer": {"lr": 0.1}}
    (tmp_path / "a.pt").write_bytes(saved_by_torch(state, legacy))
    assert_same(open_checkpoint(tmp_path / "a.pt").read(), some_tensors())


def test_counters_beside_tensors_are_left_out(tmp_path):
    state = {**some_tensors(), "epoch": 3, "step": 1000, "note": "x", 7: torch.zeros(1), "state_dict": None}
    (tmp_path / "a.pt").write_bytes(saved_by_torch(state))
    assert_same(open_checkpoint(tmp_path / "a.pt").read(), some_tensors())


def test_views_parameters_and_tied_tensors_become_plain_ones(tmp_path):
    weight = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    state = {"a": weight, "tied": weight, "turned": weight.T, "part": weight[1:3]}
    (tmp_path / "a.pt").write_bytes(saved_by_torch({**state, "parameter": torch.nn.Parameter(weight)}))
    found = open_checkpoint(tmp_path / "a.pt").read()
    assert_same(found, {**state, "parameter": weight})
    found["a"].zero_()
    assert torch.equal(found["tied"], weight)


def test_a_torch_file_is_read_in_groups(tmp_path, monkeypatch):
    """All of a mapped file counts as used memory until the mapping goes, so it goes now and then."""
    (tmp_path / "a.pt").write_bytes(FORMATS["torch"])
    found = open_checkpoint(tmp_path / "a.pt")
    load, loads = reader._torch_tensors, []
    monkeypatch.setattr(reader, "MAPPED_BYTES", 200_000)
    monkeypatch.setattr(reader, "_torch_tensors", lambda path: loads.append(path) or load(path))
    assert_same(found.read(), some_tensors())
    assert len(loads) == 2
    assert found.read([]) == {} and len(loads) == 2


def test_short_reads_are_continued(tmp_path, monkeypatch):
    """The system hands out 2 GB at a time at most, network drives less."""
    (tmp_path / "a.safetensors").write_bytes(FORMATS["safetensors"])

    class Slow:
        def __init__(self, file): self.file = file
        def __enter__(self): return self
        def __exit__(self, *error): self.file.close()
        def __getattr__(self, name): return getattr(self.file, name)
        def readinto(self, memory): return self.file.readinto(memory[:1009])

    monkeypatch.setattr(reader, "opened", lambda path, opened=reader.opened: Slow(opened(path)))
    assert_same(open_checkpoint(tmp_path / "a.safetensors").read(), some_tensors())


def test_only_what_is_asked_for_is_read(tmp_path):
    """The file claims 16 GB, more than the tests may use; its data is a hole in the disk."""
    path, large = tmp_path / "a.safetensors", 2**34
    content = with_header({"a": {"dtype": "U8", "shape": [large], "data_offsets": [0, large]},
                           "b": {"dtype": "I16", "shape": [2], "data_offsets": [large, large + 4]}})
    path.write_bytes(content)
    os.truncate(path, len(content) + large + 4)
    found = open_checkpoint(path)
    assert found.shapes == {"a": (large,), "b": (2,)}
    assert found.read(["b"])["b"].tolist() == [0, 0]


# A process of its own, since whatever ran before decides what C's allocator gives back, and when.
MEASURE_MEMORY = """
import gc, psutil, sys, types
package = types.ModuleType("speechwright")
package.__path__ = [sys.argv[1]]
sys.modules["speechwright"] = package
import torch
from speechwright.checkpoint import open_checkpoint
rss = lambda: psutil.Process().memory_info().rss >> 20
found = open_checkpoint(sys.argv[2])
del found.read()["layer0"]
before = rss()
tensors = found.read()
taken = rss() - before
kept = tensors.pop("layer7")
del tensors
gc.collect()
print(taken, rss() - before, kept.numel())
"""


@pytest.mark.parametrize("kind", ["safetensors", "torch"])
def test_memory_goes_with_the_tensors(kind, tmp_path):
    """C's allocator kept what a model had taken: after a few large blocks it no longer gave any back."""
    state = {f"layer{index}": torch.zeros(2**18) for index in range(64)}                # 64 MB
    (tmp_path / "a").write_bytes(saved_by_torch(state) if kind == "torch" else safetensors.torch.save(state))
    command = [sys.executable, "-c", MEASURE_MEMORY, str(Path(reader.__file__).parent), str(tmp_path / "a")]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    taken, left, kept = map(int, output.split())
    assert 60 <= taken <= 72 and left <= 6, f"{taken} MB taken, {left} MB left"
    assert kept == 2**18


@pytest.mark.parametrize("name", BROKEN_FILES)
def test_broken_files_are_one_error_in_words(name, tmp_path):
    make, text = BROKEN_FILES[name]
    path = tmp_path / "模型 ä.safetensors"
    path.write_bytes(make(FORMATS["safetensors"]))
    with pytest.raises(ValueError, match=text) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and len(message) < 700 and "weights_only" not in message


@pytest.mark.parametrize("name", LYING_HEADERS)
def test_lying_headers_are_refused_before_anything_is_allocated(name, tmp_path):
    content, text = LYING_HEADERS[name]
    (tmp_path / "a.safetensors").write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=text) as caught:
            open_checkpoint(tmp_path / "a.safetensors")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20 + 20 * len(content)
    assert str(caught.value).startswith(str(tmp_path / "a.safetensors")) and len(str(caught.value)) < 700


@pytest.mark.parametrize("looked_through", [True, False])
@pytest.mark.parametrize("name", pickles_with_code(Path("marker")))
def test_code_in_a_pickle_does_not_run(name, looked_through, tmp_path, monkeypatch):
    """torch's own text goes on to explain how to run it all the same; ours does not. What passed us by would still
    be handed to torch as tensors alone."""
    if not looked_through:
        monkeypatch.setattr(pickled, "check", lambda *_: None)
    content, text = pickles_with_code(tmp_path / "marker")[name]
    for suffix in ("pt", "safetensors"):
        path = tmp_path / f"a.{suffix}"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=text) as caught:
            open_checkpoint(path)
        assert str(caught.value).startswith(f"{path}: ") and "weights_only" not in str(caught.value)
    assert not (tmp_path / "marker").exists()


def test_paths_that_lead_nowhere(tmp_path):
    (tmp_path / "dangling").symlink_to("gone.pt")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_bytes(b"x")
    for name, text in (("gone", "no such file"), ("dangling", "a link to gone.pt, which leads nowhere"),
                       ("loop", "a link to loop, which leads nowhere"), ("file/inside", "no such file"),
                       ("loop/inside", "no such file"), ("x" * 999, "no such file")):
        with pytest.raises(FileNotFoundError, match=text) as caught:
            open_checkpoint(tmp_path / name)
        assert str(caught.value).startswith(f"{tmp_path / name}: ")


def test_links_are_followed(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(FORMATS["safetensors"])
    (tmp_path / "link").symlink_to("a.safetensors")
    (tmp_path / "folder").symlink_to(tmp_path)
    assert_same(open_checkpoint(tmp_path / "folder" / "link").read(), some_tensors())


def test_folders_and_pipes_are_no_files(tmp_path):
    """Opening a pipe waits for someone to write to it, for ever."""
    os.mkfifo(tmp_path / "pipe")
    for path, text in ((tmp_path, "this is a folder"), (tmp_path / "pipe", "a device or a pipe")):
        with pytest.raises(ValueError, match=text):
            open_checkpoint(path)


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    """Permissions do not bind an administrator, so the refusal is played."""
    (tmp_path / "a.pt").write_bytes(FORMATS["torch"])

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(reader, "open", refuse, raising=False)
    with pytest.raises(PermissionError, match=r"a\.pt: this file may not be read; change its permissions"):
        open_checkpoint(tmp_path / "a.pt")


def test_a_file_that_changes_meanwhile(good_file):
    found = open_checkpoint(good_file)
    expected_text = "the file ended while it was read|is cut or damaged|changed while it was read"
    good_file.write_bytes(good_file.read_bytes()[:-2000])
    with pytest.raises(ValueError, match=expected_text):
        found.read()
    good_file.unlink()
    with pytest.raises(FileNotFoundError):
        found.read()


def test_another_torch_file_in_its_place(tmp_path):
    path = tmp_path / "a.pt"
    path.write_bytes(FORMATS["torch"])
    found = open_checkpoint(path)
    path.write_bytes(saved_by_torch({"ids": torch.zeros(3)}))
    with pytest.raises(ValueError, match="changed while it was read"):
        found.read(["ids"])
    with pytest.raises(ValueError, match="changed while it was read"):
        found.read(["scale"])


@given(kind=st.sampled_from(sorted(FORMATS)), data=st.data())
def test_damage_anywhere_is_an_error_of_ours_or_none(kind, data, tmp_path_factory):
    """A flipped byte in the weights goes unseen; anywhere else it has to end in words, not in a traceback."""
    good = bytearray(FORMATS[kind])
    ends = st.one_of(st.integers(0, 2000), st.integers(len(good) - 2000, len(good) - 1))
    for place in data.draw(st.lists(ends, min_size=1, max_size=3)):
        good[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damage") / "a"
    path.write_bytes(good[:data.draw(st.one_of(st.just(len(good)), ends))])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")                 # torch warns of odd pickle protocols
            open_checkpoint(path).read()
    except ValueError as error:
        assert str(error).startswith(f"{path}: ")
