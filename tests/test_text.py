"""The text door: one form for what users paste, and nothing lost that can be heard."""
from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speechwright.text import clean, fold_name

ODD_CHARACTERS = ("aé\u0301\u0345ßİ \t\r\n\x00\x85\u2028\ufeff\u200b\u200c\u200d\u00ad"
                  "خकि\u094d❤\ufe0f🔥🏽한\u1100\u1161\u3164")
TEXTS = st.text(alphabet=st.one_of(st.sampled_from(ODD_CHARACTERS), st.characters()), max_size=60)


@given(TEXTS)
def test_cleaning_twice_changes_nothing_more(text):
    once = clean(text)
    assert clean(once) == once


@given(TEXTS)
def test_clean_text_is_nfc_and_encodable_without_controls(text):
    cleaned = clean(text)
    assert unicodedata.is_normalized("NFC", cleaned)
    cleaned.encode("utf-8")
    assert all(unicodedata.category(c) != "Cc" or c in "\t\n" for c in cleaned)


@given(st.text(alphabet=st.characters(categories=["L", "N", "P", "Zs"], exclude_characters="\u3164\uffa0")))
def test_letters_digits_punctuation_and_spaces_stay(text):
    assert clean(text) == unicodedata.normalize("NFC", text)


def test_text_of_a_windows_editor_equals_the_plain_one():
    """Text saved with a byte order mark and CRLF: the first name never matched, and \\r was spoken."""
    assert clean("\ufeffS1: Hi\r\nS2: Yo\r\n") == "S1: Hi\nS2: Yo\n"


@pytest.mark.parametrize("end", ["\r\n", "\r", "\n", "\x0b", "\x0c", "\x85", "\u2028", "\u2029"])
def test_every_line_end_is_a_newline(end):
    """str.splitlines and split("\\n") disagree on these, so two parts of a program counted lines apart."""
    assert clean(f"a{end}b") == "a\nb"


@pytest.mark.parametrize("text", [
    "", " ", "\t", "\n", "Hello, world.", "Ünïcödé", "中文，句子。", "مرحبا", "1²½", "a\u00a0b", "👍",
])
def test_plain_text_is_left_alone(text):
    assert clean(text) == text


@pytest.mark.parametrize("hidden", [
    "\u200b", "\ufeff", "\u00ad", "\u2060", "\u200e", "\u202e", "\x00", "\x1b", "\x7f",
    "\u3164", "\u200c", "\u200d",
    "\ud83d",           # half an emoji from a broken escape, which no tokenizer can encode
    "\U000e0041",       # text hidden in tag characters
])
def test_what_nobody_sees_goes(hidden):
    assert clean(f"{hidden}Hel{hidden}lo{hidden}") == "Hello"
    assert clean(hidden) == ""


@pytest.mark.parametrize("text", [
    "می\u200cخواهم",  # Persian: non-joiner inside a word
    "क्\u200dष", "क्\u200cष",  # Devanagari: half form, and full form with a virama
    "\u09b0\u200d\u09cd\u09af",  # Bengali: joiner before the virama
    "👩\u200d🚀", "👩🏽\u200d⚕\ufe0f", "❤\ufe0f\u200d🔥", "👨\u200d👩\u200d👧",
])
def test_joiners_stay_where_they_carry_meaning(text):
    assert clean(text) == text


def test_decomposed_and_composed_text_become_one():
    assert clean("e\u0301") == clean("\u00e9") == "\u00e9"
    assert clean("e\u200b\u0301") == "\u00e9"


@pytest.mark.parametrize("unit", ["a\u0301", "\u200d", "👩\u200d", "\r\n", "word "])
def test_long_text_takes_linear_time(unit):
    start = time.process_time()
    clean(unit * 100_000)
    assert time.process_time() - start < 2


@pytest.mark.parametrize("script, voice", [
    ("Zoë", "Zoe\u0308"), ("narrator ", "Narrator"), ("\ufeffAda", "ADA"), ("Mary Ann", "mary ann"),
    ("李雷", "李雷"), ("STRASSE", "straße"), ("Dr. Who", " dr. who\u200b"), ("A/B", "a/b"),
    ("ΣΊΣΥΦΟΣ", "σίσυφος"),
])
def test_spellings_of_one_name_match(script, voice):
    assert fold_name(script) == fold_name(voice)


@pytest.mark.parametrize("script, voice", [
    ("Zoë", "Zoe"), ("Mary Ann", "MaryAnn"), ("A/B", "A-B"), ("S1", "S2"), ("李雷", "韩梅"),
])
def test_different_names_stay_apart(script, voice):
    assert fold_name(script) != fold_name(voice)


@given(TEXTS)
def test_folding_ignores_form_and_repeats(name):
    folded = fold_name(name)
    assert fold_name(folded) == folded
    assert fold_name(unicodedata.normalize("NFD", name)) == folded
