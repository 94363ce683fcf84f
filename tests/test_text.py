"""The text door: one form for what users paste, and nothing lost that can be heard."""
from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kit.cost import grows_in_proportion
from speechwright.text import clean, closed, fold_name, speakable, split

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
    "\u3164", "\u200c", "\u200d", "\u034f", "\u180e",
    "\ufffc",           # where a picture stood that was not copied along
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
    assert grows_in_proportion(clean, unit)


@pytest.mark.parametrize("script, voice", [
    ("Zoë", "Zoe\u0308"), ("narrator ", "Narrator"), ("\ufeffAda", "ADA"), ("Mary Ann", "mary ann"),
    ("李雷", "李雷"), ("STRASSE", "straße"), ("Dr. Who", " dr. who\u200b"), ("A/B", "a/b"),
    ("ΣΊΣΥΦΟΣ", "σίσυφος"), ("Mary\u00a0Ann", "Mary  Ann"),
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


# Pieces

TAGS = ("[laughter]", "<strong>", "</strong>", "[j]", "[ǐ]", "[quick_breath]", "<|endofprompt|>", '<break t="0.5s"/>')
NUMBER = r"\d+(?:[.,:．：]\d+)*"
LETTERS = ("word", "It", "Dr", "e", "Ö", "一二", "です", "ไทย", "و", "3", "14", "5:30", "1,000.5", "１．５", "²")
BLANKS = (" ", " ", " ", "\n", "\n\n", "\u3000", "\u00a0", ". ", ", ", "! ", "? ")
MARKS = (*".,:。，；…—\"“”'’«»()「」[]<>-$", "...", "</")
CLUSTERS = ("👍", "❤\ufe0f", "👩\u200d🚀", "🏽", "\u0301", "\u200d", "a\u0301")
FRAGMENTS = st.lists(st.one_of(
    st.sampled_from(LETTERS), st.sampled_from(BLANKS), st.sampled_from(MARKS), st.sampled_from(TAGS),
    st.sampled_from(CLUSTERS), st.text(max_size=3),
), max_size=40).map("".join)
MEASURES = {
    "characters": len,
    "bytes": lambda text: len(text.encode("utf-8", "replace")),
    "words": lambda text: len(text.split()),
}


def visible(text: str) -> str:
    return "".join(text.split())


def missing(pieces: list[str], text: str) -> str:
    """Visible characters of a text that its pieces lack; all that they have has to be in it, in order."""
    lost, left = [], iter(visible(text))
    for character in visible("".join(pieces)):
        for passed in left:
            if passed == character:
                break
            lost.append(passed)
        else:
            pytest.fail(f"{character!r} is not where it was")
    return "".join([*lost, *left])


@given(text=FRAGMENTS, limit=st.integers(1, 40), measure=st.sampled_from(sorted(MEASURES)))
def test_pieces_of_any_text(text, limit, measure):
    """Each has something to speak and keeps to the limit, or cannot be cut, and is one piece when split again."""
    pieces = split(text, limit, MEASURES[measure])
    for piece in pieces:
        assert speakable(piece) and piece == " ".join(piece.split())
        assert MEASURES[measure](piece) <= limit or split(piece, 1, len) == [piece]
        assert split(piece, limit, MEASURES[measure]) == [piece]
    assert not speakable(missing(pieces, text))
    assert bool(pieces) == speakable(text)


@given(text=FRAGMENTS, limit=st.integers(24, 60))
def test_no_visible_character_is_lost(text, limit):
    signs = ("".join(character if not speakable(character) else "x" for character in text)).split("x")
    assume(max(map(len, signs)) <= limit / 4)
    assume(max(map(len, re.findall(NUMBER, text)), default=0) <= limit / 4)
    pieces = split(text, limit, len)
    assert missing(pieces, text) == "" or not speakable(text)
    assert all(len(piece) <= limit for piece in pieces)


@given(text=FRAGMENTS, limit=st.integers(8, 40))
def test_numbers_and_tags_stay_whole(text, limit):
    numbers = re.findall(NUMBER, text)
    assume(max(map(len, numbers), default=0) <= limit)
    pieces = split(text, limit, len)
    assert [number for piece in pieces for number in re.findall(NUMBER, piece)] == numbers
    for tag in TAGS:
        assert sum(piece.count(tag) for piece in pieces) == text.count(tag)


Z = "一二三四五六七八九十"


@pytest.mark.parametrize("text, limit, pieces", [
    ("", 9, []), (" \n", 9, []), ("。。。", 9, []), ("(￣▽￣)", 9, []), ("a", 1, ["a"]), ("1", 1, ["1"]),
    ("好", 1, ["好"]), ("Hello.", 99, ["Hello."]), ("  a \t b  ", 99, ["a b"]),
    # What is short stays together, however many sentences it is.
    ("One. Two. Three.", 16, ["One. Two. Three."]),
    ("One. Two. Three.", 15, ["One. Two.", "Three."]),
    ("It costs $3.50. Dr. Lee agreed to it.", 24, ["It costs $3.50.", "Dr. Lee agreed to it."]),
    ("See v1.2.3 at www.abc.com. It is new.", 30, ["See v1.2.3 at www.abc.com.", "It is new."]),
    ("J. R. R. Tolkien, i.e. he wrote it.", 24, ["J. R. R. Tolkien,", "i.e. he wrote it."]),
    ("Well... that is it, more or less.", 20, ["Well... that is it,", "more or less."]),
    ('"Go now. I stay," he said. She went.', 27, ['"Go now. I stay," he said.', "She went."]),
    ('He said "stop." Then he left.', 20, ['He said "stop."', "Then he left."]),
    ('"Stop it now!" he said, and left.', 26, ['"Stop it now!" he said,', "and left."]),
    ("« Bonjour. » Il part. Où va-t-il ?", 22, ["« Bonjour. » Il part.", "Où va-t-il ?"]),
    ("<strong>Go. Now.</strong> Then wait, please.", 34, ["<strong>Go. Now.</strong>", "Then wait, please."]),
    ("It has 10 000 rows and 2 more", 12, ["It has", "10 000 rows", "and 2 more"]),
    (f"{Z}。{Z}。{Z}。", 22, [f"{Z}。{Z}。", f"{Z}。"]),
    (f"他说：“走吧。”{Z}", 16, ["他说：“走吧。”", Z]),
    (f"{Z}，{Z}{Z}", 22, [f"{Z}，", Z + Z]),
    (Z * 3, 12, [Z + Z[:2], Z[2:] + Z[:4], Z[4:]]),
    ("[j][ǐ]予好评。" * 2, 11, ["[j][ǐ]予好评。"] * 2),
    ("รถไฟฟ้า" * 2, 7, ["รถไฟฟ้า"] * 2), ("ラーメン" * 2, 5, ["ラーメン"] * 2),
    ("a" * 25, 10, ["a" * 10, "a" * 10, "a" * 5]),
    ("Total: 1234567890123", 15, ["Total:", "1234567890123"]),
    ("12345678901234", 5, ["12345", "67890", "1234"]),
    ("[a tag of more than ten]", 10, ["[a tag of more than ten]"]),
    ("[laughter]\u200d[quick_breath]", 24, ["[laughter]\u200d", "[quick_breath]"]),
    # A footnote, and a tag, go with the stop before them.
    ("It is so.[1] Then it went on, and on.", 30, ["It is so.[1]", "Then it went on, and on."]),
    ("Stop.[sigh] </b>Go on, then go home.", 24, ["Stop.[sigh]", "</b>Go on, then go home."]),
    ("Stop.</b> Go on, then go home now.", 24, ["Stop.</b>", "Go on, then go home now."]),
    ("真的。[breath]因为他们", 9, ["真的。", "[breath]因", "为他们"]),
    # An answer, and a number.
    ("Did he? No. He left. See No. 7.", 19, ["Did he? No.", "He left. See No. 7."]),
    # Thai vowels that are written before what they follow, and what is written after; Khmer and Burmese stacks.
    ("เดินเล่นใน" * 2, 15, ["เดินเล่นในเดิน", "เล่นใน"]), ("มากเรากิน", 7, ["มากเรา", "กิน"]), ("ខ្ញុំខ្ញុំ", 7, ["ខ្ញុំ", "ខ្ញុំ"]),
    ("န္တမန္တ", 6, ["န္တမ", "န္တ"]),
    # A number with a stop is a date or an item of a list.
    ("Es war am 5. Januar in Bonn, wo er blieb.", 20, ["Es war am 5. Januar", "in Bonn,", "wo er blieb."]),
    ("1. Buy milk. 2. Eat bread. 3. Sleep well.", 16, ["1. Buy milk.", "2. Eat bread.", "3. Sleep well."]),
    ("It was 1984. It costs 2.50. It is v2. Yes.", 20, ["It was 1984.", "It costs 2.50.", "It is v2. Yes."]),
    ("On Jan. 5 we met. Then we parted.", 14, ["On Jan. 5 we", "met.", "Then we", "parted."]),
    ("Really‼ Yes it is. No⁉ Right.", 12, ["Really‼", "Yes it is.", "No⁉ Right."]),
    ("Բարեւ։ Ինչպես ես։ Լավ եմ։", 14, ["Բարեւ։", "Ինչպես ես։", "Լավ եմ։"]),
    # Signs go with what is spoken, or are left out where they have no room.
    ("Yes. -- No.", 7, ["Yes.", "-- No."]), ("(((12345", 6, ["12345"]), ("12345)))", 6, ["12345)"]),
    ("Hello. " + "-" * 99 + " Bye.", 12, ["Hello.", "Bye."]),
    ("Yes, it is. ---", 12, ["Yes,", "it is. ---"]),
    # More accents than anybody writes.
    ("a" + "\u0327" * 70 + "b", 40, ["a" + "\u0327" * 39, "\u0327" * 31 + "b"]),
    # A rest of one short word is no piece.
    ("One is here, and two is there, I say. Yo!", 40, ["One is here, and two is there,", "I say. Yo!"]),
])
def test_places_of_cuts(text, limit, pieces):
    assert split(text, limit, len) == pieces


@pytest.mark.parametrize("text, limit, pieces", [
    ('She said, "Go. Now." and then she left.', 24, ["She said,", '"Go. Now." and then she', "left."]),
    ("It is (so I hear; so be it) here, they say.", 33, ["It is (so I hear; so be it) here,", "they say."]),
    ('"One is here, I say. Two is here, too. Three."', 40, ['"One is here, I say. Two is here, too.', 'Three."']),
    ('He told "One is here. Two is" to us all', 36, ['He told "One is here.', 'Two is" to us all']),
    ("It was (red, blue) and it went on", 24, ["It was (red, blue) and", "it went on"]),
    ("(This is one. Two “three” four), and five", 36, ["(This is one. Two “three” four),", "and five"]),
    ("»Komm. Setz dich.« Er kam. Sie auch, ja.", 28, ["»Komm. Setz dich.« Er kam.", "Sie auch, ja."]),
    ("Er kam heute. »Komm. Setz dich.« Nein.", 30, ["Er kam heute.", "»Komm. Setz dich.« Nein."]),
    ("Er rief: ›Komm. Setz dich.‹ Nein.", 24, ["Er rief:", "›Komm. Setz dich.‹ Nein."]),
    ("”Kom hit. Sätt dig.” Han kom.", 22, ["”Kom hit. Sätt dig.”", "Han kom."]),
    ("„Geh jetzt. Bleib.“ Er ging. Ja.", 24, ["„Geh jetzt. Bleib.“", "Er ging. Ja."]),
    ("On jej rzekł, „Idź. Wróć.” i poszedł.", 30, ["On jej rzekł,", "„Idź. Wróć.” i poszedł."]),
    ("‚Geh jetzt. Bleib.‘ Er ging. Ja.", 24, ["‚Geh jetzt. Bleib.‘", "Er ging. Ja."]),
    ("« Va. Viens. » Il part. Oui, va.", 25, ["« Va. Viens. » Il part.", "Oui, va."]),
    ("Il dit bien « oui » ou non", 14, ["Il dit bien", "« oui » ou non"]),
    ("Il dit bien « oui ou non", 13, ["Il dit bien", "« oui ou non"]),
    ("Il dit oui bien » ou non", 16, ["Il dit oui", "bien » ou non"]),
    ("Then she said “now we go” and", 20, ["Then she said", "“now we go” and"]),
    # What never closes opens nothing.
    ("I lost :( My dog ran off. It is sad; very.", 40, ["I lost :( My dog ran off.", "It is sad; very."]),
    ('A 6" pipe. It is here; not there.', 26, ['A 6" pipe.', "It is here; not there."]),
    ("<strong>Go. It is here; not there.", 30, ["<strong>Go.", "It is here; not there."]),
    ("1) So :( It is. “Red blue”, and so on.", 34, ["1) So :( It is.", "“Red blue”, and so on."]),
])
def test_quotes_stay_whole_where_a_mark_outside_offers_itself(text, limit, pieces):
    """Sentences in quotes were cut before commas outside; quotes that open with the sign that closes in English hid
    the end of a sentence, and a face, an inch or a span left open all ends after it."""
    assert split(text, limit, len) == pieces


@pytest.mark.parametrize("text, expected", [
    ("Yes.", True), ("Yes", False), ("Yes,", True), ('"Yes." ', True), ("»Ja.«", True), ("‚Ja.‘", True),
    ("”Ja.”", True), ("« Oui. »", True), ("“Yes”", False), ("Բարեւ։", True), ("好。」", True), ("", False),
    ("Yes.[1]", False),
])
def test_closed(text, expected):
    """German quotes hid the stop, so that a second one was added."""
    assert closed(text) == expected


@pytest.mark.parametrize("text, pieces", [
    ("Hello.\nBye.", ["Hello.", "Bye."]), ("Hello.  \n  Bye.", ["Hello.", "Bye."]),
    ("“Hello.”\nBye.", ["“Hello.”", "Bye."]), ("你好。\n再见。", ["你好。", "再见。"]),
    ("Hello\n\nBye", ["Hello", "Bye"]), ("\n\nHello\n", ["Hello"]),
    ("lines of a letter\nthat was wrapped", ["lines of a letter that was wrapped"]),
    ("Dear Dr.\nLee", ["Dear Dr. Lee"]), ("No.\nYes.", ["No.", "Yes."]), ("»Ja.«\nNein.", ["»Ja.«", "Nein."]),
    ("被折断的\n句子", ["被折断的句子"]), ("１\n２", ["１ ２"]), ("한국\n말", ["한국 말"]),
])
def test_lines(text, pieces):
    assert split(text, 99, len) == pieces


def test_lines_without_a_letter_are_no_pieces():
    """A row of dashes between two lines became a piece of its own, and with it the whole job died, or it hummed."""
    pieces = split("\n".join(["Hello.", "-----", "(￣▽￣)", "❤\ufe0f", "Bye."]), 80, len)
    assert len(pieces) == 2 and pieces[0] == "Hello." and pieces[1].endswith("Bye.")


def test_a_measure_may_count_more_for_less():
    """Ids of a tokenizer do: "ab" can be one where "a" is two."""
    assert split("aabb", 3, lambda text: {"aabb": 3, "aab": 9, "aa": 9, "a": 9}.get(text, 1)) == ["aabb"]
    more = {"aa, bb cc dd": 9, "aa, bb cc d": 9, "aa,": 9}
    assert split("aa, bb cc dd", 3, lambda text: more.get(text, 1)) == ["aa, bb cc", "dd"]
    odd = split("one two three four", 3, lambda text: 4 - len(text) % 4)
    assert missing(odd, "one two three four") == "" and all(4 - len(piece) % 4 <= 3 for piece in odd)


def test_limit_of_nothing():
    with pytest.raises(ValueError, match="limit: 0 is not possible; give 1 or more"):
        split("a", 0, len)


@pytest.mark.parametrize("text, expected", [
    ("a", True), ("1", True), ("²", True), ("好", True), ("ो", False), ("", False), (" ", False),
    ("❤\ufe0f", False), ("…!?", False),
])
def test_speakable(text, expected):
    assert speakable(text) == expected


@pytest.mark.parametrize("unit", [
    "a", "一", "Hello there. ", "1.", "[", "(a. ", "\n", "a\u0301", ". ", "a.\n", '"a." ', "<a>", "»", "。\n", ".[1]",
    " 5.",
])
def test_a_book_is_split_in_linear_time(unit):
    assert grows_in_proportion(lambda text: split(f"a{text}a", 80, len), unit)


def test_large_pieces_take_linear_time():
    assert grows_in_proportion(lambda text: split(text, len(text) // 2, len), "a ")
