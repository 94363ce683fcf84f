"""English sentences to be spoken: WordNet's examples and definitions, and templates filled with its common words.

Letters, blanks and a few signs are all that they have; numbers are spelled. No sentence of the ear's test
(tests/kit/ear.py) is among them, nor any that shares four words in a row with one.
"""
from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

PARTS = ("noun", "verb", "adj", "adv")
PLAIN = re.compile(r"[A-Za-z][A-Za-z ,.'?!-]*")
SHORTEST, LONGEST = 8, 190      # characters of an utterance
SHARED_WORDS = 4                # in a row, that no utterance has in common with a sentence of the test

FIRST_NAMES = """Alice Arthur Barbara Benjamin Caroline Charles Clara Daniel David Dorothy Edward Eleanor Elizabeth Emma
Frances Frederick George Grace Hannah Harold Helen Henry Isabel Jack James Jane John Joseph Julia Katherine Laura
Leonard Louise Lucy Margaret Martha Martin Mary Matthew Michael Nancy Oliver Patricia Paul Peter Philip Rachel Richard
Robert Rose Ruth Samuel Sarah Simon Sophie Stephen Susan Theodore Thomas Victoria Walter William""".split()
PLACES = """Amsterdam Athens Berlin Boston Brussels Budapest Cairo Canada Chicago China Copenhagen Denmark Dublin Egypt
England Florence France Geneva Germany Glasgow Greece Hamburg India Ireland Istanbul Italy Japan Lisbon London Madrid
Mexico Moscow Munich Naples Norway Oslo Paris Poland Portugal Prague Rome Russia Scotland Spain Stockholm Sweden
Sydney Tokyo Toronto Venice Vienna Warsaw Washington Zurich""".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
SMALL = """one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen""".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
SPELLINGS = {"color": "colour", "harbor": "harbour", "neighbor": "neighbour", "favor": "favour", "honor": "honour",
             "labor": "labour", "gray": "grey", "center": "centre", "theater": "theatre", "meter": "metre",
             "behavior": "behaviour", "flavor": "flavour", "humor": "humour", "traveler": "traveller"}
TEMPLATES = """
{N} and {N} went to the {noun} before {noun}.|{N} bought {num} {nouns} from a {adj} {noun} in {P}.
The {adj} {noun} opens at {hour} and closes at {clock}.|The {noun} in the {noun} is {adj} enough for the {noun}.
Can you tell me where the {adj} {noun} is?|Where is the nearest {noun}?|What is the {noun} of this {noun}?
{num} {nouns} left the {noun} on a {adj} {D} {time}.|She counted {num} {nouns} from the {noun} to the {noun}.
He said that nobody would ever {verb} the {adj} {noun}.|Although the {noun} was {adj}, the {noun} arrived {adv}.
Please {verb} the {noun}.|Please {verb} your {noun} before you {verb} the {noun}.|{verb} the {noun}, please.
Yes, {N}.|No, {adv}.|Yes, the {noun} is {adj}.|Of course, {N}.|Not {adv}!|Good {time}, {N}.|Thank you, {N}.
My {noun} has {num} {nouns}, {num} {nouns}, and a {adj} {noun}.|I think that the {noun} is too {adj} for a {noun}.
Nothing in the {noun} explained why the {noun} was so {adj}.|In the {noun} of {M}, the {nouns} were {adj}.
In the end the {noun} accepted every {adj} {noun}.|{N} told {N} that the {noun} of {P} was {adj}.
{N} did not {verb} the {noun} until late {M}.|Every {time} the {adj} {noun} and the {noun} meet in {P}.
It was {clock} on a {adj} {time} in {M} when {N} heard the {noun}.|If you {verb} the {noun}, the {noun} will {verb}.
There are {num} {nouns} in the {adj} {noun} near the {noun}.|We met {num} {adj} {nouns} on the way to {P}.
Do you want to {verb} the {noun} or the {noun}?|Why did the {noun} {verb} the {adj} {noun}?|Stop the {noun}!
The {noun} was {adj}, {adj}, and {adv} {adj}.|How {adj} the {noun} is!|Look at the {noun} over there.
The {nouns} of {P} and the {nouns} of {P} have been {adj} since {M}.|They would {verb} the {noun} without any {noun}.
You can {verb} a {adj} {noun} with a {noun} and {num} {nouns}.|The train to {P} leaves at {clock}.
Call me at {hour} on {D}, or write to {N} about the {noun}.|The number is {digit} {digit} {digit} {digit} {digit}.
{N} was born in {M}, nineteen {tens}, in {P}.|On {D} the {noun}, on {D} the {noun}, and on {D} the {nouns}.
""".strip().replace("\n", "|").split("|")


def spelled(number: int) -> str:
    """1 to 999 in words."""
    hundreds, rest = divmod(number, 100)
    tens, ones = divmod(rest, 10)
    words = [f"{SMALL[hundreds - 1]} hundred"] if hundreds else []
    if 0 < rest < 20:
        words.append(SMALL[rest - 1])
    elif rest:
        words.append(TENS[tens - 2] + (f" {SMALL[ones - 1]}" if ones else ""))
    return " ".join(words)


