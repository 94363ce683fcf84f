"""Text to ids: Qwen2's byte-level BPE, and the tags that CosyVoice adds to it.

The vocabulary comes from two files of the published models, ``vocab.json`` and ``merges.txt``; the tags and
their ids are the same in all copies and stand here. A ``tokenizer_config.json`` is not read: those that go
around with the same vocabulary give the ids of our tags to tokens of their own.

Text cannot spell control. ``<|endofprompt|>`` and its like are no tags, so in a text they are the characters
that they are made of; whoever builds a prompt adds their ids.
"""
from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..needed import needed

FOLDER = "CosyVoice-BlankEN"    # within a model's folder
VOCABULARY_FILE, MERGES_FILE = "vocab.json", "merges.txt"
VOCABULARY = 151643             # entries of vocab.json, ids from 0 on
FIRST_TAG = VOCABULARY + 3      # after the control ids that Qwen2 has by itself
HEADER = "#version"             # of the first line of merges.txt, which may be missing

# Contractions; letters, with one sign or blank before them; single digits; signs; line ends; blanks, of which
# the last goes with the word after it.
PRE_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
             r"|\s+(?!\S)|\s+")


@dataclass(frozen=True)
class ControlIds:
    """Ids that mean something to the model, and that no text becomes."""

    end_of_text: int = VOCABULARY
    im_start: int = VOCABULARY + 1
    im_end: int = VOCABULARY + 2
    end_of_prompt: int = FIRST_TAG      # between instruction or system sentence, and what is spoken


CONTROL = ControlIds()
END_OF_PROMPT, END_OF_SYSTEM = "<|endofprompt|>", "<|endofsystem|>"
SPELLED_CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", END_OF_PROMPT, END_OF_SYSTEM)

_EVENTS = (
    END_OF_PROMPT, "[breath]", "<strong>", "</strong>", "[noise]", "[laughter]", "[cough]", "[clucking]", "[accent]",
    "[quick_breath]", "<laughter>", "</laughter>", "[hissing]", "[sigh]", "[vocalized-noise]", "[lipsmack]", "[mn]",
)

# Phones of English, the vowels also with their stress.
_ARPABET = """
AA AA0 AA1 AA2 AE AE0 AE1 AE2 AH AH0 AH1 AH2 AO AO0 AO1 AO2 AW AW0 AW1 AW2 AY AY0 AY1 AY2 B CH D DH EH EH0 EH1 EH2
ER ER0 ER1 ER2 EY EY0 EY1 EY2 F G HH IH IH0 IH1 IH2 IY IY0 IY1 IY2 JH K L M N NG OW OW0 OW1 OW2 OY OY0 OY1 OY2 P R S
SH T TH UH UH0 UH1 UH2 UW UW0 UW1 UW2 V W Y Z ZH
""".split()

# Initials and finals of Mandarin, most finals with their tone.
_PINYIN = """
a ai an ang ao b c ch d e ei en eng f g h i ian in ing iu ià iàn iàng iào iá ián iáng iáo iè ié iòng ióng iù iú iā iān
iāng iāo iē iě iōng iū iǎ iǎn iǎng iǎo iǒng iǔ j k l m n o ong ou p q r s sh t u uang ue un uo uà uài uàn uàng uá uái
uán uáng uè ué uì uí uò uó uā uāi uān uāng uē uě uī uō uǎ uǎi uǎn uǎng uǐ uǒ vè w x y z zh à ài àn àng ào á ái án áng
áo è èi èn èng èr é éi én éng ér ì ìn ìng í ín íng ò òng òu ó óng óu ù ùn ú ún ā āi ān āng āo ē ēi ēn ēng ě ěi ěn ěng
ěr ī īn īng ō ōng ōu ū ūn ǎ ǎi ǎn ǎng ǎo ǐ ǐn ǐng ǒ ǒng ǒu ǔ ǔn ǘ ǚ ǜ
""".split()

# What each version adds, in the order of the ids.
ADDED = {
    2: _EVENTS,
    3: (*_EVENTS, END_OF_SYSTEM, *(f"[{piece}]" for piece in (*_ARPABET, *_PINYIN))),
}

# Text and what the published tokenizers make of it; another vocabulary gives other ids.
VECTORS = {
    "You are a helpful assistant.": [2610, 525, 264, 10950, 17847, 13],
    "You are a helpful assistant. 请用广东话表达。":
        [2610, 525, 264, 10950, 17847, 13, 220, 14880, 11622, 102053, 57443, 102124, 1773],
    "希望你以后能够做的比我还好呦。": [99880, 56568, 103934, 100006, 100854, 56006, 107228, 52801, 119024, 1773],
    "Hello world": [9707, 1879],
}


