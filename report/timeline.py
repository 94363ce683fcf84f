"""When each piece of speech begins and ends.

The clock is that of the tokens: F frames last F / frames per second, with the silence before and behind. Decoders
keep it, unless they trim the silence at the ends of pieces. Then the audio is shorter, and it is asked: a pause
between pieces is digital silence in it, so what was trimmed up to there is known. Where several pieces follow each
other without a pause, what they lost together is shared out by their lengths; a border among them may be off by
as much as they lost. Tokens keep their pace, and those that were trimmed are left out.
"""
from __future__ import annotations

from dataclasses import dataclass

from ..audio import Clip
from ..wires import Piece, SpeechTokens
from .sound import still_runs

DIGITAL_SILENCE = 2.0**-15      # one step of 16 bits: pauses stay silent in files
SLACK_S = 0.003                 # by which a run of silence may fall short of its pause
FITS_SHARE = 0.5                # of the tokens' time that the audio must have, else it is of other tokens


@dataclass(frozen=True, eq=False)
class Span:
    """A piece and where it stands, in seconds.

    number: counts from 1. speech_s: its length by the clock. cost_s: what its sampling took, 0 if that is not known.
    """
    piece: Piece
    number: int
    begin_s: float
    end_s: float
    speech_s: float
    cost_s: float


@dataclass(frozen=True, eq=False)
class Timeline:
    """The pieces of one row in order, the silences between them, and how long all of it takes.

    note: what to know where the audio does not keep the tokens' clock, else "".
    """
    kind: str
    frames_per_second: float
    spans: tuple[Span, ...]
    pauses: tuple[tuple[float, float], ...]
    seconds: float
    note: str = ""


def timeline(tokens: SpeechTokens, row: int, clip: Clip | None = None) -> Timeline:
    """The row's pieces on the tokens' clock, or as ``clip`` has them."""
    pieces, rate = tokens.batch[row], tokens.frames_per_second
    lengths = [piece.ids.shape[1] / rate for piece in pieces]
    gaps = [piece.pause_s + after for piece, after in zip(pieces, [*(p.lead_s for p in pieces[1:]), 0.0])]
    lead_s = pieces[0].lead_s
    total_s = lead_s + sum(lengths) + sum(gaps)
    cuts, note = [0.0] * len(pieces), ""
    if clip is not None:
        missing_s = total_s - clip.seconds
        if missing_s < -1 / rate:
            note = f"The audio goes on for {-missing_s:.2f} s after the tokens: rows of a batch do, beside longer ones."
        elif clip.seconds < FITS_SHARE * total_s:
            note = (f"The tokens take {total_s:.2f} s and the audio {clip.seconds:.2f} s: it seems to be of other "
                    "tokens, so borders do not fit it.")
        elif missing_s > 1 / rate:
            cuts = _cuts(lengths, gaps, lead_s, missing_s, clip)
            note = (f"The audio is {missing_s:.2f} s shorter than the tokens: silence at the ends of pieces was "
                    "trimmed. Borders beside pauses are exact, the others estimated.")
    spans, pauses, now_s = [], [(0.0, lead_s)] if lead_s else [], lead_s
    for index, piece in enumerate(pieces):
        end_s = now_s + lengths[index] - cuts[index]
        spans.append(Span(piece, index + 1, now_s, end_s, lengths[index],
                          piece.made.seconds if piece.made else 0.0))
        now_s = end_s + gaps[index]
        if gaps[index]:
            pauses.append((end_s, now_s))
    return Timeline(tokens.kind, rate, tuple(spans), tuple(pauses), now_s, note)


def _cuts(lengths: list[float], gaps: list[float], lead_s: float, missing_s: float, clip: Clip) -> list[float]:
    """How many seconds each piece lost, ``missing_s`` together."""
    runs = still_runs(clip, DIGITAL_SILENCE) if any(gaps[:-1]) else []
    cuts = [0.0] * len(lengths)
    first, lost_s, clock_s = 0, 0.0, lead_s
    for index, (length, gap) in enumerate(zip(lengths, gaps)):
        clock_s += length + gap
        if index + 1 == len(lengths):
            known_s = missing_s
        elif gap:
            found = [end for begin, end in runs
                     if end - begin >= gap - SLACK_S and lost_s - SLACK_S <= clock_s - end <= missing_s + SLACK_S]
            if not found:
                continue
            # Pieces lose little, so the latest of several silences is taken.
            known_s = min(missing_s, max(lost_s, clock_s - found[-1]))
        else:
            continue
        # The end of a row is left as it is, unless a pause follows.
        behind = index if index + 1 == len(lengths) and not gap and index > first else index + 1
        spoken_s = sum(lengths[first:behind])
        for own in range(first, behind):
            cuts[own] = min((known_s - lost_s) * lengths[own] / spoken_s, lengths[own])
        first, lost_s = index + 1, known_s
    return cuts
