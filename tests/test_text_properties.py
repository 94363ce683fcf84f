"""Laws of the text modules, on all that users bring: scripts, emoji, heaps of accents, mark-up, spelled control."""
from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from test_text import MEASURES, TAGS, missing, visible

from kit.cost import grows_in_proportion
from kit.vocabulary import demo, published
from speechwright.audio import Clip
from speechwright.cosyvoice3.prompt import PIECE_IDS, SYSTEM, _encode
from speechwright.cosyvoice3.prompt import pieces as cosyvoice_pieces
from speechwright.cosyvoice3.prompt import write as cosyvoice_write
from speechwright.cosyvoice3.tokenizer import SPELLED_CONTROL
from speechwright.omnifish import markup
from speechwright.omnifish.pipeline import write as ogg_write
from speechwright.omnifish.prompt import context
from speechwright.omnifish.tokenizer import TextTokenizer as OggTokenizer
from speechwright.omnifish.tokenizer import demo as ogg_demo
from speechwright.request import MODES, Request, turns
from speechwright.script import Turn, names_someone, parse, pauses, render
from speechwright.text import clean, speakable, split
from speechwright.wires import Voice

LETTERS = ("a", "word", "It", "Dr", "Mr", "e", "Ö", "ß", "İ", "一二", "です", "ー", "がぎ", "한국", "слово", "Я",
           "مرحبا", "می\u200cخواهم",
           "ไทย", "ำ", "हिन्दी", "क\u094d\u200dष", "ა", "Բա", "ℵ", "ʰ")
DIGITS = ("3", "14", "5:30", "1,000.5", "v1.2.3", "١٢",
          "٣٫١٤", "१२.५", "๓", "１．５", "１：２", "²", "½", "Ⅷ", "12 000")
BLANKS = (" ", " ", "  ", "\t", "\n", "\n\n", "\u3000", "\u00a0", "\u2009")
ENDS = ("\r\n", "\r", "\x0b", "\x0c", "\x85", "\u2028", "\u2029")
STOPS = (". ", ".", "! ", "? ", "?!", "...", "…", "; ", ", ", ": ", "。", "！", "，", "、", "；",
         "：", "؟ ", "، ", "। ",
         "։ ", "—", "–", "-")
QUOTES = (*"\"'‘’“”„‚«»‹›()[]<>{}", *"「」『』《》〈〉【】（）", "``", "« ", " »", "</")
SIGNS = ("👍", "❤\ufe0f", "👩\u200d🚀", "👩🏽\u200d⚕\ufe0f", "🏽", "🇵🇱", "1\ufe0f\u20e3",
         "\u0301", "a\u0301\u0323", "\u200d", "\u0e34", "\u094d", "(￣▽￣)", "$",
         "%", "-----", "***", "\\", "/", "|", "_", "#")
HIDDEN = ("\ufeff", "\u200b", "\u00ad", "\u2060", "\u202e", "\x00", "\x1b", "\u034f", "\ufffc", "\u3164", "\U000e0041")
CONTROL = ("<|endofprompt|>", "<|im_end|>", "<|quad_end|>", "<|quad_start|>", "<|text_end|>", "<|", "|>", "<think>")
ALL = st.one_of(*map(st.sampled_from, (LETTERS, LETTERS, DIGITS, BLANKS, BLANKS, ENDS, STOPS, STOPS, QUOTES, SIGNS,
                                       HIDDEN, TAGS, CONTROL)), st.text(max_size=2))
TEXTS = st.lists(ALL, max_size=40).map("".join)
CLEAN = TEXTS.map(clean)
HEAPS = st.tuples(st.sampled_from(("", "a", "é", "\u1112")), st.lists(st.sampled_from(
    ("\u0301", "\u0323", "\u0345", "\u0344", "\u0f73", "\u1dce", "\u05b0", ".", "\u094d")), min_size=50, max_size=90))


def shown(text: str) -> str:
    """What of a text can be seen, decomposed: blanks, controls and formats are left out, by their Unicode category."""
    hidden = ("Cc", "Cf", "Cs", "Zs", "Zl", "Zp")
    blank = "\u034f\ufffc\u3164\uffa0"
    seen = (sign for sign in text if unicodedata.category(sign) not in hidden and sign not in blank)
    return unicodedata.normalize("NFD", "".join(seen))


def numbers(text: str) -> list[str]:
    """Digits with single marks between them, found without a pattern."""
    found, end = [], -2
    for place, sign in enumerate(text):
        if not sign.isdecimal():
            continue
        if place == end + 1 or place == end + 2 and text[place - 1] in ".,:٫٬．：" and found:
            found[-1] += text[end + 1 : place + 1]
        else:
            found.append(sign)
        end = place
    return found


