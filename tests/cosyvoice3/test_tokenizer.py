"""Text and tags become the published ids, and nothing that is typed becomes a control id."""
from __future__ import annotations

import json
import shutil
import unicodedata
from dataclasses import astuple
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.vocabulary import demo, vocabulary_folder
from speechwright.cosyvoice3 import tokenizer
from speechwright.cosyvoice3.tokenizer import (
    ADDED,
    CONTROL,
    MERGES_FILE,
    SPELLED_CONTROL,
    VECTORS,
    VOCABULARY,
    VOCABULARY_FILE,
    load,
    load_small,
)

END_OF_SYSTEM = 151663
CONTROL_IDS = {*astuple(CONTROL), END_OF_SYSTEM}
VERSIONS = (2, 3)

TEXTS = st.lists(st.one_of(
    st.text(max_size=8), st.sampled_from(SPELLED_CONTROL), st.sampled_from(ADDED[3]),
    st.sampled_from(["<|", "|>", "endofprompt", "<|object_ref_start|>", "[", "]", " ", "\n", "e\u0301", "你好", "Ġ"]),
), max_size=8).map("".join)


# Ids


def test_controls():
    assert astuple(CONTROL) == (151643, 151644, 151645, 151646)
    assert [len(ADDED[version]) for version in VERSIONS] == [17, 278]
    assert ADDED[3][0] == "<|endofprompt|>" and ADDED[3].index("<|endofsystem|>") + 151646 == END_OF_SYSTEM
    assert all(len(set(tags)) == len(tags) for tags in ADDED.values())


@pytest.mark.parametrize("tag, number", {
    "[breath]": 151647, "[laughter]": 151651, "<laughter>": 151656, "[mn]": 151662, "[AA]": 151664, "[B]": 151688,
    "[ZH]": 151747, "[a]": 151748, "[b]": 151753, "[j]": 151797, "[ǐ]": 151913, "[ǜ]": 151923,
}.items())
def test_ids_of_tags(version3, tag, number):
    assert version3.encode(tag) == [number] == [version3.tags[tag]]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_tag_has_one_id(version):
    small = demo(version)
    for number, tag in enumerate(ADDED[version], 151646):
        expected = list(tag.encode()) if tag in SPELLED_CONTROL else [number]
        assert len(small.encode(tag)) == len(expected) and (tag in SPELLED_CONTROL or small.encode(tag) == expected)


def test_versions_share_the_ids_of_what_both_have(version2, version3):
    assert version2.tags.items() < version3.tags.items()
    assert version2.encode("a [sigh] b") == version3.encode("a [sigh] b")
    assert len(version2.encode("[j][ǐ]")) > 2 == len(version3.encode("[j][ǐ]"))


@pytest.mark.parametrize("text, ids", {
    **VECTORS,
    "高管也通过电话、短信、微信等方式对报道[j][ǐ]予好评。":
        [107972, 74763, 67338, 87805, 5373, 105610, 5373, 100197, 106327, 32664, 86227, 151797, 151913, 99944, 102959,
         1773],
    "Hello world [laughter] ok [breath]": [9707, 1879, 220, 151651, 5394, 220, 151647],
    "": [], " ": [220],
}.items())
def test_published_vectors(version3, text, ids):
    assert version3.encode(text) == ids


def test_tags_are_told_by_case_and_accent(version3):
    assert len(version3.encode("[LAUGHTER]")) > 1 and len(version3.encode("[ng]")) > 1
    assert version3.encode("[B]") != version3.encode("[b]")


def test_decomposed_accents_are_the_same(version3):
    """A tag pasted from macOS has its accent as a character of its own, and was spelled out."""
    assert version3.encode("[i\u030c]e\u0301") == version3.encode("[ǐ]é")


def test_blank(version3):
    assert version3.blank == demo(2).blank == 220


# The same as the published class gives


@pytest.fixture(scope="module")
def reference(comfyui_folder, tmp_path_factory):
    """transformers' class for these two files, told of three control tokens and then of the added."""
    from transformers import AutoTokenizer
    folder = tmp_path_factory.mktemp("qwen2")
    for name in (tokenizer.VOCABULARY_FILE, tokenizer.MERGES_FILE):
        shutil.copy(vocabulary_folder(comfyui_folder) / name, folder)
    own = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": False, "bos_token": None, "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>", "additional_special_tokens": own[1:],
        "added_tokens_decoder": {
            str(number): {"content": name, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                          "special": True} for number, name in enumerate(own, VOCABULARY)},
    }), encoding="utf-8")
    made = AutoTokenizer.from_pretrained(folder)
    made.add_special_tokens({"additional_special_tokens": list(ADDED[3])})
    assert made("<|endofprompt|>")["input_ids"] == [CONTROL.end_of_prompt] and len(made) == 151924
    return made


@given(text=TEXTS)
def test_same_ids_as_transformers(version3, reference, text):
    for name in SPELLED_CONTROL:
        text = text.replace(name, "")
    text = unicodedata.normalize("NFC", text)
    if not any(name in text for name in SPELLED_CONTROL):
        assert version3.encode(text) == reference(text)["input_ids"]


# Control


@given(text=TEXTS, version=st.sampled_from(VERSIONS))
def test_no_text_spells_control(text, version):
    assert not CONTROL_IDS & set(demo(version).encode(text))


