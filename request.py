"""What is to be said, as the user put it, and who says it."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import script
from .wires import Voice

SPEECH, DIALOGUE = "speech", "dialogue"
MODES = ("auto", SPEECH, DIALOGUE)      # auto: a dialogue where a line begins with the name of a voice


@dataclass(frozen=True)
class Request:
    """A text and how to say it. What a family has no use for, it refuses in words."""
    text: str
    voices: Sequence[Voice] = ()
    mode: str = "auto"
    method: str = "auto"
    instruction: str = ""
    limit: int = 0                      # of a piece, as the family counts; 0 for its own
    whole: bool = False                 # all of it at once
    language: str = ""
    before: str = ""
    after: str = ""
    speaker: str = ""
    quality: str = ""


@dataclass(frozen=True, eq=False)
class Turn:
    """What somebody says: ``voice`` is None where no voice is connected."""
    name: str
    voice: Voice | None
    words: str


def turns(request: Request) -> list[Turn] | None:
    """Who says what in a script, or None for a text that one voice says.

    ``S1`` is the first of the voices where none is called so. ``ValueError`` for a mode that there is not, a script
    that names nobody, and voices that a text does not name.
    """
    text, voices, mode = request.text, list(request.voices), request.mode
    if mode not in MODES:
        raise ValueError(f"mode: {mode!r} is not one of {', '.join(MODES)}.")
    names = [voice.name for voice in voices]
    if mode == SPEECH or (mode == "auto" and not script.names_someone(text, names)):
        if len(voices) > 1:
            why = (f"mode is {SPEECH}, in which one speaks. Disconnect the others, or choose {DIALOGUE}."
                   if mode == SPEECH else
                   "the text names none of them at the begin of a line; one voice speaks a text. Disconnect the "
                   f"others, or write '{names[0] or 'S1'}: ...'.")
            raise ValueError(f"voices: {len(voices)} are connected, and {why}")
        return None
    found = script.parse(text, names)
    known = {f"S{number}": voice for number, voice in enumerate(voices, 1)} | dict(zip(names, voices))
    for turn in found:
        if voices and turn.name not in known:
            raise ValueError(f"text: line {turn.line} is for {turn.name}, and {len(voices)} "
                             f"{'voices are' if len(voices) > 1 else 'voice is'} connected: {', '.join(names)}. "
                             "Connect another Voice.")
    return [Turn(known[turn.name].name if voices else turn.name, known.get(turn.name), turn.words) for turn in found]
