"""Names and shapes of models: measured, or refused in words; no network grows from a number."""
from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from speechwright.assembly import shapes_of
from speechwright.cosyvoice3 import demo as cosyvoice_demo
from speechwright.cosyvoice3 import flow_weights, vocoder_weights
from speechwright.cosyvoice3 import weights as lm_weights
from speechwright.cosyvoice3.folder import READERS
from speechwright.omnifish import codec_demo, codec_weights
from speechwright.omnifish import demo as ogg_demo
from speechwright.omnifish import weights as ogg_weights
from speechwright.s3gen import cosyvoice2
from speechwright.s3gen import demo as s3gen_demo
from speechwright.s3gen import weights as s3gen_weights

from .choices import Choices
from .laws import assert_in_words, bounded

SIZES = (0, 1, 2, 3, 5, 7, 31, 63, 64, 65, 1000, 2**15, 2**20, 2**31, 2**32, 2**40, 2**53)
NUMBERS = ("0", "1", "2", "3", "9", "99", "100000", "1000000000", "9" * 30, "9" * 5000, "-1", "+1", "1_0",
           "x", "", "٣", "²")
MEASURES: dict[str, tuple[Callable, Callable]] = {
    "S3Gen": (lambda: s3gen_demo.DEMOS["S3Gen"](), s3gen_weights.measure),
    "CosyVoice2's flow": (lambda: cosyvoice_demo.reader_state("flow"),
                          lambda shapes, source: cosyvoice2.measure("flow", shapes, source)),
    "CosyVoice2's vocoder": (lambda: cosyvoice_demo.reader_state("mel2wav"),
                             lambda shapes, source: cosyvoice2.measure("mel2wav", shapes, source)),
    "CosyVoice's LM": (lambda: cosyvoice_demo.DEMOS["CosyVoice3"]["llm.safetensors"](), lm_weights.measure),
    "CosyVoice3's flow": (lambda: cosyvoice_demo.DEMOS["CosyVoice3"]["flow.safetensors"](), flow_weights.measure),
    "CosyVoice3's vocoder": (lambda: cosyvoice_demo.DEMOS["CosyVoice3"]["hift.safetensors"](), vocoder_weights.measure),
    "tokenizer": (lambda: cosyvoice_demo.reader_state("tokenizer"),
                  lambda shapes, source: READERS["tokenizer"].check(shapes, Path(source))),
    "speaker": (lambda: cosyvoice_demo.reader_state("speaker_encoder"),
                lambda shapes, source: READERS["speaker"].check(shapes, Path(source))),
    "OGG TTS": (ogg_demo.random_state, ogg_weights.measure),
    "OGG TTS, semantic": (ogg_demo.random_state, lambda shapes, source: ogg_weights.measure(shapes, source, True)),
    "codec": (codec_demo.DEMOS["Fish codec"], codec_weights.measure),
}
DICTIONARY = ()


@cache
def demo_shapes(kind: str) -> dict[str, tuple[int, ...]]:
    return shapes_of(MEASURES[kind][0]())


def seeds() -> list[bytes]:
    return [bytes((kind, *change)) for kind in range(len(MEASURES)) for change in (
        (), (1, 9, 0, 7), (2, 0, 0, 1))]


def changed(choices: Choices, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """With some tensors gone, added under another number, or of another size."""
    shapes = dict(shapes)
    while choices.left and shapes:
        kind, name = choices.number(6), choices.pick(list(shapes))
        shape = shapes[name]
        if kind == 0:
            del shapes[name]
        elif kind == 1:
            parts = name.split(".")
            places = [place for place, part in enumerate(parts) if part.isdigit()] or [len(parts) - 1]
            parts[choices.pick(places)] = choices.pick(NUMBERS)
            shapes[".".join(parts)] = shape
        elif kind == 2 and shape:
            place = choices.number(len(shape))
            shapes[name] = (*shape[:place], choices.pick(SIZES), *shape[place + 1 :])
        elif kind == 3:
            shapes[name] = shape[:-1]
        elif kind == 4:
            shapes[name] = (*shape, choices.pick(SIZES))
        elif kind == 5:     # the same change to all that have this size
            size, other = (shape or (1,))[0], choices.pick(SIZES)
            shapes = {key: tuple(other if n == size else n for n in value) for key, value in shapes.items()}
    return shapes


def check(raw: bytes) -> None:
    choices = Choices(raw)
    kind = choices.pick(list(MEASURES))
    shapes = changed(choices, demo_shapes(kind))
    with bounded(100 * len(shapes), spare=2**25):
        try:
            MEASURES[kind][1](shapes, "file")
        except ValueError as error:
            assert_in_words(error, "file: ", 10_000)
