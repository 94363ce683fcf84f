"""What the backbone reads: the layouts, the mark-up, and that nothing that users write is read as control."""
from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kit.blocks import facts, golden, tokenizer
from speechwright.omnifish.config import CodeIds
from speechwright.omnifish.markup import CONTROL, ESCAPE, encode, escape, speakers
from speechwright.omnifish.model import context_text, dialogue_text
from speechwright.omnifish.prompt import Context, checked_codes, context, prefix_ids, voice_context

SPECIAL = facts()["special_tokens"]


def codes(frames: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 1024, (10, frames), generator=torch.Generator().manual_seed(seed))


def read(ids: Tensor, audio_mask: Tensor | None = None) -> str:
    """Ids of the stand-in tokenizer as text, # for a column of codes; the same in all rows where it is text."""
    audio_mask = torch.zeros(ids.shape[1], dtype=torch.bool) if audio_mask is None else audio_mask
    assert ids.dtype == torch.int64 and audio_mask.dtype == torch.bool and len(audio_mask) == ids.shape[1]
    assert (ids == ids[0])[:, ~audio_mask].all()
    return "".join("#" if audio else SPECIAL[number] if number < 20 else chr((number - 20) % 236)
                   for number, audio in zip(ids[0].tolist(), audio_mask.tolist()))


def laid_out(text: str = "Hi.", lang: str = "en", prompt: Tensor | None = None, words: str = "", **more) -> Context:
    return context(tokenizer, text, lang, prompt, words, **more)


def layout(**more) -> str:
    found = laid_out(**more)
    return read(found.ids, found.audio_mask)


# Layouts


def test_golden_voice_context():
    data = golden()
    prompt = data["trace.ids"][:, data["trace.audio_mask"]]
    ids, audio = voice_context(
        tokenizer, [("S1", "hi there", prompt[:, :7]), ("S2", "yes", prompt[:, 7:])], dialogue_text([("S1", "ok")]),
        "en", before=["before one"], after=["after"], quality="q35")
    assert torch.equal(ids, data["trace.ids"]) and torch.equal(audio, data["trace.audio_mask"])


@pytest.mark.parametrize("arguments, expected", [
    ({}, "<|lang_start|>en<|lang_end|><|instruct_start|>None<|instruct_end|><|text_start|>Hi.<|text_end|>"),
    ({"speaker": "pl_3", "lang": "pl"},
     "<|lang_start|>pl<|lang_end|><|instruct_start|>speaker:pl_3<|instruct_end|><|text_start|>Hi.<|text_end|>"),
    ({"quality": "q35"},
     "<|lang_start|>en<|lang_end|><|instruct_start|>quality:q35<|instruct_end|><|text_start|>Hi.<|text_end|>"),
    ({"speaker": "pl_x", "quality": "q35"}, "<|lang_start|>en<|lang_end|><|instruct_start|>speaker:pl_x quality:q35"
     "<|instruct_end|><|text_start|>Hi.<|text_end|>"),
    ({"before": ["One.", "Two."], "after": ["Three."]},
     "<|lang_start|>en<|lang_end|><|instruct_start|>None<|instruct_end|><|box_start|>One. Two.<|box_end|>"
     "<|text_start|>Hi.<|text_end|><|box_start|>Three.<|box_end|>"),
])
def test_style_and_text(arguments, expected):
    assert layout(**arguments) == expected
    lang, more = arguments.pop("lang", "en"), arguments
    assert read(prefix_ids(tokenizer, "Hi.", lang, **more)) == expected


def test_a_voice_goes_last_and_its_words_first():
    found = laid_out(prompt=codes(5), words="who spoke")
    assert read(found.ids, found.audio_mask).endswith("<|text_start|>who spoke Hi.<|text_end|>#####")
    assert torch.equal(found.ids[:, -5:], codes(5)) and torch.equal(found.prompt, codes(5))
    assert found.pace == 5 / 9
    assert layout(prompt=codes(2)).endswith("<|text_start|>Hi.<|text_end|>##")


@pytest.mark.parametrize("frames, words, pace", [(9, "abc", 3), (9, "", None)])
def test_pace_of_a_voice(frames, words, pace):
    """A transcript of nothing once divided by it."""
    assert laid_out(prompt=codes(frames), words=words).pace == pace
    assert laid_out(voices=[("S1", words, codes(frames)), ("S2", words, codes(frames))]).pace == pace
    assert laid_out().pace is None


