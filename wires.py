"""What the pack's own wires carry: values that no node changes."""
from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .audio import Clip

S3_V2 = "s3-v2"
S3_V3 = "s3-v3"
FISH_44K = "fish-44k"

# How to decode each kind, as told to someone who wired the wrong node.
DECODERS = {
    S3_V2: "S3Token2Wav with an S3Gen or CosyVoice2 model",
    S3_V3: "S3Token2Wav with a CosyVoice3 model",
    FISH_44K: "Decode Fish Codes",
}

# Who reads recordings as tokens of each kind.
MAKERS = {
    S3_V2: "S3Gen, or CosyVoice2 with its speech tokenizer",
    S3_V3: "CosyVoice3 with its speech tokenizer",
    FISH_44K: "OGG TTS",
}

ONE_CODEBOOK = (S3_V2, S3_V3)

MAX_PAUSE_S = 600.0     # longer is a slip, such as milliseconds written as seconds


@dataclass(frozen=True, eq=False)
class Voice:
    """One named voice, independent of any model: a recording and, if known, what is said in it ("" if not).

    ``content_hash`` (sha256, hex) stands for the rate and samples alone, so that a cache knows a recording
    again under another name.
    """
    clip: Clip
    transcript: str
    name: str
    content_hash: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha256(str(self.clip.rate_hz).encode() + b" Hz ")
        digest.update(memoryview(self.clip.wave.detach().contiguous().numpy()))
        object.__setattr__(self, "content_hash", digest.hexdigest())


@dataclass(frozen=True, eq=False)
class PromptPiece:
    """What is spoken in one breath: its text, the same as the family's sampler reads it, and silence around it.

    ``voice`` speaks it; None: whoever is connected to the decoder. ``pause_s`` seconds of silence follow, and
    ``lead_s`` come before.
    """
    text: str
    content: object
    pause_s: float = 0.0
    voice: Voice | None = None
    lead_s: float = 0.0


@dataclass(frozen=True, eq=False)
class SpeechPrompt:
    """What a sampler needs: a text in pieces, encoded for the models of one ``family``."""
    family: str
    pieces: tuple[PromptPiece, ...]

    def require(self, family: str, node: str) -> None:
        """ValueError unless this prompt is for ``family``, which the model at ``node`` is of."""
        if self.family != family:
            raise ValueError(f"{node}: the prompt is for {self.family}; this model is {family}. Connect the same model "
                             "to Encode Speech Prompt and to this node.")


@dataclass(frozen=True)
class Made:
    """How a sampler came to a piece: for reports alone, without effect on the sound."""
    text: str                           # what it says
    ended: str                          # "end" by the model itself, "loop" by the stop rule, "budget" cut there
    retries: int = 0
    redraws: tuple[int, ...] = ()       # frames of the piece whose id was drawn a second time
    block: int = 0                      # frames that were decided together; 0 where they come one by one
    seconds: float = 0.0                # that sampling took: of a batch, its share


@dataclass(frozen=True, eq=False)
class Piece:
    """Tokens spoken in one breath: ``ids`` (K, F) int64 on the CPU, then ``pause_s`` seconds of silence.

    ``voice`` is the one that they were made for, or None. ``lead_s`` seconds of silence come before them. ``made``
    is None for tokens that were read from a recording.
    """
    ids: Tensor
    pause_s: float = 0.0
    voice: Voice | None = None
    lead_s: float = 0.0
    made: Made | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.ids.shape)
        if len(shape) != 2 or shape[0] < 1:
            raise ValueError(f"speech tokens: expected ids of (codebooks, frames), got {shape}.")
        if shape[1] < 1:
            raise ValueError("speech tokens: a piece has 0 frames, so there is nothing to decode; "
                             "give longer text or audio, or another seed.")
        if self.ids.dtype != torch.int64 or self.ids.device.type != "cpu":
            raise ValueError(f"speech tokens: expected int64 ids on the CPU, got {self.ids.dtype} "
                             f"on {self.ids.device}.")
        lowest = int(self.ids.min())
        if lowest < 0:
            raise ValueError(f"speech tokens: id {lowest} is negative; ids count from 0.")
        for pause_s in (self.pause_s, self.lead_s):
            if not 0 <= pause_s <= MAX_PAUSE_S:
                raise ValueError(f"speech tokens: a pause of {pause_s} s is not within 0 to {MAX_PAUSE_S:.0f} s.")


@dataclass(frozen=True, eq=False)
class SpeechTokens:
    """Discrete speech: for each row of the batch its pieces, all of one codebook ``kind``."""
    kind: str
    frames_per_second: float
    batch: tuple[tuple[Piece, ...], ...]

    def __post_init__(self) -> None:
        if self.kind not in DECODERS:
            raise ValueError(f"speech tokens: unknown kind {self.kind!r}; known are {', '.join(DECODERS)}.")
        if not 0 < self.frames_per_second < math.inf:
            raise ValueError(f"speech tokens: {self.frames_per_second} frames per second cannot be.")
        if not self.batch or not all(self.batch):
            raise ValueError("speech tokens: every row of the batch needs at least one piece; got "
                             f"{[len(row) for row in self.batch]} pieces.")
        codebooks = {piece.ids.shape[0] for row in self.batch for piece in row}
        if len(codebooks) > 1:
            raise ValueError("speech tokens: the pieces differ in their number of codebooks: "
                             f"{sorted(codebooks)}.")
        if self.kind in ONE_CODEBOOK and codebooks != {1}:
            raise ValueError(f"speech tokens: {self.kind} has one codebook, these pieces have {max(codebooks)}.")

    def require(self, kind: str, node: str) -> None:
        """ValueError unless these tokens are of ``kind``, the one that the model at ``node`` decodes."""
        if self.kind != kind:
            raise ValueError(f"{node}: the tokens are {self.kind} codes; this model decodes {kind}. "
                             f"Use {DECODERS[self.kind]}.")
