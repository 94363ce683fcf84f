"""The tokenizer from a local file: Qwen's ids, control tokens at theirs, and nothing else as a token."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kit.vocabulary import vocabulary_folder
from speechwright.omnifish.markup import CONTROL, ESCAPE, encode, escape
from speechwright.omnifish.prompt import prefix_ids
from speechwright.omnifish.tokenizer import ADDED, FILE, QWEN_SIZE, VOCABULARY, TextTokenizer, demo, load

# What Qwen3 adds to the vocabulary, at the ids from 151643 on; the last four and <tool_call> are no special tokens.
QWEN = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>",
    "</think>")
IDS = {"<|object_ref_start|>": 151646, "<|object_ref_end|>": 151647, "<|box_start|>": 151648, "<|box_end|>": 151649,
       "<|quad_start|>": 151650, "<|quad_end|>": 151651, "<|lang_start|>": 151670, "<|lang_end|>": 151671,
       "<|instruct_start|>": 151672, "<|instruct_end|>": 151673, "<|text_start|>": 151674, "<|text_end|>": 151675}


def tokenizer_json(vocabulary: dict, merges: list, added: dict[str, int]) -> dict:
    """As transformers writes it for Qwen's tokenizers."""
    split = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
             r"|\s+(?!\S)|\s+")
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": {"type": "NFC"},
        "added_tokens": [{"id": number, "content": token, **flags, "special": token.startswith("<|")}
                         for token, number in added.items()],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}, level]},
        "post_processor": level, "decoder": level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges, "ignore_merges": False},
    }


@pytest.fixture(scope="module")
def qwen(comfyui_folder) -> tuple[dict, list]:
    """The vocabulary that ComfyUI has too."""
    folder = vocabulary_folder(comfyui_folder)
    merges = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    return (json.loads((folder / "vocab.json").read_text(encoding="utf-8")),
            [line for line in merges if line and not line.startswith("#version")])


def numbered(tokens: tuple[str, ...], first: int) -> dict[str, int]:
    return {token: first + number for number, token in enumerate(tokens)}


