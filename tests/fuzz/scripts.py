"""Texts and scripts, under the laws that hypothesis tries in ``test_text.py`` and its like."""
from __future__ import annotations

import warnings
from contextlib import suppress

import test_script
import test_text
import test_text_properties as properties
from hypothesis.errors import UnsatisfiedAssumption

from kit.odd import ODD_TEXTS
from speechwright.text import clean

from .choices import Choices
from .laws import bounded

TEXT = (properties.test_clean_loses_and_doubles_nothing_that_is_seen, properties.test_clean_has_one_form,
        properties.test_every_line_end_counts_once, properties.test_parser_and_printer_are_inverses,
        properties.test_a_script_keeps_its_words, properties.test_pauses_lose_nothing,
        test_text.test_folding_ignores_form_and_repeats)
CLEAN = (properties.test_tags_and_spelled_control_stay_whole,
         properties.test_numbers_are_parted_only_where_one_alone_is_too_long,
         properties.test_marks_stay_with_the_character_that_they_mark)
LONGEST_TAG = 66            # characters, which are never parted
DICTIONARY = ("Ada: ", "[Bruno] ", "S1: ", "S2：", "[pause:0.8s]", "[pause:300ms]", "[pause:", "Zoe\u0308: ",
              "Carl: Hi", "<strong>", "</strong>", "[laughter]", "<|endofprompt|>", "\u200d", "\u0301", "\u2028",
              "\r\n", "。", "…", "“", "”", "3.14", "10:30", "Dr. ", "\n\n", "  Note: ", "李雷：", "👩‍🚀")


def seeds() -> list[bytes]:
    texts = [*ODD_TEXTS.values(), *DICTIONARY, *(text for text, _, _ in test_script.TABLE)]
    return [bytes((40, 0)) + text.encode("utf-8", "surrogatepass") for text in texts if len(text) < 1000]


def check(raw: bytes) -> None:
    choices = Choices(raw)
    limit, measure = 1 + choices.number(90), choices.pick(sorted(test_text.MEASURES))
    text = choices.rest().decode("utf-8", "replace")
    with bounded(len(raw), times=3000):
        for law in TEXT:
            _hold(law, text)
        for mode in properties.MODES:
            _hold(properties.test_any_text_in_any_mode_is_read_or_refused_in_words, text, mode)
        text = clean(text)
        _hold(properties.test_pieces_are_in_order_speakable_and_short, text, limit, measure)
        for law in CLEAN:
            _hold(law, text, limit)
        _hold(properties.test_where_there_is_room_every_sign_is_kept, text, LONGEST_TAG + limit)


def _hold(law, *arguments) -> None:
    with suppress(UnsatisfiedAssumption), warnings.catch_warnings():
        warnings.simplefilter("ignore")         # hypothesis is not there to hear of an assumption
        law.hypothesis.inner_test(*arguments)
