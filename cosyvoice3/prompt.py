"""What the language model reads before it speaks: the text in pieces, and each piece as ids in its mode.

Modes differ in what stands before the text, and in whether the model reads how the voice spoke:

===================  ===========================================  ========================  ============
mode                 before the text                              the text                  speech ids
===================  ===========================================  ========================  ============
zero-shot            system sentence, E, transcript               text                      of the voice
cross-lingual        nothing                                      system sentence, E, text  none
instruct             system sentence, instruction, E              text                      none
both (experimental)  system sentence, instruction, E, transcript  text                      of the voice
===================  ===========================================  ========================  ============

E is the control id ``<|endofprompt|>``. Version 3 was trained with the system sentence and one E in every
prompt; without them it speaks the transcript too, or babbles. Version 2 knows no system sentence, and E after
an instruction alone. Both are added here, E as an id: in what users write it would be text.

What stands before the text and the text itself are tokenised apart, as in training. Joined, they would share a
token where they meet, and the first word would be mispronounced.
"""
from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from .. import script
from ..request import SPEECH, Request, called, preview, turns
from ..s3gen.pipeline import SECONDS_PER_TOKEN
from ..text import clean, closed, speakable, split
from ..wires import PromptPiece, Voice
from .tokenizer import CONTROL, END_OF_PROMPT, FIRST_TAG, SPELLED_CONTROL, TextTokenizer

SYSTEM = "You are a helpful assistant."
PIECE_IDS = 80              # of text that are spoken at once; the models were trained on sentences
MAX_HEARD_SECONDS = 30.0    # of a recording, as in training
USUAL_RATIO = (2.0, 20.0)   # speech tokens per text id, of speech and its transcript

_FRAMES = re.compile(rf"(?:{re.escape(SYSTEM + END_OF_PROMPT)}\s*)*")
_SPAN = re.compile(r"</?(?:strong|laughter)>")      # tags that sound only by what they enclose
# The line ends between such tags and what they enclose.
_LOOSE = re.compile(r"(?<=<strong>)\s*\n\s*|(?<=<laughter>)\s*\n\s*|\s*\n\s*(?=</(?:strong|laughter)>)")
_HAN = "[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
_BESIDE_HAN = re.compile(f" (?={_HAN})|(?<={_HAN}) ")
_WIDE = re.compile(f"[\u3040-\u30ff]|{_HAN}")     # scripts with a stop of their own: kana, and Chinese

logger = logging.getLogger(__name__)


AUTO, ZERO_SHOT, CROSS_LINGUAL, INSTRUCT = "auto", "zero-shot", "cross-lingual", "instruct"
INSTRUCT_AS_VOICE = "instruct + transcript (experimental)"
HEARS = (ZERO_SHOT, INSTRUCT_AS_VOICE)       # read how the voice spoke
METHODS = (AUTO, ZERO_SHOT, CROSS_LINGUAL, INSTRUCT, INSTRUCT_AS_VOICE)


@dataclass(frozen=True)
class Prompt:
    """Ids for one piece; the number of ``text_ids`` sets how short and how long the speech may be."""

    prompt_text_ids: tuple[int, ...]
    text_ids: tuple[int, ...]
    speech_ids: tuple[int, ...]


def choose(method: str, transcript: str, instruction: str) -> str:
    """The mode that ``auto`` stands for: as told, else as the voice whose words are known, else without example."""
    if method not in METHODS:
        raise ValueError(f"method: {method!r} is not one of {', '.join(METHODS)}.")
    if method != AUTO:
        return method
    return INSTRUCT if speakable(instruction) else ZERO_SHOT if speakable(transcript) else CROSS_LINGUAL


def encode(
    tokenizer: TextTokenizer, texts: Sequence[str], method: str, transcript: str = "", instruction: str = "",
    speech_ids: Iterable[int] = (),
) -> list[Prompt]:
    """A prompt for each of ``texts``, made by ``pieces``, in one of the modes but ``auto``.

    ``HEARS`` names those that need the ids. ``ValueError`` where a mode lacks what it needs.
    """
    if method == ZERO_SHOT:
        return zero_shot(tokenizer, texts, transcript, speech_ids)
    if method == CROSS_LINGUAL:
        return cross_lingual(tokenizer, texts)
    if method == INSTRUCT:
        return instruct(tokenizer, texts, instruction)
    return instruct_as_voice(tokenizer, texts, instruction, transcript, speech_ids)


