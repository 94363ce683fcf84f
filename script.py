"""Dialogue scripts: who says what, and where it is silent. Pure Python.

One line a turn::

    Ada: Hello there. [pause:0.8s] Is it you?
    [Bruno] It is me.
      Note: An indented line goes on, unless the name of a voice begins it.

A name is what stands before the first colon, narrow or wide, or in brackets, if a connected voice has it, or if it
is ``S1`` to ``S9``. Case, blanks around it and the form of accents do not count; tags may stand before it. A line
without a name continues the turn before it. Before the first name there may be pauses and signs, but no words.

``Word: more``, where no voice is called so, may be a slip or prose. It is an error if ``Word`` looks like a name:

- it is indented no deeper than the turn it would go on with, begins with a letter, has at most four words and no mark
  of a sentence, and does not announce, as Note and P.S. do;
- and it is like ``S12`` or ``Speaker 3``, or resembles the name of a voice; or its first and last word have a capital
  and what follows has one too (where no script without capitals or turns that go without tell otherwise), not a
  quote; or it begins several lines, be it one small word.

Everything else is to be said: ``10:30``, an address, ``He said: go``. So is ``[Word]``, since tags look like that; it
is a name if a colon follows or if other names are in brackets.

A turn without a letter or digit, such as ``...`` or a pause, joins the end of the turn before it, or the begin of
the next if it is the first. One with nothing in it is left out.
"""
from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice

from .text import clean, fold_name, speakable

MAX_PAUSE_S = 600       # for all in a row
NUMBERED = tuple(f"S{number}" for number in range(1, 10))
MAX_NAME = 30           # characters of an unknown name, a wide one counting as three
MAX_LISTED = 9          # names, or lines, in an error
ALIKE = 0.8             # of the characters that a misspelled name and the right one have, those in common

_GAP = r"[^\S\n]*"
_PAUSE = re.compile(rf"\[{_GAP}pause{_GAP}(?=[:：=.+\-\d])[^\[\]\n]*\]?", re.IGNORECASE)
_DURATION = re.compile(
    rf"\[{_GAP}pause{_GAP}[:：]{_GAP}(\d{{1,6}}(?:\.\d{{0,9}})?|\.\d{{1,9}}){_GAP}(ms|s|){_GAP}\]", re.IGNORECASE)

_COLON = re.compile("[:：]")
_TAG = re.compile(r"\[([^\[\]]*)\](\s*)")
_ASIDE = re.compile(r"[(（][^)）]*[)）]|\[[^\]]*\]")                   # "Ada (whispering)"
_DECORATION = "*_#>-–—•· "                                          # "**Ada:** Hello", "- Ada: Hello"
_SENTENCE = re.compile(r"[,;!?…。！？，、；\"“”„«»「」『』\[\]<>{}=\\|@]|\.\.")
_QUOTES = frozenset("\"'“”„«»‘‚「『")
_SPEAKER = re.compile(r"(?:s|speaker|voice)[ _-]?\d+")
_ANNOUNCING = frozenset(
    "note notes nb ps pps warning caution attention important remember reminder hint tip example hinweis achtung "
    "wichtig anmerkung beispiel remarque exemple nota atencion ejemplo aviso 注 注意 提示 例如 比如 备注".split())


@dataclass(frozen=True)
class Turn:
    """What a voice says at once. ``words`` may be several lines and have pauses; ``line``, from 1, is where the name
    was found, and makes no two turns unlike."""

    name: str
    words: str
    line: int = field(compare=False)


def parse(text: str, names: Iterable[str], numbered: bool = True) -> list[Turn]:
    """The turns of a script for voices of these names, spelled as the voices are, ``S1`` to ``S9`` in capitals.

    ``numbered`` tells whether those nine may speak without a voice of their name. Pauses stay in the words, and are
    right. ``ValueError`` for unknown names, words before the first name, nothing to speak, a pause that is none, and
    voices that share a name.
    """
    text = clean(text)
    script = _Script(_voices(names), numbered)
    words = [script.read(line, number) for number, line in enumerate(text.split("\n"), 1)]
    script.check()
    pauses("\n".join(words))       # with names left out, those at the end of a turn and the begin of the next add up
    turns = script.merged()
    if not turns:
        raise ValueError(f"text: nothing in {_short(text)} can be spoken; write words after a name." if text.strip()
                         else "text: empty; write a line such as 'S1: Hello.'")
    return turns


def names_someone(text: str, names: Iterable[str]) -> bool:
    """Whether a line begins with one of these names, or with ``S1``: with ``S2`` to ``S9`` only where there are
    several, since prose may begin so too."""
    names = list(names)
    voices = _voices(names)
    lines = _Script(voices, numbered=True)
    found = filter(None, (lines.named(line.strip()) for line in clean(text).split("\n")))
    return any(len(names) > 1 or name == NUMBERED[0] or fold_name(name) in voices for name, _, _ in found)


