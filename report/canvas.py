"""What pictures are drawn with: the axis of seconds, letters that the font has, hatching, small marks."""
from __future__ import annotations

import math
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from .colours import HATCH, PANEL, PAPER, Colour
from .words import foldable

DRAWN_LARGER = 4            # marks, so that their edges are smooth
LEAST_LETTERS = 6           # of a text that is cut: fewer say nothing
NO_GLYPH = "\U0010fffd"     # a private character: what the font shows for it, it shows for all that it lacks


@dataclass(frozen=True)
class Axis:
    """Seconds to columns: ``columns`` of them from ``left`` on stand for ``seconds``."""
    left: int
    columns: int
    seconds: float

    def column(self, time_s: float) -> int:
        """The column that holds a time; what lies on the end of the axis is in its last column."""
        return self.left + min(self.edge(time_s), self.columns - 1)

    def edge(self, time_s: float) -> int:
        """How many columns lie before a time."""
        # Times are sums of many terms: what is meant to meet a column's edge does.
        return max(0, min(self.columns, math.floor(time_s / self.seconds * self.columns + 1e-6)))

    def ticks(self, room: int) -> list[tuple[float, str]]:
        """Round times and their labels, at least ``room`` columns apart."""
        least = self.seconds * room / self.columns
        step = 10.0 ** math.floor(math.log10(least))
        step = next(step * factor for factor in (1, 2, 5, 10, 20) if step * factor >= least * 0.999)
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        count = math.floor(self.seconds / step + 1e-6)
        return [(index * step, f"{index * step:.{digits}f}") for index in range(count + 1)]


class Letters:
    """Pillow's own font in any size, and what of a text it can show."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.fonts = {}
        self.known = {" ": True}

    def font(self, scale: float = 1.0) -> ImageFont.FreeTypeFont:
        if scale not in self.fonts:
            self.fonts[scale] = ImageFont.load_default(size=max(8, round(self.size * scale)))
        return self.fonts[scale]

    def width(self, text: str, scale: float = 1.0) -> float:
        return self.font(scale).getlength(text)

    def plain(self, text: str) -> str:
        """``text`` as the font can show it, without accents; "" where it lacks a letter, as of most scripts."""
        folded = foldable(text)
        return folded if all(map(self._has, folded)) else ""

    def fit(self, text: str, room: float, scale: float = 1.0) -> str:
        """As much of the beginning of a text as fits into ``room``; "" where that is no word of it."""
        if self.width(text, scale) <= room:
            return text
        low, high = 0, len(text)
        while low < high:
            middle = (low + high + 1) // 2
            if self.width(text[:middle].rstrip() + "...", scale) <= room:
                low = middle
            else:
                high = middle - 1
        return text[:low].rstrip() + "..." if low >= LEAST_LETTERS else ""

    def _has(self, char: str) -> bool:
        if char not in self.known:
            self.known[char] = self._shape(char) != self._shape(NO_GLYPH)
        return self.known[char]

    def _shape(self, char: str) -> tuple:
        mask = self.font().getmask(char)
        return mask.size, bytes(mask)


def hatch(picture: Image.Image, box: tuple[int, int, int, int], step: int) -> None:
    """Slanted lines, ``step`` columns apart, over ``box`` (left, top, right, bottom; the last two exclusive)."""
    left, top, right, bottom = box
    if right <= left or bottom <= top:
        return
    part = Image.new("RGB", (right - left, bottom - top), PANEL)
    draw = ImageDraw.Draw(part)
    for start in range(-part.height - left % step, part.width, step):
        draw.line((start, part.height, start + part.height, 0), fill=HATCH)
    picture.paste(part, (left, top))


def mark(picture: Image.Image, shape: str, centre: tuple[float, float], size: int, colour: Colour) -> None:
    """A "disc", "triangle" or "diamond" of ``size`` columns around ``centre`` (column, row)."""
    side = size * DRAWN_LARGER
    mask = Image.new("L", (side, side))
    draw = ImageDraw.Draw(mask)
    if shape == "disc":
        draw.ellipse((0, 0, side - 1, side - 1), fill=255)
    elif shape == "triangle":
        draw.polygon(((0, side - 1), (side - 1, side - 1), (side / 2, 0)), fill=255)
    else:
        draw.polygon(((side / 2, 0), (side - 1, side / 2), (side / 2, side - 1), (0, side / 2)), fill=255)
    mask = mask.resize((size, size), Image.Resampling.LANCZOS)
    corner = round(centre[0] - size / 2), round(centre[1] - size / 2)
    picture.paste(Image.new("RGB", (size, size), colour), corner, mask)


def blank(width: int, rows: int) -> Image.Image:
    return Image.new("RGB", (width, rows), PAPER)
