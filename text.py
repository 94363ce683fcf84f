"""The door for text: what a user typed or pasted, in one form, and in pieces. Pure Python.

A long text is cut where a reader would pause: between sentences, else after other marks, else between words.
A stop ends a sentence only before a blank, the end or a closing quote, so numbers, addresses and versions stay
whole; after an abbreviation or a short number, as in ``5. Januar``, and before a small letter it does not. Wide
stops need no blank. What stands in quotes, brackets or a span is cut only where no mark outside offers itself.
"""
from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby

_LINE_END = re.compile("\r\n|[\r\x0b\x0c\x85\u2028\u2029]")

# Characters that show nothing and say nothing: controls except tab and newline, soft hyphen, grapheme joiner,
# Arabic letter mark, Mongolian vowel separator, zero-width space, marks and brackets of writing direction, word
# joiner and invisible operators, byte order mark, interlinear notes and the place of an object that was not
# copied, blank Hangul fillers, tag characters, halves of surrogate pairs.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\u00ad\u034f\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffc\u3164\uffa0\ud800-\udfff\U000e0000-\U000e007f]")

_HEAP = re.compile(r"[^\w\s]{64,}")         # so many accents in a row take normalize a time that grows as their square
_JOINER = re.compile("[\u200c\u200d]")      # zero-width non-joiner, zero-width joiner
_ZWJ = "\u200d"
_VIRAMA = 9                                 # canonical combining class of the sign that Indic joiners follow


def clean(text: str) -> str:
    """Text in NFC, with ``\\n`` as the only line end and without characters that nobody sees.

    Tabs and spaces of any width stay. So do joiners where they change what is written: beside Arabic letters
    (Persian), beside a virama (Indic scripts), between emoji. Cleaning twice changes nothing more.
    """
    text = _INVISIBLE.sub("", _LINE_END.sub("\n", text))
    text = _JOINER.sub(lambda match: match[0] if _joins(text, match.start()) else "", text)
    return unicodedata.normalize("NFC", _HEAP.sub(lambda match: _in_order(match[0]), text))


def fold_name(name: str) -> str:
    """What two spellings of one name have in common: cleaned, trimmed, with single blanks, without case, in NFC."""
    folded = unicodedata.normalize("NFD", " ".join(clean(name).split())).casefold()
    return unicodedata.normalize("NFC", folded)


def _joins(text: str, index: int) -> bool:
    """Whether the joiner at ``index`` carries meaning, by the rule that domain names have for it (RFC 5892),
    widened to emoji."""
    before, after = text[max(0, index - 1):index], text[index + 1:index + 2]
    sides = before + after
    if any(unicodedata.bidirectional(c) == "AL" or unicodedata.combining(c) == _VIRAMA for c in sides):
        return True
    return text[index] == _ZWJ and _is_emoji(before) and _is_emoji(after)


def _in_order(signs: str) -> str:
    """Signs with the accents of each heap in the order of NFD, which leaves normalize nothing to move."""
    parts = "".join(unicodedata.normalize("NFD", sign) for sign in signs)
    heaps = (sorted(heap, key=unicodedata.combining) if accents else heap
             for accents, heap in groupby(parts, lambda sign: unicodedata.combining(sign) > 0))
    return "".join(chain.from_iterable(heaps))


def _is_emoji(character: str) -> bool:
    """Pictographs, skin tones and the selector of the coloured form; "" is none."""
    return character == "\ufe0f" or (character != "" and unicodedata.category(character) in ("So", "Sk"))


# How good a place is for a cut, worst first: within a number or a heap of accents, within a word, anywhere too
# early in a piece, between words that are written without blanks ... Within quotes and brackets places are worse:
# by three, so that the end of a sentence is still better there than a blank outside.
INSIDE, LETTER, EARLY, _, _, _, IDEOGRAPH, BLANK, _, _, COMMA, CLAUSE, SENTENCE = range(13)
WITHIN = 3

LEAST_FILL = 0.3    # of a piece's room, before which a cut is early
SHORT_TAIL = 0.1    # of it; a rest this short is avoided where another mark can be had
MAX_MARKS = 32      # accents and the like that stay with the character before them

# Scripts that put no blank between words: Thai to Tibetan, Burmese, Khmer, Chinese and Japanese with their marks.
_UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff\u2e80-\u312f\u31a0-\u9fff\uf900-\ufaff"
                       "\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff9f\U00020000-\U0003ffff]")
