"""What is amiss with a translation, as far as it can be seen without knowing the language."""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from kit.locales import texts

# Words that are frequent in one of the languages and rare in the others, by which swapped files are found.
FUNCTION_WORDS = {
    "de": "der die das und mit von nicht wird ist eine",
    "es": "el los las y con del una se por lo",
    "fr": "le les des et avec du une est par dans",
    "it": "il gli che di con della una è per non",
    "pl": "i w z na się nie jest od do po",
    "pt": "o os as e com da uma não do ao",
}
SCRIPTS = {"ja": r"[\u3040-\u30ff]", "ru": r"[\u0400-\u04ff]", "zh": r"[\u4e00-\u9fff]"}
FOREIGN = {
    "ja": r"[\u0400-\u04ff\uac00-\ud7af]", "zh": r"[\u3040-\u30ff\u0400-\u04ff\uac00-\ud7af]",
    "ru": r"[\u3040-\u30ff\uac00-\ud7af\u4e00-\u9fff]|[a-zA-Z][\u0400-\u04ff]|[\u0400-\u04ff][a-zA-Z]",
}
FOREIGN_TO_LATIN = r"[\u0370-\u1dff\u2e80-\uffff]"
LENGTHS = {"zh": (0.2, 0.9), "ja": (0.25, 1.1)}         # in letters for each English one
LATIN_LENGTHS = (0.6, 1.75)
# Inputs that texts tell to set, and where their labels are.
LABELS = {"need download": "SpeechwrightLoadModel.inputs.download.name"}
SHORT = 40                                              # a word more or less is a large share of fewer letters
# The editor reads descriptions and names as patterns in which these stand for something else.
PATTERN_SIGNS = re.compile(r"[{}@|]")
ARTEFACTS = re.compile(r"  |^\s|\s$|\s\n|\n\s|\ufffd|\u200b|&\w+;|</?\w+>|\*\*|\.\.\.|\bTODO\b|\?\?|\b(\w{4,}) \1\b")
LEFT_OVER = re.compile(r"\b(the|of|and|with|from|which|that|its|are|where|without|not|by|each)\b", re.IGNORECASE)
HALF_WIDTH = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff][,.;:?!()]|[,;:?!()][\u3040-\u30ff\u4e00-\u9fff]")
STOPS = ".。"
NUMBER = re.compile(r"\d+(?:[.,]\d+)?")
WORD = re.compile(r"[\w./-]*\w", re.ASCII)
# File names, folders, ids, abbreviations, and names with a capital inside; units of measure are written otherwise.
CODE = re.compile(r"\d[A-Za-z_]|[A-Za-z_]\d|_|\w[./]\w|[a-z][A-Z]|^[A-Z]{2,}$", re.ASCII)
UNITS = {"kHz", "GB", "MB", "dBFS"}
TAG = re.compile(r"\[[^\]]+\]")
EXAMPLE = "请用广东话表达。"                              # an instruction that models were trained with
QUOTED = re.compile(rf"(?<!\w)'(.+?)'(?!\w)|({EXAMPLE})")
QUOTES = r"[„“«「][^„“”»」]*[”“»」]"
NAMES = ("Built with Fish Audio", "Hugging Face", "Chatterbox Turbo", "Chatterbox", "Fish Audio", "OGG TTS", "Whisper",
         "Moonshine", "S3Gen (Chatterbox / CosyVoice2)")


def verbatim(text: str, options: frozenset[str] = frozenset()) -> Counter[str]:
    """What a translation has to say in the same signs, and how often at least."""
    found = Counter(word for word in WORD.findall(text)
                    if CODE.search(word) and not NUMBER.fullmatch(word) and word not in UNITS)
    found += Counter(TAG.findall(text))
    found += Counter("".join(quote) for quote in QUOTED.findall(text))
    found += Counter({name: text.count(name) for name in NAMES})
    # An option is named where a colon follows; elsewhere in that text it may mean itself or be a common word.
    found += Counter({option: count(text, option) for option in options if count(text, f"{option}:", behind="")})
    return found


def count(text: str, word: str, behind: str = r"(?![A-Za-z0-9-])") -> int:
    """How often a word stands in a text; words of languages without blanks may be next to it."""
    return len(re.findall(rf"(?<![A-Za-z0-9-]){re.escape(word)}{behind}", text))


def numbers(text: str) -> list[str]:
    return sorted(number.replace(",", ".") for number in NUMBER.findall(text))


