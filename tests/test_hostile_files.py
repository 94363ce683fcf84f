"""Files that were made to harm: refused in words before they take time or memory; nothing in them runs.

Most were found by the fuzzer; each stands for a kind.
"""
from __future__ import annotations

import io
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

from fuzz.laws import assert_in_words, bounded
from fuzz.pickles import archive_of
from fuzz.shapes import MEASURES, demo_shapes
from kit.files import saved_by_torch, with_header
from kit.onnx_files import field, model, tensor, write
from speechwright.checkpoint import open_checkpoint
from speechwright.cosyvoice3 import tokenizer as cosyvoice
from speechwright.omnifish import tokenizer as omnivoice
from speechwright.omnifish.inspect import inspect, read_header
from speechwright.onnx_weights import open_onnx

MEGABYTE = 2**20


def refused(path: Path, content: bytes, spare: int = MEGABYTE) -> str:
    """What is said of a file with this content, which has taken no more memory than the file and a little."""
    path.write_bytes(content)
    with bounded(len(content), times=1, spare=spare), pytest.raises(ValueError) as caught:
        open_checkpoint(path)
    assert_in_words(caught.value, f"{path}: ")
    return str(caught.value)


# Headers


@pytest.mark.parametrize("entry", [
    b"{},", b"[],", b'"ab",', b'"":0,', b'"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},'])
def test_a_header_of_millions_of_entries(entry, tmp_path):
    """Each takes a few bytes of the file and a hundred in memory: one of 100 MB took three minutes and 2.6 GB."""
    raw = b'{"a":[' + entry * (20 * MEGABYTE // len(entry)) + b"0]}"
    assert "more entries than any model" in refused(tmp_path / "a.safetensors", with_header(raw))
    with bounded(len(raw), times=3, spare=MEGABYTE), pytest.raises(ValueError, match="more entries than any model"):
        read_header(str(tmp_path / "a.safetensors"))


def test_a_header_longer_than_the_file(tmp_path):
    """The report of a header made room for 10 MB in a file of 10 bytes."""
    content = with_header({}, length=10**7)
    assert "10,000,000 bytes" in refused(tmp_path / "a.safetensors", content)
    with bounded(len(content)), pytest.raises(ValueError, match="the file is cut: its header alone takes 10,000,000"):
        read_header(str(tmp_path / "a.safetensors"))


@pytest.mark.parametrize("header", [
    b'{"a":' + b"[" * 5000, b'{"a":{"shape":["x"]}}', b'{"a":{"shape":[1e400]}}', b'{"a":{"shape":[-1]}}', b'{"a":{}}',
    b'{"a":null}', b'{"a":{"shape":' + str([2**53 - 1] * 300).encode() + b"}}",
    b'{"a":{"shape":[' + b"9" * 5000 + b"]}}",
])
def test_the_report_of_odd_headers(header, tmp_path):
    """Shapes that are none ended it in the midst of a line."""
    (tmp_path / "a").write_bytes(with_header(header))
    with pytest.raises(ValueError, match="its header is damaged .*; download it again"):
        inspect(read_header(str(tmp_path / "a")))


@pytest.mark.parametrize("name", ["\\ud800", "x" * 600])
def test_names_that_no_error_can_tell(name, tmp_path):
    """Half a surrogate pair cannot be written to a log, and a name of a megabyte fills it."""
    header = f'{{"{name}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}'.encode()
    assert "no name of a tensor" in refused(tmp_path / "a.safetensors", with_header(header, b"1"))
    told = name if len(name) > 9 else "\ud800"
    assert "no name of a tensor" in refused(tmp_path / "a.pt", saved_by_torch({told: torch.zeros(1)}), 2 * MEGABYTE)


# Pickles


def told_text(text: bytes = b"") -> bytes:
    """A pickle of a text of 1.5 GB, of which nothing is there."""
    return b"\x80\x02X" + struct.pack("<I", 1_500_000_000) + text


def nested(levels: int, head: bytes = b"}", end: bytes = b"K\x01s.") -> bytes:
    """A dict whose key is a tuple of two tuples, each of two ..., to the bottom."""
    return b"\x80\x02" + head + b"K\x01" + b"".join(
        b"q" + bytes([level]) + b"h" + bytes([level]) + b"\x86" for level in range(levels)) + end


CALLS = {
    "bytes encoded again and again": (
        b"c_codecs\nencode\n" * 20 + b"X\x01\0\0\0aX\x06\0\0\0latin1\x86R" + b"X\x03\0\0\0hex\x86R" * 19,
        "_codecs.encode"),
    "an array of a length that is told": (b"c__builtin__\nbytearray\nJ\xff\xff\xff\x7f\x85R", "__builtin__.bytearray"),
    "a tensor of a size that is told": (b"ctorch\nFloatTensor\nJ\xff\xff\xff\x7f\x85R", "torch.FloatTensor"),
    "a command": (b"cposix\nsystem\nX\x04\0\0\0true\x85R", "posix.system"),
    "an evaluation": (b"c__builtin__\neval\nX\x01\0\0\x001\x85R", "__builtin__.eval"),
    "another file": (b"ctorch\nload\nX\x01\0\0\0x\x85R", "torch.load"),
    "a hub": (b"ctorch.hub\nload\nX\x01\0\0\0x\x85R", "torch.hub.load"),
}


def legacy(raw: bytes) -> bytes:
    """The file of before torch 1.6 with such a pickle in it: number, version, system, what was saved, names."""
    head = [0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}]
    return b"".join(pickle.dumps(part, 2) for part in head) + raw + pickle.dumps([], 2)