def pieces(tokenizer: TextTokenizer, text: str, limit: int | None = PIECE_IDS) -> list[str]:
    """What the model is to say at once, each of at most ``limit`` ids (None: all of it) and with a mark at its end.

    Lines without a letter or a digit are left out. ``ValueError`` where all of them are.
    """
    text = _LOOSE.sub("", _unframed(text, "text"))
    _require_speech(text)
    lines = [line for line in text.split("\n") if not line.strip() or _speakable(line)]

    def finish(piece: str) -> str:
        return _close(tokenizer, _tidy(piece))

    text = "\n".join(lines)
    said = [text] if limit is None else split(text, limit, lambda piece: len(_encode(tokenizer, finish(piece))))
    return [finish(piece) for piece in said if _speakable(piece)]


def spoken(
    tokenizer: TextTokenizer, texts: Sequence[str], voice: Voice | None, hear: Callable[[Voice], Iterable[int]],
    method: str = AUTO, instruction: str = "", limit: int | None = PIECE_IDS,
) -> tuple[str, list[list[PromptPiece]]]:
    """The mode that was taken, and each text as one voice speaks it, in pieces.

    ``hear(voice)`` gives the speech ids of a recording, and is called where the mode needs them. ``ValueError``
    for a text that cannot be spoken, and where the mode lacks a voice, its transcript or an instruction.
    """
    taken = choose(method, voice.transcript if voice else "", instruction)
    said = [pieces(tokenizer, text, limit) for text in texts]
    heard: Iterable[int] = ()
    if taken in HEARS:
        if voice is None:
            raise ValueError(f"voices: none is connected, and {taken} goes on as one; connect a Voice with a "
                             f"transcript, or choose {CROSS_LINGUAL} or {INSTRUCT}.")
        if not speakable(voice.transcript):
            raise ValueError(f"voices: {voice.name!r} has no transcript, and {taken} needs the words of the recording, "
                             f"exactly. Write them in its Voice node, or choose {CROSS_LINGUAL}, which goes without.")
        if voice.clip.seconds > MAX_HEARD_SECONDS:
            raise ValueError(f"voices: {voice.name!r} is {voice.clip.seconds:.1f} s long, and {taken} takes at most "
                             f"{MAX_HEARD_SECONDS:g} s, 3 to 10 s at best. Shorten the recording and its transcript "
                             "alike.")
        heard = hear(voice)
    elif voice is not None and method == AUTO and taken == CROSS_LINGUAL:
        logger.warning("The voice %r has no transcript: the model speaks without its accent and pace, and the decoder "
                       "in its sound.", voice.name)
    # All texts at once: what is amiss with the voice is told once.
    every = [piece for own in said for piece in own]
    prompts = iter(encode(tokenizer, every, taken, voice.transcript if voice else "", instruction, heard))
    return taken, [[PromptPiece(piece, next(prompts), voice=voice) for piece in own] for own in said]


def write(
    tokenizer: TextTokenizer, request: Request, hear: Callable[[Voice], Tensor],
) -> tuple[list[PromptPiece], str]:
    """A text or a script as the voices speak it, in pieces, and who speaks which, line by line.

    hear: the speech tokens (1, F) of a voice; asked where a mode needs them. A script is what ``script.parse``
    reads. Errors as of ``spoken``.
    """
    _tell_of_unused(request)
    limit = None if request.whole else request.limit or PIECE_IDS

    def ids(voice: Voice) -> list[int]:
        return hear(voice)[0].tolist()

    script_turns = turns(request)
    if script_turns and not request.voices:
        raise ValueError("voices: none is connected, and a dialogue has some; connect a Voice for each speaker, or "
                         f"choose the mode {SPEECH}.")
    if script_turns is None:
        voice = request.voices[0] if request.voices else None
        spoken_by = [(called(request.voices)[0] if voice else "voice of the decoder", voice, request.text)]
    else:
        spoken_by = [(turn.name, turn.voice, turn.words) for turn in script_turns]
    parts = _parts(spoken_by)
    if not parts:
        _require_speech(" ".join(words for _, _, words in spoken_by))
    for voice in dict.fromkeys(part.voice for part in parts):
        own = [part for part in parts if part.voice is voice]
        taken, said = spoken(
            tokenizer, [part.words for part in own], voice, ids, request.method, request.instruction, limit)
        for part, found in zip(own, said):
            found[0] = replace(found[0], lead_s=part.lead_s)
            found[-1] = replace(found[-1], pause_s=part.pause_s)
            part.said, part.speaker = found, f"{part.speaker} ({taken})"
    every = [piece for part in parts for piece in part.said]
    return every, preview(every, [part.speaker for part in parts for _ in part.said])


