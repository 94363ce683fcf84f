"""From a recording to its words: windows, one language, ids without loops, text."""
from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .. import text
from ..audio import SILENCE_DBFS, Clip, peak_dbfs, resample
from . import decode
from .decode import BUDGET, END, LOOP, NOBODY, RATE_HZ
from .folder import MOONSHINE, Ear
from .windows import windows

ROLE = "Transcribe Speech"
AUTO, ENGLISH = "auto", "en"
IDS_PER_SECOND = 4.0    # of speech, about, by which the bar moves within a window
STEPS_PER_SECOND = 10   # of the bar

# Codes of the languages that Whisper tells apart, the last of them from large-v3 on.
LANGUAGES = tuple("""
af am ar as az ba be bg bn bo br bs ca cs cy da de el en es et eu fa fi fo fr gl gu ha haw he hi hr ht hu hy id is it
ja jw ka kk km kn ko la lb ln lo lt lv mg mi mk ml mn mr ms mt my ne nl nn no oc pa pl ps pt ro ru sa sd si sk sl sn so
sq sr su sv sw ta te tg th tk tl tr tt uk ur uz vi yi yo zh yue
""".split())

ENDINGS = {LOOP: "went round in circles, of which one round is kept", BUDGET: "ran out of room"}

logger = logging.getLogger(__name__)


def check_language(ear: Ear, language: str) -> None:
    """``ValueError`` for a code that is unknown, or that the model does not take."""
    if language not in (AUTO, *LANGUAGES):
        raise ValueError(f"{ROLE}: language: {language!r} is not known; choose auto, or a code such as en.")
    if language in (AUTO, ENGLISH):
        return
    if ear.kind == MOONSHINE:
        raise ValueError(f"{ROLE}: language: {language!r} cannot be asked of Moonshine ({ear.folder}): each of its "
                         "models knows one language and no other; choose auto.")
    if not ear.multilingual:
        raise ValueError(f"{ROLE}: language: {language!r}, but {ear.folder} knows English alone; choose auto or en, or "
                         "a multilingual model, whose name does not end in .en.")
    if ear.tokenizer.token_to_id(f"<|{language}|>") is None:
        raise ValueError(f"{ROLE}: language: {ear.folder} does not know {language!r}; choose auto or another.")


def transcribe(ear: Ear, network: nn.Module, clips: Sequence[Clip], language: str, device: torch.device,
               on_step: Callable[[int, int], None]) -> list[str]:
    """The words of each recording, in one line.

    on_step: is told (done, total) before each id; what it raises ends the work. ValueError where no words are heard.
    """
    waves = [resample(clip.wave, clip.rate_hz, RATE_HZ) for clip in clips]
    total = sum(map(_steps, waves))
    found, done = [], 0
    for row, wave in enumerate(waves, 1):
        words = _row(ear, network, wave, language, device, row,
                     lambda steps, done=done: on_step(done + steps, total))
        if not words:
            raise ValueError(f"{ROLE}: audio: no words are heard in row {row} ({wave.shape[0] / RATE_HZ:.1f} s). "
                             "Listen to it, or choose a larger model.")
        found.append(words)
        done += _steps(wave)
    on_step(total, total)
    return found


def _row(ear: Ear, network: nn.Module, wave: Tensor, language: str, device: torch.device, row: int,
         on_steps: Callable[[int], None]) -> str:
    """(T,) at 16 kHz -> its words; a language that is to be found out is that of the first window with speech."""
    rows: list[list[int]] = []
    spoken = None if language == AUTO else language
    for begin, end in windows(wave, RATE_HZ, decode.window_samples(ear)):
        part, before = wave[begin:end], _steps(wave[:begin])

        def on_id(count: int, seconds: float = part.shape[0] / RATE_HZ, before: int = before) -> None:
            share = min(1.0, count / (1 + seconds * IDS_PER_SECOND))
            on_steps(before + int(share * seconds * STEPS_PER_SECOND))

        on_id(0)
        if peak_dbfs(part) < SILENCE_DBFS:
            continue        # a network hears words in silence
        encoded = decode.encode(ear, network, part, device)
        nobody = 0.0
        if ear.kind != MOONSHINE:
            seen = decode.first_look(ear, network, encoded)
            nobody = max((float(seen[n]) for n in map(ear.tokenizer.token_to_id, NOBODY) if n is not None), default=0.0)
            if ear.multilingual and spoken is None:
                spoken = decode.likeliest(ear, seen, LANGUAGES)
        heard = decode.decode(ear, network, encoded, decode.prompt_ids(ear, spoken), nobody, on_id)
        if language == AUTO and not any(rows) and not heard.ids:
            spoken = None
        if heard.ended != END:
            logger.warning("%s: audio: row %d, %.1f to %.1f s: the model %s; words may be missing there.",
                           ROLE, row, begin / RATE_HZ, end / RATE_HZ, ENDINGS[heard.ended])
        rows.append(heard.ids)
    return _text(ear, rows)


def _text(ear: Ear, rows: Sequence[Sequence[int]]) -> str:
    """The ids of windows as one line. Languages with blanks between words have one where two windows meet."""
    rows = [row for row in rows if row]
    blank = any(ear.tokenizer.id_to_token(row[0]).startswith(("Ġ", "▁")) for row in rows)
    said = (" " if blank else "").join(ear.tokenizer.decode(list(row)).strip() for row in rows)
    return " ".join(text.clean(said).split())


def _steps(wave: Tensor) -> int:
    """(T,) at 16 kHz -> its steps of the bar."""
    return wave.shape[0] * STEPS_PER_SECOND // RATE_HZ
