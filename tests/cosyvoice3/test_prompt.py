"""What the model reads: the published layouts, the frame once, and pieces that can be spoken."""
from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kit.vocabulary import demo
from speechwright.cosyvoice3.demo import demo_config, random_state
from speechwright.cosyvoice3.generate import SamplingOptions, decode, limits
from speechwright.cosyvoice3.lm import SpeechLM
from speechwright.cosyvoice3.prompt import (
    PIECE_IDS,
    SYSTEM,
    Prompt,
    cross_lingual,
    instruct,
    instruct_as_voice,
    pieces,
    zero_shot,
)
from speechwright.cosyvoice3.tokenizer import ADDED, CONTROL, SPELLED_CONTROL
from speechwright.cosyvoice3.weights import build
from speechwright.text import split

E = CONTROL.end_of_prompt
SYSTEM_IDS = (2610, 525, 264, 10950, 17847, 13)
FRAME = (*SYSTEM_IDS, E)
CANTONESE = (220, 14880, 11622, 102053, 57443, 102124, 1773)
VOICE = tuple(range(40))
CONTROLS = {*range(151643, 151647), 151663}
CASES = json.loads((Path(__file__).parents[1] / "golden/cosyvoice3/text_cases.json").read_text(encoding="utf-8"))
LAYOUTS = [case for case in CASES["prompt_layout"] if "error" not in case]

USER_TEXTS = st.lists(st.one_of(
    st.text(max_size=6), st.sampled_from(SPELLED_CONTROL), st.sampled_from(ADDED[3]), st.just(SYSTEM),
    st.just(f"{SYSTEM}<|endofprompt|>"), st.sampled_from(["好", "word", " ", "\n", ". ", "<|", "|>"]),
), max_size=6).map("".join)


# Layout


@lru_cache(maxsize=1)
def full_tables() -> SpeechLM:
    return build(random_state(demo_config(3)))


class Read(Exception):
    """What a model was given to read."""


def given_to_read(lm: SpeechLM, prompt: Prompt) -> torch.Tensor:
    def stop(module, arguments):
        raise Read(arguments[0][0])

    hook = lm.register_forward_pre_hook(stop)
    try:
        with pytest.raises(Read) as read:
            decode(lm, [prompt], [0])
    finally:
        hook.remove()
    return read.value.args[0]


@pytest.mark.parametrize("case", [case for case in LAYOUTS if "sequence" in case], ids=lambda case: case["name"])
def test_published_sequence(case):
    lm = full_tables()
    tables = {"text": lm.text_table, "speech": lm.speech_embedding.weight}
    expected = torch.stack([tables[table][number].float() for table, number in case["sequence"]])
    prompt = Prompt(tuple(case["prompt_text"]), tuple(case["text"]), tuple(case["prompt_speech"]))
    assert torch.equal(given_to_read(lm, prompt), expected)


@pytest.mark.parametrize("case", LAYOUTS, ids=lambda case: case["name"])
def test_published_limits(case):
    ratios = {name: case[name] for name in ("min_ratio", "max_ratio") if name in case}
    assert limits(len(case["text"]), SamplingOptions(**ratios)) == (case["min_len"], case["max_len"])


def test_prompts_are_laid_out_as_published(version3):
    """Each in its mode as in the published sequences: where the frame is, what counts as text, who gets speech."""
    layouts = {case["name"]: case for case in LAYOUTS}
    made = {
        "zero_shot": zero_shot(version3, ["希望"], "你好", VOICE)[0],
        "cross_lingual": cross_lingual(version3, ["希望"])[0],
        "instruct2": instruct(version3, ["希望"], "请用广东话表达。")[0],
    }
    for name, prompt in made.items():
        case = layouts[name]
        for ids, known in ((prompt.prompt_text_ids, case["prompt_text"]), (prompt.text_ids, case["text"])):
            assert ids[:6] == SYSTEM_IDS if known[:6] == list(SYSTEM_IDS) else SYSTEM_IDS != ids[:6]
            assert ids.count(E) == known.count(E)
            assert bool(ids) == bool(known) and ids[-1:] == (E,) if known[-1:] == [E] else ids[-1:] != (E,)
        assert bool(prompt.speech_ids) == bool(case["prompt_speech"])