# No word and no line begins with these kana and vowels, or ends with those vowels, which are spoken after the next.
_NOT_FIRST = frozenset("ぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮー々"
                       "\u0e2f\u0e30\u0e32\u0e33\u0e45\u0e46\u0eaf\u0eb0\u0eb2\u0eb3\u0ec6")
_NOT_LAST = frozenset("\u0e40\u0e41\u0e42\u0e43\u0e44\u0ec0\u0ec1\u0ec2\u0ec3\u0ec4")

# Marks and how good the place after them is; after a narrow one only with a blank, or at the end.
_NARROW = {**dict.fromkeys(".!?‽⁇⁈⁉‼؟։", SENTENCE), **dict.fromkeys(";:–؛", CLAUSE), **dict.fromkeys(",،", COMMA)}
_WIDE = {**dict.fromkeys("。！？．｡۔।॥።។", SENTENCE), **dict.fromkeys("；：—", CLAUSE),
         **dict.fromkeys("，、､…", COMMA)}
_MARKS = _NARROW | _WIDE
_PAIRS = {**dict(zip("(“«‹「『（《〈【\"", ")”»›」』）》〉】\"")), "„": "“”"}     # the last in two groups of languages
_QUOTES = frozenset("\"'’‘“”»«›‹")       # which open as well as close, some of them in other languages
_OTHER_WAY = dict(zip("”»›", "”«‹"))     # how some languages use them; what then closes
_CLOSING = frozenset("".join(_PAIRS.values())) | _QUOTES

_TAG = r"\[[^\[\]<>\n]{1,64}\]|<[^\[\]<>\n]{1,64}>"
_NUMBER = r"\d+(?:[.,:\u066b\u066c\uff0e\uff1a]\d+)*"     # the Arabic marks of decimals and of thousands too
_ATOM = re.compile(rf"{_TAG}|{_NUMBER}|\s+|.", re.DOTALL)
_SIGN = re.compile(
    rf"(?P<tag>{_TAG})|{_NUMBER}|(?P<marks>[{re.escape(''.join(_MARKS))}]+)"
    rf"|[{re.escape(''.join(sorted(_CLOSING | _PAIRS.keys())))}]")
_NEXT = re.compile(r"\s*")
_ORDINAL = re.compile(r"(?<![\w.,:])\d{1,2}\.$")       # "5." is a date or an item of a list as often as an end

_ABBREVIATIONS = frozenset(
    "mr mrs ms mx dr prof st sr jr vs etc nos vol fig figs al cf ca approx dept gen col capt lt sgt rev hon mt inc "
    "ltd co corp ave blvd rd bzw usw nr str hr fr evtl inkl mme mlle sra srta dra ej pág "
    "jan feb aug sept oct nov dec pp ed eds gov sen rep univ tel nº núm geb bd abs".split())


_FILLERS = "\u115f\u1160"      # blank letters, which stay as they hold the place of a part of a Korean syllable


def speakable(text: str) -> bool:
    """Whether there is a letter or a digit in it, of any script."""
    return any(unicodedata.category(character)[0] in "LN" and character not in _FILLERS for character in text)


def closed(text: str) -> bool:
    """Whether a mark ends it, be it a comma; quotes and brackets after the mark do not count."""
    return text.rstrip("".join(_CLOSING) + " ")[-1:] in _MARKS


def split(text: str, limit: int, measure: Callable[[str], int]) -> list[str]:
    """Pieces of a clean text, in order, none longer than ``limit`` by ``measure``, each with something to speak.

    A line that ends a sentence, or has an empty one after it, ends a piece; other line ends need not. Blanks in
    a piece become single ones, and none stand at its ends. Every other character is in one piece, and once, but
    for signs in a row that have no room beside what is spoken. A number is cut only if it is too long by itself;
    a tag such as ``[laughter]`` or ``<strong>``, and a character with its accents, not even then. A piece, split
    again, is one piece.
    """
    if limit < 1:
        raise ValueError(f"limit: {limit} is not possible; give 1 or more.")
    return [piece for paragraph in _paragraphs(text) for piece in _pieces(paragraph, limit, measure)]


def _paragraphs(text: str) -> list[str]:
    """What stands between line ends that count, each with something to speak."""
    paragraphs, held, spoken = [], [], False
    for line in text.split("\n"):
        held.append(line)
        spoken = spoken or speakable(line)
        if spoken and (not line.strip() or _ends_sentence(line)):
            paragraphs.append("\n".join(held))
            held, spoken = [], False
    if spoken:
        paragraphs.append("\n".join(held))
    elif paragraphs:
        paragraphs[-1] = "\n".join((paragraphs[-1], *held))
    return paragraphs


