"""The decode loop: by script first, then with the golden language model."""
from __future__ import annotations

import itertools
import logging
import math

import pytest
import torch
from torch import Tensor

from kit.lm import golden, golden_facts, golden_lm, tiny_lm
from kit.scripted import ScriptedLM, Spoken
from speechwright.cosyvoice3 import generate
from speechwright.cosyvoice3.config import LMConfig
from speechwright.cosyvoice3.generate import (
    GROUP_BYTES,
    PREFILL_BYTES,
    SamplingOptions,
    Take,
    cap_pauses,
    decode,
    working_bytes,
)

EOS = 6562
# By script: no redraw of what is repeated, and an end whenever the script has one.
PLAIN = SamplingOptions(tau=0, min_ratio=0, retries=0)


def options(**changed) -> SamplingOptions:
    return SamplingOptions(**{**PLAIN.__dict__, **changed})


def spell(*ids: int, end: int = EOS):
    """A script of these ids, then the end, for every piece and attempt."""
    return lambda name, attempt, step: ids[step] if step < len(ids) else end


def say(script, text_ids: int = 5, setting: SamplingOptions = PLAIN, version: int = 3, **more) -> Take:
    return decode(ScriptedLM(script, version), [Spoken(tuple(range(text_ids)))], [0], setting, **more)[0]


# How a take ends


def test_end():
    take = say(spell(7, 8, 9))
    assert take.ids.tolist() == [7, 8, 9] and take.ids.dtype == torch.int64
    assert (take.ended, take.sampled, take.redraws, take.retries) == ("end", 3, 0, 0)
    assert take.seconds == pytest.approx(3 / 25)


@pytest.mark.parametrize("version, end", [(3, 6561), (3, EOS), (3, 6564), (3, 6760), (2, 6561), (2, 6562), (2, 6563)])
def test_every_id_beyond_the_vocabulary_ends(version, end):
    take = say(spell(7, 6560, end=end), version=version)
    assert take.ids.tolist() == [7, 6560] and take.ended == "end"


@pytest.mark.parametrize("end", [6561, EOS, 6760])
def test_no_end_below_the_minimum(end):
    """Blocking the start id alone let the model end at once: clips of 0.16 s, or none."""
    lm = ScriptedLM(lambda name, attempt, step: lm.favour(end, second=step))
    setting = options(min_ratio=2)
    take, = decode(lm, [Spoken((1, 2, 3))], [0], setting)
    assert take.ids.tolist() == [0, 1, 2, 3, 4, 5] and take.ended == "end"


def test_reference_blocks_one_id_only():
    lm = ScriptedLM(lambda name, attempt, step: lm.favour(6561 if step < 2 else EOS, second=step))
    take, = decode(lm, [Spoken((1, 2, 3))], [0], options(min_ratio=2, strict_reference=True))
    assert take.ids.tolist() == [0, 1]


def test_budget(caplog):
    take = say(lambda name, attempt, step: step, 4, options(max_ratio=2.6))
    assert take.ids.tolist() == list(range(10)) and (take.ended, take.sampled) == ("budget", 10)
    assert "Piece 1 of 1 found no end in 10 tokens" in caplog.text


def test_minimum_leaves_room_for_an_end():
    take = say(spell(*range(7)), 4, options(min_ratio=2, max_ratio=2))
    assert take.ids.tolist() == list(range(7)) and take.ended == "end"


def test_loop_at_the_budget_is_trimmed():
    take = say(lambda name, attempt, step: step if step < 7 else 100 + step % 11, 2)
    assert take.ids.tolist() == [*range(7), *range(107, 111), *range(100, 107)] and take.ended == "budget"
    assert take.sampled == 40


def test_loop_stops(caplog):
    take = say(lambda name, attempt, step: min(step, 9), 50)
    assert take.ids.tolist() == list(range(10)) and (take.ended, take.sampled) == ("loop", 9 + 64)
    assert "Piece 1 of 1 fell into a loop after 73 tokens with seed 0." in caplog.text