# The door


@given(TEXTS)
def test_clean_loses_and_doubles_nothing_that_is_seen(text):
    assert shown(clean(text)) == shown(text)


@given(TEXTS)
def test_clean_has_one_form(text):
    once = clean(text)
    assert clean(once) == once and unicodedata.is_normalized("NFC", once)
    assert not set("".join((*ENDS, *HIDDEN))) & set(once) - {"\n"}


@given(TEXTS)
def test_every_line_end_counts_once(text):
    assert clean(text).count("\n") == len(re.findall("\r\n|[\n\r\x0b\x0c\x85\u2028\u2029]", text))


@given(HEAPS)
def test_heaps_of_accents_are_normalised_as_python_does(heap):
    """Many accents on one letter took a time that grew as their square: 20 s for a line that somebody decorated."""
    text = heap[0] + "".join(heap[1])
    assert clean(text) == unicodedata.normalize("NFC", text)


# Pieces


@given(text=CLEAN, limit=st.integers(1, 40), measure=st.sampled_from(sorted(MEASURES)))
def test_pieces_are_in_order_speakable_and_short(text, limit, measure):
    size = MEASURES[measure]
    pieces = split(text, limit, size)
    assert not speakable(missing(pieces, text)) and bool(pieces) == speakable(text)
    for piece in pieces:
        assert speakable(piece) and piece == " ".join(piece.split())
        assert size(piece) <= limit or split(piece, 1, len) == [piece]
        assert split(piece, limit, size) == [piece]


@given(text=CLEAN, limit=st.integers(60, 90))
def test_where_there_is_room_every_sign_is_kept(text, limit):
    assume(max(map(len, re.split(r"\w", text))) <= limit / 4 and max(map(len, numbers(text)), default=0) <= limit / 4)
    pieces = split(text, limit, len)
    assert visible("".join(pieces)) == visible(text) or not speakable(text)
    assert all(len(piece) <= limit for piece in pieces)


@given(text=CLEAN, limit=st.integers(1, 40))
def test_numbers_are_parted_only_where_one_alone_is_too_long(text, limit):
    assume(max(map(len, numbers(text)), default=0) <= limit)
    assert [number for piece in split(text, limit, len) for number in numbers(piece)] == numbers(text)


@pytest.mark.parametrize("around", ["x", "好", "ก", "(", "[a]"])
@pytest.mark.parametrize("number", [
    "3.14", "10:30", "1,000.5", "1.2.3", "٣٫١٤", "१२.५", "๑,๒", "１．５", "１：２", "12345"])
def test_a_number_is_whole_wherever_it_stands(number, around):
    for before in range(9):
        for limit in range(len(number), 12):
            pieces = split(f"{around * before}{number}{around * 2}x", limit, len)
            assert sum(number in piece for piece in pieces) == 1, (before, limit)


@given(text=CLEAN, limit=st.integers(1, 90))
def test_tags_and_spelled_control_stay_whole(text, limit):
    pieces = split(text, limit, len)
    for tag in (*TAGS, *(name for name in CONTROL if name[-2:] == "|>" and len(name) > 2)):
        lost = missing(pieces, text).count(tag)
        assert sum(piece.count(tag) for piece in pieces) == text.count(tag) - lost, tag


@given(text=CLEAN, limit=st.integers(1, 40))
def test_marks_stay_with_the_character_that_they_mark(text, limit):
    """A piece that began with an accent or half of a joined emoji would be spoken by nobody, or as another word."""
    for piece in split(text, limit, len)[1:]:
        assert unicodedata.category(piece[0])[0] != "M" or text.find(f" {piece[0]}") >= 0 or re.search(
            rf"[\s\])>]{piece[0]}", text)
        assert not "\U0001f3fb" <= piece[0] <= "\U0001f3ff" or re.search(rf"[\s\])>]{piece[0]}", text)


@pytest.mark.parametrize("cluster", ["q\u0323", "e\u0323\u0301", "\u0915\u093f", "\u0e01\u0e35\u0e49", "1\ufe0f\u20e3"])
def test_characters_of_several_signs_stay_whole(cluster):
    for limit in range(1, 20):
        assert all(re.fullmatch(f"(?:{cluster})+", piece) for piece in split(cluster * 9, limit, len)), limit


def test_joined_emoji_stay_whole():
    for limit in range(1, 20):
        for piece in split("a👩🏽\u200d🚀❤\ufe0f\u200d🔥" * 5, limit, len):
            assert piece[0] in "a👩❤", limit


