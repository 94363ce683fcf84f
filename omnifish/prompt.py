"""What the backbone reads before it speaks: style, text and the codes of voices, in one of four layouts.

===================  ==================================================================================
plain, or a voice    style, text (the voice's transcript before it), the voice's codes
dialogue             style, text with a name before each line
dialogue of voices   style, then for each voice its name, transcript and codes, then text with names
left context         style, lines that were spoken before, text (transcript before it), the voice's codes
===================  ==================================================================================

Ids are int64 (K, L) on the CPU; text has the same id in all rows. Every piece of text is tokenised apart.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..text import speakable
from .config import NUM_CODEBOOKS, CodeIds
from .markup import (
    INSTRUCTION,
    LANGUAGE,
    LEFT,
    SPEAKER,
    Tokenizer,
    context_text,
    enclosed,
    encode,
    escape,
    speakers,
    without_speakers,
)

DIALOGUE = "dialogue"       # in place of a named speaker

Voice = tuple[str, str, Tensor]     # name, transcript, codes int64 (K, F)


@dataclass(frozen=True, eq=False)
class Context:
    """ids int64 (K, L), and audio_mask bool (L,), true where they are codes.

    prompt: codes int64 (K, P) of the voice that is continued, which come last; P may be 0. pace: frames per
    character of those who speak, or None where nobody tells.
    """
    ids: Tensor
    audio_mask: Tensor
    prompt: Tensor
    pace: float | None


def prefix_ids(
    tok: Tokenizer, text: str, lang: str, before: Iterable[str] = (), after: Iterable[str] = (),
    speaker: str | None = None, quality: str | None = None,
) -> Tensor:
    """int64 (K, L), style and text; of ``speaker`` "dialogue", what ``dialogue_text`` made."""
    text = text if speaker == DIALOGUE else escape(text)
    return _text(tok, _style(lang, speaker, quality), context_text(text, before, after))


def voice_context(
    tok: Tokenizer, voices: Sequence[Voice], text: str, lang: str, before: Iterable[str] = (),
    after: Iterable[str] = (), quality: str | None = None,
) -> tuple[Tensor, Tensor]:
    """ids int64 (K, L) and audio_mask bool (L,): a dialogue, as made by ``dialogue_text``, and who speaks in it."""
    parts = [(_text(tok, _style(lang, DIALOGUE, quality)), False)]
    for name, transcript, codes in voices:
        parts += [(_text(tok, enclosed(SPEAKER, escape(name)) + escape(transcript)), False), (codes, True)]
    return _joined(*parts, (_text(tok, context_text(text, before, after)), False))


def context(
    tok: Tokenizer, text: str, lang: str, prompt_codes: Tensor | None, prompt_text: str | None,
    before: Sequence[str] = (), after: Sequence[str] = (), speaker: str | None = None, quality: str | None = None,
    voices: Sequence[Voice] | None = None, semantic_left: Sequence[str | tuple] = (), ids: CodeIds | None = None,
) -> Context:
    """The layout that these make up; ``ValueError`` where they do not go together.

    semantic_left: texts, or pairs that begin with one. With them, ``before`` is not used.
    """
    _check(text, prompt_codes, prompt_text, speaker, voices, semantic_left)
    ids = ids or CodeIds()
    none = torch.zeros(NUM_CODEBOOKS, 0, dtype=torch.int64)
    if voices:
        voices = [(name, words, checked_codes(codes, f"voice {name!r}", ids)) for name, words, codes in voices]
        return Context(*voice_context(tok, voices, text, lang, before, after, quality), none, _pace(
            sum(codes.shape[1] for _, _, codes in voices), sum(len(words) for _, words, _ in voices)))
    words = f"{prompt_text} {text}" if prompt_text else text
    if semantic_left:
        left = " ".join(line if isinstance(line, str) else line[0] for line in semantic_left)
        said = _text(tok, _style(lang, speaker, quality), enclosed(LEFT, escape(left)),
                     context_text(escape(words), (), after))
    else:
        said = prefix_ids(tok, words, lang, before, after, speaker, quality)
    prompt = none if prompt_codes is None else checked_codes(prompt_codes, "prompt_codes", ids)
    frames = prompt.shape[1]
    return Context(*_joined((said, False), (prompt, True)), prompt, _pace(frames, len(prompt_text or "")))


def checked_codes(codes: Tensor, role: str, ids: CodeIds) -> Tensor:
    """int64 (K, F) on the CPU, all of which sound."""
    if not isinstance(codes, Tensor) or codes.is_floating_point() or codes.ndim != 2 or len(codes) != NUM_CODEBOOKS:
        found = f"{codes.dtype} {tuple(codes.shape)}" if isinstance(codes, Tensor) else type(codes).__name__
        raise ValueError(f"{role}: expected whole numbers as ({NUM_CODEBOOKS}, frames), got {found}; give the codes "
                         "of the Fish 44.1 kHz codec.")
    if not codes.shape[1]:
        raise ValueError(f"{role}: 0 frames; give codes of at least one, or none at all.")
    codes = codes.detach().to("cpu", torch.int64)
    rows = torch.tensor([ids.sounding(codebook) for codebook in range(len(codes))])[:, None]
    for frame, codebook in ((codes < 0) | (codes >= rows)).T.nonzero()[:1].tolist():
        raise ValueError(f"{role}: id {int(codes[codebook, frame])} at frame {frame} of codebook {codebook}, whose ids "
                         f"are 0..{int(rows[codebook]) - 1}; give the codes of the Fish 44.1 kHz codec.")
    return codes


def _style(lang: str, speaker: str | None, quality: str | None) -> str:
    wishes = [speaker if speaker in (None, DIALOGUE) else f"speaker:{speaker}", quality and f"quality:{quality}"]
    wished = " ".join(filter(None, wishes)) or "None"
    return enclosed(LANGUAGE, escape(lang)) + enclosed(INSTRUCTION, escape(wished))


def _pace(frames: int, characters: int) -> float | None:
    return frames / characters if frames and characters else None


def _text(tok: Tokenizer, *markup: str) -> Tensor:
    """int64 (K, L)"""
    ids = torch.tensor([number for part in markup for number in encode(tok, part)], dtype=torch.int64)
    return ids.repeat(NUM_CODEBOOKS, 1)


def _joined(*parts: tuple[Tensor, bool]) -> tuple[Tensor, Tensor]:
    """int64 (K, L_i) each, and whether they are codes -> (K, L), bool (L,)"""
    masks = [torch.full((ids.shape[1],), audio) for ids, audio in parts]
    return torch.cat([ids for ids, _ in parts], dim=1), torch.cat(masks)


def _check(
    text: str, prompt_codes: Tensor | None, prompt_text: str | None, speaker: str | None,
    voices: Sequence[Voice] | None, semantic_left: Sequence,
) -> None:
    scene = bool(voices) or speaker == DIALOGUE
    said = without_speakers(text) if scene else text
    if not speakable(said):
        raise ValueError(f"text: nothing in {said.strip()[:40]!r} can be spoken; write letters or digits.")
    if prompt_text and prompt_codes is None:
        raise ValueError("prompt_text: a transcript without prompt_codes; give both, or neither.")
    alone = {"prompt_codes": prompt_codes is not None, "semantic_left": bool(semantic_left)}
    if voices:
        alone["speaker"] = speaker not in (None, DIALOGUE)
    for name, given in alone.items():
        if scene and given:
            raise ValueError(f"{name}: not in a dialogue, whose speakers are told by voices; leave it out.")
    if voices:
        names = [name for name, _, _ in voices]
        unknown = [name for name in dict.fromkeys(speakers(text)) if name not in map(escape, names)]
        if unknown:
            raise ValueError(f"text: {', '.join(unknown)} speaks and is none of the voices, which are "
                             f"{', '.join(names)}; give each speaker a voice of that name.")
