"""Whether speech stays speech: what the demo voice says, through the nodes, and what an ear hears of it.

The card in ``demo/README.md`` has the figures that these tests hold the pack to.
"""
from __future__ import annotations

import re
from functools import lru_cache

import pytest
import torch

from kit import ear, speech
from kit.audio import audio
from kit.calls import load, run
from kit.checkout import read
from speechwright import nodes, voices
from speechwright.loader import DEMO_VOICE

SLACK = 1.2                     # of the card's word errors
FEW = 7                         # sentences where one of several settings is asked about
MORE = 2                        # words that may be wrong beyond the card's there


def card(row: str) -> float:
    """Per cent of a row of the card's table."""
    return float(re.search(rf"^\| {re.escape(row)} \| ([\d.]+) %", read("demo/README.md"), re.MULTILINE)[1])


@lru_cache(maxsize=2)
def voice(precision: str = "fp32") -> object:
    return load(DEMO_VOICE, precision)


@lru_cache(maxsize=2)
def read_as_tokens(precision: str = "fp32") -> tuple:
    """The sentences' recordings as the demo voice's speech tokens."""
    return tuple(run(nodes.S3Tokenize, model=voice(precision), audio=audio(clip, ear.SPOKEN_HZ))[0]
                 for clip in ear.clips())


@pytest.fixture(scope="module", autouse=True)
def given_back():
    """Models must not outlive ComfyUI's own modules."""
    yield
    voice.cache_clear()
    read_as_tokens.cache_clear()


def spoken(tokens: object, precision: str = "fp32", **settings) -> torch.Tensor:
    """(T,) in the demo voice, since no other is connected"""
    made, = run(nodes.S3Token2Wav, model=voice(precision), tokens=tokens, seed=1, **settings)
    assert made["sample_rate"] == ear.SPOKEN_HZ
    return made["waveform"][0, 0]


def percent(texts, sounds) -> float:
    """Word errors."""
    wrong = sum(ear.errors(text, ear.hear_padded(sound)) for text, sound in zip(texts, sounds))
    return 100 * wrong / sum(len(ear.words(text)) for text in texts)


def test_sentences_are_understood():
    assert percent(ear.SENTENCES, map(spoken, read_as_tokens())) <= SLACK * card("20 sentences, from recordings")


def test_a_person_s_words_stay_when_the_demo_voice_says_them():
    person, seconds = voices.read(speech.person(), "person")
    tokens, = run(nodes.S3Tokenize, model=voice(), audio=audio(person.wave, person.rate_hz))
    converted = spoken(tokens)
    assert abs(len(converted) / ear.SPOKEN_HZ - seconds) <= 0.04
    assert set(ear.words(ear.hear_padded(converted))) & {"front", "center", "centre"}


@pytest.mark.parametrize("precision, steps", [("fp32", 4), ("fp32", 6), ("fp32", 10), ("bf16", 10)])
def test_steps_and_precisions_are_understood(precision: str, steps: int):
    texts = ear.SENTENCES[:FEW]
    more = 100 * MORE / sum(len(ear.words(text)) for text in texts)
    sounds = [spoken(tokens, precision, steps=steps) for tokens in read_as_tokens(precision)[:FEW]]
    assert percent(texts, sounds) <= card(f"7 sentences, {steps} steps, {precision}") + more


def test_it_says_that_it_has_no_language_model():
    prompt, _ = run(nodes.EncodePrompt, model=voice(), text="Well.")
    with pytest.raises(ValueError, match="whose language model is missing: llm.pt"):
        run(nodes.RASSampler, model=voice(), prompt=prompt, seed=1)
