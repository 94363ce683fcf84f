"""Scripts: every word has its speaker, every pause its place, and nothing is lost on the way."""
from __future__ import annotations

import re
from contextlib import suppress
from fractions import Fraction
from functools import partial

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kit.cost import grows_in_proportion
from speechwright import wires
from speechwright.script import MAX_PAUSE_S, Turn, names_someone, parse, pauses, render
from speechwright.text import clean, fold_name, speakable, split

AB = ("Ada", "Bruno")
LIMIT = 30      # characters of a piece

# What users write, and what becomes of it: pieces with the seconds of silence between them where there are no
# voices, else turns; or a part of the error.
TABLE = [
    # Nothing to speak
    ("", None, []), (" \n\t", None, []), ("…!?", None, []), ("👍 ❤\ufe0f", None, []),
    ("", AB, "text: empty; write a line such as 'S1: Hello.'"),
    ("S1:", (), "text: nothing in 'S1:' can be spoken; write words after a name"),
    ("Ada: ...\nBruno: [pause:1s]", AB, "can be spoken"),
    # A line without a letter
    ("Hello.\n-----\n(￣▽￣)\n❤\ufe0f\nBye.", None, ["Hello.", "----- (￣▽￣) ❤\ufe0f Bye."]),
    ("Hello.\n\nBye.", None, ["Hello.", "Bye."]),
    ("Ada: Hello.\nBruno: ...\nAda: Bye.", AB, [("Ada", "Hello. ..."), ("Ada", "Bye.")]),
    ("***\nAda: Hello.\n\n👍\nBruno: Bye.", AB, [("Ada", "*** Hello.\n\n👍"), ("Bruno", "Bye.")]),
    ("Ada:\nBruno: Bye.\nAda:", AB, [("Bruno", "Bye.")]),
    # One word
    ("Yes", None, ["Yes"]), ("1", None, ["1"]), ("好", None, ["好"]), ("Ada: Hm", AB, [("Ada", "Hm")]),
    # Long text
    ("abcdefghi" * 7, None, ["abcdefghi" * 3 + "abc", "defghi" + "abcdefghi" * 2 + "abcdef", "ghi"]),
    ("好" * 70, None, ["好" * 30, "好" * 30, "好" * 10]),
    # Sentences
    ("It costs $3.50. Dr. Lee agreed to it.", None, ["It costs $3.50.", "Dr. Lee agreed to it."]),
    ("See v1.2.3 at www.abc.com. It is new.", None, ["See v1.2.3 at www.abc.com.", "It is new."]),
    ("今天天气很好！我们去公园散步，好不好？然后我们一起吃饭，再看电影。", None,
     ["今天天气很好！我们去公园散步，好不好？", "然后我们一起吃饭，再看电影。"]),
    ("Es war am 5. Januar in der Stadt Bonn.", None, ["Es war am 5. Januar in der", "Stadt Bonn."]),
    ("1. Buy some milk. 2. Eat all the bread.", None, ["1. Buy some milk.", "2. Eat all the bread."]),
    ("»Komm her. Setz dich.« Er kam nicht mehr.", None, ["»Komm her. Setz dich.«", "Er kam nicht mehr."]),
    ("”Kom hit. Sätt dig.” Han kom inte mera.", None, ["”Kom hit. Sätt dig.”", "Han kom inte mera."]),
    ('She said, "Go. Now." and then she left.', None, ["She said,", '"Go. Now." and then she left.']),
    ("I lost :( My dog ran off. It is sad; very.", None, ["I lost :( My dog ran off.", "It is sad; very."]),
    ("So it was.[1] Then it went on for years.", None, ["So it was.[1]", "Then it went on for years."]),
    ("Բարեւ բոլորիդ։ Ինչպես եք այսօր դուք։", None, ["Բարեւ բոլորիդ։", "Ինչպես եք այսօր դուք։"]),
    ("At 10:30, 1,000 people sang to 2,500.75.", None, ["At 10:30,", "1,000 people sang to 2,500.75."]),
    # Line ends and what nobody sees
    ("\ufeffS1: Hi\r\nS2: Yo\r\n", (), [("S1", "Hi"), ("S2", "Yo")]),
    ("S1: Hi\x0bS2: Yo\u2028S1: Ha\rS2: Ho", (), [("S1", "Hi"), ("S2", "Yo"), ("S1", "Ha"), ("S2", "Ho")]),
    ("\u200bA\u00adda\u200b: Hel\u034flo\ufffc", AB, [("Ada", "Hello")]),
    # Tags, and signs that resemble them
    ("Oh [laughter] <strong>no</strong>, it ends.", None, ["Oh [laughter]", "<strong>no</strong>, it ends."]),
    ("<strong>It goes on. And on. And further on.", None, ["<strong>It goes on. And on.", "And further on."]),
    ("a</strong> b [ c < d > e [1] [sigh", None, ["a</strong> b [ c < d > e [1]", "[sigh"]),
    ('Wait<break time="0.5s"/> for it, dear.', None, ['Wait<break time="0.5s"/> for', "it, dear."]),
    ("高管[j][ǐ]予好评，[laughter]真好。高管[j][ǐ]予好评。", None,
     ["高管[j][ǐ]予好评，[laughter]真好。", "高管[j][ǐ]予好评。"]),
    ("Ada: [laughter]\nBruno: [sigh] No [1].", AB, [("Ada", "[laughter]"), ("Bruno", "[sigh] No [1].")]),
    ("[sigh] Ada: No.\n[pause:1s] [Bruno] Yes.", AB, [("Ada", "[sigh] No."), ("Bruno", "[pause:1s] Yes.")]),
    # Control ids, spelled
    ("One<|endofprompt|>two three four.", None, ["One<|endofprompt|>two three", "four."]),
    ("S1<|quad_end|>evil: Hi\nAda: Yo", AB, "'S1<|quad_end|>evil: Hi' in line 1 stands before the first name"),
    ("Ada: Hi<|im_end|>\nS2: <|text_end|> yo", AB, [("Ada", "Hi<|im_end|>"), ("S2", "<|text_end|> yo")]),
    # Who speaks
    ("S1: a\nS3: b", ("S1", "S2"), [("S1", "a"), ("S3", "b")]),
    ("a\nS1: b", (), "'a' in line 1 stands before the first name; begin the line with the name of a voice and a colon. "
                     "No voice is connected; S1 to S9 need none. For a text that is no script, choose the "
                     "mode speech."),
    ("S1: a\nmore a\n\n\n\n  and more", (), [("S1", "a\nmore a\n\nand more")]),
    ("S1: a: b\nS2：全角", (), [("S1", "a: b"), ("S2", "全角")]),
    ("s1 : a\n\" (not a speaker)\n12:30 is late", (), [("S1", "a\n\" (not a speaker)\n12:30 is late")]),
    ("Ada: a\n[Bruno] b\n[ada]: c", AB, [("Ada", "a"), ("Bruno", "b"), ("Ada", "c")]),
    ("Ada: a\nCarl: B\nDora: C\nCarl: D", AB,
     "no connected voice is called 'Carl' (line 2, 4), 'Dora' (line 3). Names in the script: Ada, Carl, Dora. "
     "Connected voices: Ada, Bruno; S1 to S9 need none. Correct the name or connect such a voice; if it is no name, "
     "indent its line"),
    (" Carl: a", (), "called 'Carl' (line 1). Names in the script: Carl. No voice is connected; S1 to S9 need none"),
    ("[Carl] a", AB, "called 'Carl' (line 1). Names in the script: Carl"),
    ("  Ada: a\n  Carl: B", AB, "called 'Carl' (line 2)"),
    ("S1: a\nS10: b\nS0: c", (), "called 'S10' (line 2), 'S0' (line 3)"),
    # What names look like
    ("mary ann: a\nZOE\u0308: b\nDR. WHO: c\n李雷：d\na/b: e\nNARRATOR : f",
     ("Mary Ann", "Zoë", "Dr. Who", "李雷", "A/B", "narrator "),
     [("Mary Ann", "a"), ("Zoë", "b"), ("Dr. Who", "c"), ("李雷", "d"), ("A/B", "e"), ("narrator ", "f")]),
    ("Dr: Who: a\n[dr: who] b\nAda [low]: c\n[x]", ("Dr: Who", "Ada [low]"),
     [("Dr: Who", "a"), ("Dr: Who", "b"), ("Ada [low]", "c\n[x]")]),
    ("Ada: a", ("Ada", "ADA "), "voices: 'Ada' and 'ADA ' are one name in a script; rename one of them"),
    ("10: a\n10:30 is late\n: b", ("10", "", " "), [("10", "a\n10:30 is late\n: b")]),
    ("Ada: a\nMaryAnn: b", ("Ada", "Mary Ann"), "'MaryAnn' (line 2)"),
    ("Zoe: b", ("Ada", "Zoë"), "called 'Zoe' (line 1). Names in the script: Zoe. Connected voices: Ada, Zoë"),
    # Pauses
    ("Wait. [pause:0.8s] Now. [Pause: 300 MS ] Go [pause：1]!", None, ["Wait.", 0.8, "Now.", 0.3, "Go !", 1.0]),
    ("[pause:1s]Hi[pause:0.1s] [pause:0.2s]", None, [1.0, "Hi", 0.3]),
    ("One[pause:0.1s] ... [pause:0.2s]two", None, ["One ...", 0.3, "two"]),
    ("a\n\nb [pause:]", None, "'[pause:]' in line 3 is not a pause of 0 to 600 s; write seconds or milliseconds, such "
                              "as [pause:0.8s] or [pause:300ms]"),
    ("Ada: a\n\nb [pause:abc]", AB, "'[pause:abc]' in line 3 is not a pause"),
    ("a [pause:400s] [pause:200.5s] b", None,
     "with '[pause:200.5s]' in line 1, pauses in a row add up to 600.5 s; at most 600 s are possible"),
    ("[pause:1s]\nAda: Hi", AB, [("Ada", "[pause:1s] Hi")]),
    ("Ada: a [pause:400s]\nBruno: [pause:300s] b", AB,
     "with '[pause:300s]' in line 2, pauses in a row add up to 700 s"),
    ("[pause] [pause briefly] [short pause] [pauses: 1]", None,
     ["[pause] [pause briefly]", "[short pause] [pauses: 1]"]),
]