TEXT = "希望你以后能够做的比我还好呦。"
TEXT_IDS = (99880, 56568, 103934, 100006, 100854, 56006, 107228, 52801, 119024, 1773)
HELLO = (9707, 1879)


def test_zero_shot(version3, version2):
    assert zero_shot(version3, ["Hello world"], TEXT, VOICE) == [Prompt((*FRAME, *TEXT_IDS), HELLO, VOICE)]
    assert zero_shot(version2, ["Hello world"], TEXT, VOICE) == [Prompt(TEXT_IDS, HELLO, VOICE)]


def test_cross_lingual(version3, version2):
    assert cross_lingual(version3, [TEXT]) == [Prompt((), (*FRAME, *TEXT_IDS), ())]
    assert cross_lingual(version2, [TEXT]) == [Prompt((), TEXT_IDS, ())]


def test_instruct(version3, version2):
    told = "请用广东话表达。"
    assert instruct(version3, [TEXT], told) == [Prompt((*SYSTEM_IDS, *CANTONESE, E), TEXT_IDS, ())]
    assert instruct(version2, [TEXT], told) == [Prompt((*CANTONESE[1:], E), TEXT_IDS, ())]


def test_instruct_as_voice(version3, version2):
    told = (*SYSTEM_IDS, *CANTONESE, E)
    assert instruct_as_voice(version3, ["Hello world"], "请用广东话表达。", TEXT, VOICE) == [
        Prompt((*told, *TEXT_IDS), HELLO, VOICE)]
    with pytest.raises(ValueError, match="CosyVoice2 follows either an instruction or a transcript"):
        instruct_as_voice(version2, ["Hello"], "slowly", "Hi", VOICE)


def test_every_piece_has_the_whole_prompt():
    small = demo()
    modes = (lambda texts: zero_shot(small, texts, "Hi there", VOICE), lambda texts: cross_lingual(small, texts),
             lambda texts: instruct(small, texts, "Slowly"))
    for mode in modes:
        assert mode(["One.", "Two."]) == [*mode(["One."]), *mode(["Two."])] and mode([]) == []


def test_transcript_and_text_are_tokenised_apart(version3):
    """Joined first, the token across the joint is neither's, and the first word came out wrong."""
    prompt, = zero_shot(version3, ["ward we go"], "to", VOICE[:10])
    assert prompt.prompt_text_ids == (*FRAME, *version3.encode("to"))
    assert prompt.text_ids == tuple(version3.encode("ward we go"))
    assert version3.encode("toward we go") != version3.encode("to") + version3.encode("ward we go")


def test_speech_ids_may_be_a_tensor():
    prompt, = zero_shot(demo(), ["Hello"], "Hi there", torch.arange(30))
    assert prompt.speech_ids == tuple(range(30)) and all(type(number) is int for number in prompt.speech_ids)
    assert hash(prompt) == hash(Prompt(prompt.prompt_text_ids, prompt.text_ids, prompt.speech_ids))


# The frame


@pytest.mark.parametrize("transcript", [
    TEXT, f"{SYSTEM}<|endofprompt|>{TEXT}", f"  {SYSTEM}<|endofprompt|> {TEXT}\n",
    f"\ufeff{SYSTEM}<|endofprompt|>{TEXT}", 2 * f"{SYSTEM}<|endofprompt|>" + TEXT,
])
def test_frame_that_is_written_out_is_not_doubled(version3, transcript, caplog):
    """Published examples have it in the transcript; with it twice the model spoke the system sentence."""
    assert zero_shot(version3, ["Hello world"], transcript, VOICE)[0].prompt_text_ids == (*FRAME, *TEXT_IDS)
    assert pieces(version3, transcript) == [TEXT] and caplog.text == ""


