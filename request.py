"""What is to be said, as the user put it, and who says it."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import script
from .text import clean, speakable
from .wires import PromptPiece, Voice

SPEECH, DIALOGUE = "speech", "dialogue"
MODES = ("auto", SPEECH, DIALOGUE)      # auto: a dialogue where a line begins with the name of a voice, or with S1


@dataclass(frozen=True)
class Request:
    """A text and how to say it. What a family has no use for, it refuses in words, or tells in the log."""
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

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise ValueError(f"split_limit: {self.limit} is not possible; give 0 or more.")
        for name in ("language", "speaker", "quality"):
            object.__setattr__(self, name, " ".join(clean(getattr(self, name)).split()))


@dataclass(frozen=True, eq=False)
class Turn:
    """What somebody says: ``voice`` is None where no voice is connected; ``name`` is of ``called``."""
    name: str
    voice: Voice | None
    words: str


def called(voices: Sequence[Voice]) -> list[str]:
    """The names of voices; one without a name is called ``S2`` where it is the second, if no other is."""
    names = [voice.name for voice in voices]
    return [name or ("" if f"S{number}" in names else f"S{number}") for number, name in enumerate(names, 1)]


def preview(pieces: Sequence[PromptPiece], speakers: Sequence[str]) -> str:
    """Who says what, a line for each piece, with pauses as scripts write them; "" for a piece that names who speaks."""
    lines = []
    for number, (piece, speaker) in enumerate(zip(pieces, speakers, strict=True), 1):
        pauses = (f"[pause:{seconds:g}s]" if seconds else "" for seconds in (piece.lead_s, piece.pause_s))
        words = " ".join(filter(None, (next(pauses), piece.text, next(pauses))))
        lines.append(" ".join(f"{number}. {speaker}{': ' if speaker else ''}{words}".split()))
    return "\n".join(lines)


def require_speech(text: str) -> None:
    """``ValueError`` where nothing in a text, that is no script, can be spoken."""
    said = [words for words, _ in script.pauses(text)]
    if any(map(speakable, said)):
        return
    text = clean(text).strip()
    if not text:
        raise ValueError("text: empty; write what is to be said.")
    if not any(said):
        raise ValueError("text: nothing but pauses; write what is to be said.")
    raise ValueError(f"text: nothing in {text[:40]!r} can be spoken; write letters or digits.")


def turns(request: Request) -> list[Turn] | None:
    """Who says what in a script, or None for a text that one voice says.

    ``S1`` is the first of the voices where none is called so. ``ValueError`` for a mode that there is not, a script
    that names nobody, voices that a text does not name, and nothing to speak.
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
        require_speech(text)
        return None
    found = script.parse(text, names)
    known = {f"S{number}": voice for number, voice in enumerate(voices, 1)} | dict(zip(names, voices))
    for turn in found:
        if voices and turn.name not in known:
            raise ValueError(f"text: line {turn.line} is for {turn.name}, and {len(voices)} "
                             f"{'voices are' if len(voices) > 1 else 'voice is'} connected: {', '.join(names)}. "
                             "Connect another Voice.")
    shown = dict(zip(voices, called(voices)))
    speakers = [(turn, known.get(turn.name)) for turn in found]
    return [Turn(shown.get(voice, turn.name), voice, turn.words) for turn, voice in speakers]
