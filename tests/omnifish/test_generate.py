"""Block diffusion: the golden scenes id for id, and what a caller may ask for and is told."""
from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from kit.blocks import SITUATIONS, StandIn, facts, golden, golden_model, golden_state, scene, speak, tokenizer
from speechwright.omnifish import generate
from speechwright.omnifish.generate import blocks_cached, speech_frames
from speechwright.omnifish.model import END_ID, MASK_ID, OmniFish
from speechwright.omnifish.prompt import context
from speechwright.omnifish.sampling import race
from speechwright.omnifish.weights import build

LONG = {"text": "Hello there, how are you?", "min_frames": 10**6, "max_frames": 64}


def listening_model(**changed) -> OmniFish:
    """With a stand-in of its own."""
    return build("model", {**golden_state(), **changed}, mtp=StandIn())


def said(**arguments) -> tuple[list[int], list[list[int]]]:
    """The last yield, as lists."""
    clean, codes = speak(**arguments)[-1]
    return clean.tolist(), codes.tolist()


# The golden scenes


@pytest.mark.parametrize("name, threads", [
    *((name, 1) for name in SITUATIONS), ("plain", 2), ("greedy_clone", 2), ("no_cfg", 2), ("semantic_only", 2)])
def test_golden_scene(name, threads):
    model, expected = listening_model(), facts()[name]
    torch.set_num_threads(threads)
    try:
        spoken = speak(model, **scene(name))
    finally:
        torch.set_num_threads(1)
    clean, codes = spoken[-1]
    assert torch.equal(clean, golden()[f"{name}.semantic"]) and torch.equal(codes, golden()[f"{name}.codes"])
    assert len(spoken) == expected["blocks"] and speech_frames(clean) == expected["speech_frames"] == codes.shape[1]
    assert [call[:-1] for call in model.mtp.calls] == [call[:-1] for call in expected["mtp_calls"]]
    for found, told in zip(model.mtp.calls, expected["mtp_calls"]):
        assert found[-1] == pytest.approx(told[-1], abs=1e-3)


@pytest.mark.parametrize("name", SITUATIONS)
def test_each_yield_begins_like_the_last(name):
    spoken = speak(**scene(name))
    block = scene(name).get("block", 16)
    clean, codes = spoken[-1]
    for number, (early, sound) in enumerate(spoken, 1):
        assert early.dtype == sound.dtype == torch.int64 and early.device.type == sound.device.type == "cpu"
        assert len(early) == len(clean) - (len(spoken) - number) * block and len(sound) == 10
        assert torch.equal(early, clean[: len(early)]) and torch.equal(sound, codes[:, : sound.shape[1]])
        assert torch.equal(sound[0], early[: speech_frames(early)])


def test_speech_frames():
    assert [speech_frames(torch.tensor(ids, dtype=torch.int64)) for ids in (
        [], [7, 8], [7, END_ID, 8], [END_ID], [7, END_ID + 1, END_ID], [MASK_ID, 4095])] == [0, 2, 1, 0, 1, 2]
    assert speech_frames(torch.tensor([1, 5]), end=5) == 1


# Lengths