def _ends_sentence(line: str) -> bool:
    line = line.rstrip().rstrip("".join(_CLOSING))
    return _MARKS.get(line[-1:]) == SENTENCE and not _abbreviates(line)


def _abbreviates(text: str, after: str = "") -> bool:
    """Whether it ends with an abbreviation or an initial, and its stop; "No." does before a number alone."""
    stopped = re.search(r"([^\W\d_]+)\.$", text[-16:])
    word = stopped[1] if stopped else ""
    if word.lower() == "no":
        return after.isdecimal()
    return word.lower() in _ABBREVIATIONS or len(word) == 1 and word.lower() != word.upper()


def _fold(text: str) -> str:
    """Without blanks at the ends, each run of others being one; a line end between wide characters is none."""
    lines = [line for line in (" ".join(line.split()) for line in text.split("\n")) if line]
    parts = lines[:1]
    for above, line in zip(lines, lines[1:]):
        wide = _UNSPACED.match(above[-1]) and _UNSPACED.match(line)
        parts += ["" if wide else " ", line]
    return "".join(parts)


def _pieces(text: str, limit: int, measure: Callable[[str], int]) -> Iterator[str]:
    """A paragraph in pieces: as many atoms as fit are looked through for the best place to cut."""
    places, ranks, spoken = [0, len(text)], [INSIDE, INSIDE], [0, 1]

    def piece(start: int, stop: int) -> str:
        return _fold(text[places[start] : places[stop]])

    def fits(start: int, stop: int) -> bool:
        return measure(piece(start, stop)) <= limit

    if not fits(0, 1):
        places, ranks, spoken = _places(text)
    start, last, width = 0, len(places) - 1, 32
    while spoken[start] < spoken[last]:
        stop = _furthest(start + 1, last, width, partial(fits, start))
        width = stop - start
        if stop < last:
            best = _best(places, ranks, spoken, start, stop)
            if best == start and spoken[start + 1] == spoken[start]:
                while spoken[start + 1] == spoken[start]:
                    start += 1      # signs that leave no room for what comes after them
                continue
            stop = best if best > start and fits(start, best) else stop
        yield piece(start, stop)
        start = stop


def _furthest(least: int, last: int, step: int, fits: Callable[[int], bool]) -> int:
    """The last number that fits, found by steps that double and then halve; ``least`` is taken for granted."""
    while least < last and fits(min(least + step, last)):
        least, step = min(least + step, last), 2 * step
    above = min(least + step, last + 1)
    while above - least > 1:
        middle = (least + above) // 2
        least, above = (middle, above) if fits(middle) else (least, middle)
    return least


def _best(places: list[int], ranks: list[int], spoken: list[int], start: int, stop: int) -> int:
    """The place to cut after ``start``, up to ``stop``, with something to speak on both sides; ``start`` for none."""
    best, best_rank, room = start, INSIDE + 1, places[stop] - places[start]
    for place in range(start + 1, stop + 1):
        rank = ranks[place]
        if places[place] - places[start] < LEAST_FILL * room:
            rank = min(rank, EARLY)
        elif places[-1] - places[place] < SHORT_TAIL * room:
            rank = min(rank, BLANK)
        if rank >= best_rank and spoken[start] < spoken[place] < spoken[-1]:
            best, best_rank = place, rank
    return best


def _places(text: str) -> tuple[list[int], list[int], list[int]]:
    """Where a text may be cut, both ends included; how good each place is; how much before it can be spoken."""
    marked, quoted = _marked(text)
    places, ranks, spoken = [0], [INSIDE], [0]
    count = end = heap = 0

    def add(place: int, rank: int) -> None:
        places.append(place)
        ranks.append(rank)
        spoken.append(count)

    for match in _ATOM.finditer(text):
        atom, start = match[0], match.start()
        if atom.isspace():
            continue
        heap = heap + 1 if end == start and len(atom) == 1 and _belongs(text, start) else 0
        while quoted and quoted[-1][1] <= start:
            quoted.pop()
        if start and not heap:
            rank = marked[start] if start in marked else _between(text, end, start)
            within = quoted and quoted[-1][0] < start and rank >= IDEOGRAPH
            add(start, rank - WITHIN if within else rank)
        elif heap > MAX_MARKS:
            add(start, INSIDE)
        if atom[0].isdecimal():
            for index, digit in enumerate(atom):
                if index:
                    add(start + index, INSIDE)
                count += speakable(digit)
        else:
            count += speakable(atom)
        end = match.end()
    add(len(text), INSIDE)
    return places, ranks, spoken