@given(text=TEXTS, limit=st.integers(20, PIECE_IDS))
def test_pieces_of_cosyvoice(text, limit):
    """They keep to the limit with the stop that is added, and lose nothing but lines without a word."""
    tokenizer = demo()
    try:
        pieces = cosyvoice_pieces(tokenizer, text, limit)
    except ValueError as error:
        assert re.match("text: (empty|nothing in .* can be spoken)", str(error), re.DOTALL)
        return
    for piece in pieces:
        assert speakable(piece) and "\n" not in piece
        assert len(_encode(tokenizer, piece)) <= limit or len(split(piece.rstrip(".。"), 1, len)) == 1
    assert letters("".join(pieces)) == letters(clean(text))


def letters(text: str) -> str:
    """All that can be spoken, without the tags that sound only by what they enclose."""
    return "".join(filter(speakable, re.sub("</?(?:strong|laughter)>", "", text)))


# Scripts

NAMES = ("Ada", "Bruno", "Mary Ann", "Zoë", "李雷", "Dr: Who", "S1")
LINES = st.one_of(st.sampled_from(("Ada: ", "[Bruno] ", "zoe\u0308：", "S2: ", "Carl: ", "\n", "\n", "  ", "[pause:1s]",
                                   "[pause:", "[pause:0.25s] ")), ALL)
SCRIPTS = st.lists(LINES, max_size=30).map("".join)


@given(SCRIPTS)
def test_parser_and_printer_are_inverses(text):
    with suppress(ValueError):
        found = parse(f"Ada: a\n{text}", NAMES)
        again = parse(render(found), NAMES)
        assert again == found and render(again) == render(found)


@given(SCRIPTS)
def test_a_script_keeps_its_words(text):
    """Of what is seen, only names go; each turn can be spoken."""
    script = f"Ada: a\n{text}"
    with suppress(ValueError):
        found = parse(script, NAMES)
        said, written = (Counter(shown(part)) for part in ("".join(turn.words for turn in found), script))
        assert not said - written
        lost, lines = written - said, clean(script).count("\n") + 1
        assert set(lost) <= set(shown("".join(NAMES).swapcase() + "".join(NAMES) + "S123456789:：[]"))
        assert sum(lost.values()) <= lines * max(len(shown(f"[{name}]:")) for name in NAMES)
        assert all(speakable(turn.words) and turn.words == turn.words.strip() for turn in found)


@given(text=SCRIPTS, mode=st.sampled_from(MODES))
def test_any_text_in_any_mode_is_read_or_refused_in_words(text, mode):
    try:
        found = turns(Request(text, mode=mode))
    except ValueError as error:
        assert re.match("(text|voices): ", str(error))
    else:
        assert found is None or mode != "speech" and all(turn.voice is None for turn in found)


@given(SCRIPTS)
def test_pauses_lose_nothing(text):
    try:
        found = pauses(text)
    except ValueError as error:
        assert re.match("text: .*(is not a pause of|add up to)", str(error), re.DOTALL)
        return
    spoken = re.sub(r"\[\s*pause\s*[:：][^]\n]*\]", "", clean(text), flags=re.IGNORECASE)
    assert shown("".join(said for said, _ in found)) == shown(spoken) or not shown(spoken)
    assert all(speakable(said) for said, _ in found[1:]) and all(silence >= 0 for _, silence in found)
    assert len(found) < 2 or speakable(found[0][0]) or found[0][0] == ""


# Control

SPELLED = st.lists(st.one_of(
    st.sampled_from((*SPELLED_CONTROL, *markup.CONTROL, "<think>", "</tool_call>", "<|vision_start|>", "<|denoise|>")),
    st.sampled_from(("<", "<|", "|>", ">", "|", "<\u2060|im_end|>", "<|\u200bim_end|>", "endofprompt", SYSTEM, "None",
                     "dialogue", "speaker:", "a", "好", " ", "\n", ".", "[breath]", "<strong>"))),
    max_size=6).map("".join)
COSYVOICE_CONTROL = {*range(151643, 151647), 151663}      # with <|endofsystem|>
QWEN_CONTROL = dict(zip(markup.CONTROL, (*range(151670, 151676), 151650, 151651, *range(151646, 151650))))


def a_voice(name: str, transcript: str) -> Voice:
    return Voice(Clip(torch.zeros(200), 100), transcript, name)


def request(voiced: bool, script: bool, spelled: Sequence[str]) -> Request:
    """With something to speak wherever that is needed, and what is spelled in all that users write."""
    text, transcript, name, instruction, before, after, speaker, quality = spelled
    name = " ".join(clean(name).split())
    voices = (a_voice(f"A{name}", f"b{transcript}"), a_voice("B", "c"))[: 2 if script else voiced]
    flat = " ".join(clean(text).split())
    return Request(
        f"S1: c{flat}\nB: d{flat}" if script else f"e{text}", voices, "dialogue" if script else "speech",
        instruction=instruction, whole=True, before=f"f. {before}", after=f"g. {after}",
        speaker="" if script else f"p{speaker}", quality=f"q{quality}")