def test_loops_may_go_on():
    take = say(lambda name, attempt, step: 9, 5, options(stop_on_loop=False))
    assert take.ids.tolist() == 100 * [9] and take.ended == "budget"


# Retries


def test_loop_is_drawn_anew(caplog):
    """Only the pieces that looped."""
    lm = ScriptedLM(lambda name, attempt, step: 9 if (name, attempt) == (2, 0) else (name, EOS)[step > 0])
    prompts = [Spoken((20,) * 10 + (name,)) for name in (1, 2, 3)]
    takes = decode(lm, prompts, [5, 6, 7], options(retries=2))
    assert [take.ids.tolist() for take in takes] == [[1], [2], [3]]
    assert [take.retries for take in takes] == [0, 1, 0] and lm.attempts == {1: 0, 2: 1, 3: 0}
    assert "Piece 2 of 3 fell into a loop after 64 tokens with seed 6; it is drawn anew." in caplog.text


def test_retry_draws_other_numbers():
    lm = ScriptedLM(lambda name, attempt, step: torch.zeros(6761) if step < 10 else EOS if attempt else 9)
    setting = options(retries=1, top_k=60, max_ratio=20)
    for seed in (3, 4):
        lm.attempts.clear()
        take, = decode(lm, [Spoken(tuple(range(20)))], [seed], setting)
        assert take.retries == 1
        lm.attempts.clear()
        lm.attempts[19] = 0
        first, = decode(lm, [Spoken(tuple(range(20)))], [seed], setting)
        lm.attempts[19] = 0
        following, = decode(lm, [Spoken(tuple(range(20)))], [seed + 1], setting)
        assert len(take.ids) == 10 and len({tuple(t.ids.tolist()) for t in (take, first, following)}) == 3


def test_nothing_said_is_drawn_anew_and_then_an_error():
    lm = ScriptedLM(lambda name, attempt, step: 7 if attempt == 2 and step == 0 else EOS)
    take, = decode(lm, [Spoken((1,))], [0], options(retries=2))
    assert take.ids.tolist() == [7] and take.retries == 2
    with pytest.raises(ValueError, match="piece 1 of 1 ended before its first token with seed 8, 2 times.*transcript"):
        decode(ScriptedLM(spell()), [Spoken((1,))], [8], options(retries=1))


# What is handed on


@pytest.mark.parametrize("ids, kept", [
    ([9, 1, 2, 1, 2, 1, 2, 1, 2, 9, 28, 28, 28], [9, 1, 2, 1, 2, 1, 9, 28, 28, 28]),
    ([1, 1, 1, 1, 1], [1, 1, 1, 1, 1]), ([1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1]),
    ([2241, 2242, 2322, 2323, 55, 29, 7], [2241, 2242, 2322, 2323, 55, 7]), ([7, 8, 9], [7, 8, 9]), ([], []),
])
def test_published_pauses(ids, kept):
    assert cap_pauses(ids, 5) == kept
    assert cap_pauses(ids, 0) == ids


@pytest.mark.parametrize("version, cap, length", [(3, 5, 7), (3, 2, 4), (3, 0, 32), (2, 5, 32)])
def test_pauses_are_cut_from_the_take_alone(version, cap, length):
    """They stay in what the model reads and among the sampled; the ids mean silence in version 3 only."""
    said = [7, *[1, 2] * 15, 8]
    lm = ScriptedLM(spell(*said), version)
    take, = decode(lm, [Spoken(tuple(range(5)))], [0], options(pause_cap=cap))
    assert len(take.ids) == length and take.sampled == 32
    assert [row[0] for row in lm.fed] == said


def test_redraws_are_counted():
    lm = ScriptedLM(lambda name, attempt, step: EOS if step == 6 else lm.favour(7, second=8))
    take, = decode(lm, [Spoken(tuple(range(5)))], [0], options(tau=0.1, pause_cap=0))
    assert take.ids.tolist() == [7, 8, 8, 8, 8, 8] and take.redraws == 5


