"""What a model on disk is made of: parts that are measured at once, and read when they are needed."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from .request import Request
from .wires import PromptPiece, Voice

# Every part that a model may have, as told to someone whose model lacks it, and who has it.
TITLES = {
    "synthesis": ("flow and vocoder", "S3Gen or CosyVoice"),
    "lm": ("language model", "CosyVoice"),
    "backbone": ("backbone", "OGG TTS"),
    "text": ("text tokenizer", "CosyVoice or OGG TTS"),
    "tokenizer": ("speech tokenizer", "S3Gen or CosyVoice"),
    "speaker": ("speaker encoder", "S3Gen or CosyVoice"),
    "codec": ("Fish codec", "OGG TTS"),
}


@dataclass(frozen=True, eq=False)
class Part:
    """Networks that are loaded and moved together.

    build: (operations, dtype) -> module, which reads ``files``. dtypes: that it may run in; "auto" takes the
    first, and on a GPU ``on_gpu`` where that one computes in it.
    """
    files: tuple[Path, ...]
    build: Callable[[object, torch.dtype], nn.Module]
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    on_gpu: torch.dtype | None = None


@dataclass(frozen=True)
class Decoder:
    """How the tokens of a model become audio: three functions of its family's pipeline."""
    read_voice: Callable
    speak: Callable
    working_bytes: Callable


@dataclass(frozen=True)
class Reader:
    """How a model reads a recording as speech tokens: (network of ``part``, clip, device, report) -> int64 (K, F)."""
    part: str
    read: Callable
    working_bytes: int


# (what is to be said, voice -> its speech tokens) -> its pieces, and who speaks which, line by line
WritePrompt = Callable[[Request, Callable[[Voice], object]], tuple[list[PromptPiece], str]]


@dataclass(frozen=True, eq=False)
class Opened:
    """A model whose files are known to be whole and to fit each other.

    parts: by their names in ``TITLES``; the first is loaded at once. missing: the files of those that are not
    there. token_kind: of the speech tokens that it writes and reads. write_prompt: of a model that speaks text.
    fetchable: whether what is missing could be fetched.
    """
    family: str
    source: str
    token_kind: str
    config: object
    parts: Mapping[str, Part]
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    text_tokenizer: object = None
    decoder: Decoder | None = None
    reader: Reader | None = None
    write_prompt: WritePrompt | None = None
    fetchable: bool = False

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """That some part may run in."""
        return tuple(dict.fromkeys(dtype for part in self.parts.values() for dtype in part.dtypes))

    def lack(self, part: str) -> str | None:
        """Why it has no such part and what to do, or None where it has."""
        if part in self.parts or (part == "text" and self.text_tokenizer is not None):
            return None
        title, who = TITLES[part]
        if part not in self.missing:
            return f"the model is {self.family} ({self.source}), which has no {title}; connect a model of {who}."
        others = sorted({file for files in self.missing.values() for file in files} - set(self.missing[part]))
        also = f" ({', '.join(others)} {'are' if len(others) > 1 else 'is'} not there either)" if others else ""
        fetch = ", or switch `download` on in Load Speech Model" if self.fetchable else ""
        other = ", or connect a second model to `speech_tokenizer`" if part == "tokenizer" else ""
        return (f"the model is {self.family} ({self.source}), whose {title} is missing: "
                f"{' and '.join(self.missing[part])}{also}. Put what is missing there{fetch}{other}.")
