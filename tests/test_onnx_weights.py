"""ONNX files: what is read is what was written, and what cannot be read is said in words."""
from __future__ import annotations

import gzip
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kit.files import BROKEN_FILES, good_safetensors, saved_by_torch, some_tensors
from kit.onnx_files import FORMS, constant, field, joined, model, node, tensor, varint, write
from speechwright import checkpoint, onnx_weights
from speechwright.onnx_weights import MAX_ALIASES, Node, OnnxFile, open_onnx

WEIGHT = torch.arange(6, dtype=torch.float32).reshape(2, 3) - 2.5


def good_file() -> bytes:
    """A little of everything, 500 bytes long."""
    nodes = [node("Conv", "/conv/Conv", ["x", "weight", ""], ["y"]), node("Identity", "", ["weight"], ["alias"]),
             constant("bias", torch.tensor([1.0, 2.0])),
             node("Constant", "c", [], ["k"], field(5, field(1, "value_float") + [varint(2 << 3 | 5) + bytes(4)])),
             node("Relu", "模型/Relu", ["y"], ["z"], field(5, field(1, "axes") + field(8, b"\x01\x02")))]
    tensors = [tensor("weight", WEIGHT), tensor("half", torch.ones(3).half()), tensor("none", torch.zeros(0, 4)),
               tensor("ids", torch.tensor([-1, 2**40]), "listed"), tensor("double", torch.ones(2, dtype=torch.float64))]
    return joined(model(nodes, tensors))


def opened(path: Path, content: bytes | list) -> OnnxFile:
    return open_onnx(write(path, [content] if isinstance(content, bytes) else content))


def test_nodes_tensors_and_aliases(tmp_path):
    file = opened(tmp_path / "a.onnx", good_file())
    assert file.nodes[0] == Node("/conv/Conv", "Conv", ("x", "weight", ""), ("y",))
    assert file.nodes[-1] == Node("模型/Relu", "Relu", ("y",), ("z",))
    assert list(file.tensors) == ["bias", "weight", "half", "none", "ids", "double"]
    assert file.shape("alias") == (2, 3) and file.shape("none") == (0, 4)
    assert torch.equal(file.read("alias"), WEIGHT) and torch.equal(file.read("weight"), WEIGHT)
    assert file.read("bias").tolist() == [1.0, 2.0] and file.read("ids").tolist() == [-1, 2**40]
    assert file.read("half").dtype == torch.float16 and file.read("none").shape == (0, 4)
    assert file.origin("y") is None and file.origin("") is None and file.origin("k") is None