def words(text: str) -> list[str]:
    return re.sub(r"[^a-z ]", "", text.lower().replace("-", " ")).split()


def runs(text: str) -> set[tuple[str, ...]]:
    """Every ``SHARED_WORDS`` words in a row; the whole of a shorter text."""
    found = words(text)
    if len(found) < SHARED_WORDS:
        return {tuple(found)}
    return {tuple(found[start : start + SHARED_WORDS]) for start in range(len(found) - SHARED_WORDS + 1)}


def tidy(text: str) -> str | None:
    """An utterance with a capital at its start and a stop at its end; None for what cannot be spoken as written."""
    text = re.sub(r"\([^)]*\)", "", text)
    text = re.sub(r"[;:]|--", ",", text)
    text = re.sub(r"\s+", " ", text).replace(" ,", ",").strip(" ,-")
    if not PLAIN.fullmatch(text) or re.search(r"[A-Z]{2}|\b[A-Z]\.|\.\.|,,|\b(e\.g|i\.e|etc)\b", text):
        return None
    text = text[0].upper() + text[1:]
    text = text if text[-1] in ".?!" else f"{text}."
    return text if SHORTEST <= len(text) <= LONGEST else None


class Words:
    """WordNet as its database files have it: examples, definitions, and words that texts were found to use."""

    def __init__(self, folder: Path):
        self.examples, self.definitions, self.common = [], [], {part: [] for part in PARTS}
        for part in PARTS:
            for line in (folder / f"data.{part}").read_text(encoding="latin-1").splitlines():
                if line.startswith(" "):
                    continue
                data, _, gloss = line.partition(" | ")
                fields = data.split()
                quoted = [tidy(example) for example in re.findall(r'"([^"]*)"', gloss)]
                self.examples += [example for example in quoted if example]
                self._define(part, fields[4].replace("_", " "), gloss.split("; \"")[0].split(";")[0].strip())
            for line in (folder / f"index.{part}").read_text(encoding="latin-1").splitlines():
                fields = line.split()
                if not line.startswith(" ") and fields[0].isalpha() and len(fields[0]) > 2:
                    pointers = int(fields[3])
                    if int(fields[5 + pointers]) > 0:       # senses that were found in texts
                        self.common[part].append(fields[0])

    def _define(self, part: str, word: str, gloss: str) -> None:
        article = "An" if word[:1] in "aeiou" else "A"
        text = {"noun": f"{article} {word} is {gloss}", "verb": f"To {word} is to {gloss}",
                "adj": f"{word} means {gloss}", "adv": f"{word}, {gloss}"}[part]
        if (text := tidy(text)) is not None:
            self.definitions.append(text)


def filled(template: str, common: dict[str, list[str]], rng: random.Random) -> str:
    """A template with words in its gaps."""
    def fill(match: re.Match) -> str:
        kind = match[1]
        number = spelled(rng.choice((rng.randint(1, 20), rng.randint(1, 99), rng.randint(100, 999))))
        if kind == "nouns":
            noun = rng.choice(common["noun"])
            return noun[:-1] + "ies" if noun[-1] == "y" and noun[-2] not in "aeiou" else (
                noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s"))
        if kind in PARTS:
            return rng.choice(common[kind])
        return {
            "N": rng.choice(FIRST_NAMES), "P": rng.choice(PLACES), "D": rng.choice(DAYS), "M": rng.choice(MONTHS),
            "num": number, "hour": rng.choice(SMALL[:12]), "digit": rng.choice(["zero", *SMALL[:9]]),
            "tens": rng.choice(TENS) + " " + rng.choice(SMALL[:9]),
            "time": rng.choice(("morning", "afternoon", "evening", "night", "day", "week")),
            "clock": rng.choice(("half past ", "a quarter past ", "ten to ", "twenty past ")) + rng.choice(SMALL[:12]),
        }[kind]

    return re.sub(r"{(\w+)}", fill, template)


def sentences(folder: Path, held_out: tuple[str, ...], seed: int) -> Iterator[str]:
    """Utterances without an end, in an order that the seed makes; few come twice."""
    rng, source = random.Random(seed), Words(folder)
    kept_out = set().union(*map(runs, held_out))
    queues: dict[str, list[str]] = {"examples": [], "definitions": []}

    def next_of(kind: str) -> str:
        if not queues[kind]:
            queues[kind] = list(getattr(source, kind))
            rng.shuffle(queues[kind])
        return queues[kind].pop()

    british = re.compile(r"\b(" + "|".join(SPELLINGS) + r")(?=s?\b)")
    while True:
        draw = rng.random()
        if draw < 0.4:
            text = next_of("examples")
        elif draw < 0.5:
            text = f"{next_of('examples')} {next_of('examples')}"
        elif draw < 0.7:
            text = next_of("definitions")
        else:
            text = tidy(filled(rng.choice(TEMPLATES), source.common, rng))
        if text is None or len(text) > LONGEST or runs(text) & kept_out:
            continue
        yield british.sub(lambda match: SPELLINGS[match[1]], text) if rng.random() < 0.5 else text