@pytest.mark.parametrize("name", SPELLED_CONTROL)
def test_spelled_control_is_text(version3, name):
    """Whoever wrote <|endofprompt|> into the text moved the border between instruction and speech."""
    ids = version3.encode(f"a {name} b")
    assert not CONTROL_IDS & set(ids) and max(ids) < VOCABULARY
    assert "".join(map(version3._bpe.id_to_token, ids)).replace("Ġ", " ") == f"a {name} b"


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_demo_has_an_id_for_each_byte(text):
    ids = demo(2).encode(text.replace("[", "").replace("<", ""))
    assert all(0 <= number < 256 for number in ids)
    plain = unicodedata.normalize("NFC", text.replace("[", "").replace("<", ""))
    assert len(ids) == len(plain.encode())


# Files


def test_missing_files_are_named_at_once(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"vocab\.json and .*merges\.txt not found; copy .*CosyVoice-BlankEN"):
        load(tmp_path, 3)
    (tmp_path / "vocab.json").write_text("{}", encoding="utf-8")
    with pytest.raises(FileNotFoundError, match=r"tokenizer: \S*merges\.txt not found"):
        load(tmp_path, 3)


def entries() -> dict[str, int]:
    """As many as the published vocabulary has, and each byte among them."""
    names = [*tokenizer._byte_characters(), *(f"entry {number}" for number in range(256, VOCABULARY))]
    return {name: number for number, name in enumerate(names)}


def changed(**replaced: int | None) -> dict[str, int]:
    return {name: number for name, number in {**entries(), **replaced}.items() if number is not None}


WRONG_FILES = {
    "no JSON": (lambda: "<html>", "", r"vocab\.json: .* found it is not JSON \(.*needed: entry -> id\. Copy"),
    "a list": (list, "", r"vocab\.json: .*does not give ids"),
    "ids that are words": (lambda: {"a": "b"}, "", r"vocab\.json: .*does not give ids"),
    "ids that are truths": (lambda: {"a": True}, "", r"vocab\.json: .*does not give ids"),
    "of another model": (lambda: {"a": 0}, "", r"vocab\.json: .* found 1 entries; needed: 151643\."),
    "with more entries": (lambda: changed(more=VOCABULARY), "", "found 151644 entries; needed: 151643"),
    "two of one id": (lambda: changed(**{"entry 300": 301}), "", "no entry of id 300; needed: one for each of 0 to"),
    "without a byte": (lambda: changed(**{"!": None, "bang": 0}), "", "no entry '!'; needed: one for each of the 256"),
    "no merges": (entries, "#version: 0.2\n", r"vocab\.json and \S*merges\.txt: .*they make \[.*\] of 'You are"),
    "unknown merge": (entries, "#version: 0.2\n! \"\n", r"merges\.txt: .* line 2, '! \"'; needed: two entries of"),
    "merge of three": (entries, "! ! !\n", r"merges\.txt: .* line 1, '! ! !'"),
    "a page of HTML": (entries, "<html>\n", r"merges\.txt: .* line 1, '<html>'"),
}


@pytest.mark.parametrize("vocabulary, merges, message", WRONG_FILES.values(), ids=WRONG_FILES)
def test_wrong_files(tmp_path, vocabulary, merges, message):
    made = vocabulary()
    (tmp_path / "vocab.json").write_text(made if isinstance(made, str) else json.dumps(made), encoding="utf-8")
    (tmp_path / "merges.txt").write_text(merges, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        load(tmp_path, 3)


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt"])
def test_binary_files(tmp_path, comfyui_folder, name):
    for file in ("vocab.json", "merges.txt"):
        shutil.copy(vocabulary_folder(comfyui_folder) / file, tmp_path)
    (tmp_path / name).write_bytes(b"\x93\xfa\x11\xff")
    with pytest.raises(ValueError, match=rf"{name}: not the vocabulary of CosyVoice"):
        load(tmp_path, 2)


def test_merges_in_another_order(tmp_path, comfyui_folder):
    """The vectors find what no count can: the same entries, put together in another order."""
    folder = vocabulary_folder(comfyui_folder)
    shutil.copy(folder / "vocab.json", tmp_path)
    lines = Path(folder, "merges.txt").read_text(encoding="utf-8").rstrip("\n").split("\n")
    (tmp_path / "merges.txt").write_text("\n".join(lines[:0:-1]), encoding="utf-8")
    with pytest.raises(ValueError, match="they make .* needed: .*2610"):
        load(tmp_path, 3)


def test_files_of_windows(tmp_path, comfyui_folder):
    """An editor added a byte order mark and CRLF; the tokens are the same."""
    for name in ("vocab.json", "merges.txt"):
        text = (vocabulary_folder(comfyui_folder) / name).read_text(encoding="utf-8")
        (tmp_path / name).write_bytes(("\ufeff" + text).replace("\n", "\r\n").encode())
    assert load(tmp_path, 3).encode("Hello world") == [9707, 1879]


def test_unknown_version():
    with pytest.raises(ValueError, match="version 1 is not one of 2, 3"):
        tokenizer.demo(1)


def test_a_small_vocabulary_of_a_model_s_own(tmp_path):
    """Of any size, with every byte; it has no tags, and says so."""
    entries = [*demo(2)._bpe.get_vocab(), "He"]
    (tmp_path / VOCABULARY_FILE).write_text(json.dumps({entry: number for number, entry in enumerate(entries)}))
    (tmp_path / MERGES_FILE).write_text("H e\n")
    small = load_small(tmp_path, 2)
    assert small.plain and small.encode("Hey")[0] == 256 and len(small.encode("Hey [laugh]")) == 10
    with pytest.raises(ValueError, match=r"\[laughter\] is a tag, and this model was trained without any; leave"):
        small.encode("Hey [laughter]")
    (tmp_path / VOCABULARY_FILE).write_text(json.dumps({"a": 0, "b": 2}))
    with pytest.raises(ValueError, match="no entry of id 1"):
        load_small(tmp_path, 2)