NUMBERS = {
    torch.float32: [0.0, -1.5, 3e38, 1e-45], torch.float16: [0.0, -1.5, 65504.0, 6e-8],
    torch.bfloat16: [0.0, -1.5, 3e38, 1e-40], torch.int32: [0, -1, 2**31 - 1, -(2**31)],
    torch.int64: [0, -1, 2**63 - 1, -(2**63), 127, 128],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", NUMBERS)
def test_every_form_of_every_type(dtype, form, tmp_path):
    values = {"many": torch.tensor(NUMBERS[dtype], dtype=dtype), "one": torch.tensor([[7]], dtype=dtype),
              "scalar": torch.tensor(-1, dtype=dtype), "none": torch.zeros(3, 0, dtype=dtype),
              "large": (torch.arange(20_000) % 300).to(dtype).reshape(100, 200)}
    file = opened(tmp_path / "a.onnx", model((), [tensor(name, value, form) for name, value in values.items()]))
    for name, value in values.items():
        found = file.read(name)
        assert found.dtype == dtype and found.shape == value.shape == file.shape(name) and found.is_contiguous()
        assert torch.equal(found, value)


def test_shapes_may_be_packed(tmp_path):
    message = field(1, varint(2) + varint(3)) + field(2, 1) + field(8, "a") + field(9, bytes(24))
    assert opened(tmp_path / "a.onnx", model((), [message])).shape("a") == (2, 3)


def test_two_reads_share_nothing(tmp_path):
    file = opened(tmp_path / "a.onnx", good_file())
    file.read("weight").zero_()
    assert torch.equal(file.read("weight"), WEIGHT)


def test_large_tensors_own_their_memory(tmp_path):
    value = torch.randn(300, 300, generator=torch.Generator().manual_seed(0))
    file = opened(tmp_path / "a.onnx", model((), [tensor("a", value)]))
    (tmp_path / "a.onnx").rename(tmp_path / "b.onnx")
    with pytest.raises(FileNotFoundError, match="a.onnx: there is no such file"):
        file.read("a")
    (tmp_path / "b.onnx").rename(tmp_path / "a.onnx")
    assert torch.equal(file.read("a"), value)


@pytest.mark.parametrize("length", [1, 2, MAX_ALIASES - 1])
def test_aliases_of_aliases(length, tmp_path):
    nodes = [node("Identity", "", [f"n{index + 1}"], [f"n{index}"]) for index in range(length)]
    file = opened(tmp_path / "a.onnx", model(nodes, [tensor(f"n{length}", WEIGHT)]))
    assert file.origin("n0") == f"n{length}" and torch.equal(file.read("n0"), WEIGHT)


def test_aliases_in_a_circle_end(tmp_path):
    nodes = [node("Identity", "", ["b"], ["a"]), node("Identity", "", ["a"], ["b"]),
             node("Identity", "", ["x"], ["c"]), node("Identity", "", [], ["d"])]
    file = opened(tmp_path / "a.onnx", model(nodes))
    with pytest.raises(ValueError, match="a.onnx: the graph is damaged: 64 Identity nodes in a row lead to '[ab]'"):
        file.origin("a")
    assert file.origin("c") is None and file.origin("d") is None


def test_names_that_the_file_lacks_are_told(tmp_path):
    file = opened(tmp_path / "a.onnx", good_file())
    with pytest.raises(ValueError, match=r"a.onnx: the file holds no tensor 'wei'; it holds 'bias', .* and 1 more\."):
        file.read("wei")
    with pytest.raises(ValueError, match="holds no tensor 'y'"):
        file.shape("y")


def test_other_types_are_an_error_once_they_are_read(tmp_path):
    """A graph may hold numbers of any type beside its weights."""
    text = field(1, 2) + field(2, 8) + field(6, b"ab") + field(6, b"c") + field(8, "text")
    file = opened(tmp_path / "a.onnx", model((), [tensor("double", torch.ones(2, dtype=torch.float64)), text]))
    for name, kind in (("double", 11), ("text", 8)):
        with pytest.raises(ValueError, match=rf"'{name}' has ONNX data type {kind}; known are 1 \(float32\), 10 \(fl"):
            file.read(name)


@pytest.mark.parametrize("message", [
    field(14, 1), field(13, field(1, "location") + field(2, "weights.bin")) + field(14, 1), field(13, field(1, "x")),
])
def test_weights_in_another_file_are_refused(message, tmp_path):
    with pytest.raises(ValueError, match="a.onnx: the numbers of tensor 'a' lie in another file, .* that is one file"):
        opened(tmp_path / "a.onnx", model((), [field(1, 2) + field(2, 1) + field(8, "a") + message]))


def test_only_what_is_asked_for_is_read(tmp_path):
    """The file claims 16 GB, more than the tests may use; its data is a hole in the disk."""
    hole = field(1, 2**32) + field(2, 1) + field(8, "hole") + field(9, [2**34])
    file = opened(tmp_path / "a.onnx", model((), [hole, tensor("b", WEIGHT)]))
    assert file.shape("hole") == (2**32,) and torch.equal(file.read("b"), WEIGHT)


def test_short_reads_are_continued(tmp_path, monkeypatch):
    """The system hands out 2 GB at a time at most, network drives less."""
    class Slow:
        def __init__(self, file): self.file = file
        def __enter__(self): return self
        def __exit__(self, *error): self.file.close()
        def __getattr__(self, name): return getattr(self.file, name)
        def readinto(self, memory): return self.file.readinto(memory[:7])

    file = opened(tmp_path / "a.onnx", good_file())
    monkeypatch.setattr(onnx_weights, "opened", lambda path: Slow(checkpoint.opened(path)))
    assert torch.equal(file.read("weight"), WEIGHT) and file.read("ids").tolist() == [-1, 2**40]


# Files that are none

FOREIGN: dict[str, tuple[Callable[[], bytes], str]] = {
    "safetensors": (good_safetensors, r"no ONNX file but a safetensors file \([\d,]+ bytes that start with .* Give"),
    "torch": (lambda: saved_by_torch(some_tensors()), "but a zip archive, perhaps by PyTorch"),
    "legacy torch": (lambda: saved_by_torch(some_tensors(), legacy=True), "but perhaps a file by PyTorch"),
    "gzip": (lambda: gzip.compress(good_file()), "but a gzip archive"),
    "GGUF": (lambda: b"GGUF\x03\x00\x00\x00" + bytes(99), "but a GGUF file"),
    "random bytes": (lambda: b"\x93\xfa\x11" * 99, r"but something else \(297 bytes that start with 93 fa 11"),
    "zeros": (lambda: bytes(1000), "but something else"),
}
TEXTS = ("empty", "git-LFS pointer", "git-LFS pointer without a size", "web page", "XML error", "JSON error",
         "one line of text")


@pytest.mark.parametrize("name", [*FOREIGN, *TEXTS])
def test_files_of_other_kinds_are_one_error_in_words(name, tmp_path):
    path = tmp_path / "模型 ä.onnx"
    if name in FOREIGN:
        make, text = FOREIGN[name]
        path.write_bytes(make())
    else:
        damage, text = BROKEN_FILES[name]
        path.write_bytes(damage(good_file()))
    with pytest.raises(ValueError, match=text) as caught:
        open_onnx(path)
    assert str(caught.value).startswith(f"{path}: ") and len(str(caught.value)) < 700


def test_paths_that_lead_nowhere(tmp_path):
    with pytest.raises(FileNotFoundError, match="gone.onnx: there is no such file; check the name, or download it"):
        open_onnx(tmp_path / "gone.onnx")
    with pytest.raises(ValueError, match="this is a folder; name the"):
        open_onnx(tmp_path)


def test_a_file_cut_anywhere_is_an_error_in_words(tmp_path):
    """No length is believed before the file is seen to be that long."""
    good, path = good_file(), tmp_path / "a.onnx"
    end = len(good) - len(joined(field(8, field(1, "") + field(2, 17))))      # behind the graph nothing matters
    for length in range(end):
        path.write_bytes(good[:length])
        with pytest.raises(ValueError, match=r"a.onnx: .* Download it again\.$"):
            open_onnx(path)


def of_tensor(*pieces: list) -> list:
    return model((), [[part for piece in pieces for part in piece]])


NAMED = field(8, "a")
FLOATS, IDS = field(2, 1) + NAMED, field(2, 7) + NAMED
GRAPH = varint(7 << 3 | 2)      # the key of its field
# Files that no exporter writes, and what the error has to say.
LIES: dict[str, tuple[list, str]] = {
    "no graph": (field(1, 8), "holds no graph"),
    "graph beyond the file": (field(1, 8) + [GRAPH + varint(2**62) + bytes(9)], "a field of 4,611,686,018,427,387,904"),
    "graph is a number": (field(1, 8) + field(7, 5), "no field begins at byte 2"),
    "field 0": (field(1, 8) + [b"\x02\x00"], "no field begins at byte 2"),
    "group": (field(1, 8) + [b"\x3b\x3c"], "no field begins at byte 2"),
    "kind 7": (field(1, 8) + [b"\x3f\x00"], "no field begins at byte 2"),
    "varint without end": (field(1, 8) + [b"\xff" * 20], "no field begins at byte 2"),
    "length without end": (field(1, 8) + [GRAPH + b"\xff" * 20], "no field begins at byte 2"),
    "node beyond the graph": (field(1, 8) + field(7, [b"\x0a\x7f\x00"]), "a field of 127 bytes .* and 1 are left"),
    "node of numbers": (model([[b"\x08\x01"]]), "no field begins"),
    "fixed field beyond": (field(1, 8) + field(7, [b"\x0d\x00\x00"]), "no field begins"),
    "fixed field cut": (field(1, 8) + field(7, [varint(99 << 3 | 1) + bytes(7)]), "a field of 8 bytes .* and 7 are"),
    "name is no text": (model([field(3, b"\xff\xfe")]), "the name at byte .* is no text"),
    "name of a book": (model([field(3, "a" * 5000)]), "the name at byte .* has 5,000 bytes"),
    "tensor without a name": (of_tensor(field(2, 1), field(9, bytes(4))), "a tensor has no name"),
    "tensor twice": (model((), [tensor("a", WEIGHT)] * 2), "'a' stands there twice"),
    "tensor and constant": (model([constant("a", WEIGHT)], [tensor("a", WEIGHT)]), "'a' stands there twice"),
    "negative dimension": (of_tensor(FLOATS, field(1, -2), field(1, -3), field(9, bytes(24))), r"'a' has shape \[-2, "),
    "dimensions beyond 64 bits": (of_tensor(FLOATS, field(1, 2**62) * 3), "'a' has shape"),
    "dimensions that wrap to 0": (of_tensor(FLOATS, field(1, 2**32) * 2), "'a' has shape"),
    "huge empty shape": (of_tensor(FLOATS, field(1, 0), field(1, 2**50) * 2), "'a' has shape"),
    "10 000 dimensions": (of_tensor(FLOATS, field(1, 1) * 10_000, field(9, bytes(4))), r"'a' has shape \[1, 1, "),
    "10 000 packed dimensions": (of_tensor(FLOATS, field(1, b"\x01" * 10_000)), "shape at byte .* takes 10,000 bytes"),
    "packed dimension without end": (of_tensor(FLOATS, field(1, b"\xff\xff")), "the shape at byte .* does not end"),
    "a billion numbers": (of_tensor(FLOATS, field(1, 10**9), field(9, bytes(8))), "needs 4,000,000,000 bytes and"),
    "a billion numbers of none": (of_tensor(FLOATS, field(1, 10**9)), "needs 4,000,000,000 bytes and has 0"),
    "a number too many": (of_tensor(FLOATS, field(1, 1), field(9, bytes(8))), "needs 4 bytes and has 8"),
    "a number too few": (of_tensor(FLOATS, field(1, 3), field(4, bytes(8))), "needs 12 bytes and has 8"),
    "a billion varints": (of_tensor(IDS, field(1, 10**9), field(7, bytes(8))), "has varints of 8 bytes"),
    "five million varints": (of_tensor(IDS, field(1, 5 * 10**6), field(7, [5 * 10**6])), "varints of 5,000,000 bytes"),
    "numbers twice": (of_tensor(FLOATS, field(1, 1), field(9, bytes(4)), field(4, bytes(4))), r"fields \[4, 9\]"),
    "numbers of another type": (of_tensor(FLOATS, field(1, 1), field(7, bytes(4))), r"numbers in its fields \[7\]"),
}


@pytest.mark.parametrize("name", LIES)
def test_lies_are_refused_before_anything_is_allocated(name, tmp_path):
    pieces, text = LIES[name]
    path = write(tmp_path / "a.onnx", pieces)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=f"a.onnx: the file is cut or damaged: .*{text}.* Download") as caught:
            open_onnx(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**21
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("message", [
    field(2, 6) + field(5, varint(2**31) + varint(0)), field(2, 10) + field(5, varint(2**16) + varint(0)),
    field(2, 7) + field(7, b"\x01\x02\x03"), field(2, 7) + field(7, b"\x80\x80"),
    field(2, 7) + field(7, b"\xff" * 10 + b"\x01\x00"),
])
def test_varints_that_are_not_the_numbers_of_the_tensor(message, tmp_path):
    file = opened(tmp_path / "a.onnx", of_tensor(NAMED, field(1, 2), message))
    with pytest.raises(ValueError, match="a.onnx: the file is damaged: tensor 'a' does not hold 2 numbers of its data"):
        file.read("a")


@pytest.mark.parametrize("graph", [[b"\x10\x00" * 50_000], field(1, node("", "", ["a" * 4000] * 300, []))])
def test_fields_without_end_are_given_up(graph, tmp_path, monkeypatch):
    """A field takes two bytes of a file, and many times as much in memory."""
    monkeypatch.setattr(onnx_weights, "MAX_HEADER_BYTES", 10**6)
    with pytest.raises(ValueError, match="a.onnx: .* it has more fields and names than any model. Download it again"):
        opened(tmp_path / "a.onnx", field(1, 8) + field(7, graph))


def test_messages_inside_each_other_are_not_followed(tmp_path):
    """Graphs inside nodes, as in an If, hold no weights of ours; 300 of them ended a recursive reader."""
    inner: list = [b""]
    for _ in range(300):
        inner = field(1, node("If", "", [], [], field(5, field(6, inner))))
    assert len(opened(tmp_path / "a.onnx", field(1, 8) + field(7, inner)).nodes) == 1


def test_a_file_that_changes_meanwhile(tmp_path):
    file = opened(tmp_path / "a.onnx", good_file())
    os.truncate(tmp_path / "a.onnx", 100)
    with pytest.raises(ValueError, match="a.onnx: the file ended while it was read"):
        file.read("weight")


@given(data=st.data())
def test_damage_anywhere_is_an_error_of_ours_or_none(data, tmp_path_factory):
    """A flipped byte in the weights goes unseen; anywhere else it has to end in words, not in a traceback."""
    good = bytearray(good_file())
    for place in data.draw(st.lists(st.integers(0, len(good) - 1), min_size=1, max_size=3)):
        good[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damage") / "a.onnx"
    path.write_bytes(good)
    try:
        file = open_onnx(path)
        for name in [*file.tensors, *file.aliases]:
            if file.origin(name):
                file.read(name)
    except ValueError as error:
        assert str(error).startswith(f"{path}: ")