def render(turns: Sequence[Turn]) -> str:
    """The script of such turns as ``parse`` makes, which makes the same of it again."""
    lines = []
    for turn in turns:
        name = " ".join(clean(turn.name).split())
        first, *others = turn.words.split("\n")
        bracketed = _COLON.search(name) and not re.search(r"[\[\]]", name)
        lines.append(f"[{name}] {first}" if bracketed else f"{name}: {first}")
        lines += [f"  {line}" if line else "" for line in others]
    return "\n".join(lines)


# Pauses


@dataclass
class _Part:
    said: list[str] = field(default_factory=list)
    silence: Fraction = Fraction(0)     # seconds after it, exact: 0.1 and 0.2 are 0.3


def pauses(text: str) -> list[tuple[str, float]]:
    """A text, cleaned, at its pauses: what is said, and the seconds of silence after it.

    A pause is written ``[pause:0.8s]``, ``[pause:300ms]`` or ``[pause:1]``, which is in seconds; those in a row add
    up. Each text has something to speak, but the first is "" where a pause stands before all words. Signs without a
    word stay with the words before them. ``ValueError`` for a tag that looks like a pause and is none.
    """
    text = clean(text)
    before, end = _Part(), 0
    parts = [before]
    for tag in _PAUSE.finditer(text):
        _say(parts, text[end : tag.start()])
        parts[-1].silence += _seconds(tag)
        if parts[-1].silence > MAX_PAUSE_S:
            raise ValueError(f"text: with {_where(tag)}, pauses in a row add up to {float(parts[-1].silence):g} "
                             f"s; at most {MAX_PAUSE_S} s are possible.")
        end = tag.end()
    _say(parts, text[end:])
    if len(parts) > 1:
        parts[1].said[:0] = before.said
        before.said = []
    found = [("".join(part.said).strip(), float(part.silence)) for part in parts]
    return [(said, silence) for said, silence in found if said or silence]


def _say(parts: list[_Part], said: str) -> None:
    if speakable(said):
        parts.append(_Part())
    parts[-1].said.append(said)


def _seconds(tag: re.Match) -> Fraction:
    written = _DURATION.fullmatch(tag[0])
    seconds = Fraction(written[1]) / (1000 if written[2].lower() == "ms" else 1) if written else None
    if seconds is None or seconds > MAX_PAUSE_S:
        raise ValueError(f"text: {_where(tag)} is not a pause of 0 to {MAX_PAUSE_S} s; write seconds or "
                         "milliseconds, such as [pause:0.8s] or [pause:300ms].")
    return seconds


def _where(tag: re.Match) -> str:
    line = 1 + tag.string.count("\n", 0, tag.start())
    return f"{_short(tag[0])} in line {line}"


def _short(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*names[:MAX_LISTED], *(["..."] if len(names) > MAX_LISTED else [])])


# Names


@dataclass
class _Begun:
    """A turn while its lines are read."""

    name: str
    line: int
    lines: list[str]


@dataclass(frozen=True)
class _Label:
    """What may be the name of a voice that is not there."""

    name: str
    line: int
    certain: bool                   # without a look at the other lines
    if_often: bool = False          # where it begins more lines than this
    if_brackets: bool = False       # where names are in brackets elsewhere
    if_small: bool = False          # where turns begin with small letters


def _voices(names: Iterable[str]) -> dict[str, str]:
    """Folded name -> name. Nobody can address a voice without a name."""
    voices: dict[str, str] = {}
    for name in names:
        key = fold_name(name)
        if key in voices:
            raise ValueError(f"voices: {voices[key]!r} and {name!r} are one name in a script; rename one of them.")
        if key:
            voices[key] = name
    return voices