@pytest.mark.parametrize("instruction", [
    "请用广东话表达。", "请用广东话表达。<|endofprompt|>", f"{SYSTEM} 请用广东话表达。<|endofprompt|>\n",
    f"{SYSTEM}请用广东话表达。", f"{SYSTEM}<|endofprompt|>请用广东话表达。",
])
def test_frame_around_an_instruction_is_not_doubled(version3, instruction, caplog):
    assert instruct(version3, [TEXT], instruction)[0].prompt_text_ids == (*SYSTEM_IDS, *CANTONESE, E)
    assert caplog.text == ""


@given(text=USER_TEXTS, transcript=USER_TEXTS, instruction=USER_TEXTS, version=st.sampled_from((2, 3)))
def test_control_ids_stand_where_they_belong_alone(text, transcript, instruction, version):
    small = demo(version)
    modes = {
        lambda: zero_shot(small, pieces(small, text), transcript, VOICE): version == 3,
        lambda: cross_lingual(small, pieces(small, text)): version == 3,
        lambda: instruct(small, pieces(small, text), instruction): True,
        lambda: instruct_as_voice(small, pieces(small, text), instruction, transcript, VOICE): True,
    }
    for mode, framed in modes.items():
        try:
            prompts = mode()
        except ValueError:
            continue
        for prompt in prompts:
            found = [number for number in (*prompt.prompt_text_ids, *prompt.text_ids) if number in CONTROLS]
            assert found == [E] * framed


def test_control_that_is_spelled_is_told(caplog):
    pieces(demo(), "Stop here <|im_end|> please")
    assert "text: <|im_end|> in it is read as text" in caplog.text


# Errors and warnings


@pytest.mark.parametrize("text, message", {
    "": "text: empty; write", " \n\t": "text: empty; write", "\ufeff\u200b": "text: empty; write",
    "-----": "text: nothing in '-----' can be spoken", "❤\ufe0f": "can be spoken",
    "<strong> </strong>": "can be spoken", f"{SYSTEM}<|endofprompt|>": "text: empty",
}.items())
def test_nothing_to_say(text, message):
    for limit in (PIECE_IDS, None):
        with pytest.raises(ValueError, match=message):
            pieces(demo(), text, limit)


@pytest.mark.parametrize("text", ["", " ", "...", "<strong>"])
def test_every_piece_is_checked(text):
    for make in (lambda: cross_lingual(demo(), ["Hello.", text]), lambda: instruct(demo(), ["Hello.", text], "Slowly")):
        with pytest.raises(ValueError, match="text: (empty|nothing in)"):
            make()


@pytest.mark.parametrize("transcript", ["", " \n", "...", f"{SYSTEM}<|endofprompt|>"])
def test_transcript_is_missing(transcript):
    with pytest.raises(ValueError, match="transcript: empty; .*Write them, or choose cross-lingual"):
        zero_shot(demo(), ["Hello"], transcript, VOICE)


@pytest.mark.parametrize("instruction", ["", " \n", "...", f"{SYSTEM}<|endofprompt|>"])
def test_instruction_is_missing(instruction):
    with pytest.raises(ValueError, match="instruction: empty; write how to speak"):
        instruct(demo(), ["Hello"], instruction)


def test_voice_is_missing():
    with pytest.raises(ValueError, match="voice: 0 speech tokens; give a recording"):
        zero_shot(demo(), ["Hello"], "Hi", [])


@pytest.mark.parametrize("tokens, warned", [(19, True), (20, False), (200, False), (201, True)])
def test_transcript_of_another_recording(tokens, warned, caplog):
    zero_shot(demo(), ["Hello", "again"], "ten bytes.", [7] * tokens)
    assert caplog.text.count(f"recording has {tokens} speech tokens ({tokens / 25:.1f} s) for the 10 ids") == warned


# Pieces