@pytest.mark.parametrize("made", [archive_of, legacy])
@pytest.mark.parametrize("name", CALLS)
def test_pickles_call_nothing_but_makers_of_tensors(name, made, tmp_path):
    """torch's loader of tensors alone calls a few things that take any time or memory, and in some versions more."""
    opcodes, called = CALLS[name]
    said = refused(tmp_path / "a.pt", made(b"\x80\x02}X\x01\0\0\0a" + opcodes + b"s."))
    assert f"{called}, a Python class or function. It was not loaded" in said


@pytest.mark.parametrize("made", [archive_of, legacy, bytes])
def test_pickles_of_texts_that_are_not_there(made, tmp_path):
    """Python makes room for what is asked for: 1.5 GB for a file of 60 bytes."""
    claims = (b"\x8d" + b"\xff" * 7 + b"\x7f", b"\x8b\xff\xff\xff\x7f")
    for raw in (told_text(), told_text(b"x" * 60), *(b"\x80\x02" + claim for claim in claims)):
        for suffix in ("pt", "safetensors"):
            assert "damaged" in refused(tmp_path / f"a.{suffix}", made(raw))


@pytest.mark.parametrize("made", [archive_of, legacy])
def test_tuples_in_tuples(made, tmp_path):
    """The hash of one takes that of all in it: forty levels in 200 bytes never ended."""
    assert "more than tensors" in refused(tmp_path / "a.pt", made(nested(60)))
    assert "no tensors" in refused(tmp_path / "a.pt", made(nested(9)))


def test_tar_archives(tmp_path):
    """torch reads them as files of its first versions, and up to 2.5 it runs what is in them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in ("\udc80\x02K\x01." * 5, "storages", "pickle"):
            archive.addfile(tarfile.TarInfo(name))
    assert "a tar archive" in refused(tmp_path / "a.pt", buffer.getvalue())


def test_tensors_that_share_their_numbers(tmp_path):
    """Read one by one, a thousand names of one tensor took a thousand times the file."""
    weight = torch.zeros(50_000)
    assert "share their numbers: 200,000,000 bytes in a file of" in refused(
        tmp_path / "a.pt", saved_by_torch({f"a{number}": weight for number in range(1000)}), 4 * MEGABYTE)
    assert open_tied(tmp_path / "b.pt", weight) == {"a", "b", "c"}


def open_tied(path: Path, weight: torch.Tensor) -> set[str]:
    path.write_bytes(saved_by_torch({"a": weight, "b": weight, "c": weight[:10]}))
    return set(open_checkpoint(path).read())


# Archives


def test_names_in_archives_lead_nowhere(tmp_path):
    """What is called ../../x or is a link inside is read as tensors, or not at all, and never written anywhere."""
    path, link = tmp_path / "models" / "a.pt", zipfile.ZipInfo("archive/link")
    path.parent.mkdir()
    link.external_attr = 0o120777 << 16
    for name in ("archive/../../x", "../../x", "/x", "..\\x", "C:/x", link):
        buffer = io.BytesIO(saved_by_torch({"a": torch.ones(2)}))
        with zipfile.ZipFile(buffer, "a") as archive:
            archive.writestr(name, "../../x")
        path.write_bytes(buffer.getvalue())
        try:
            assert open_checkpoint(path).read()["a"].tolist() == [1.0, 1.0]
        except ValueError as error:
            assert_in_words(error, f"{path}: ")
        assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]


def test_archives_whose_entries_lie(tmp_path):
    """Packed ones of a thousand times the size, and ones that begin or end beyond the file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", saved_by_torch({}))
        archive.writestr("a/data/0", bytes(64 * MEGABYTE))
    assert "not one by PyTorch" in refused(tmp_path / "a.pt", buffer.getvalue())
    good = bytearray(saved_by_torch({"a": torch.ones(2)}))
    entry = good.rindex(b"PK\1\2")
    for place, value in ((20, 2**31), (24, 2**31), (42, 2**31), (42, len(good) + 9)):
        lying = bytearray(good)
        lying[entry + place : entry + place + 4] = struct.pack("<I", value)
        path = tmp_path / "b.pt"
        path.write_bytes(lying)
        with bounded(len(lying)):
            try:
                assert open_checkpoint(path).read()["a"].tolist() == [1.0, 1.0]
            except ValueError as error:
                assert_in_words(error, f"{path}: ")