@dataclass
class _Part:
    """What a voice says between two pauses."""

    speaker: str
    voice: Voice | None
    words: str
    lead_s: float
    pause_s: float
    said: Sequence[PromptPiece] = ()


def _parts(spoken_by: Iterable[tuple[str, Voice | None, str]]) -> list[_Part]:
    """What can be spoken, from speakers, voices and words; tags that enclose nothing stay beside what they enclosed."""
    parts: list[_Part] = []
    lead_s = 0.0
    for speaker, voice, words in spoken_by:
        begun, held = len(parts), ""
        for said, pause_s in script.pauses(words):
            if _speakable(said):
                parts.append(_Part(speaker, voice, f"{held}{said}", lead_s, pause_s))
                lead_s, held = 0.0, ""
            elif len(parts) > begun:
                parts[-1].words += said
                parts[-1].pause_s += pause_s
            else:
                held += said
                lead_s += pause_s       # before all words of a turn
    if parts:
        parts[-1].pause_s += lead_s
    return parts


def _tell_of_unused(request: Request) -> None:
    """A warning for what was wished and has no effect."""
    if request.method in (ZERO_SHOT, CROSS_LINGUAL) and speakable(request.instruction):
        logger.warning("The instruction is not followed: %s knows none. Choose auto or %s.", request.method, INSTRUCT)
    unused = [name for name in ("before", "after", "speaker", "quality") if speakable(getattr(request, name))]
    if unused:
        logger.warning("CosyVoice does not use %s, which %s of OGG TTS.", " and ".join(unused),
                       "are inputs" if len(unused) > 1 else "is an input")


def zero_shot(
    tokenizer: TextTokenizer, texts: Sequence[str], transcript: str, speech_ids: Iterable[int],
) -> list[Prompt]:
    """Go on as the voice: ``transcript`` is what it says, ``speech_ids`` how.

    ``ValueError`` where one of them is missing; a warning where they are unlike in length.
    """
    said, heard = _voice(tokenizer, transcript, speech_ids)
    return _prompts(tokenizer, texts, (*_frame(tokenizer), *said), heard)


def cross_lingual(tokenizer: TextTokenizer, texts: Sequence[str]) -> list[Prompt]:
    """Speak without an example: of the voice, the decoder takes its sound, and nobody its accent and pace."""
    frame = _frame(tokenizer)
    return [Prompt((), (*frame, *prompt.text_ids), ()) for prompt in _prompts(tokenizer, texts, (), ())]


def instruct(tokenizer: TextTokenizer, texts: Sequence[str], instruction: str) -> list[Prompt]:
    """Speak as told, such as ``请用广东话表达。``"""
    return _prompts(tokenizer, texts, _frame(tokenizer, instruction), ())


def instruct_as_voice(
    tokenizer: TextTokenizer, texts: Sequence[str], instruction: str, transcript: str, speech_ids: Iterable[int],
) -> list[Prompt]:
    """Go on as the voice, and as told. Experimental: the order is that of the training, yet nobody published it."""
    if tokenizer.version == 2:
        raise ValueError("instruction: CosyVoice2 follows either an instruction or a transcript; leave one of them "
                         "empty, or use CosyVoice3.")
    said, heard = _voice(tokenizer, transcript, speech_ids)
    return _prompts(tokenizer, texts, (*_frame(tokenizer, instruction), *said), heard)