def test_a_repetition_that_is_due_at_a_fraction():
    """100 * 0.07 is a little above 7 in double precision: eight must have gone before, as published."""
    assert SamplingOptions(window=100, tau=0.07).repeat_threshold == 8
    assert SamplingOptions().repeat_threshold == 1
    assert SamplingOptions(tau=0).repeat_threshold == SamplingOptions(window=0).repeat_threshold == 0


# The batch and its prompt


def test_prompt_is_control_text_control_speech():
    lm = ScriptedLM(spell(7))
    decode(lm, [Spoken((5, 6), (3,), (10, 11)), Spoken((4,))], [0, 1], PLAIN)
    assert lm.prompts[0].tolist() == [[.25, .25], [4, 0], [6, 0], [7, 0], [.5, .5], [0, 11], [0, 12]]
    assert lm.prompts[1].tolist() == [[.25, .25], [5, 0], [.5, .5]]


def test_rows_end_one_by_one():
    lm = ScriptedLM(lambda name, attempt, step: 100 * name + step if step < name else EOS)
    takes = decode(lm, [Spoken((0,) * length + (name,)) for name, length in [(3, 0), (9, 4), (1, 9)]], [0, 0, 0], PLAIN)
    assert [take.ids.tolist() for take in takes] == [[300, 301, 302], list(range(900, 909)), [100]]
    assert len(lm.fed) == 9


def test_seconds_of_a_batch_are_shared(monkeypatch):
    """Each piece told the seconds of the whole batch; their sum was as many times what it took."""
    ticks = itertools.count()
    monkeypatch.setattr(generate.time, "perf_counter", lambda: 6.0 * next(ticks))
    lm = ScriptedLM(lambda name, attempt, step: 7 if step < name and (name < 9 or attempt) else EOS)
    takes = decode(lm, [Spoken((name,)) for name in (3, 9, 1)], [0, 0, 0], options(retries=1))
    assert [take.took for take in takes] == pytest.approx([6 * 4 / 7, 6 * 1 / 7 + 6, 6 * 2 / 7])


def test_as_many_rows_at_once_as_memory_allows():
    """Fifty pieces of a long text need gigabytes of keys and values together; in turns they say the same."""
    names = list(range(1, 41))      # the last of them as long as its budget
    script = lambda name, attempt, step: 20 * name + step if step < name else EOS     # noqa: E731
    prompts, told = [Spoken((0, name)) for name in names], []
    lm = ScriptedLM(script)
    lm.column_bytes = GROUP_BYTES // (3 * 44)       # three rows of four columns before, and forty tokens
    takes = decode(lm, prompts, [0] * 40, PLAIN, lambda done, likely: told.append((done, likely)))
    assert [len(take.ids) for take in takes] == names and all(count == 0 for count in lm.attempts.values())
    assert len(lm.names) == 1 and len(told) == sum(range(4, 43, 3)) + 40 + 1
    assert all(done < likely for done, likely in told[:-1]) and told[-1] == (told[-2][0],) * 2
    whole = ScriptedLM(script)
    decode(whole, prompts, [0] * 40, PLAIN)
    assert whole.names == names[32:]


def test_room_for_the_longest_piece():
    config, setting = LMConfig(), SamplingOptions()
    short, long = Spoken((1,) * 10), Spoken((1,) * 3000, (2,) * 5, (3,) * 7)
    column = 2 * 24 * 2 * 64
    assert working_bytes(config, 4, [short], setting) == GROUP_BYTES + PREFILL_BYTES
    assert working_bytes(config, 4, [short, long], setting) == 4 * column * (2 + 5 + 3000 + 7 + 60_000) + PREFILL_BYTES


def test_nothing_drawn_anew_does_not_take_the_place_of_a_loop():
    """A piece that looped, and said nothing when it was drawn anew, ended as an error: one copy was at hand."""
    script = lambda name, attempt, step: EOS if attempt else 9     # noqa: E731
    take, = decode(ScriptedLM(script), [Spoken(tuple(range(10)))], [0], options(retries=1))
    assert (take.ids.tolist(), take.ended) == ([9], "loop")