@pytest.mark.parametrize("text, voices, expected", TABLE)
def test_what_becomes_of_it(text, voices, expected):
    def outcome() -> list:
        if voices is not None:
            return [(turn.name, turn.words) for turn in parse(text, voices)]
        return [found for said, silence in pauses(text)
                for found in (*split(said, LIMIT, len), *([silence] if silence else []))]

    if isinstance(expected, str):
        with pytest.raises(ValueError, match=re.escape(expected)):
            outcome()
    else:
        assert outcome() == expected


# A word and a colon, where no voice has that name


@pytest.mark.parametrize("line", [
    "Note: it is 10:30", "Note: It is 10:30.", "P.S.: I forgot.", "注意：火车晚点了。", "  Carl: I am indented.",
    "12:30 is late", "Today 10:30 and 11:00", "https://www.abc.com/x", "C:\\temp", "std::vector", "mailto:a@b.com",
    "John 3:16 says it.", "Cool :D", "Haha :) nice", "He said: go.", "He said: Go.", "He said: “Go.”", "他说：“走吧。”",
    "The rules are simple: Go on.", "And then, at last: Bread", "Wait! Wait: No", "1. Eat: Now", "result: none",
    "Result: none so far", "Look at x=y: Fine", ": no", "[sigh] so: What", "[Bob] What", "word", "",
    "The Good The Bad And The Ugly: Fine", "Donaudampfschifffahrtsgesellschaft: Hallo",
    "今天晚上我们要讨论的问题是：天气", "he said: go.\nThen\nhe said: stop.",
])
def test_prose_goes_on(line):
    """A recipe's or a letter's line has a colon too; an error for each would keep such texts from being spoken."""
    turn, = parse(f"Ada: First of all.\n{line}", AB)
    assert turn == Turn("Ada", f"First of all.\n{line.strip()}".strip(), 1)