def test_the_end_is_masked_below_the_minimum():
    """Up to the minimum and no further, at any place in a block."""
    model = listening_model(**{"semantic_head.bias": torch.zeros(4099).index_fill_(0, torch.tensor([END_ID]), 500)})
    for least in (0, 1, 15, 16, 17, 40):
        clean, codes = speak(model, min_frames=least, max_frames=64)[-1]
        assert codes.shape[1] == least and clean[least:].eq(END_ID).all() and len(clean) == 16 * (least // 16 + 1)


def test_masks_are_never_drawn():
    model = listening_model(**{"semantic_head.bias": torch.zeros(4099).index_fill_(0, torch.tensor([MASK_ID]), 500)})
    for temperature in (0, 1):
        clean, _ = speak(model, temperature=temperature, max_frames=16)[-1]
        assert MASK_ID not in clean


@pytest.mark.parametrize("most, block, frames", [(1, 16, 16), (16, 16, 16), (17, 16, 32), (40, 8, 40), (41, 8, 48)])
def test_the_cap_is_rounded_up_to_a_block(most, block, frames):
    spoken = speak(text="Hi", min_frames=10**6, max_frames=most, block=block)
    assert spoken[-1][1].shape == (10, frames) and len(spoken) == frames // block


@pytest.mark.parametrize("text, more, frames", [
    ("Hello", {}, int(2 * 1.6 * 5) + 32), ("H", {}, 35),
    ("Hello", {"prompt_codes": torch.ones(10, 6).long(), "prompt_text": "four"}, int(2 * 1.5 * 5) + 32),
    ("Hello", {"prompt_codes": torch.ones(10, 6).long()}, int(2 * 1.6 * 5) + 32),
    ("Hello", {"voices": [("A", "abc", torch.ones(10, 4).long()), ("B", "a", torch.ones(10, 4).long())]}, 52),
])
def test_the_cap_by_the_length_of_the_text(text, more, frames):
    clean, _ = speak(text=text, min_frames=10**6, steps=1, **more)[-1]
    assert len(clean) == math.ceil(frames / 16) * 16


# One thing said in two ways


@pytest.mark.parametrize("name, full", [
    ("greedy_clone", True), ("dialogue", False), ("no_cfg", True), ("no_cfg", False), ("left", True)])
def test_a_scene_goes_on_from_its_own_beginning(name, full):
    """At a temperature of 0, in one go or from its first blocks. What is left of a block is dropped."""
    arguments = {**scene(name), "temperature": 0, "full_context": full}
    whole = speak(**arguments)
    block = arguments.get("block", 16)
    for kept in range(1, len(whole)):
        begun = whole[kept - 1][1]
        for rest in (0, block - 1) if kept == 1 else (3,):
            prefix = torch.cat((begun, begun[:, :rest]), dim=1)
            going_on = speak(**{**arguments, "target_prefix": prefix})
            assert len(going_on) == len(whole) - kept
            for (clean, codes), (expected, sound) in zip(going_on, whole[kept:]):
                assert torch.equal(clean, expected) and torch.equal(codes, sound)
    assert len(whole) > 1


def test_a_beginning_shorter_than_a_block_is_none():
    assert said(**LONG, target_prefix=torch.ones(10, 15).long()) == said(**LONG)


def test_what_a_later_block_sees():
    """All ten codes of what was said, or the semantic one: that alone does not change with the depth decoder."""
    class Other(StandIn):
        def decode_block(self, state: dict, lo: int, hi: int, *rest, prefix: int) -> None:
            state["codes"][1:, lo:hi] = 5

    other = build("model", golden_state(), mtp=Other())
    for full, same in ((True, False), (False, True)):
        ours, theirs = (speak(model, **LONG, full_context=full) for model in (golden_model(), other))
        assert torch.equal(ours[0][0], theirs[0][0])
        assert torch.equal(ours[-1][0], theirs[-1][0]) == same


def test_options_change_what_is_said():
    """Each by itself, and each time alike; one that nobody reads would go unseen."""
    voice = {"prompt_codes": golden()["greedy_clone.prompt_codes"], "prompt_text": "who"}
    changes = [{}, {"seed": 1}, {"cfg": 0}, {"cfg": 3.0}, {"temperature": 0.5}, {"steps": 3}, {"block": 4},
               {"lang": "pl"}, {"speaker": "pl_3"}, {"speaker": "dialogue"}, {"quality": "q35"},
               {"before": ["x"]}, {"after": ["x"]}, voice, {"voices": [("S1", "who", voice["prompt_codes"])]},
               {"semantic_left": ["x"]}, {"full_context": False}, {"target_prefix": voice["prompt_codes"][:, :8]},
               {**voice, "before": ["x"]}]
    short = {**LONG, "max_frames": 16, "block": 8, "steps": 2}
    heard = [said(**{**short, **change})[0] for change in changes]
    assert all(first != second for first, second in itertools.combinations(heard, 2))
    assert [said(**{**short, **change})[0] for change in changes[:3]] == heard[:3]


# Draws


@pytest.mark.parametrize("seed, same", [(-1, 2**64 - 1), (2**64, 0), (2**63, -(2**63)), (np.int64(7), 7)])
def test_seeds_of_any_size(seed, same):
    assert said(**LONG, seed=seed) == said(**LONG, seed=same)


def test_draws_are_nobody_elses():
    """Global generators neither matter nor move."""
    first = said(**LONG)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        before = torch.get_rng_state()
        assert said(**LONG) == first and torch.equal(torch.get_rng_state(), before)


def test_two_scenes_at_once():
    """Block by block in turn, each as if alone: what a scene keeps is its own."""
    def start(seed: int):
        return blocks_cached(golden_model(), tokenizer, None, "", seed=seed, lang="en", **LONG)

    alone = [list(start(seed)) for seed in (0, 1)]
    for number, pair in enumerate(zip(start(0), start(1), strict=True)):
        for (clean, codes), expected in zip(pair, (alone[0][number], alone[1][number])):
            assert torch.equal(clean, expected[0]) and torch.equal(codes, expected[1])


def test_the_depth_decoder_gets_the_seed_and_its_options():
    seen = []

    class Listening(StandIn):
        def decode_block(self, state: dict, lo: int, hi: int, block: int, *options, prefix: int) -> None:
            seen.append((state["seed"], *options))
            super().decode_block(state, lo, hi, block, *options, prefix=prefix)

    model = build("model", golden_state(), mtp=Listening())
    speak(model, **{**LONG, "max_frames": 16}, seed=-3, mtp_rounds=7, mtp_temperature=0.4, mtp_top_k=9)
    assert seen == [(2**64 - 3, 7, 0.4, 9)]


@pytest.mark.parametrize("steps", [1, 5, 6, 16])
def test_ties_fix_as_many_as_are_due(steps):
    """Near a temperature of 0 all probabilities are 1, and equals were fixed all at once."""
    model, fixed = golden_model(), []
    seen = model.logits

    def count(hidden: Tensor) -> Tensor:
        return torch.zeros_like(seen(hidden)).index_fill_(-1, torch.tensor([9]), 1)

    model.logits = count
    embed, model.embed_codes = model.embed_codes, lambda codes: fixed.append(codes[0, 0, -16:]) or embed(codes)
    try:
        speak(model, temperature=0, steps=steps, max_frames=16)
    finally:
        del model.logits, model.embed_codes
    decided = [int((semantic != MASK_ID).sum()) for semantic in fixed[1:-1]] + [16]
    keep = [math.floor(16 * math.cos(math.pi / 2 * step / steps)) for step in range(1, steps + 1)]
    assert decided == [0, *dict.fromkeys(16 - left for left in keep)]


def test_a_step_that_decides_nothing_costs_nothing(monkeypatch):
    """Of 16 steps, 3 decide no frame of 16. They draw all the same, or the scene would be another one."""
    model, looks, draws = golden_model(), [], []
    run, model.llm.forward = model.llm.forward, lambda x, mask, position, cache: looks.append(
        (*x.shape[:2], cache.keys.shape[1])) or run(x, mask, position, cache)
    monkeypatch.setattr(generate, "race", lambda *given: draws.append(given[:2]) or race(*given))
    try:
        speak(model, steps=16, **{**LONG, "max_frames": 32})
    finally:
        del model.llm.forward
    # Guidance needs both rows; context and the depth decoder one. A block is committed within the next look.
    assert looks[0][::2] == (1, 1)
    assert looks[1:] == 13 * [(2, 16, 2)] + [(1, 16, 1), (2, 32, 2)] + 12 * [(2, 16, 2)] + [(1, 16, 1)]
    assert draws == 32 * [(16, 4099)]


def test_one_transfer_for_each_step(monkeypatch):
    """What was drawn, once per step; and once per block its codes."""
    seen, real = [], Tensor.cpu
    monkeypatch.setattr(Tensor, "cpu", lambda self: seen.append(tuple(self.shape)) or real(self))
    speak(**{**LONG, "max_frames": 48})
    assert seen == 3 * [*6 * [(2, 16)], (10, 16)]


def test_bfloat16_speaks():
    model = build("model", golden_state(), mtp=StandIn(), dtype=torch.bfloat16)
    clean, codes = speak(model, **scene("dialogue"))[-1]
    assert codes.shape == (10, 48) and clean.lt(END_ID).all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_unsound_scores_are_an_error(value):
    head = golden_state()["semantic_head.weight"].clone()
    head[7, 3] = value
    with pytest.raises(ValueError, match="its scores for the frames 0 to 15 are NaN or infinite.*fp32 or bf16"):
        speak(listening_model(**{"semantic_head.weight": head}), **LONG)


# The semantic codebook alone


def test_without_a_depth_decoder():
    """Nobody peeks, and every block stands in the context by its semantic ids."""
    alone = build("model", golden_state(), semantic_only=True)
    spoken = speak(alone, **LONG)
    expected = speak(**LONG, full_context=False)
    for (clean, codes), (ours, sound) in zip(spoken, expected, strict=True):
        assert torch.equal(clean, ours) and torch.equal(codes, sound[:1])
    for rows in (1, 10):
        going_on = speak(alone, **{**LONG, "temperature": 0}, target_prefix=expected[1][1][:rows])
        straight = speak(**{**LONG, "temperature": 0}, full_context=False, target_prefix=expected[1][1])
        assert torch.equal(going_on[-1][0], straight[-1][0]) and going_on[-1][1].shape == (1, 64)


# Progress, cancelling, refusals


def test_progress():
    blocks, steps = [], []
    speak(**LONG, on_block=lambda *now: blocks.append(now), on_step=lambda *now: steps.append(now))
    assert blocks == [(number, 4) for number in range(1, 5)] and steps == [(number, 24) for number in range(1, 25)]
    blocks.clear(), steps.clear()
    speak(**LONG, target_prefix=golden()["continuation.target_prefix"], steps=16,
          on_block=lambda *now: blocks.append(now), on_step=lambda *now: steps.append(now))
    assert blocks == [(1, 2), (2, 2)] and steps == [(number, 32) for number in range(1, 33)]


@pytest.mark.parametrize("watch, at", [("on_block", 1), ("on_block", 4), ("on_step", 1), ("on_step", 13)])
def test_cancel(watch, at):
    expected, heard = said(**LONG), []

    def cancel(done: int, most: int) -> None:
        if done == at:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        heard.extend(blocks_cached(golden_model(), tokenizer, None, "", lang="en", **LONG, **{watch: cancel}))
    assert len(heard) == (at - 1 if watch == "on_block" else (at - 1) // 6)
    assert said(**LONG) == expected


def test_nothing_is_left_on_the_model():
    model = golden_model()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    own = set(vars(model)), set(vars(model.llm))
    speak(model, **{**LONG, "max_frames": 32})
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert (set(vars(model)), set(vars(model.llm))) == own


@pytest.mark.parametrize("changed", [
    {"block": 0}, {"steps": 0}, {"cfg": -0.1}, {"cfg": math.inf}, {"temperature": -1}, {"temperature": math.nan},
    {"min_frames": -1}, {"max_frames": 0}, {"mtp_rounds": 0}, {"mtp_top_k": -1}, {"mtp_temperature": -1},
])
def test_impossible_options_are_refused_at_once(changed):
    (name, value), = changed.items()
    with pytest.raises(ValueError, match=f"^{name}: {value} is not possible; give "):
        blocks_cached(golden_model(), tokenizer, None, "", "Hi", "en", **changed)


@pytest.mark.parametrize("arguments, text", [
    ({"target_prefix": torch.ones(10, 32).long(), "max_frames": 32}, "max_seconds: .* 32 frames leaves .* the 32 of"),
    ({"target_prefix": torch.ones(10, 47).long(), "max_frames": 20}, "max_seconds: .* 20 frames leaves .* the 32 of"),
    ({"target_prefix": torch.full((10, 20), 2000)}, "continue_from: id 2000 at frame 0 of codebook 1"),
    ({"target_prefix": torch.ones(1, 20).long()}, r"continue_from: .*got torch.int64 \(1, 20\)"),
    ({"prompt_codes": torch.full((10, 3), MASK_ID)}, "prompt_codes: id 4096 at frame 0 of codebook 0"),
    ({"text": "…"}, "text: nothing in '…' can be spoken"),
])
def test_impossible_scenes_are_refused_at_once(arguments, text):
    given = {"prompt_codes": None, "prompt_text": "", "text": "Hi", "lang": "en", **arguments}
    with pytest.raises(ValueError, match=text):
        blocks_cached(golden_model(), tokenizer, **given)


def test_a_tokenizer_of_another_model():
    state = golden_state()
    state["llm.embed_tokens.weight"] = state["llm.embed_tokens.weight"][:131]
    model = build("model", state, mtp=StandIn())
    assert context(tokenizer, "Hi", "en", None, "").ids.max() == 131
    with pytest.raises(ValueError, match="text: ids 0 to 131 are not in llm.embed_tokens.weight, .* 131 rows; take"):
        speak(model, text="Hi")
