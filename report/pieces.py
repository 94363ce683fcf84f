"""The panels of tokens: numbers and texts of pieces, cells, borders, marks, and the cost of sampling."""
from __future__ import annotations

import numpy as np
from PIL import Image

from ..cosyvoice3.generate import SILENT_IDS
from ..wires import S3_V3
from . import colours, words
from .canvas import Axis, hatch, mark
from .sheet import END_MARKS, Sheet, sampled
from .timeline import Span

SEPARATED_COLUMNS = 5       # of a token, from which on a line parts it from another
BLOCK_COLUMNS = 4           # of a block, below which its borders would be a bar


def draw(sheet: Sheet) -> None:
    """All that the sheet's tokens show, and their borders over the panels of sound."""
    _tokens(sheet)
    _borders(sheet)
    _pieces(sheet)
    if "redraws" in sheet.panels:
        _redraws(sheet)
    if "ends" in sheet.panels:
        _ends(sheet)
    if "sampling" in sheet.panels:
        _sampling(sheet)


def _tokens(sheet: Sheet) -> None:
    left, top, _, bottom = sheet.box("tokens")
    sheet.fill("tokens", colours.PANEL)
    line, axis = sheet.line, sheet.axis
    codebooks = line.spans[0].piece.ids.shape[0]
    # The semantic codebook is as high as two to three of the others.
    tall = bottom - top if codebooks == 1 else round(2 * sheet.unit)
    edges = np.append(top, top + tall + np.arange(codebooks) * (bottom - top - tall) // max(1, codebooks - 1))
    for begin_s, end_s in line.pauses:
        hatch(sheet.picture, (left + axis.edge(begin_s), top, left + axis.edge(end_s), bottom),
              sheet.unit * 2 // 3)
    for span in line.spans:
        frames, starts = _frames(span, line.frames_per_second, axis)
        if not len(frames):
            continue
        ids = span.piece.ids.numpy()
        cells = colours.of_ids(ids[:, frames], SILENT_IDS if line.kind == S3_V3 else frozenset())
        if axis.columns / (axis.seconds * line.frames_per_second) >= SEPARATED_COLUMNS:
            first = starts[1:] - starts[0]
            first = first[first < len(frames)]
            differs = ids[:, frames[first]] != ids[:, frames[first] - 1]
            cells[:, first] = np.where(differs[..., None], np.array(colours.PAPER, np.uint8), cells[:, first])
        cells = np.repeat(cells, np.diff(edges), axis=0)
        sheet.picture.paste(Image.fromarray(cells), (left + int(starts[0]), top))
    if codebooks == 1:
        sheet.side("tokens", (top + bottom) / 2)
    else:
        sheet.side("semantic", top + tall / 2)
        sheet.side("residual", (top + tall + bottom) / 2)


def _frames(span: Span, rate: float, axis: Axis) -> tuple[np.ndarray, np.ndarray]:
    """Which frame each column of a piece shows, and the edge at which each of its frames begins."""
    times = span.begin_s + np.arange(span.piece.ids.shape[1]) / rate
    starts = np.floor(times / axis.seconds * axis.columns + 1e-6).astype(int)
    columns = np.arange(starts[0], axis.edge(span.end_s))
    return np.searchsorted(starts, columns, side="right") - 1, starts


def _borders(sheet: Sheet) -> None:
    found = {sheet.axis.column(time_s) for span in sheet.line.spans for time_s in (span.begin_s, span.end_s)}
    for name, colour in (("wave", colours.BORDER), ("mel", colours.BORDER_ON_DARK), ("tokens", colours.BORDER)):
        if name in sheet.panels:
            _, top, right, bottom = sheet.box(name)
            for column in found:
                sheet.draw.rectangle((column, top, min(column + sheet.stroke, right) - 1, bottom - 1), colour)


def _pieces(sheet: Sheet) -> None:
    """Numbers, as much of the texts as fits, and the blocks of each piece."""
    top, bottom = sheet.panels["pieces"]
    base, below = sheet.panels["blocks"]
    axis, letters, gap = sheet.axis, sheet.letters, sheet.unit // 3
    named = len({span.piece.voice.name for span in sheet.line.spans if span.piece.voice}) > 1
    free = 0
    for span in sheet.line.spans:
        begin, end = axis.left + axis.edge(span.begin_s), axis.left + axis.edge(span.end_s)
        sheet.draw.rectangle((begin, base, max(begin, end - 1 - sheet.stroke), base + sheet.stroke), colours.FAINT)
        number = str(span.number)
        wide = letters.width(number)
        if begin >= free and begin + wide <= axis.left + axis.columns + sheet.unit:
            sheet.draw.text((begin, (top + bottom) / 2), number, colours.INK, letters.font(), "lm")
            free = begin + wide + gap
            text = letters.fit(letters.plain(words.label(span, named)), end - free - gap)
            if text:
                sheet.draw.text((free + gap, (top + bottom) / 2), text, colours.FAINT, letters.font(), "lm")
        block_s = span.piece.made.block / sheet.line.frames_per_second if span.piece.made else 0
        if _blocks_show(sheet, block_s):
            for index in range(1, round((span.end_s - span.begin_s) / block_s) + 1):
                if span.begin_s + index * block_s < span.end_s:
                    column = axis.column(span.begin_s + index * block_s)
                    sheet.draw.rectangle((column, base, column + sheet.stroke - 1, below - 1), colours.INK)
    sheet.side("pieces", (top + bottom) / 2)


def _blocks_show(sheet: Sheet, block_s: float) -> bool:
    return block_s / sheet.axis.seconds * sheet.axis.columns >= BLOCK_COLUMNS * sheet.stroke


def _redraws(sheet: Sheet) -> None:
    """A stroke for each token that was drawn a second time."""
    top, bottom = sheet.panels["redraws"]
    for span in sheet.line.spans:
        for frame in span.piece.made.redraws if span.piece.made else ():
            time_s = span.begin_s + (frame + 0.5) / sheet.line.frames_per_second
            if time_s < span.end_s:
                column = sheet.axis.column(time_s)
                sheet.draw.rectangle((column, top + 2, column + sheet.stroke - 1, bottom - 1), colours.PURPLE)
    sheet.side("redraws", (top + bottom) / 2)


def _ends(sheet: Sheet) -> None:
    """A mark at each piece's end for how it came."""
    size, row = sheet.unit, sum(sheet.panels["ends"]) / 2
    free = 0.0
    for span in sheet.line.spans:
        made = span.piece.made
        if made is None:
            continue
        shape, colour = END_MARKS.get(made.ended, ("disc", colours.FAINT))
        centre = max(sheet.axis.left, sheet.axis.column(span.end_s) - size / 2)
        # Where pieces crowd, the usual end gives way; a loop or a cut is shown in any case.
        if made.ended != "end" or centre - size >= free:
            mark(sheet.picture, shape, (centre, row), size, colour)
            free = centre
    sheet.side("ends", row)


def _sampling(sheet: Sheet) -> None:
    """A bar for each piece, as high as its share of real time, so that areas are seconds."""
    left, top, right, bottom = sheet.box("sampling")
    sheet.fill("sampling", colours.PANEL)
    found = sampled(sheet.line)
    most = max(1.0, *(share for _, share in found))
    real = round(bottom - (bottom - top) / most)
    for span, share in found:
        begin, end = left + sheet.axis.edge(span.begin_s), left + sheet.axis.edge(span.end_s)
        bar = round(bottom - share / most * (bottom - top))
        sheet.draw.rectangle((begin, min(bar, bottom - 1), max(begin, end - 1 - sheet.stroke), bottom - 1), colours.BAR)
    sheet.draw.line((left, real, right - 1, real), colours.INK, sheet.stroke)
    for span, share in found:
        begin, end = left + sheet.axis.edge(span.begin_s), left + sheet.axis.edge(span.end_s)
        seconds = f"{span.cost_s:.2f} s"
        for text in (f"{seconds}, {share:.2f} x", seconds):
            if sheet.letters.width(text, 0.9) + sheet.unit <= end - begin:
                sheet.draw.text((begin + sheet.unit // 3, bottom - 0.2 * sheet.unit), text, colours.INK,
                                sheet.letters.font(0.9), "ls")
                break
    sheet.side("1 x", max(real, top + 0.5 * sheet.unit))
    if bottom - real > 2.4 * sheet.unit:
        sheet.side("sampling", bottom - 0.6 * sheet.unit)
