"""Text with control tokens in it: which there are, how they stand around what is said, and how both become ids.

Mark-up is a string in which control tokens are spelled out. What users write is put into it escaped, with a
character that nobody sees inside whatever spells a token: so no text, and no name of a speaker, becomes
control. A tokenizer is asked for control tokens one at a time, and gets users' text cut where it was escaped;
it never sees them joined.

Where the published module does not tell what stands around text, as with ``CONTEXT``, this is our choice.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import torch

Tokenizer = Callable        # tok(text, return_tensors="pt").input_ids is int64 (1, L)

LANGUAGE = ("<|lang_start|>", "<|lang_end|>")
INSTRUCTION = ("<|instruct_start|>", "<|instruct_end|>")
SPOKEN = ("<|text_start|>", "<|text_end|>")
SPEAKER = ("<|quad_start|>", "<|quad_end|>")            # the name of who speaks
LEFT = ("<|object_ref_start|>", "<|object_ref_end|>")   # lines that were spoken before, in a scene
CONTEXT = ("<|box_start|>", "<|box_end|>")              # sentences around the text, which nobody speaks
CONTROL = (*LANGUAGE, *INSTRUCTION, *SPOKEN, *SPEAKER, *LEFT, *CONTEXT)

ESCAPE = "\u2060"       # word joiner, which cleaned text does not hold

# What Qwen's tokenizer takes for a token: all between <| and |>, and these six.
_SPELLED = r"(?=\||/?(?:think|tool_call|tool_response)>)"
_JOINT = re.compile(f"(?<=<){_SPELLED}")
_CUT = re.compile(f"(?<=<){ESCAPE}?{_SPELLED}")
_TOKEN = re.compile(f"({'|'.join(map(re.escape, CONTROL))})")
_NAMED = re.compile(f"{re.escape(SPEAKER[0])}(.*?){re.escape(SPEAKER[1])}", re.DOTALL)


def escape(text: str) -> str:
    """Text that stays text within mark-up."""
    return _JOINT.sub(ESCAPE, text)


def enclosed(pair: tuple[str, str], text: str) -> str:
    """Mark-up between its two tokens."""
    return f"{pair[0]}{text}{pair[1]}"


def dialogue_text(lines: Iterable[tuple[str, str]]) -> str:
    """Mark-up of a scene, from each speaker's name and line; ``clean`` these, and not what comes out, before."""
    return "".join(enclosed(SPEAKER, escape(name)) + escape(line) for name, line in lines)


def speakers(text: str) -> list[str]:
    """The names in what ``dialogue_text`` made, in the order of the lines."""
    return _NAMED.findall(text)


def without_speakers(text: str) -> str:
    """What is said in it."""
    return _NAMED.sub(" ", text)


def context_text(text: str, before: Iterable[str] = (), after: Iterable[str] = ()) -> str:
    """Mark-up of what is to be spoken, or of what ``dialogue_text`` made, between sentences that are not."""
    parts = _NAMED.split(text)      # lines, and between them names
    parts[1::2] = [enclosed(SPEAKER, escape(name)) for name in parts[1::2]]
    parts[::2] = map(escape, parts[::2])
    scene = "".join(parts)
    around = (enclosed(CONTEXT, escape(" ".join(lines))) if lines else "" for lines in (list(before), list(after)))
    return f"{next(around)}{enclosed(SPOKEN, scene)}{next(around)}"


def encode(tok: Tokenizer, markup: str) -> list[int]:
    """The ids of mark-up: one for each control token, and those of the text between them."""
    ids = []
    for number, part in enumerate(_TOKEN.split(markup)):
        if number % 2:
            found = _ids(tok, part)
            if len(found) != 1:
                raise ValueError(f"tokenizer: it makes {len(found)} ids of {part}, which has to be one token; take "
                                 "the tokenizer of OmniVoice, from which the model was trained.")
            ids += found
        else:
            for piece in filter(None, _CUT.split(part)):
                ids += _ids(tok, piece)
    return ids


def _ids(tok: Tokenizer, text: str) -> list[int]:
    return torch.as_tensor(tok(text, return_tensors="pt").input_ids).flatten().tolist()