def named_nodes(text: str, titles: Mapping[str, str]) -> list[str]:
    """Ids of the nodes that an English text names. "Voice" is a common word unless it is written large as one."""
    return [node for node, title in titles.items()
            if count(text, title) and (title != "Voice" or re.search(r"\b[Aa] Voice\b", text))]


def faults(language: str, english: Mapping[str, Mapping], translated: Mapping[str, Mapping], alike: frozenset[str],
           options: Mapping[str, frozenset[str]]) -> list[str]:
    """A line for each thing that is amiss.

    ``alike`` are the English texts that may stay as they are, ``options`` the choices that a place's input has.
    """
    source, target = texts(english), texts(translated)
    lacking, left = [place for place in source if place not in target], [p for p in target if p not in source]
    if lacking or left:
        return [f"lacks {place}" for place in lacking] + [f"has {place}, which no node has" for place in left]
    found = [] if list(source) == list(target) else ["is not in the order of the schemas"]
    titles = {node: entry["display_name"] for node, entry in english.items()}
    used: dict[str, str] = {}
    for place, text in source.items():
        own = target[place]
        if not isinstance(own, str) or not own.strip():
            found.append(f"{place}: is empty")
            continue
        if used.setdefault(text, own) != own:
            found.append(f"{place}: {own!r}, and elsewhere {used[text]!r}, for {text!r}")
        if own == text and text not in alike:
            found.append(f"{place}: {own!r} is the English text")
        if numbers(text) != numbers(own):
            found.append(f"{place}: numbers {numbers(own)} in place of {numbers(text)}")
        chosen = options.get(place, frozenset())
        said = {word: count(own, word) if word in chosen else own.count(word) for word in verbatim(text, chosen)}
        found += [f"{place}: says {word!r} {said[word]} times in place of {times}"
                  for word, times in verbatim(text, chosen).items() if said[word] < times]
        found += [f"{place}: does not name {translated[node]['display_name']!r}"
                  for node in named_nodes(text, titles) if translated[node]["display_name"] not in own]
        found += [f"{place}: does not name {target[label]!r}"
                  for words, label in LABELS.items() if words in text and target[label] not in own]
        found += [f"{place}: {problem}" for problem in _form(language, text, own, is_name=place.endswith("name"))]
    if language.split("-")[0] in FUNCTION_WORDS:
        found += _language(language.split("-")[0], " ".join(target.values()))
    return found


def _form(language: str, text: str, own: str, is_name: bool) -> list[str]:
    """What the letters of one text tell."""
    found = []
    free = bare(own)
    if sign := PATTERN_SIGNS.search(own):
        found.append(f"{sign[0]!r} has a meaning to the editor")
    if artefact := ARTEFACTS.search(own):
        found.append(f"{artefact[0]!r} is no text")
    if word := LEFT_OVER.search(free):
        found.append(f"{word[0]!r} is English")
    if (text[-1] in STOPS) != (own[-1] in STOPS) or text.count("\n") != own.count("\n"):
        found.append("ends, or breaks its lines, otherwise")
    if own[0].islower() and not text[0].islower() and language not in LENGTHS:
        found.append("begins small")
    if foreign := re.search(FOREIGN.get(language, FOREIGN_TO_LATIN), free):
        found.append(f"{foreign[0]!r} is of another script")
    if language in SCRIPTS and own != text and len(text) >= SHORT and not re.search(SCRIPTS[language], free):
        found.append("is not in the script of the language")
    if language in ("zh", "ja") and (mark := HALF_WIDTH.search(free)):
        found.append(f"{mark[0]!r}: a mark of half width")
    if language == "fr" and (mark := re.search(r"(?<!\u00a0)(?<!https)[:;»]|«(?!\u00a0)", free)):
        found.append(f"{mark[0]!r} stands without its hard blank")
    low, high = LENGTHS.get(language, LATIN_LENGTHS)
    if len(text) >= SHORT and not is_name and not low <= len(own) / len(text) <= high:
        found.append(f"is {len(own) / len(text):.2f} times as long as the English text")
    return found


def bare(text: str) -> str:
    """A translation without what stays as it is in every language: names, tags, and what is quoted."""
    for part in (*map(re.escape, NAMES), TAG.pattern, EXAMPLE, QUOTES):
        text = re.sub(part, "", text)
    return text


def _language(language: str, text: str) -> list[str]:
    words = Counter(re.findall(r"\w+", text.lower()))
    scores = {name: sum(words[word] for word in frequent.split()) for name, frequent in FUNCTION_WORDS.items()}
    best = max(scores, key=scores.get)
    return [] if best == language else [f"is written in {best}, to judge by its small words"]