# Shapes


@pytest.mark.parametrize("kind, layers", [
    ("OGG TTS", "llm.layers."), ("codec", "quantizer.pre_module.layers."), ("codec", "quantizer.quantizer.quantizers."),
    ("CosyVoice's LM", "llm.model.model.layers."), ("CosyVoice3's flow", "decoder.estimator.transformer_blocks."),
    ("tokenizer", "encoder.blocks."),
])
def test_a_number_in_a_name_makes_no_layers(kind, layers):
    """A tensor of layer 1,000,000,000 made as many, until the memory was full."""
    shapes = demo_shapes(kind)
    # A magnitude of weight norm is looked at later, with its direction.
    name = next(name for name in shapes if name.startswith(f"{layers}0.") and not name.endswith(("_g", "original0")))
    for number in ("1000000000", "9" * 5000):
        changed = {**shapes, name.replace(f"{layers}0", layers + number): shapes[name]}
        with bounded(100 * len(shapes), spare=32 * MEGABYTE), pytest.raises(ValueError) as caught:
            MEASURES[kind][1](changed, "file")
        assert_in_words(caught.value, "file: ", 10_000)


def test_sizes_that_no_layer_can_have():
    """Torch's own words came out, about a storage whose size had overflowed."""
    shapes = {name: tuple(2**53 if size == shape[0] else size for size in shape) if shape else ()
              for name, shape in demo_shapes("speaker").items()}
    for kind, changed in (("speaker", shapes), ("codec", dict.fromkeys(demo_shapes("codec"), ())),
                          ("CosyVoice2's vocoder", {"conv_pre.weight": (1, 1, 1)})):
        with pytest.raises(ValueError, match="file: .*(looked for|not the tensors of)") as caught:
            MEASURES[kind][1](changed, "file")
        assert_in_words(caught.value, "file: ", 10_000)


# ONNX


@pytest.mark.parametrize("place", ["../../x", "/x", "..\\x", "x"])
def test_weights_that_an_onnx_file_wants_from_elsewhere(place, tmp_path):
    """They lie where a stranger says: such a file is refused, whether it is there or not."""
    (tmp_path / "models").mkdir()
    (tmp_path / "x").write_bytes(bytes(8))
    (tmp_path / "models" / "x").write_bytes(bytes(8))
    outside = field(1, 2) + field(2, 1) + field(8, "a") + field(14, 1)
    outside += field(13, field(1, "location") + field(2, place))
    path = write(tmp_path / "models" / "a.onnx", model((), [tensor("b", torch.ones(1)), outside]))
    with pytest.raises(ValueError, match="a.onnx: the numbers of tensor 'a' lie in another file"):
        open_onnx(path)


# Vocabularies


@pytest.mark.parametrize("content", [
    "[" * 100_000, '{"model":' * 5000, "9" * 5000, "{}",
    '{"model":{"type":"BPE","vocab":{"a":1}},"added_tokens":[{"id":1}]}',
    '{"model":{"type":"BPE","vocab":{"a":1}},"added_tokens":[{"id":1,"content":[]}]}',
    '{"model":{"type":"BPE","vocab":[1]},"added_tokens":{}}',
    '{"model":{"type":"BPE","vocab":{"a":1e9}},"added_tokens":[]}',
])
def test_vocabularies_of_odd_shapes(content, tmp_path):
    """A list nested without end, or a token without a text, came out as Python's own words."""
    for name in ("tokenizer.json", "vocab.json", "merges.txt"):
        (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match="tokenizer.json: not the tokenizer of OmniVoice: found .* Copy the file"):
        omnivoice.load(tmp_path)
    with pytest.raises(ValueError, match="vocab.json: not the vocabulary of CosyVoice: found .* Copy vocab.json"):
        cosyvoice.load(tmp_path, 3)