@pytest.mark.parametrize("text, said", {
    "Hello": ["Hello."], "Hello!": ["Hello!"], "你好": ["你好。"], "你好 ok": ["你好ok."], "wait,": ["wait,"],
    'He said "go"': ['He said "go".'], 'He said "go."': ['He said "go."'], "（你好。）": ["（你好。）"],
    "(no)": ["(no)."], "カナ デス": ["カナ デス。"], "안녕 하세요": ["안녕 하세요."], "你好\n世界 好": ["你好世界好。"],
    "ha. [laughter]": ["ha. [laughter]"], "ha [laughter]": ["ha [laughter]."], "对[j][ǐ]": ["对[j][ǐ]。"],
    "<strong>Go.</strong>": ["<strong>Go.</strong>"], "a.[breath] [sigh]": ["a.[breath] [sigh]"],
    "[breath]": ["[breath]."],
    "100%": ["100%."], "Hello \n world": ["Hello world."], "Hello.\nBye": ["Hello.", "Bye."],
    "Hello.\n-----\n(￣▽￣)\n❤\ufe0f\nBye.": ["Hello.", "Bye."], "<strong>\n\nGo</strong>": ["<strong>Go</strong>."],
    "<laughter>\nha ha\n</laughter>\nYes.": ["<laughter>ha ha</laughter> Yes."],
    "Go.\n<strong> \n Go.\n\n</strong> \nGo.": ["Go.", "<strong>Go.</strong> Go."],
}.items())
def test_pieces(text, said):
    assert pieces(demo(), text) == said


def test_lines_that_say_nothing_change_nothing():
    """A line of dashes between two sentences ended the job at minute five, or hummed."""
    lines = ["Hello.", "-----", "(￣▽￣)", "❤\ufe0f", "Bye."]
    assert cross_lingual(demo(), pieces(demo(), "\n".join(lines))) == cross_lingual(demo(), ["Hello.", "Bye."])


def test_one_piece():
    assert pieces(demo(), "One.\n\n" + "Two. " * 99, None) == ["One. " + ("Two. " * 99).strip()]


@given(text=USER_TEXTS.map(lambda text: f"{text} {text}."), limit=st.integers(20, 60), version=st.sampled_from((2, 3)))
def test_pieces_keep_to_the_limit_and_can_be_spoken(text, limit, version):
    small = demo(version)
    try:
        said = pieces(small, text, limit)
    except ValueError:
        return
    prompts = instruct(small, said, "Slowly")
    assert said and (SYSTEM in text or pieces(small, "\n\n".join(said), limit) == said)
    for piece, prompt in zip(said, prompts, strict=True):
        assert 0 < len(prompt.text_ids) <= limit or len(split(piece, 1, len)) == 1


def test_long_text_is_cut_between_sentences(version3):
    sentence = "It costs $3.50, said Dr. Lee, and she went home at 5:30 in the rain."
    said = pieces(version3, " ".join([sentence] * 9))
    assert {len(piece) % (len(sentence) + 1) for piece in said} == {len(sentence)}
    assert all(40 <= len(version3.encode(piece)) <= PIECE_IDS for piece in said[:-1])
    chinese = pieces(version3, "他说：“走吧。”然后走了，再也没有回来。" * 30)
    assert all(len(version3.encode(piece)) <= PIECE_IDS and piece.endswith("。") for piece in chinese)
    assert "".join(chinese) == "他说：“走吧。”然后走了，再也没有回来。" * 30


def test_blank_beside_a_tag_is_no_token(version3):
    """It would be a token of its own there, and such a one is a pause in the middle of a laugh."""
    prompt, = cross_lingual(version3, ["Hello world [laughter] ok [breath] 好 [sigh]  [mn]1"])
    tags = version3.tags
    assert prompt.text_ids[len(FRAME):] == (
        *HELLO, tags["[laughter]"], 5394, tags["[breath]"], *version3.encode("好"), tags["[sigh]"], tags["[mn]"], 16)
