"""The picture: panels under each other on one axis of seconds, sizes in units of the letters.

From the top: what it is, waveform, mel spectrogram, pieces, tokens, marks, the cost of sampling, seconds, legend.
A panel that has nothing to show is left out. ``Picture`` tells where the panels are, to whoever reads columns.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from ..audio import Clip
from . import colours, pieces, sound
from .canvas import Axis, hatch, mark
from .sheet import WIDTH, Sheet
from .sound import Loudness
from .timeline import Timeline

MIN_WIDTH, MAX_WIDTH = 400, 4096
HZ_TICKS = (8000, 4000, 2000, 1000, 500)
LIMITS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)     # of the waveform's panel: the least that holds the peak


@dataclass(frozen=True, eq=False)
class Picture:
    """image: (H, W, 3) uint8. panels: name -> (first row, row behind the last)."""
    image: np.ndarray
    axis: Axis
    panels: dict[str, tuple[int, int]]


def draw(line: Timeline | None, clip: Clip | None, loudness: Loudness | None, width: int = WIDTH,
         place: str = "") -> Picture:
    """The picture of one row: its tokens, its recording, or both."""
    if not MIN_WIDTH <= width <= MAX_WIDTH:
        raise ValueError(f"Speech Report: width: {width} pixels; give {MIN_WIDTH} to {MAX_WIDTH}.")
    sheet = Sheet(line, clip, loudness, width, place)
    _head(sheet)
    ticks = sheet.axis.ticks(round(4 * sheet.unit))
    if clip is not None:
        _wave(sheet, ticks)
        _mel(sheet)
    if line is not None:
        pieces.draw(sheet)
    _seconds(sheet, ticks)
    _draw_legend(sheet)
    return Picture(np.array(sheet.picture), sheet.axis, sheet.panels)


def _head(sheet: Sheet) -> None:
    for name, lines, scale, colour in (("title", sheet.title, 1.25, colours.INK),
                                       ("words", sheet.lines, 1.0, colours.FAINT)):
        top, bottom = sheet.panels[name]
        for index, text in enumerate(lines):
            row = top + (index + 0.5) * (bottom - top) / len(lines)
            sheet.draw.text((sheet.unit, row), text, colour, sheet.letters.font(scale), "lm")


def _wave(sheet: Sheet, ticks: list[tuple[float, str]]) -> None:
    left, top, _, bottom = sheet.box("wave")
    rows, covered = bottom - top, max(1, sheet.axis.edge(sheet.clip.seconds))
    low, high, rms, clipped = sound.envelope(sheet.clip, covered)
    peak = max(-low.min(), high.max())
    limit = next((limit for limit in LIMITS if limit >= peak), peak)
    panel = np.empty((rows, sheet.axis.columns, 3), np.uint8)
    panel[:] = colours.PANEL
    for time_s, _ in ticks:
        panel[:, sheet.axis.column(time_s) - left] = colours.GRID
    value = limit * (1 - 2 * (np.arange(rows)[:, None] + 0.5) / rows)
    half = limit / rows
    drawn = panel[:, :covered]
    drawn[(value <= high + half) & (value >= low - half)] = colours.PEAK
    drawn[np.abs(value) <= rms] = colours.RMS
    thick = max(2, sheet.unit // 4)
    drawn[:thick, clipped > 0] = drawn[-thick:, clipped > 0] = colours.ALARM
    sheet.picture.paste(Image.fromarray(panel), (left, top))
    for value, row in ((limit, top + 0.5 * sheet.unit), (0, (top + bottom) / 2), (-limit, bottom - 0.5 * sheet.unit)):
        sheet.side(f"{value:.3g}", row)
    if sheet.loudness.silent:
        sheet.draw.text((left + sheet.axis.columns / 2, top + rows / 4), "silent", colours.INK, sheet.letters.font(),
                        "mm")


def _mel(sheet: Sheet) -> None:
    left, top, _, bottom = sheet.box("mel")
    sheet.fill("mel", colours.PANEL)
    mel = sound.rows(sound.spectrum(sheet.clip, max(1, sheet.axis.edge(sheet.clip.seconds))), bottom - top)
    panel = colours.of_levels()[np.rint(mel * (colours.LEVELS - 1)).astype(int)]
    sheet.picture.paste(Image.fromarray(panel), (left, top))
    for hz in HZ_TICKS:
        row = hz_row(sheet.panels["mel"], hz)
        sheet.draw.line((left - sheet.unit // 3, row, left - 1, row), colours.FAINT, sheet.stroke)
        sheet.side(f"{hz} Hz" if hz == HZ_TICKS[0] else str(hz), max(row, top + 0.5 * sheet.unit))


def hz_row(panel: tuple[int, int], hz: float) -> int:
    """The row of a frequency in the spectrogram's panel."""
    top, bottom = panel
    return top + min(int((1 - sound.height(hz)) * (bottom - top)), bottom - top - 1)


def _seconds(sheet: Sheet, ticks: list[tuple[float, str]]) -> None:
    left, top, right, bottom = sheet.box("seconds")
    sheet.draw.line((left, top, right - 1, top), colours.INK, sheet.stroke)
    for time_s, text in ticks:
        column = sheet.axis.column(time_s)
        sheet.draw.rectangle((column, top, column + sheet.stroke - 1, top + sheet.unit // 3), colours.INK)
        text = text if time_s else f"{text} s"
        sheet.draw.text((column, top + 0.5 * sheet.unit), text, colours.INK, sheet.letters.font(0.9), "ma")


def _draw_legend(sheet: Sheet) -> None:
    top, _ = sheet.panels["legend"]
    size = sheet.unit
    for index, entries in enumerate(sheet.legend):
        row = top + (index + 0.5) * 1.6 * size
        for begin, shape, colour, text in entries:
            box = (round(begin), round(row - size / 2), round(begin) + size, round(row + size / 2))
            if shape == "hatch":
                hatch(sheet.picture, box, size // 2)
            elif shape == "box":
                sheet.draw.rectangle((box[0], box[1], box[2] - 1, box[3] - 1), colour)
            elif shape == "stroke":
                column = box[0] + size // 2
                sheet.draw.rectangle((column, box[1], column + sheet.stroke - 1, box[3] - 1), colour)
            else:
                mark(sheet.picture, shape, (begin + size / 2, row), size, colour)
            sheet.draw.text((begin + 1.4 * size, row), text, colours.INK, sheet.letters.font(0.9), "lm")