@pytest.mark.parametrize("line, name", [
    ("Carl: Hello.", "Carl"), ("Old Man: Hello.", "Old Man"), ("Carl:Hello.", "Carl"), ("Carl:", "Carl"),
    ("李雷：你好。", "李雷"), ("李雷：3点。", "李雷"), ("Dr. Who : Hello.", "Dr. Who"),
    ("Carl (low): Hello.", "Carl (low)"),
    ("**Carl:** Hello.", "**Carl"), ("- Carl: Hello.", "- Carl"), ("Carl: [sigh] hello.", "Carl"),
    ("[sigh] Carl: Hello.", "Carl"), ("[pause:1s]Carl: Hello.", "Carl"), ("[Carl]: hello", "Carl"),
    ("carl: hello\ncarl: bye", "carl"), ("Carl: hello\nCarl: “bye”", "Carl"), ("Note: hello\nBrunno: bye", "Brunno"),
    ("Bruno (low): hello", "Bruno (low)"), ("**Bruno:** hello", "**Bruno"), ("bruno1: hello", "bruno1"),
    ("S10: hello", "S10"), ("speaker 3: hello", "speaker 3"), ("Voice_2: hello", "Voice_2"),
    ("[Bruno]: hi\n[Carl] hello", "Carl"), ("[Bruno]\nhi\n[Carl]\nhello", "Carl"),
    ("Bruno: hi\nCarl: hello", "Carl"),
])
def test_names_that_no_voice_has(line, name):
    """They were spoken by the voice of the line before, name and all."""
    with pytest.raises(ValueError, match=re.escape(f"no connected voice is called {name!r} (line ")):
        parse(f"Ada: First of all.\n{line}", AB)


