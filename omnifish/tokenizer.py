"""Text to ids: the tokenizer of OmniVoice, which is Qwen3's and seven tokens more, from a local tokenizer.json.

The control tokens of mark-up are ids; nothing else is. What Qwen's tokenizer would also take for a token, such as
``<|im_end|>`` or ``<think>``, is text here, for no prompt of this model has it and so it can only be a user's.
"""
from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import torch

from ..needed import needed
from .markup import CONTROL, INSTRUCTION, LANGUAGE, SPOKEN

FILE = "tokenizer.json"
VOCABULARY = 151643         # entries of Qwen's byte-level BPE, ids from 0 on
QWEN_SIZE = 151669          # with the tokens that Qwen3 adds to it
# What OmniVoice adds to those, in the order of the ids.
ADDED = ("<|denoise|>", *LANGUAGE, *INSTRUCTION, *SPOKEN)

# Text and what Qwen's vocabulary makes of it; another one gives other ids.
VECTORS = {"Hello world": [9707, 1879], "希望你以后能够": [99880, 56568, 103934, 100006]}

ADVICE = "Copy the file from the published folder of OmniVoice (k2-fsa/OmniVoice), of which the weights are not needed."


class TextTokenizer:
    """``tok(text, return_tensors="pt").input_ids``: int64 (1, L), of text and of control tokens in it.

    encode: text without control tokens -> ids. control: token -> id, of all in ``CONTROL``.
    """

    def __init__(self, encode: Callable[[str], list[int]], control: Mapping[str, int], size: int) -> None:
        self.control, self.size = {token: control[token] for token in CONTROL}, size
        self._encode = encode
        self._token = re.compile(f"({'|'.join(map(re.escape, CONTROL))})")

    def __call__(self, text: str, return_tensors: str = "pt") -> SimpleNamespace:
        if return_tensors != "pt":
            raise ValueError(f"tokenizer: it gives tensors of torch, return_tensors='pt', not {return_tensors!r}.")
        ids = []
        for number, part in enumerate(self._token.split(text)):
            ids += [self.control[part]] if number % 2 else self._encode(part) if part else []
        return SimpleNamespace(input_ids=torch.tensor([ids], dtype=torch.int64))


def load(folder: Path | str, rows: int | None = None) -> TextTokenizer:
    """The tokenizer in a folder, or of a file.

    rows: of the model's table of text ids, which has to have one for each id. A tokenizer of Qwen3 itself gets the
    tokens of OmniVoice, at the ids that they have there. ``FileNotFoundError`` and ``ValueError`` name the file.
    """
    with needed("tokenizers", "the text of OGG TTS"):
        from tokenizers import Tokenizer

    path = Path(folder)
    path = path / FILE if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"tokenizer: {path} not found. {ADVICE}")
    content = _content(path)
    ids = {token["content"]: token["id"] for token in content["added_tokens"]}
    vocabulary = content["model"]["vocab"]
    size = 1 + max((*vocabulary.values(), *ids.values()))
    if size == QWEN_SIZE and not ids.keys() & set(ADDED):
        ids |= {token: size + number for number, token in enumerate(ADDED)}
        size += len(ADDED)
    missing = [token for token in CONTROL if token not in ids]
    if missing:
        raise _wrong(path, f"no token {', '.join(missing)}")
    if rows is not None and size > rows:
        raise _wrong(path, f"{size} ids for the {rows} rows of the model's table")
    # Without tokens it takes all that it is given for text.
    content |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    try:
        bpe = Tokenizer.from_str(json.dumps(content))
    except Exception as problem:    # tokenizers has no class of its own for these
        raise _wrong(path, str(problem)) from problem

    def encode(text: str) -> list[int]:
        return bpe.encode(text, add_special_tokens=False).ids

    if len(vocabulary) >= VOCABULARY or rows is not None and rows >= VOCABULARY:
        for text, expected in VECTORS.items():
            if encode(text) != expected:
                raise _wrong(path, f"{encode(text)} for {text!r} in place of {expected}")
    return TextTokenizer(encode, ids, size)


@lru_cache(maxsize=1)
def demo() -> TextTokenizer:
    """One id for each byte, then the control tokens."""
    control = {token: 256 + number for number, token in enumerate(CONTROL)}
    return TextTokenizer(lambda text: list(text.encode("utf-8", "replace")), control, 256 + len(control))


def _content(path: Path) -> dict:
    """The file as JSON, as far as it is looked into here."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
        whole = (content["model"]["type"] == "BPE" and content["model"]["vocab"]
                 and all(type(number) is int for number in content["model"]["vocab"].values())
                 and all(type(token["id"]) is int and isinstance(token["content"], str)
                         for token in content["added_tokens"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise _wrong(path, f"{type(problem).__name__} {problem}") from problem
    if not whole:
        raise _wrong(path, "no vocabulary of a BPE")
    return content


def _wrong(path: Path, found: str) -> ValueError:
    return ValueError(f"{path}: not the tokenizer of OmniVoice: found {found}. {ADVICE}")
