"""The demo: small, whole, and it speaks for as long as a text of that length would take."""
from __future__ import annotations

from functools import lru_cache

import pytest
import torch

from speechwright.omnifish.config import OmniFishConfig
from speechwright.omnifish.demo import demo_config, random_state
from speechwright.omnifish.generate import blocks_cached
from speechwright.omnifish.model import OmniFish, dialogue_text
from speechwright.omnifish.tokenizer import demo
from speechwright.omnifish.weights import build

SENTENCE = "The quick brown fox jumps over the lazy dog near the river bank."
FRAMES_PER_CHARACTER = 1.6


@lru_cache(maxsize=1)
@torch.inference_mode(False)     # whoever asks first
def model() -> OmniFish:
    return build("model", random_state())


def voice(words: str, seed: int = 9) -> tuple[torch.Tensor, str]:
    """Codes of the usual pace, and what they say."""
    rng, frames = torch.Generator().manual_seed(seed), int(FRAMES_PER_CHARACTER * len(words))
    rows = torch.tensor([4096] + [1024] * 9)[:, None]
    return (torch.rand(10, frames, generator=rng) * rows).long(), words


def speak(text: str, seed: int = 0, voiced: bool = False, **options) -> list[tuple[torch.Tensor, torch.Tensor]]:
    prompt = voice("This is what somebody said before.") if voiced else (None, None)
    return list(blocks_cached(model(), demo(), *prompt, text, "en", seed=seed, **options))


@pytest.mark.parametrize("text, options, voiced", [
    ("Yes, of course.", {}, True), ("Yes, of course.", {"cfg": 0}, False), ("Yes, of course.", {"cfg": 3}, True),
    ("Yes, of course.", {"temperature": 0}, False), ("Yes, of course.", {"full_context": False}, True),
    (SENTENCE, {}, False), (SENTENCE, {"steps": 2}, True)])
def test_a_demo_ends_by_itself(text, options, voiced):
    clean, codes = speak(text, voiced=voiced, **options)[-1]
    assert 0.7 <= codes.shape[1] / (FRAMES_PER_CHARACTER * len(text)) <= 2.2 and clean[codes.shape[1]] >= 4097
    assert codes[0].max() < 4096 and codes[1:].max() < 1024 and codes.min() >= 0


def test_one_word_is_some_frames():
    """No speech at all would stop a graph with an error."""
    for seed in range(2):
        for voiced in (False, True):
            assert 8 <= speak("Hi", seed, voiced)[-1][1].shape[1] <= 48


def test_takes_differ_and_their_frames_do():
    takes = [speak("Yes, of course.", seed)[-1][1] for seed in range(3)]
    assert len({str(codes.tolist()) for codes in takes}) == 3
    assert all(len(set(codes[0].tolist())) > 0.3 * codes.shape[1] for codes in takes)


def test_a_dialogue_ends():
    voices = [("S1", *reversed(voice("One voice, that is."))), ("S2", *reversed(voice("And another.", 4)))]
    text = dialogue_text([("S1", "Good morning, and thank you."), ("S2", "Not at all, the pleasure is mine.")])
    clean, codes = list(blocks_cached(model(), demo(), None, None, text, "en", voices=voices))[-1]
    assert 40 <= codes.shape[1] <= 200 and clean[codes.shape[1]] >= 4097


@pytest.mark.parametrize("warm", [{}, {"mtp_temperature": 0.7, "mtp_top_k": 30}])
def test_going_on_is_having_gone_on(warm):
    """With a depth decoder of its own, which has to catch up with what it did not decode."""
    told = {"voiced": True, "temperature": 0, "min_frames": 64, "max_frames": 64, **warm}
    whole = speak("Yes.", **told)
    again = speak("Yes.", **told, target_prefix=whole[1][1])
    assert len(whole) == 4 and torch.equal(again[-1][1], whole[-1][1]) and torch.equal(again[-1][0], whole[-1][0])


def test_seeds_reach_the_depth_decoder():
    first, second, other = (speak("Yes.", seed, temperature=0, mtp_temperature=0.9)[-1][1] for seed in (0, 0, 1))
    assert torch.equal(first, second) and torch.equal(first[0], other[0]) and not torch.equal(first[1:], other[1:])


def test_small_and_whole():
    state = random_state()
    assert sum(tensor.nbytes for tensor in state.values()) < 8e6
    assert all(torch.equal(tensor, again) for tensor, again in zip(state.values(), random_state().values()))
    assert model().config == demo_config() and demo_config().ids == OmniFishConfig().ids
    assert len(state["audio_embeddings.weight"]) == 40990 and len(state["semantic_head.weight"]) == 4099
    assert len(state["llm.embed_tokens.weight"]) == demo().size
    assert all(tensor.isfinite().all() for tensor in state.values())