def test_numbered_speakers_may_need_voices():
    """A third speaker, of two voices, took the voice of somebody else."""
    assert parse("S2: a", ["Ada"]) == [Turn("S2", "a", 1)]
    assert parse("s1: a\nADA: b", ["S1", "Ada"], numbered=False) == [Turn("S1", "a", 1), Turn("Ada", "b", 2)]
    found = (r"called 'S3' \(line 2\). Names in the script: S1, S3. Connected voices: S1, S2. Correct")
    with pytest.raises(ValueError, match=found):
        parse("S1: a\nS3: b", ["S1", "S2"], numbered=False)


@pytest.mark.parametrize("text, names, expected", [
    ("Hello.\n [sigh] ada : hi", AB, True), ("[Bruno] hi", AB, True), ("Hello Ada: hi", AB, False), ("", AB, False),
    ("S2: hi", AB, True), ("S2: hi", ["Ada"], False), ("S2: hi", ["s2"], True), ("Carl: hi", AB, False),
    ("S1: hi", ["Ada"], True), ("[S1] hi", ["Ada"], True), ("So:\ns1： hi", [], True), ("S3: Storage.", [], False),
    ("See S1: hi", ["Ada"], False), ("S10: hi", ["Ada"], False), ("S1 is here: hi", ["Ada"], False),
])
def test_a_text_is_a_script_if_it_names_someone(text, names, expected):
    assert names_someone(text, names) == expected


def test_numbers_address_voices_without_names():
    """Nameless voices did not count, so that S1 and S2 were nobody in a text for two of them."""
    assert names_someone("S1: hi\nS2: hi", ["", ""]) and names_someone("S2: hi", ["", "Ada"])
    assert names_someone("S1: hi", [""]) and not names_someone("S2: hi", [""])