def test_progress_goes_by_the_pace_of_the_voice():
    told = []
    decode(ScriptedLM(spell(*range(20, 28))), [Spoken((1,) * 4, (2,) * 10, (3,) * 80)], [0], PLAIN,
           lambda done, likely: told.append(likely))
    assert told[0] == 32


def test_nothing_to_decode():
    assert decode(ScriptedLM(spell(7)), [], [], PLAIN) == []


def test_progress_and_cancel():
    told = []
    script = spell(*range(20, 28))
    say(script, on_token=lambda done, likely: told.append((done, likely)))
    assert told == [*((step, max(25, step + 1)) for step in range(1, 10)), (9, 9)]

    def cancel(done: int, likely: int) -> None:
        if done == 3:
            raise InterruptedError

    lm = ScriptedLM(script)
    with pytest.raises(InterruptedError):
        decode(lm, [Spoken((1, 2))], [0], PLAIN, cancel)
    assert len(lm.fed) == 2
    assert decode(lm, [Spoken((1, 2))], [0], PLAIN)[0].ids.tolist() == list(range(20, 28))


def test_progress_goes_on_over_a_retry():
    told = []
    lm = ScriptedLM(lambda name, attempt, step: EOS if attempt else 9)
    decode(lm, [Spoken(tuple(range(10)))], [0], options(retries=1), lambda *now: told.append(now))
    assert told == [*((step, max(50, step + 1)) for step in range(1, 65)), (65, 114), (65, 65)]


def test_unsound_scores_are_an_error_while_somebody_listens():
    def spoilt(name: int, attempt: int, step: int):
        if name == 1 and step == 2:
            return torch.full((6761,), math.nan)
        return 7 + step if step < 5 else EOS

    takes = decode(ScriptedLM(lambda *at: EOS if at[0] == 1 and at[2] == 1 else spoilt(*at)),
                   [Spoken((1,)), Spoken((2,))], [0, 0], PLAIN)
    assert [take.ids.tolist() for take in takes] == [[7], [7, 8, 9, 10, 11]]
    with pytest.raises(ValueError, match="row 0 has 6761 NaN"):
        decode(ScriptedLM(spoilt), [Spoken((1,)), Spoken((2,))], [0, 0], PLAIN)


def test_end_ids_alone_are_no_choice_below_the_minimum():
    scores = torch.full((6761,), -math.inf)
    scores[6600] = 0
    with pytest.raises(ValueError, match="0 usable scores among its 6561 allowed ids"):
        say(lambda *at: scores, setting=options(min_ratio=2))