class _Script:
    """What was read of a script so far."""

    def __init__(self, voices: Mapping[str, str], numbered: bool) -> None:
        self.known = {**({fold_name(name): name for name in NUMBERED} if numbered else {}), **voices}
        self.connected = f"Connected voices: {_listed(list(voices.values()))}" if voices else "No voice is connected"
        self.connected += "; S1 to S9 need none." if numbered else "."
        self.room = 3 * max(map(len, self.known), default=0) + 32     # characters; folding may shorten a name
        self.colons = 1 + max((len(_COLON.findall(name)) for name in self.known), default=0)
        self.before: list[tuple[int, str]] = []
        self.begun: list[_Begun] = []
        self.labels: list[_Label] = []
        self.indent = 0             # of the line that began the last turn
        self.brackets = False       # whether names are written in them

    def read(self, line: str, number: int) -> str:
        """The words of a line, without the name that begins it."""
        indent, line = len(line) - len(line.lstrip()), line.strip()
        named = self.named(line)
        if named:
            name, line, bracketed = named
            self.begun.append(_Begun(name, number, [line]))
            self.indent, self.brackets = indent, self.brackets or bracketed
        else:
            if indent <= self.indent or not self.begun:
                self.labels += _labels(line, number, not self.begun)
            if self.begun:
                self.begun[-1].lines.append(line)
            elif line:
                self.before.append((number, line))
        return line

    def named(self, line: str) -> tuple[str, str, bool] | None:
        """The known name that begins a line, the words and the tags before the name, whether it is in brackets."""
        start, tag = 0, _TAG.match(line)
        while True:
            if tag and len(tag[1]) < self.room and (key := fold_name(tag[1])) in self.known:
                colon = _COLON.match(line, tag.end(1) + 1)
                rest = line[(colon or tag).end() :]
                return self.known[key], f"{line[:start]}{rest.strip()}", True
            for colon in islice(_COLON.finditer(line, start, start + self.room), self.colons):
                key, rest = fold_name(line[start : colon.start()]), line[colon.end() :]
                time_of_day = key.isdecimal() and rest[:1].isdecimal()
                if key in self.known and not time_of_day:
                    return self.known[key], f"{line[:start]}{rest.strip()}", False
            if not tag:
                return None
            start = tag.end()
            tag = _TAG.match(line, start)

    def check(self) -> None:
        """``ValueError`` for names that no voice has, and for words that have no name before them."""
        unknown = self.unknown()
        if unknown:
            found = _listed([f"{name!r} (line {_listed(lines)})" for name, lines in unknown.items()])
            names = _listed(list(dict.fromkeys([*(begun.name for begun in self.begun), *unknown])))
            raise ValueError(f"text: no connected voice is called {found}. Names in the script: {names}. "
                             f"{self.connected} Correct the name or connect such a voice; if it is no name, indent "
                             "its line, or write it behind the one before it.")
        for number, line in self.before:
            if speakable(_PAUSE.sub("", line)):
                raise ValueError(f"text: {_short(line)} in line {number} stands before the first name; begin the line "
                                 f"with the name of a voice and a colon. {self.connected} For a text that is no "
                                 "script, choose the mode speech.")

    def unknown(self) -> dict[str, list[str]]:
        """Name -> its lines."""
        groups: dict[str, list[_Label]] = {}
        for label in self.labels:
            groups.setdefault(fold_name(label.name), []).append(label)
        skeletons = {_skeleton(name) for name in self.known} - {""}
        small = any(begun.lines[0][:1].islower() for begun in self.begun)

        def is_name(key: str, group: list[_Label]) -> bool:
            return (any(label.certain or self.brackets and label.if_brackets or small and label.if_small
                        for label in group)
                    or sum(label.if_often for label in group) > 1 or _SPEAKER.fullmatch(key) is not None
                    or bool(difflib.get_close_matches(_skeleton(key), skeletons, 1, ALIKE)))

        return {group[0].name: [str(label.line) for label in group]
                for key, group in groups.items() if is_name(key, group)}

    def merged(self) -> list[Turn]:
        """The turns, each with something to speak."""
        held = [line for _, line in self.before]
        said: list[tuple[_Begun, list[str]]] = []
        for begun in self.begun:
            words = re.sub("\n{3,}", "\n\n", "\n".join(begun.lines).strip())
            if speakable(_PAUSE.sub("", words)):
                said.append((begun, [*held, words]))
                held = []
            else:
                (said[-1][1] if said else held).extend(words.split())
        return [Turn(begun.name, " ".join(words), begun.line) for begun, words in said]


def _labels(line: str, number: int, first: bool) -> Iterator[_Label]:
    """What may be names at the begin of a line that no known name begins. The ``first`` has no turn to go on with."""
    start = 0
    while tag := _TAG.match(line, start):
        colon, start = _COLON.match(line, tag.end(1) + 1), tag.end()
        if (colon or tag[2] or start == len(line)) and _like_a_name(tag[1].strip(_DECORATION)):
            yield _Label(tag[1].strip(), number, certain=first or colon is not None, if_brackets=True)
    colon = _COLON.search(line, start, start + 2 * MAX_NAME)
    if colon is None:
        return
    name, after = line[start : colon.start()].strip(), line[colon.end() :].lstrip("*_")
    bare = _ASIDE.sub("", name).strip(_DECORATION)
    apart = colon[0] == "：" or not after or after[0].isspace()
    if not apart and (not after[0].isalpha() or line[colon.start() - 1].isspace()):
        return              # an address, a time of day, a face
    if _like_a_name(bare, small=True):
        strict, begin = _like_a_name(bare), after.strip(_DECORATION)[:1]
        spoken = strict and begin not in _QUOTES
        yield _Label(name, number, certain=first or spoken and not begin.islower(), if_small=spoken,
                     if_often=strict or len(bare.split()) == 1)


def _like_a_name(name: str, small: bool = False) -> bool:
    """Whether somebody may be called so in a script; ``small``: also without a capital."""
    words = name.split()
    width = sum(3 if unicodedata.east_asian_width(character) in "WF" else 1 for character in name)
    if not (1 <= len(words) <= 4 and width <= MAX_NAME and name.strip()[0].isalpha()):
        return False
    if _SENTENCE.search(name) or _skeleton(name) in _ANNOUNCING:
        return False
    return small or not (words[0][0].islower() or words[-1][0].islower())


def _skeleton(name: str) -> str:
    """Letters and digits of a name alone, without accents, case and what is in brackets."""
    bare = unicodedata.normalize("NFD", fold_name(_ASIDE.sub("", name)))
    return "".join(filter(str.isalnum, bare))
