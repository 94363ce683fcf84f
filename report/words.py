"""The report in words, and what of a text the picture's font can show."""
from __future__ import annotations

import math
import unicodedata

from ..audio import Clip
from ..wires import Made
from .sound import STILL_DBFS, Loudness
from .timeline import Span, Timeline

ENDINGS = {"end": "by itself", "loop": "in a loop", "budget": "at its budget"}

# What does not come apart into a letter and an accent.
PLAIN = str.maketrans({
    "ł": "l", "Ł": "L", "ß": "ss", "ø": "o", "Ø": "O", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "đ": "d", "Đ": "D",
    "ı": "i", "–": "-", "—": "-", "‐": "-", "‑": "-", "„": '"', "¿": "?", "¡": "!", "«": '"', "»": '"',
})


def say(line: Timeline | None, clip: Clip | None, loudness: Loudness | None, place: str = "") -> str:
    """A header, a line for each piece and pause, totals, and the loudness. ``place``: of several rows, which."""
    lines = ["Speech Report" + (f", {place}" if place else "")]
    if line is not None:
        lines.append(head(line))
        lines += _pieces(line)
        lines.append(total(line))
    if clip is not None:
        count = clip.wave.shape[0]
        lines.append(f"audio: {clip.seconds:.2f} s, {count} {_plural('sample', count)} at {clip.rate_hz} Hz")
        lines.append(level(loudness))
    if line is not None and line.note:
        lines.append(f"note: {line.note}")
    return "\n".join(lines)


def head(line: Timeline) -> str:
    """The kind of tokens, how many, and how fast."""
    frames, pieces = _frames(line), len(line.spans)
    codebooks = line.spans[0].piece.ids.shape[0]
    books = f" of {codebooks} codebooks" if codebooks > 1 else ""
    return (f"{line.kind} tokens: {pieces} {_plural('piece', pieces)}, {frames} {_plural('frame', frames)}{books}, "
            f"{line.frames_per_second:.4g} per second, {line.seconds:.2f} s")


def level(loudness: Loudness) -> str:
    """Loudness, clipping and silence."""
    if loudness.silent:
        return f"silent: its peak is {_db(loudness.peak_dbfs)}"
    begin_s, end_s = loudness.still_begin_s, loudness.still_end_s
    still = f"{end_s - begin_s:.2f} s from {begin_s:.2f} s on" if end_s > begin_s else "none"
    return (f"peak {_db(loudness.peak_dbfs)}, RMS {_db(loudness.rms_dbfs)}, clipped {100 * loudness.clipped:.2f} %, "
            f"longest silence (below {STILL_DBFS:.0f} dBFS) {still}")


def total(line: Timeline) -> str:
    """Speech, pauses and the cost of sampling, of all pieces."""
    speech_s = sum(span.speech_s for span in line.spans)
    parts = [f"{speech_s:.2f} s of speech", f"{sum(end - begin for begin, end in line.pauses):.2f} s of pauses"]
    made = [span.piece.made for span in line.spans if span.piece.made]
    if made:
        parts += [f"{sum(one.ended == how for one in made)} ended {text}" for how, text in ENDINGS.items()
                  if any(one.ended == how for one in made)]
        parts += _redrawn(sum(len(one.redraws) for one in made), sum(one.retries for one in made))
    sampled_s = sum(span.cost_s for span in line.spans)
    if sampled_s > 0:
        own_s = sum(span.speech_s for span in line.spans if span.cost_s)
        parts.append(f"sampled in {sampled_s:.2f} s, {sampled_s / own_s:.2f} of real time")
    return f"total: {', '.join(parts)}"


def label(span: Span, named: bool) -> str:
    """A piece as the picture names it: its number, the voice if ``named``, and its text."""
    text = " ".join(span.piece.made.text.split()) if span.piece.made else ""
    if named and span.piece.voice is not None:
        text = f"{span.piece.voice.name}: {text}"
    return text


def foldable(text: str) -> str:
    """``text`` without accents, dashes and quotes that a font of plain letters lacks."""
    apart = unicodedata.normalize("NFKD", text.translate(PLAIN))
    return "".join(char for char in apart if not unicodedata.combining(char))


def _pieces(line: Timeline) -> list[str]:
    said, after = [], {round(begin_s, 6): end_s for begin_s, end_s in line.pauses}
    if line.spans[0].begin_s > 0:
        said.append(f"   pause of {line.spans[0].begin_s:.2f} s")
    for span in line.spans:
        said.append(f"{span.number}. {_piece(span)}")
        end_s = after.get(round(span.end_s, 6))
        if end_s is not None:
            said.append(f"   pause of {end_s - span.end_s:.2f} s")
    return said


def _piece(span: Span) -> str:
    frames, made = span.piece.ids.shape[1], span.piece.made
    parts = [f"{span.begin_s:.2f} to {span.end_s:.2f} s", f"{frames} {_plural('frame', frames)}"]
    if span.piece.voice is not None:
        parts.append(f"voice {span.piece.voice.name}")
    if made is None:
        return ", ".join([*parts, "not sampled here"])
    parts += _history(span, made)
    text = " ".join(made.text.split())
    return ", ".join(parts) + (f": {text}" if text else "")


def _history(span: Span, made: Made) -> list[str]:
    parts = [f"ended {ENDINGS.get(made.ended, made.ended)}", *_redrawn(len(made.redraws), made.retries)]
    if made.block:
        parts.append(f"in blocks of {made.block} frames")
    if span.cost_s > 0:
        parts.append(f"sampled in {span.cost_s:.2f} s ({span.cost_s / span.speech_s:.2f} of real time)")
    return parts


def _redrawn(redraws: int, retries: int) -> list[str]:
    return [f"{redraws} {_plural('redraw', redraws)}", "1 retry" if retries == 1 else f"{retries} retries"]


def _frames(line: Timeline) -> int:
    return sum(span.piece.ids.shape[1] for span in line.spans)


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _db(level_dbfs: float) -> str:
    return f"{level_dbfs:.1f} dBFS" if math.isfinite(level_dbfs) else "digital silence"