def _belongs(text: str, place: int) -> bool:
    """Whether the character there is part of the one before it: an accent, a joiner, a skin tone, what is joined."""
    character = text[place]
    return (unicodedata.category(character)[0] == "M" or _JOINER.match(character) is not None
            or "\U0001f3fb" <= character <= "\U0001f3ff" or text[place - 1 : place] == _ZWJ)


def _between(text: str, end: int, start: int) -> int:
    """How good the place between two atoms is that no mark parts; the first ends at ``end``."""
    before, after, apart = text[end - 1], text[start], end < start
    opens = after in _QUOTES and (_begins_word(text, start) or apart and after in "«‹")
    if after in _MARKS or after in _CLOSING and not opens:
        return LETTER
    if before in _PAIRS and not apart or before in "«‹" and text[max(0, end - 2)].isspace():
        return LETTER
    if apart and before.isdecimal() and after.isdecimal():
        return LETTER       # thousands, as many write them
    if apart:
        return CLAUSE if "\n" in text[end:start] else BLANK
    unspaced = _UNSPACED.match(before) or _UNSPACED.match(after)
    may_begin = after in _PAIRS or after in "[<" or speakable(after) and after not in _NOT_FIRST
    goes_on = before in _NOT_LAST or unicodedata.combining(before) == _VIRAMA
    return IDEOGRAPH if unspaced and may_begin and not goes_on else LETTER


def _begins_word(text: str, place: int) -> bool:
    """Whether the sign there stands after a blank, or first, and directly before something else."""
    return not text[max(0, place - 1) : place].strip() and not text[place + 1 : place + 2].isspace()


def _marked(text: str) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Place after a mark, its closing quotes and its blanks -> how good it is; where quotes, brackets and spans begin
    and end, the last first."""
    marked: dict[int, int] = {}
    quoted: list[tuple[int, int]] = []
    awaited: list[str] = []         # what will close those that are open
    mark, end, opened = None, 0, 0             # the last marks in a row, and where what belongs to them ends
    signs = list(_SIGN.finditer(text))
    last = {sign[0]: sign.start() for sign in signs}

    def settle() -> None:
        place = _NEXT.match(text, end).end()
        if mark and (place > end or mark[0][-1] in _WIDE):
            marked[place] = _rank(text, mark, place)

    for match in signs:
        sign, near = match[0], text[end : match.start()]
        closes = bool(awaited) and sign == awaited[-1]
        closers = () if closes else _closers(text, match)
        if not (mark and _belongs_to(mark[0], sign, near, closes, bool(closers))):
            settle()
            mark = match if match["marks"] else None
        end = match.end()
        if closes:
            awaited.pop()
            quoted.append((opened, end))
        elif mark is None and (closer := next((sign for sign in closers if last.get(sign, 0) >= end), None)):
            opened = opened if awaited else match.start()
            awaited.append(closer)
    settle()
    return marked, quoted[::-1]


def _closers(text: str, match: re.Match) -> Sequence[str]:
    """What may close the quote, bracket or span that is opened there; nothing for any other sign."""
    sign = match[0]
    if match["tag"]:
        return [f"</{sign[1:]}"] if sign[0] == "<" and sign[1:-1].isalpha() else []
    if sign in _OTHER_WAY and _begins_word(text, match.start()):
        return _OTHER_WAY[sign]
    return _PAIRS.get(sign, "")


def _belongs_to(marks: str, sign: str, near: str, closes: bool, opens: bool) -> bool:
    """Whether a sign goes with the marks before it: what closes something, or a tag, such as a footnote's number."""
    if near:
        return near.isspace() and sign in "»›" and not opens        # French keeps a blank before them
    return closes or sign in _CLOSING or marks[-1] in _NARROW and sign.startswith(("[", "</")) and len(sign) > 1


def _rank(text: str, mark: re.Match, place: int) -> int:
    """How good ``place`` is, for the marks before it; a small letter there tells that the sentence goes on."""
    rank = max(_MARKS[sign] for sign in mark[0])
    goes_on = text[place : place + 2].lstrip("".join(_PAIRS))[:1].islower()
    if set(mark[0]) == {"."}:
        before = text[max(0, mark.end() - 16) : mark.end()]
        if goes_on or _abbreviates(before, text[place : place + 1]) or _ORDINAL.search(before):
            return BLANK
    return min(rank, COMMA) if goes_on and rank == SENTENCE else rank
