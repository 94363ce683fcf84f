"""The main job on real input: a person's recording and a long sentence, each in the voice of the other."""
from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from test_workflows import TOKEN_S, Sound, decode, sound_of

from kit import speech
from kit.checkout import CHECKOUT
from kit.server import Comfy

PERSON, SENTENCE = "person.wav", "sentence.wav"


@pytest.fixture(scope="module")
def recordings(comfy: Comfy) -> dict[str, Sound]:
    """Both clips in the server's input folder."""
    folder = comfy.booted.base / "input"
    shutil.copyfile(speech.person(), folder / PERSON)
    speech.write_wav(folder / SENTENCE, *speech.sentence())
    return {name: decode(folder / name) for name in (PERSON, SENTENCE)}


def convert(comfy: Comfy, source: str, voice: str, seed: int) -> Sound:
    """The written file of a run in which nothing is cached."""
    graph = json.loads((CHECKOUT / "workflows" / "api" / "voice_conversion.json").read_text(encoding="utf-8"))
    by_title = {node["_meta"]["title"]: node["inputs"] for node in graph.values()}
    by_title["Source Audio"]["audio"], by_title["Voice Audio"]["audio"] = source, voice
    by_title["S3Token2Wav"]["seed"] = seed
    comfy.free(free_memory=True)
    return sound_of(comfy, comfy.queue(graph))


def test_the_clips_are_what_they_are_taken_for(recordings):
    assert 1 < recordings[PERSON].seconds < 2 and recordings[PERSON].rate_hz == 48_000
    assert 8 < recordings[SENTENCE].seconds < 20 and recordings[SENTENCE].rate_hz == 24_000


@pytest.mark.parametrize("source, voice", [(PERSON, SENTENCE), (SENTENCE, PERSON)])
def test_conversion_of_real_speech(comfy: Comfy, recordings, source, voice):
    """As long as its source to 40 ms, finite, the same again for the same seed, another take for another."""
    first = convert(comfy, source, voice, seed=1)
    assert (first.codec, first.rate_hz, len(first.samples)) == ("flac", 24_000, 1)
    assert abs(first.seconds - recordings[source].seconds) <= TOKEN_S
    assert np.isfinite(first.samples).all() and np.abs(first.samples).max() > 0.01
    assert np.array_equal(convert(comfy, source, voice, seed=1).samples, first.samples)
    assert not np.array_equal(convert(comfy, source, voice, seed=2).samples, first.samples)