def test_error_about_many_names_is_short():
    with pytest.raises(ValueError) as caught:
        parse("\n".join(f"Name{chr(65 + number % 26)}{chr(65 + number // 26)}: Hi" for number in range(600)), AB)
    assert len(str(caught.value)) < 700 and "NameIA, ..." in str(caught.value)


def test_phones_begin_a_line():
    """Each is a tag, and a script may have its names in brackets."""
    assert parse("[Ada] One.\n[HH][AH0]llo", AB) == [Turn("Ada", "One.\n[HH][AH0]llo", 1)]


def test_line_of_a_turn():
    turns = parse("\n***\nAda:\n\nHello\nBruno: ...\n\n[Ada] Bye", AB)
    assert [turn.line for turn in turns] == [3, 8] and turns[0] == Turn("Ada", "*** Hello ...", 99)


# Parser and printer

NAMES = ("Ada", "Bruno", "Mary Ann", "Zoë", "Dr. Who", "李雷", "A/B", "Dr: Who", "Ada [low]", "Note", "S1", "42")
PAUSES = ("[pause:0.8s]", "[pause:300ms]", "[pause:0]", "[pause: 0.1 S]")
WORDS = st.lists(st.sampled_from((
    "word", "It", "3", "10:30", "好", "好：", "Note: x", ": ", "...", "👍", "-", "[sigh]", "[Bob]", "“Go.”", "Carl",
    " ", "Ada: x", "[Ada] x", "S2", *PAUSES)), min_size=1, max_size=5).map(" ".join).map(str.strip).filter(bool)
GOING_ON = WORDS.filter(lambda words: not re.match(r"(\[[^]]*\]\s*)*(Ada|S\d|Note)|.*\[Ada\]", words))
TURNS = st.lists(st.builds(
    lambda name, first, others: Turn(name, "\n".join((first, *others)), 0),
    st.sampled_from((*NAMES, "S9")), WORDS, st.lists(GOING_ON, max_size=3)), min_size=1, max_size=6)
SCRIPTS = st.lists(st.one_of(
    st.tuples(st.sampled_from((*NAMES, "s1", "S2", "S10", "Carl", "mary ann")), st.sampled_from((": ", ":", " ： ")))
    .map("".join),
    st.sampled_from(NAMES).map("[{}] ".format), WORDS, st.sampled_from(("\n", "\n", "\n\n\n", "\n  ", " ")),
    st.text(max_size=3),
), max_size=24).map("".join)


def visible(text: str) -> str:
    return "".join(text.split())


def spoken(text: str) -> bool:
    return speakable(re.sub(r"\[\s*pause\s*:[^]]*\]", "", text, flags=re.IGNORECASE))


@given(TURNS)
def test_printed_turns_are_read_again(turns):
    """Turns as they are made, each with something to speak; a break in the words is one."""
    assume(all(spoken(turn.words) for turn in turns))
    assert parse(render(turns), NAMES) == turns


def test_a_name_with_a_colon_is_printed_in_brackets():
    turns = [Turn("Dr", "Who: a", 1), Turn("Dr: Who", "b", 2)]
    assert render(turns) == "Dr: Who: a\n[Dr: Who] b" and parse(render(turns), ["Dr", "Dr: Who"]) == turns


@given(TURNS)
def test_words_stay_in_order(turns):
    """A turn of signs or pauses joins its neighbour, and nothing is lost or doubled on the way."""
    assume(any(spoken(turn.words) for turn in turns))
    read = parse(render(turns), NAMES)
    assert visible("".join(turn.words for turn in read)) == visible("".join(turn.words for turn in turns))
    assert len(read) == sum(spoken(turn.words) for turn in turns)


@given(SCRIPTS)
def test_any_script_is_read_or_refused(script):
    """What was read, printed, is read the same; each turn can be spoken and stands where it says."""
    try:
        turns = parse(f"S1: a\n{script}", NAMES)
    except ValueError as error:
        assert re.match("text: (no connected voice is called|with '.pause.*in a row add up)", str(error))
        return
    assert parse(render(turns), NAMES) == turns
    lines = re.split("\r\n|[\n\r\v\f\x85\u2028\u2029]", f"S1: a\n{script}")
    for turn in turns:
        assert spoken(turn.words) and turn.words == turn.words.strip()
        assert fold_name(turn.name) in fold_name(lines[turn.line - 1])


