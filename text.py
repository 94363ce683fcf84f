"""The door for text: what a user typed or pasted, in one form. Pure Python."""
from __future__ import annotations

import re
import unicodedata

_LINE_END = re.compile("\r\n|[\r\x0b\x0c\x85\u2028\u2029]")

# Characters that show nothing and say nothing: controls except tab and newline, soft hyphen, Arabic letter
# mark, zero-width space, marks and brackets of writing direction, word joiner and invisible operators, byte
# order mark, interlinear notes, blank Hangul fillers, tag characters, halves of surrogate pairs.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\u3164\uffa0\ud800-\udfff\U000e0000-\U000e007f]")

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
    return unicodedata.normalize("NFC", text)


def fold_name(name: str) -> str:
    """What two spellings of one name have in common: cleaned, trimmed, without case, in NFC."""
    folded = unicodedata.normalize("NFD", clean(name).strip()).casefold()
    return unicodedata.normalize("NFC", folded)


def _joins(text: str, index: int) -> bool:
    """Whether the joiner at ``index`` carries meaning, by the rule that domain names have for it (RFC 5892),
    widened to emoji."""
    before, after = text[max(0, index - 1):index], text[index + 1:index + 2]
    sides = before + after
    if any(unicodedata.bidirectional(c) == "AL" or unicodedata.combining(c) == _VIRAMA for c in sides):
        return True
    return text[index] == _ZWJ and _is_emoji(before) and _is_emoji(after)


def _is_emoji(character: str) -> bool:
    """Pictographs, skin tones and the selector of the coloured form; "" is none."""
    return character == "\ufe0f" or (character != "" and unicodedata.category(character) in ("So", "Sk"))