REQUESTS = st.tuples(st.booleans(), st.booleans(), st.lists(SPELLED, min_size=8, max_size=8))


def cosyvoice_control(tokenizer, wish: Request) -> list[list[int]]:
    pieces, _ = cosyvoice_write(tokenizer, wish, lambda voice: torch.zeros(1, 50, dtype=torch.int64))
    return [[number for number in (*piece.content.prompt_text_ids, *piece.content.text_ids)
             if number in COSYVOICE_CONTROL] for piece in pieces]


def ogg_control(tokenizer: OggTokenizer, wish: Request) -> list[list[int]]:
    pieces, _ = ogg_write(replace(wish, instruction=""), lambda voice: torch.zeros(10, 4, dtype=torch.int64))
    found = []
    for scene in (piece.content for piece in pieces):
        laid = context(tokenizer, scene.text, scene.lang, scene.prompt_codes, scene.prompt_text, scene.before,
                       scene.after, scene.speaker, scene.quality, scene.voices)
        ids = laid.ids[0, ~laid.audio_mask].tolist()
        found.append([number for number in ids if number in tokenizer.control.values()])
    return found


@pytest.fixture(scope="module")
def ogg_tokenizers(comfyui_folder) -> list[OggTokenizer]:
    bpe = published(comfyui_folder)._bpe
    qwen = OggTokenizer(lambda text: bpe.encode(text, add_special_tokens=False).ids, QWEN_CONTROL, 151676)
    return [ogg_demo(), qwen]


@pytest.mark.parametrize("version", [2, 3])
@given(parts=REQUESTS)
def test_no_text_of_a_user_is_control_to_cosyvoice(comfyui_folder, version, parts):
    """Every prompt has as many as its frame, whatever is spelled in text, transcript, name or instruction."""
    wish = request(*parts)
    frame = version == 3 or speakable(wish.instruction.replace(SYSTEM, ""))
    for tokenizer in (demo(version), published(comfyui_folder, version)):
        try:
            found = cosyvoice_control(tokenizer, wish)
        except ValueError as error:
            assert "instruction: empty" in str(error)
            continue
        assert found and all(control == [151646] * frame for control in found)


@given(parts=REQUESTS)
def test_no_text_of_a_user_is_control_to_ogg(ogg_tokenizers, parts):
    """The control ids of a prompt are those of one with plain words, in the same order."""
    plain = request(*parts[:2], [""] * 8)
    for tokenizer in ogg_tokenizers:
        assert ogg_control(tokenizer, request(*parts)) == ogg_control(tokenizer, plain)


# Time

NASTY = (
    "“", '"', "«", "'", "„", "（", "「", "a", "好", "1", "1:", "1.", "１，", " ", "\u3000", "\t", "\r", "[", "]",
    "(", "<", "{", "[pause", "[pause:", "[pause:0]", "[pause :", "\u0301", "\u0301\u0323", "\u0f73", "👩\u200d",
    "🏽", "<strong>", "</strong>", "<|", "Ada: ", "Ada: a\n", "[Ada]", "S1:", ":", "。", "…", "ก", "-", "Mr. ",
    "A. ", "« a » ", "a\n\n", "[a] : ", "[a] ", "Carl: A\n", "\u200d", "\ufeff",
)
WAYS = {
    "clean": clean,
    "split": lambda text: split(f"a{text}a", 80, len),
    "parse": partial(parse, names=("Ada", "Dr: Who")),
    "names": partial(names_someone, names=("Ada", "Dr: Who")),
    "pauses": pauses,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("unit", NASTY)
def test_time_grows_with_the_text(way, unit):
    """One quadratic search, and a pasted book or a decorated line stops the queue for everybody."""
    def run(text: str) -> None:
        with suppress(ValueError):
            WAYS[way](f"Ada: a\n{text}: a" if way == "parse" else f"{text}: a")

    assert grows_in_proportion(run, unit)


@pytest.mark.parametrize("unit", ["a", "“a ", "1.", "\u0301\u0323", "[pause"])
def test_time_of_the_smallest_pieces_grows_with_the_text(unit):
    assert grows_in_proportion(lambda text: split(f"a{text}a", 1, len), unit)


def test_printing_takes_linear_time():
    assert grows_in_proportion(lambda text: render([Turn("Ada", line, 1) for line in text.split("\n")]), "word\n")