def test_one_transfer_for_each_token(monkeypatch):
    seen = []
    lm = ScriptedLM(lambda name, attempt, step: rows[min(step, 8)])
    rows = [lm.favour(step if step < 8 else EOS) for step in range(9)]
    monkeypatch.setattr(ScriptedLM, "logits", lambda self, hidden: rows[min(len(self.fed), 8)].expand(len(hidden), -1))
    monkeypatch.setattr(
        ScriptedLM, "forward", lambda self, x, cache, first: x.shape[1] == 1 and self.fed.append([]) or x)
    for name in ("tolist", "item", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__"):
        real = getattr(Tensor, name)
        monkeypatch.setattr(Tensor, name, lambda *a, real=real, name=name, **k: seen.append(name) or real(*a, **k))
    decode(lm, [Spoken((1,)), Spoken((2, 3))], [0, 0], PLAIN)
    assert seen == ["tolist"] * 9


# What is refused


@pytest.mark.parametrize("changed", [
    {"temperature": -0.1}, {"temperature": math.nan}, {"top_p": 0}, {"top_p": 1.01}, {"top_k": 0}, {"top_k": 65},
    {"window": -1}, {"tau": -1}, {"min_ratio": 21}, {"min_ratio": -1}, {"max_ratio": math.inf}, {"pause_cap": -1},
    {"retries": -1},
])
def test_impossible_options(changed):
    (name, value), = changed.items()
    called = "cap_pauses" if name == "pause_cap" else name
    with pytest.raises(ValueError, match=f"^{called}: {value} is not possible; give "):
        SamplingOptions(**changed)


@pytest.mark.parametrize("prompts, seeds, words", [
    ([Spoken((1,))], [1, 2], "seeds: 2 for 1 prompts"),
    ([Spoken((1,)), Spoken(())], [1, 2], "piece 2 of 2 has no text ids"),
    ([Spoken((1,), (), (5, 6561))], [1], "id 6561 of piece 1; speech ids are 0..6560"),
    ([Spoken((1,), (), (-1,))], [1], "id -1 of piece 1"),
])
def test_impossible_prompts(prompts, seeds, words):
    with pytest.raises(ValueError, match=words):
        decode(ScriptedLM(spell(7)), prompts, seeds, PLAIN)


def test_budget_of_no_token():
    with pytest.raises(ValueError, match="max_ratio: 0.5 gives the 1 text ids of piece 1 not even one token"):
        say(spell(7), 1, options(max_ratio=0.5))


# The golden language model


def golden_prompt(case: str) -> Spoken:
    return Spoken(*(tuple(golden()[f"{case}.in.{name}"].tolist()) for name in ("text", "prompt_text", "prompt_speech")))


@pytest.mark.parametrize("case", ["0", "1"])
def test_greedy_ids_are_golden(case):
    facts, expected = golden_facts()[int(case)], golden()[f"{case}.out.greedy"].tolist()
    prompt = golden_prompt(case)
    length = len(prompt.text_ids)
    take, = decode(golden_lm(), [prompt], [0], SamplingOptions(
        temperature=0, min_ratio=facts["min_len"] / length, max_ratio=facts["max_len"] / length, stop_on_loop=False,
        pause_cap=0, strict_reference=False))
    assert take.ids.tolist() == expected[: len(take.ids)] and len(take.ids) >= len(expected) - (case == "0")
    assert take.ended == ("budget" if facts["stop_id"] < 0 else "end")


LONG_ENOUGH = SamplingOptions(min_ratio=1, max_ratio=2.5)
SHORT = SamplingOptions(min_ratio=1, max_ratio=1.4)


def test_64_seeds_together_and_alone():
    """Two prompts of unlike length, seeds from everywhere."""
    prompts = [golden_prompt(str(index % 2)) for index in range(64)]
    seeds = [*range(57), 2**31, 2**32, 2**32 + 1, 2**63, 2**63 + 1, 2**64 - 1, -5]
    together = decode(golden_lm(), prompts, seeds, LONG_ENOUGH)
    assert len({tuple(take.ids.tolist()) for take in together}) == 64
    assert {take.ended for take in together} == {"end", "budget"} and sum(take.redraws for take in together) > 5
    for prompt, seed, take in zip(prompts, seeds, together):
        alone, = decode(golden_lm(), [prompt], [seed], LONG_ENOUGH)
        assert torch.equal(alone.ids, take.ids)
        assert (alone.ended, alone.redraws, alone.sampled) == (take.ended, take.redraws, take.sampled)


def test_seeds_say_the_same_again():
    """On one thread and on two, whatever the global generators hold, which stay as they are."""
    seeds = [0, 1, 2**31, 2**32, 2**63, 2**64 - 1]

    def ids() -> list[list[int]]:
        takes = decode(golden_lm(), [golden_prompt("0")] * len(seeds), seeds, SHORT)
        return [take.ids.tolist() for take in takes]

    first = ids()
    torch.set_num_threads(2)
    try:
        assert ids() == first
    finally:
        torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        before = torch.get_rng_state()
        assert ids() == first and torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("version", [2, 3])
def test_small_models_of_both_versions(version, caplog):
    caplog.set_level(logging.ERROR)
    prompt = Spoken((5, 6, 7), (8,), (9, 10))
    takes = decode(tiny_lm(version), [prompt, prompt], [0, 1], LONG_ENOUGH)
    assert all(0 < len(take.ids) <= 9 and take.ids.max() < 6561 for take in takes)