def _prompts(
    tokenizer: TextTokenizer, texts: Sequence[str], before: tuple[int, ...], heard: tuple[int, ...],
) -> list[Prompt]:
    for text in texts:
        _require_speech(text)
    return [Prompt(before, _encode(tokenizer, _tidy(clean(text))), heard) for text in texts]


def _frame(tokenizer: TextTokenizer, instruction: str | None = None) -> tuple[int, ...]:
    """What tells the model how to speak, up to the control id; nothing for version 2 without an instruction."""
    told = SYSTEM if tokenizer.version == 3 else ""
    if instruction is not None:
        wish = _unframed(clean(instruction).strip().removesuffix(END_OF_PROMPT), "instruction").removeprefix(SYSTEM)
        if not speakable(wish):
            raise ValueError("instruction: empty; write how to speak, such as 'Please say a sentence in a very soft "
                             "voice.', or choose another mode.")
        if tokenizer.plain:
            raise ValueError("instruction: this model was trained to follow none; leave it empty, or choose another "
                             "mode or model.")
        told = f"{told} {_tidy(wish)}".strip()
    return (*_encode(tokenizer, told), CONTROL.end_of_prompt) if told else ()


def _voice(
    tokenizer: TextTokenizer, transcript: str, speech_ids: Iterable[int],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids of what the voice says, and of how; a warning where they cannot belong together."""
    words, heard = _unframed(transcript, "transcript"), tuple(map(int, speech_ids))
    if not speakable(words):
        raise ValueError("transcript: empty; the model needs the words of the recording, exactly. Write them, or "
                         "choose cross-lingual, which goes without.")
    if not heard:
        raise ValueError("voice: 0 speech tokens; give a recording of at least 0.1 s, 3 to 10 s at best.")
    said = _encode(tokenizer, _tidy(words))
    least, most = USUAL_RATIO
    if not least <= len(heard) / len(said) <= most:
        logger.warning(
            "The voice's recording has %d speech tokens (%.1f s) for the %d ids of its transcript, %.1f for each; "
            "%g to %g are usual. See whether the transcript is that of the recording, and the whole of it.", len(heard),
            len(heard) * SECONDS_PER_TOKEN, len(said), len(heard) / len(said), least, most)
    return said, heard


def _unframed(text: str, role: str) -> str:
    """Clean, and without the frame that published examples write out, for here it is added anyway."""
    text = clean(text).strip()
    text = text[_FRAMES.match(text).end() :]
    spelled = [name for name in SPELLED_CONTROL if name in text]
    if spelled:
        logger.warning("%s: %s in it is read as text; control tokens are added where they belong.", role, spelled[0])
    return text


def _tidy(text: str) -> str:
    """On one line, blanks being single, and none beside Chinese characters, where it would break up their ids."""
    return _BESIDE_HAN.sub("", " ".join(text.split()))


def _encode(tokenizer: TextTokenizer, text: str) -> tuple[int, ...]:
    """The ids of a tidy text without blanks that stand alone beside a tag."""
    ids = tokenizer.encode(text)
    tags = [False, *(number >= FIRST_TAG for number in ids), False]
    return tuple(number for number, before, after in zip(ids, tags, tags[2:])
                 if number != tokenizer.blank or not (before or after))


def _speakable(text: str) -> bool:
    return speakable(_SPAN.sub("", text))


def _require_speech(text: str) -> None:
    if not text.strip():
        raise ValueError("text: empty; write what is to be said.")
    if not _speakable(text):
        raise ValueError(f"text: nothing in {text.strip()[:40]!r} can be spoken; write letters or digits.")


def _close(tokenizer: TextTokenizer, text: str) -> str:
    """With a stop, where no mark ends it; tags after a mark do not count."""
    end = len(text)
    while text[(tag := max(0, text.rfind("[", 0, end), text.rfind("<", 0, end))) : end].strip() in tokenizer.tags:
        end = tag
    words = text[:end]
    if closed(words):
        return text
    last = next(filter(speakable, reversed(words)), "")
    return text + ("。" if _WIDE.match(last) else ".")