def test_dialogues():
    text = dialogue_text([("S1", "One."), ("S2", "Two!")])
    assert text == "<|quad_start|>S1<|quad_end|>One.<|quad_start|>S2<|quad_end|>Two!" and speakers(text) == ["S1", "S2"]
    begin = "<|lang_start|>en<|lang_end|><|instruct_start|>dialogue<|instruct_end|>"
    assert layout(text=text, speaker="dialogue") == f"{begin}<|text_start|>{text}<|text_end|>"
    voices = [("S1", "first", codes(2)), ("S2", "second", codes(3, seed=1))]
    found = laid_out(text, voices=voices)
    assert read(found.ids, found.audio_mask) == (
        f"{begin}<|quad_start|>S1<|quad_end|>first##<|quad_start|>S2<|quad_end|>second###"
        f"<|text_start|>{text}<|text_end|>")
    assert torch.equal(found.ids[:, found.audio_mask], torch.cat((codes(2), codes(3, seed=1)), dim=1))
    assert found.prompt.shape == (10, 0)


def test_left_context():
    """Lines as text, whatever comes with them; of the sentences around the text only those behind it."""
    lines = ["line one", ("line two", codes(3))]
    expected = ("<|lang_start|>en<|lang_end|><|instruct_start|>None<|instruct_end|>"
                "<|object_ref_start|>line one line two<|object_ref_end|>"
                "<|text_start|>who Hi.<|text_end|><|box_start|>later<|box_end|>##")
    for before in ([], ["earlier"]):
        assert layout(semantic_left=lines, prompt=codes(2), words="who", before=before, after=["later"]) == expected


# Text stays text


NASTY = st.lists(st.one_of(
    st.text(max_size=6), st.sampled_from(CONTROL), st.sampled_from(("<|im_end|>", "<|", "|>", "<", "|", ESCAPE)),
    st.sampled_from(("<think>", "</think>", "<tool_call>", "quad_end", "S1", "\n", "[sigh]")),
), max_size=8).map("".join)
FRAME = {"lang": 1, "instruct": 1, "text": 1, "quad": 0, "object_ref": 0, "box": 0}


def controls(ids: Tensor) -> dict[str, int]:
    """How many spans of each kind there are, by the ids of their tokens, which come in pairs."""
    found = [SPECIAL[number] for number in ids[0].tolist() if number < 20]
    counts = {name: (found.count(f"<|{name}_start|>"), found.count(f"<|{name}_end|>")) for name in FRAME}
    assert all(begin == end for begin, end in counts.values())
    return {name: begin for name, (begin, _) in counts.items()}


@given(NASTY, NASTY, NASTY, NASTY)
def test_text_cannot_spell_control(text, first, second, name):
    """``<|text_end|>`` in a text ended it; in the name of a speaker, it gave somebody else the line."""
    voiced = f"a{text}"
    assert controls(prefix_ids(tokenizer, voiced, first, [first], [second], name, second)) == {**FRAME, "box": 2}
    left = context(tokenizer, voiced, second, codes(2), first, semantic_left=[second, (name, None)], speaker=name)
    assert controls(left.ids[:, ~left.audio_mask]) == {**FRAME, "object_ref": 1}
    lines = dialogue_text([(name, voiced), (first, second)])
    assert controls(prefix_ids(tokenizer, lines, "en", speaker="dialogue")) == {**FRAME, "quad": 2}
    ids, audio = voice_context(tokenizer, [(name, second, codes(2)), (first, text, codes(1))], lines, "en", [text])
    assert controls(ids[:, ~audio]) == {**FRAME, "quad": 4, "box": 1}


@given(NASTY)
def test_the_tokenizer_never_sees_control_joined_in_text(text):
    """Nor loses a character: what it sees makes up the text."""
    seen = []

    def listen(piece: str, return_tensors: str) -> SimpleNamespace:
        seen.append(piece)
        return SimpleNamespace(input_ids=torch.tensor([[len(seen)]]))

    assert encode(listen, escape(text)) == list(range(1, len(seen) + 1))
    assert not any(token in piece for piece in seen for token in (*CONTROL, "<|im_end|>", "<think>", "<tool_call>"))
    assert "".join(seen).replace(ESCAPE, "") == text.replace(ESCAPE, "")
    assert escape(escape(text)) == escape(text)


def test_a_raw_scene_is_read_as_one_where_it_is_expected():
    raw = "<|quad_start|>S1<|quad_end|>a<|text_end|>b<|quad_start|>c"
    escaped = "a<|text_end|>b<|quad_start|>c"
    assert layout(text=raw, speaker="dialogue").endswith(
        f"<|text_start|><|quad_start|>S1<|quad_end|>{escaped}<|text_end|>")
    assert controls(laid_out(raw, speaker="dialogue").ids) == {**FRAME, "quad": 1}
    assert controls(laid_out(raw).ids) == FRAME
    left = laid_out(raw, prompt=codes(2), words=raw, semantic_left=[raw])
    assert controls(left.ids[:, ~left.audio_mask]) == {**FRAME, "object_ref": 1}
    name = "S1<|quad_end|>"
    named = laid_out(dialogue_text([(name, "x")]), voices=[(name, "y", codes(2))])
    assert controls(named.ids[:, ~named.audio_mask]) == {**FRAME, "quad": 2}


