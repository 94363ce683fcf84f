"""Colours: of ids, of loudness, and of marks.

Lightness rises evenly along the map of loudness, so that it reads in greys too. Marks are told apart by their
shape as well, and their colours are far apart for colour-blind eyes.
"""
from __future__ import annotations

import numpy as np

Colour = tuple[int, int, int]

PAPER: Colour = (252, 252, 250)
PANEL: Colour = (240, 241, 243)
GRID: Colour = (214, 217, 222)
INK: Colour = (34, 38, 46)
FAINT: Colour = (104, 110, 122)
PEAK: Colour = (150, 190, 224)
RMS: Colour = (30, 92, 150)
ALARM: Colour = (204, 64, 0)            # clipped samples
SILENT: Colour = (206, 206, 206)        # about the greys of silent tokens
HATCH: Colour = (170, 175, 184)
BLUE: Colour = (0, 114, 178)
ORANGE: Colour = (224, 148, 0)
VERMILION: Colour = (204, 64, 0)
PURPLE: Colour = (136, 60, 140)
BAR: Colour = (120, 170, 150)
BORDER: Colour = (34, 38, 46)
BORDER_ON_DARK: Colour = (255, 255, 255)

LEVELS = 256                            # of the map of loudness
# Odd parts of 2**32 near the powers of the plastic number's inverse: ids that are near get colours that are not.
HUE_STEP, LIGHTNESS_STEP = 3242174889, 2447445413
WRAP = 2**32
CHROMA = 0.125


def of_ids(ids: np.ndarray, silent: frozenset[int] = frozenset()) -> np.ndarray:
    """Ids of any shape -> (..., 3) uint8: the same id is the same colour everywhere; ``silent`` ones are greys."""
    wrapped = ids.astype(np.uint64) % np.uint64(WRAP)
    hue = (wrapped * np.uint64(HUE_STEP) % np.uint64(WRAP)).astype(np.float64) / WRAP
    level = (wrapped * np.uint64(LIGHTNESS_STEP) % np.uint64(WRAP)).astype(np.float64) / WRAP
    colours = _srgb(0.46 + 0.38 * level, np.full(ids.shape, CHROMA), 2 * np.pi * hue)
    for rank, token in enumerate(sorted(silent)):
        colours[ids == token] = 196 + 2 * rank
    return colours


def of_levels() -> np.ndarray:
    """(LEVELS, 3) uint8 from quiet to loud: dark violet, blue, green, pale yellow."""
    position = np.linspace(0, 1, LEVELS)
    chroma = 0.05 + 0.10 * np.sin(np.pi * position**0.8)
    return _srgb(0.20 + 0.75 * position, chroma, np.radians(305 - 200 * position))


def _srgb(lightness: np.ndarray, chroma: np.ndarray, hue: np.ndarray) -> np.ndarray:
    """Lightness, chroma and hue (radians) of the OKLab space -> (..., 3) uint8"""
    a, b = chroma * np.cos(hue), chroma * np.sin(hue)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = np.stack((4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
                       -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
                       -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short), axis=-1).clip(0, 1)
    curve = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.rint(255 * curve).astype(np.uint8)
