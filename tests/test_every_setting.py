"""All nodes under settings of every size: linked numbers are not held to what the page offers."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from test_every_node import (  # noqa: F401
    encode,
    every_talker,
    forgotten,
    model,
    sample,
    tokens_of,
    voice,
)
from test_nodes import run

from kit.audio import audio, tone
from speechwright import nodes
from speechwright.text import speakable

# Setting -> values, those that the page offers and others.
RAS = {"temperature": (0.0, 1e-5, 1e5, -1.0, math.nan, math.inf), "top_p": (0.0, 1e-9, 1.0, 1.5, math.nan),
       "top_k": (0, 1, 64, 65, 10**6), "window": (0, 1, 500, -1, 10**12),
       "tau": (0.0, 1e-9, 1.0, -1.0, math.nan, math.inf),
       "min_ratio": (0.0, 20.0, 21.0, -1.0, math.nan), "max_ratio": (0.0, 0.001, 2.0, 1e12, math.nan, math.inf),
       "cap_pauses": (0, 1, -1), "retries": (0, -1)}
BLOCKS = {"steps": (0, 1, 17, -1, 10**12), "cfg": (0.0, 100.0, -1.0, math.nan, math.inf),
          "temperature": (0.0, 1e-5, 1e5, -1.0, math.nan, math.inf),
          "max_seconds": (0.01, -1.0, 1e12, math.nan, math.inf),
          "block": (1, 5, 0, -1, 10**12), "min_seconds": (0.5, -1.0, math.nan, math.inf),
          "mtp_rounds": (1, 40, 0, -1, 10**12),
          "mtp_temperature": (1e-5, 1e5, -1.0, math.nan, math.inf), "mtp_top_k": (1, 1024, 10**6, -1)}
WAVES = {"steps": (1, 3, -1, 10**12), "cfg": (0.0, 5.0, -1.0, math.nan, math.inf),
         "joint_fade": (0.0, 500.0, 1e12, -1.0, math.nan, math.inf)}
PICTURES = {"width": (0, -8, 10**6), "row": (-2, 1, 10**6)}


def cases(settings: dict[str, tuple]) -> list[tuple[str, object]]:
    return [(name, value) for name, values in settings.items() for value in values]


class TestSettings:
    """A result that is sound, or one error that names the setting; never a cast or a shape that tells nobody why."""

    def check(self, name: str, call: Callable, sound: Callable) -> None:
        try:
            found = call()
        except ValueError as error:
            assert name in str(error), str(error)
        else:
            assert sound(found)

    @pytest.mark.parametrize("demo", ["CosyVoice2", "CosyVoice3"])
    @pytest.mark.parametrize("name, value", cases(RAS))
    def test_ras(self, demo, name, value):
        self.check(name, lambda: sample(demo, encode(demo, "Yes."), **{name: value}),
                   lambda tokens: 0 <= int(tokens.batch[0][0].ids.max()) < 6561)

    @pytest.mark.parametrize("name, value", cases(BLOCKS))
    def test_blocks(self, name, value):
        self.check(name, lambda: sample("OGG TTS", encode("OGG TTS", "Yes."), **{"max_seconds": 0.7, name: value}),
                   lambda tokens: int(tokens.batch[0][0].ids[0].max()) < 4096)

    @pytest.mark.parametrize("demo", ["S3Gen", "S3Gen meanflow", "CosyVoice3"])
    @pytest.mark.parametrize("name, value", cases(WAVES))
    def test_waves(self, demo, name, value):
        tokens = tokens_of(demo, 3)
        tokens = replace(tokens, batch=(tokens.batch[0] * 2,))
        self.check(name, lambda: run(nodes.S3Token2Wav, model(demo), tokens, 0, voice(), **{name: value}),
                   lambda found: found["waveform"].isfinite().all())

    @pytest.mark.parametrize("name, value", [case for case in cases(WAVES) if case[0] == "joint_fade"])
    def test_codec(self, name, value):
        tokens = tokens_of("OGG TTS", 3)
        tokens = replace(tokens, batch=(tokens.batch[0] * 2,))
        self.check(name, lambda: run(nodes.FishDecode, model("OGG TTS"), tokens, **{name: value}),
                   lambda found: found["waveform"].isfinite().all())

    @pytest.mark.parametrize("name, value", cases(PICTURES))
    def test_pictures(self, name, value):
        self.check(name, lambda: run(nodes.SpeechReport, audio=audio(tone()), **{name: value}),
                   lambda found: found.isfinite().all())

    @every_talker
    @pytest.mark.parametrize("limit", [-1, 1, 2, 2000, 10**9])
    def test_pieces(self, demo, limit):
        self.check("split_limit", lambda: encode(demo, "One is here. Two is there.", split_limit=limit),
                   lambda prompt: all(speakable(piece.text) for piece in prompt.pieces))