# Pauses

PARTS = st.lists(st.one_of(
    st.sampled_from(("word", "好", "...", "👍", " ", "\n", "[sigh]", "1.5", "[pausing]", "e\u0301")),
    st.sampled_from(PAUSES), st.text(st.characters(exclude_characters="[]"), max_size=3)), max_size=20)
SECONDS = dict(zip(PAUSES, map(Fraction, ("0.8", "0.3", "0", "0.1"))))


@given(PARTS)
def test_pauses_keep_text_and_time(parts):
    """No visible character is lost or doubled, no silence either, and what is between pauses can be spoken."""
    found = pauses("".join(parts))
    said = clean("".join(part for part in parts if part not in PAUSES))
    assert visible("".join(text for text, _ in found)) == visible(said) or not visible(said)
    assert all(speakable(text) for text, _ in found[1:])
    assert sum(Fraction(f"{silence:.3f}") for _, silence in found) == sum(SECONDS.get(part, 0) for part in parts)
    if speakable(said):
        again = "".join(f"{text}[pause:{silence:.1f}s]" for text, silence in found)
        assert pauses(again) == found


@pytest.mark.parametrize("tag, seconds", [
    ("[pause:0.8s]", 0.8), ("[pause:300ms]", 0.3), ("[pause:1]", 1.0), ("[PAUSE: 2 S]", 2.0), ("[ pause :.5]", 0.5),
    ("[pause:600s]", 600.0), ("[pause:600000ms]", 600.0), ("[pause:1.s]", 1.0), ("[pause：１s]", 1.0),
    ("[pause:0.1s]" * 10, 1.0), ("[pause:0.1]\n[pause:200ms]", 0.3),
])
def test_length_of_a_pause(tag, seconds):
    assert pauses(f"a{tag}b") == [("a", seconds), ("b", 0.0)]
    assert pauses(tag) == [("", seconds)]


@pytest.mark.parametrize("tag", [
    "[pause:]", "[pause:abc]", "[pause:-1s]", "[pause:600.1s]", "[pause:601000ms]", "[pause:1m]", "[pause:1 min]",
    "[pause:1,5s]", "[pause:1e2]", "[pause:0x1]", "[pause:nan]", "[pause:1s", "[pause=1s]", "[pause 1s]", "[pause.5]",
    "[pause:1.2.3s]", "[pause:٣٣٣٣s]", f"[pause:{'9' * 5000}]", "[pause:s]", "[pause:+1s]",
])
def test_a_tag_that_is_no_pause(tag):
    """It was read aloud."""
    with pytest.raises(ValueError, match=r"^text: '.pause.* in line 2 is not a pause of 0 to 600 s; write seconds"):
        pauses(f"a\nb {tag}\nc")


def test_signs_before_all_words_go_with_them():
    """What nobody can speak was a piece of its own."""
    assert pauses("… [pause:1s] Hi") == [("", 1.0), ("…  Hi", 0.0)]


def test_a_pause_may_be_as_long_as_a_piece_allows():
    assert MAX_PAUSE_S == wires.MAX_PAUSE_S


@pytest.mark.parametrize("unit", [
    "Ada: word.\n", "word\n", "Ada: .\n", "[a]", "Xx: y\n", "xx: y\n", "[", ":", "Ada", "[pause:0]", "a[pause:0]",
    ".[pause:0]", "[pause:", "\n", " ", "[a] : ", "Carl: A\n",
])
def test_a_play_is_read_in_linear_time(unit):
    def read(text: str) -> None:
        for way in (partial(parse, names=AB), pauses):
            with suppress(ValueError):
                way(f"Ada: a {text}")

    assert grows_in_proportion(read, unit)