class TextTokenizer:
    """The tokenizer of one version, 2 or 3.

    ``tags``: what it knows beside plain text, tag -> id; their case and accents count.
    ``blank``: the id of a blank that stands alone. ``plain``: the model knows neither tags nor control ids.
    """

    def __init__(self, vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], version: int,
                 plain: bool = False) -> None:
        with needed("tokenizers", "the text of CosyVoice"):
            from tokenizers import Regex, Tokenizer
            from tokenizers.models import BPE
            from tokenizers.pre_tokenizers import ByteLevel, Split
            from tokenizers.pre_tokenizers import Sequence as Steps

        if version not in ADDED:
            raise ValueError(f"tokenizer: version {version} is not one of {', '.join(map(str, ADDED))}.")
        self.version, self.plain = version, plain
        self.tags = {tag: number for number, tag in enumerate(ADDED[version], FIRST_TAG) if tag not in SPELLED_CONTROL}
        self._tag = re.compile(f"({'|'.join(map(re.escape, self.tags))})")
        self._bpe = Tokenizer(BPE(dict(vocabulary), list(merges)))
        self._bpe.pre_tokenizer = Steps(
            [Split(Regex(PRE_SPLIT), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])
        self.blank, = self.encode(" ")

    def encode(self, text: str) -> list[int]:
        """The ids of a text and its tags; never a control id. ``text`` is to be ``clean``.

        ``ValueError`` for a tag where the model knows none.
        """
        ids = []
        for number, part in enumerate(self._tag.split(unicodedata.normalize("NFC", text))):
            if number % 2 and self.plain:
                raise ValueError(f"text: {part} is a tag, and this model was trained without any; leave it out.")
            ids += [self.tags[part]] if number % 2 else self._bpe.encode(part, add_special_tokens=False).ids
        return ids


def load(folder: Path, version: int) -> TextTokenizer:
    """Build the tokenizer from the two files in ``folder``, and see whether they are the published ones.

    ``FileNotFoundError`` names each file that is missing, ``ValueError`` what is wrong in one.
    """
    paths = [folder / VOCABULARY_FILE, folder / MERGES_FILE]
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise FileNotFoundError(f"tokenizer: {' and '.join(missing)} not found; copy the published model's folder "
                                f"{FOLDER} there, of which the weights are not needed.")
    vocabulary = _vocabulary(paths[0])
    tokenizer = TextTokenizer(vocabulary, _merges(paths[1], vocabulary), version)
    for text, ids in VECTORS.items():
        found = tokenizer.encode(text)
        if found != ids:
            raise _wrong(" and ".join(map(str, paths)), f"they make {found} of {text!r}", f"{ids}")
    return tokenizer


def load_small(folder: Path, version: int) -> TextTokenizer:
    """The tokenizer of a model that was trained with a vocabulary of its own, of any size, and without tags."""
    vocabulary = _vocabulary(folder / VOCABULARY_FILE, None)
    return TextTokenizer(vocabulary, _merges(folder / MERGES_FILE, vocabulary), version, plain=True)


def demo(version: int) -> TextTokenizer:
    """One id for each byte, and the tags at their real ids."""
    return TextTokenizer({character: number for number, character in enumerate(_byte_characters())}, [], version)


def _byte_characters() -> list[str]:
    """What stands for each byte in a vocabulary, in the order of the ids 0 to 255."""
    with needed("tokenizers", "the text of CosyVoice"):
        from tokenizers.pre_tokenizers import ByteLevel
    return sorted(ByteLevel.alphabet())


def _vocabulary(path: Path, size: int | None = VOCABULARY) -> dict[str, int]:
    """Entry -> id, each id from 0 on once; size: how many there have to be, if that is known."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as problem:
        raise _wrong(path, f"it is not JSON ({problem})", "entry -> id") from problem
    if not isinstance(entries, dict) or not all(type(number) is int for number in entries.values()):
        raise _wrong(path, "it does not give ids to entries", "entry -> id")
    size = size or len(entries)
    if len(entries) != size:
        raise _wrong(path, f"{len(entries)} entries", f"{size}")
    absent = sorted(set(range(size)) - set(entries.values()))
    if absent:
        raise _wrong(path, f"no entry of id {absent[0]}", f"one for each of 0 to {size - 1}")
    mute = [character for character in _byte_characters() if character not in entries]
    if mute:
        raise _wrong(path, f"no entry {mute[0]!r}", "one for each of the 256 bytes")
    return entries


def _merges(path: Path, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Which entries become one, first things first."""
    merges = []
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as problem:
        raise _wrong(path, f"it is not UTF-8 ({problem})", "two entries a line") from problem
    for number, line in enumerate(lines, 1):
        pair = tuple(line.split(" "))
        if pair == ("",) or number == 1 and line.startswith(HEADER):
            continue
        if len(pair) != 2 or not {*pair, "".join(pair)} <= vocabulary.keys():
            raise _wrong(path, f"line {number}, {line[:60]!r}", f"two entries of {VOCABULARY_FILE} that make a third")
        merges.append(pair)
    return merges


def _wrong(path: Path | str, found: str, needed: str) -> ValueError:
    return ValueError(f"{path}: not the vocabulary of CosyVoice: found {found}; needed: {needed}. Copy "
                      f"{VOCABULARY_FILE} and {MERGES_FILE} from the folder {FOLDER} of the published model.")