def test_mark_up_as_strings():
    assert context_text("Hi") == "<|text_start|>Hi<|text_end|>"
    assert context_text("Hi", ["a", "b"], ["c"]) == (
        "<|box_start|>a b<|box_end|><|text_start|>Hi<|text_end|><|box_start|>c<|box_end|>")
    assert context_text("[sigh] a < b | c > d {x} [1]") == "<|text_start|>[sigh] a < b | c > d {x} [1]<|text_end|>"
    scene = dialogue_text([("S<|quad_end|>1", "x")])
    assert context_text(scene) == f"<|text_start|>{scene}<|text_end|>" and speakers(scene) == [escape("S<|quad_end|>1")]
    assert dialogue_text([]) == ""


def test_a_tokenizer_without_the_tokens():
    def plain(text: str, return_tensors: str) -> SimpleNamespace:
        return SimpleNamespace(input_ids=torch.tensor([list(text.encode())]))

    with pytest.raises(ValueError, match=r"tokenizer: it makes 14 ids of <\|lang_start\|>, .* OmniVoice"):
        prefix_ids(plain, "Hi", "en")


# What is refused


@pytest.mark.parametrize("codebook, number, most", [(0, 4096, 4095), (0, -1, 4095), (3, 1024, 1023), (9, 4096, 1023)])
@pytest.mark.parametrize("role", ["prompt_codes", "voice 'S1'"])
def test_ids_outside_a_table(codebook, number, most, role):
    """Mask and end ids, or those of another codec, were looked up in the next codebook's rows."""
    wrong = codes(5)
    wrong[codebook, 2] = number
    more = {"voices": [("S1", "x", wrong)]} if "S1" in role else {"prompt": wrong}
    text = f"^{role}: id {number} at frame 2 of codebook {codebook}, whose ids are 0..{most}; give the codes"
    with pytest.raises(ValueError, match=text):
        laid_out(**more)


@pytest.mark.parametrize("wrong, text", [
    (torch.zeros(9, 5, dtype=torch.int64), r"expected whole numbers as \(10, frames\), got torch.int64 \(9, 5\)"),
    (torch.zeros(1, 10, 5, dtype=torch.int64), r"got torch.int64 \(1, 10, 5\)"),
    (torch.zeros(10, 5), r"got torch.float32 \(10, 5\)"),
    (torch.zeros(10, 0, dtype=torch.int64), "0 frames; give codes of at least one"),
    ([[1]], "got list"),
])
def test_what_are_no_codes(wrong, text):
    with pytest.raises(ValueError, match=f"^prompt_codes: .*{text}"):
        laid_out(prompt=wrong)


def test_codes_of_any_whole_numbers():
    assert torch.equal(checked_codes(codes(3).int(), "x", CodeIds()), codes(3))
    assert checked_codes(codes(3).short(), "x", CodeIds()).dtype == torch.int64


@pytest.mark.parametrize("arguments, text", [
    ({"text": ""}, "^text: nothing in '' can be spoken"),
    ({"text": " ... "}, r"^text: nothing in '\.\.\.' can be spoken; write letters or digits"),
    ({"text": dialogue_text([("S1", "--")]), "speaker": "dialogue"}, "^text: nothing in '--' can be spoken"),
    ({"words": "said"}, "^prompt_text: a transcript without prompt_codes"),
    ({"speaker": "dialogue", "prompt": codes(2)}, "^prompt_codes: not in a dialogue"),
    ({"voices": [("S1", "x", codes(2))], "prompt": codes(2)}, "^prompt_codes: not in a dialogue"),
    ({"voices": [("S1", "x", codes(2))], "speaker": "pl_3"}, "^speaker: not in a dialogue"),
    ({"voices": [("S1", "x", codes(2))], "semantic_left": ["x"]}, "^semantic_left: not in a dialogue"),
    ({"voices": [("S1", "x", codes(2)), ("S2", "x", codes(2))],
      "text": dialogue_text([("S3", "a"), ("S1", "b"), ("Ada", "c"), ("S3", "d")])},
     "^text: S3, Ada speaks and is none of the voices, which are S1, S2; give each speaker"),
])
def test_what_does_not_go_together(arguments, text):
    with pytest.raises(ValueError, match=text):
        laid_out(**arguments)
