"""The paper of a picture before anything is drawn: which panels it has, their rows, its words and legend."""
from __future__ import annotations

from PIL import ImageDraw

from ..audio import Clip
from ..wires import S3_V3
from . import colours, words
from .canvas import Axis, Letters, blank
from .sound import Loudness
from .timeline import Span, Timeline

WIDTH = 1200                # columns of a picture, unless asked otherwise
LETTERS_PER_WIDTH = 85      # of letters' heights; below LEAST_LETTER columns none is legible
LEAST_LETTER = 11
LEFT_UNITS, RIGHT_UNITS = 5.6, 1.4
END_MARKS = {"end": ("disc", colours.BLUE), "loop": ("diamond", colours.ORANGE),
             "budget": ("triangle", colours.VERMILION)}
END_WORDS = {"end": "ended by itself", "loop": "stopped in a loop", "budget": "cut at its budget"}


class Sheet:
    """The paper of one picture, with its panels laid out and nothing drawn yet."""

    def __init__(self, line: Timeline | None, clip: Clip | None, loudness: Loudness | None, width: int,
                 place: str) -> None:
        self.line, self.clip, self.loudness, self.width = line, clip, loudness, width
        self.unit = max(LEAST_LETTER, round(width / LETTERS_PER_WIDTH))
        self.stroke = max(1, round(width / WIDTH))
        self.letters = Letters(self.unit)
        left, right = round(LEFT_UNITS * self.unit), round(RIGHT_UNITS * self.unit)
        seconds = max(clip.seconds if clip is not None else 0, line.seconds if line is not None else 0)
        self.axis = Axis(left, width - left - right, seconds)
        self.title, self.lines = self._words(place)
        self.legend = self._flow(_legend(line, loudness))
        self.panels = {}
        top = 0
        for name, units in self._heights():
            rows = round(units * self.unit)
            if not name.startswith("gap"):
                self.panels[name] = (top, top + rows)
            top += rows
        self.picture = blank(width, top)
        self.draw = ImageDraw.Draw(self.picture)

    def box(self, name: str) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of a panel, the last two exclusive."""
        top, bottom = self.panels[name]
        return self.axis.left, top, self.axis.left + self.axis.columns, bottom

    def fill(self, name: str, colour: colours.Colour) -> None:
        left, top, right, bottom = self.box(name)
        self.draw.rectangle((left, top, right - 1, bottom - 1), fill=colour)

    def side(self, text: str, row: float) -> None:
        """A label left of the panels, its middle at ``row``."""
        self.draw.text((self.axis.left - 0.5 * self.unit, row), text, colours.FAINT, self.letters.font(0.9), "rm")

    def wrap(self, text: str, scale: float = 1.0) -> list[str]:
        """A text in lines of the picture's width."""
        lines = [""]
        for word in text.split():
            longer = f"{lines[-1]} {word}".strip()
            if lines[-1] and self.letters.width(longer, scale) > self.width - 2 * self.unit:
                lines.append(word)
            else:
                lines[-1] = longer
        return lines

    def _words(self, place: str) -> tuple[list[str], list[str]]:
        title, lines = [], []
        if self.line is not None:
            title.append(words.head(self.line))
            lines.append(words.total(self.line))
        if self.clip is not None:
            title.append(f"audio: {self.clip.seconds:.2f} s at {self.clip.rate_hz} Hz")
            lines.append(words.level(self.loudness))
        if self.line is not None and self.line.note:
            lines.append(self.line.note)
        title = " · ".join(title) + (f" · {place}" if place else "")
        return self.wrap(title, 1.25), [part for text in lines for part in self.wrap(text)]

    def _heights(self) -> list[tuple[str, float]]:
        """Panels from the top, in units."""
        found = [("gap", 0.6), ("title", 1.7 * len(self.title)), ("words", 1.4 * len(self.lines)), ("gap", 0.7)]
        if self.clip is not None:
            found += [("wave", 8), ("gap", 0.6), ("mel", 11), ("gap", 0.6)]
        if self.line is not None:
            codebooks = self.line.spans[0].piece.ids.shape[0]
            found += [("pieces", 1.6), ("blocks", 0.7), ("tokens", 3 if codebooks == 1 else 2 + 0.7 * (codebooks - 1))]
            made = [span.piece.made for span in self.line.spans if span.piece.made]
            if any(one.redraws for one in made):
                found.append(("redraws", 1.0))
            if made:
                found += [("gap", 0.2), ("ends", 1.3)]
            if sampled(self.line):
                found += [("gap", 0.5), ("sampling", 4)]
            found.append(("gap", 0.4))
        return [*found, ("seconds", 2.0), ("legend", 1.6 * len(self.legend)), ("gap", 0.5)]

    def _flow(self, entries: list[tuple]) -> list[list[tuple]]:
        """The legend in rows, each entry with the column that it begins at."""
        rows, used = [[]], self.axis.left
        for entry in entries:
            wide = 3 * self.unit + self.letters.width(entry[2], 0.9)
            if rows[-1] and used + wide > self.width:
                rows.append([])
                used = self.axis.left
            rows[-1].append((used, *entry))
            used += wide
        return rows


def sampled(line: Timeline) -> list[tuple[Span, float]]:
    """Pieces whose sampling was timed, and its share of their length."""
    return [(span, span.cost_s / span.speech_s) for span in line.spans if span.cost_s > 0]


def _legend(line: Timeline | None, loudness: Loudness | None) -> list[tuple[str, colours.Colour, str]]:
    """(shape, colour, words) of what the picture has."""
    found = []
    if loudness is not None:
        found += [("box", colours.PEAK, "peak"), ("box", colours.RMS, "RMS")]
        if loudness.clipped:
            found.append(("box", colours.ALARM, "clipped"))
    if line is None:
        return found
    made = [span.piece.made for span in line.spans if span.piece.made]
    if line.pauses:
        found.append(("hatch", colours.HATCH, "pause"))
    if line.kind == S3_V3:
        found.append(("box", colours.SILENT, "token of silence"))
    if any(one.block for one in made):
        found.append(("stroke", colours.INK, "block"))
    if any(one.redraws for one in made):
        found.append(("stroke", colours.PURPLE, "drawn twice"))
    found += [(*END_MARKS[how], END_WORDS[how]) for how in END_MARKS if any(one.ended == how for one in made)]
    if sampled(line):
        found.append(("box", colours.BAR, "sampling, in parts of real time"))
    return found