@pytest.fixture(scope="module")
def omnivoice(qwen, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("OmniVoice ü")
    added = numbered((*QWEN, *ADDED), VOCABULARY)
    (folder / FILE).write_text(json.dumps(tokenizer_json(*qwen, added)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def published(omnivoice) -> TextTokenizer:
    return load(omnivoice, 151676)


def small(tmp_path: Path, **changes) -> Path:
    """A tokenizer of bytes and nothing else."""
    from tokenizers.pre_tokenizers import ByteLevel
    vocabulary = {character: number for number, character in enumerate(sorted(ByteLevel.alphabet()))}
    content = tokenizer_json(vocabulary, [], numbered(CONTROL, 256))
    path = tmp_path / FILE
    path.write_text(json.dumps({**content, **changes}), encoding="utf-8")
    return path


def ids(tokenizer: TextTokenizer, text: str) -> list[int]:
    found = tokenizer(text, return_tensors="pt").input_ids
    assert found.dtype == torch.int64 and found.ndim == 2 and len(found) == 1
    return found[0].tolist()


# The published one


def test_published_ids(published):
    assert published.control == IDS and published.size == 151676
    assert ids(published, "Hello world") == [9707, 1879]
    assert ids(published, "<|text_start|>Hello world<|text_end|>") == [151674, 9707, 1879, 151675]
    assert ids(published, "") == [] and ids(published, "é") == ids(published, "e\u0301")


def test_prompt(published):
    found = prefix_ids(published, "Hello world", "en", speaker="pl_3")[0].tolist()
    words = [ids(published, text) for text in ("en", "speaker:pl_3")]
    assert found == [151670, *words[0], 151671, 151672, *words[1], 151673, 151674, 9707, 1879, 151675]


def test_pieces_are_what_the_whole_would_be(published, omnivoice):
    """Asked for token by token, as the whole string would be tokenised by the file itself."""
    from tokenizers import Tokenizer
    whole = Tokenizer.from_file(str(omnivoice / FILE))
    for markup in ("<|lang_start|>de<|lang_end|><|text_start|> Guten Tag! <|text_end|>",
                   "<|quad_start|>S1<|quad_end|>  a\n\n<|quad_start|>S2<|quad_end|>b \n<|box_start|>12,5 €<|box_end|>"):
        expected = whole.encode(markup, add_special_tokens=False).ids
        assert encode(published, markup) == ids(published, markup) == expected


@pytest.mark.parametrize("text", [*QWEN, "<|denoise|>", "a <|im_end|> b", "<think>hm</think>"])
def test_other_tokens_are_text(published, text):
    """Nothing of ours has them, so they are what a user wrote; as ids they end the speech or the turn."""
    if text not in CONTROL:
        assert max(ids(published, text)) < VOCABULARY and len(ids(published, text)) > 2
    assert max(encode(published, escape(text))) < VOCABULARY


@given(st.lists(st.one_of(st.text(max_size=5), st.sampled_from((*QWEN, *ADDED, "<|", "|>", ESCAPE))), max_size=6))
def test_text_is_never_control(published, parts):
    assert all(number < VOCABULARY for number in encode(published, escape("".join(parts))))


def test_qwen3_gets_the_tokens_of_omnivoice(qwen, tmp_path, published):
    added = numbered(QWEN, VOCABULARY)
    (tmp_path / FILE).write_text(json.dumps(tokenizer_json(*qwen, added)), encoding="utf-8")
    plain = load(tmp_path)
    assert QWEN_SIZE == VOCABULARY + len(added) and plain.control == IDS and plain.size == published.size


# Others


def test_a_small_one(tmp_path):
    path = small(tmp_path, truncation={"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"})
    for place in (path, str(path), tmp_path):
        tokenizer = load(place, rows=268)
        assert tokenizer.size == 268 and tokenizer.control == numbered(CONTROL, 256)
        assert len(ids(tokenizer, "four<|box_start|>")) == 5


@pytest.mark.parametrize("changes, text", [
    ({"added_tokens": []}, r"found no token <\|lang_start\|>, <\|lang_end\|>, "),
    ({"model": {"type": "WordPiece", "vocab": {"a": 0}}}, "found no vocabulary of a BPE"),
    ({"model": {"type": "BPE", "vocab": {"a": "0"}}}, "found no vocabulary of a BPE"),
    ({"model": {"type": "BPE"}}, "found KeyError 'vocab'"), ({"added_tokens": None}, "found TypeError"),
    ({"pre_tokenizer": {"type": "Unheard"}}, "found "),
])
def test_files_that_are_no_tokenizer_of_ours(tmp_path, changes, text):
    path = small(tmp_path, **changes)
    with pytest.raises(ValueError, match=text) as caught:
        load(tmp_path)
    assert str(caught.value).startswith(f"{path}: not the tokenizer of OmniVoice: ") and "k2-fsa" in str(caught.value)


def test_more_ids_than_rows(tmp_path):
    small(tmp_path)
    with pytest.raises(ValueError, match="found 268 ids for the 267 rows of the model's table"):
        load(tmp_path, rows=267)


def test_another_vocabulary(tmp_path):
    """It would speak gibberish: the model's table is that of Qwen's ids."""
    small(tmp_path)
    with pytest.raises(ValueError, match=r"found \[.*\] for 'Hello world' in place of \[9707, 1879\]"):
        load(tmp_path, rows=151676)


def test_missing_and_broken_files(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match="tokenizer: .* not found. Copy the file from .*OmniVoice"):
            load(path)
    for content in (b"", b"{", b"[]", b"\xff\xfe", b"null"):
        (tmp_path / FILE).write_bytes(content)
        with pytest.raises(ValueError, match="not the tokenizer of OmniVoice"):
            load(tmp_path)


def test_the_demo():
    assert ids(demo(), "é<|text_start|>\x00ÿ<|im_end|>") == [0xC3, 0xA9, 260, 0, 0xC3, 0xBF, *b"<|im_end|>"]
    assert demo().size == 268 and demo().control == numbered(CONTROL, 256) and ids(demo(), "\ud800") == [ord("?")]
    with pytest.raises(ValueError, match="return_tensors='pt', not 'np'"):
        demo()("x", return_tensors="np")
