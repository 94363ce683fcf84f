"""Block diffusion: a scene's context in, then block after block of codes out.

A block begins as masks and is decided in steps: the backbone scores every frame of it, ids are drawn for all,
the surest stay. Then the depth decoder adds the other codebooks, and the block joins the context of the next.
A block sees the context, the blocks before it and the whole of itself; the context sees itself alone.

With guidance (Ho and Salimans 2022, https://arxiv.org/abs/2207.12598) a second row speaks the same blocks
without any context, and scores move away from what it says.

Once per step the host learns what was drawn; the random numbers are drawn there while the device computes.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..seeds import generator
from .backbone import additive
from .config import NUM_CODEBOOKS, TEXT_TABLE
from .markup import Tokenizer
from .model import END_ID, OmniFish
from .prompt import Context, Voice, checked_codes, context
from .sampling import draw, race, schedule

FRAMES_PER_CHARACTER = 1.6      # where no voice tells: 13.5 characters a second

OnProgress = Callable[[int, int], None]     # (done, at most), may raise to cancel


def _unwatched(done: int, most: int) -> None:
    """Progress that nobody follows."""


@dataclass(frozen=True)
class Setting:
    """How blocks are drawn."""

    block: int              # frames
    steps: int              # in which a block is decided
    cfg: float              # guidance; 0 goes without, in half the time
    temperature: float      # 0 takes the likeliest ids
    min_frames: int         # before which the speech does not end
    mtp_temperature: float
    mtp_top_k: int
    mtp_rounds: int
    full_context: bool      # later blocks see all codebooks of earlier ones, or the semantic one

    def __post_init__(self) -> None:
        allowed = {
            "block": (self.block >= 1, "1 or more"),
            "steps": (self.steps >= 1, "1 or more"),
            "cfg": (0 <= self.cfg < math.inf, "0 or more"),
            "temperature": (0 <= self.temperature < math.inf, "0 or more"),
            "min_frames": (self.min_frames >= 0, "0 or more"),
            "mtp_temperature": (0 <= self.mtp_temperature < math.inf, "0 or more"),
            "mtp_top_k": (self.mtp_top_k >= 0, "0 or more"),
            "mtp_rounds": (self.mtp_rounds >= 1, "1 or more"),
        }
        for name, (fine, text) in allowed.items():
            if not fine:
                raise ValueError(f"{name}: {getattr(self, name)} is not possible; give {text}.")


class Stream:
    """A scene while it is spoken: what the backbone keeps of it, and three ways to ask about the next block.

    ``logits`` and ``peek`` leave no trace. ``commit`` adds a block for good; it is read together with the first
    look at the block after it, and never if there is none. ``hidden``: (L, D), what the backbone made of the context.
    """

    def __init__(
        self, model: OmniFish, ids: Tensor, audio_mask: Tensor, block: int, blocks: int, guided: bool,
        device: torch.device | str = "cpu",
    ) -> None:
        """ids int64 (K, L), audio_mask bool (L,); room for so many blocks of so many frames."""
        self.model, self.block, self.device = model, block, torch.device(device)
        rows, length = 1 + guided, ids.shape[1]
        self._cache = model.llm.new_cache(rows, length + blocks * block, self.device)
        self._waiting: Tensor | None = None     # the block that is committed and was not read yet
        row, column = self._cache.rows(0, 1), torch.arange(self._cache.capacity, device=self.device)
        embedded = model.embed(ids[None].to(self.device), audio_mask[None].to(self.device))
        self.hidden = model.llm(embedded, None, column[None, :length], row)[0]
        self._cache.rows(1, rows).pad(length)
        self._cache.length = length
        # The row without a context counts its frames from 0, and sees nothing that stands before them.
        begin = torch.tensor([0, length][:rows], device=self.device)[:, None]
        self._position = column - begin                                                     # (rows, columns)
        self._seen = (column >= begin)[:, None, None]                                       # (rows, 1, 1, columns)
        self._mask = additive(self._seen, model.dtype) if guided else None

    @property
    def length(self) -> int:
        """Columns of context and committed blocks."""
        return self._cache.length + (0 if self._waiting is None else self.block)

    def logits(self, semantic: Tensor) -> Tensor:
        """int64 (F,), mask ids where nothing is decided -> float32 (rows, F, V)"""
        return self.model.logits(self._look(self._masked(semantic), len(self._position)))

    def peek(self, semantic: Tensor) -> Tensor:
        """int64 (F,), all of them decided -> (F, D) of the row with the context"""
        return self._look(self._masked(semantic), 1)[0]

    def commit(self, codes: Tensor) -> None:
        """int64 (K, F), a decided block."""
        if self._waiting is not None:
            self._look(codes[:, :0], 1)
        self._waiting = codes.to(self.device, copy=True)

    def _masked(self, semantic: Tensor) -> Tensor:
        """int64 (F,) -> (K, F), the other codebooks being unknown"""
        codes = torch.full((NUM_CODEBOOKS, self.block), self.model.config.ids.mask)
        codes[0] = semantic
        return codes.to(self.device)

    def _look(self, codes: Tensor, rows: int) -> Tensor:
        """int64 (K, F) -> (rows, F, D), behind all that is committed; what waits is read first, in all rows"""
        codes, cache, mask = codes.to(self.device), self._cache, self._mask
        begin = kept = cache.length
        if self._waiting is not None:
            codes, kept, rows = torch.cat((self._waiting, codes), dim=1), begin + self.block, len(self._position)
        end = begin + codes.shape[1]
        if self._waiting is not None:
            # The block that waited does not see the one after it.
            seen = self._seen[..., :end].repeat(1, 1, codes.shape[1], 1)
            seen[:, :, : self.block, kept:] = False
            mask = additive(seen, self.model.dtype)
        elif rows < len(self._position):
            cache, mask = cache.rows(0, rows), None
        elif mask is not None:
            mask = mask[..., :end]
        x = self.model.embed_codes(codes[None]).expand(rows, -1, -1)
        hidden = self.model.llm(x, mask, self._position[:rows, begin:end], cache)
        cache.truncate(kept)
        self._waiting = None
        return hidden[:, -self.block :]


def blocks_cached(
    model: OmniFish, tok: Tokenizer, prompt_codes: Tensor | None, prompt_text: str | None, text: str, lang: str,
    block: int = 16, steps: int = 6, cfg: float = 1.5, temperature: float = 0.8, max_frames: int | None = None,
    seed: int = 0, before: Sequence[str] = (), after: Sequence[str] = (), speaker: str | None = None,
    quality: str | None = None, mtp_temperature: float = 0.0, mtp_top_k: int = 0, mtp_rounds: int = 4,
    full_context: bool = True, voices: Sequence[Voice] | None = None, min_frames: int = 0,
    semantic_left: Sequence[str | tuple] = (), mtp_prompt: bool = True, target_prefix: Tensor | None = None, *,
    on_block: OnProgress = _unwatched, on_step: OnProgress = _unwatched, device: torch.device | str = "auto",
) -> Iterator[tuple[Tensor, Tensor]]:
    """Speak ``text``; after each block, what there is so far: the semantic ids of all its frames, int64 (F,), with
    the end and what follows it, and the codes of those that sound, int64 (K, F'); both on the CPU.

    A model without a depth decoder gives its semantic codes alone, (1, F').

    prompt_codes, prompt_text: a voice to go on with, int64 (K, P), and what it says. speaker: one that the model
    knows, or "dialogue" for text by ``dialogue_text``. voices: who speaks in it, as (name, transcript, codes).
    before, after: sentences around the text that nobody speaks; of the former, none with ``semantic_left``: lines
    of a scene that were spoken before. max_frames: at which the speech is cut, at the end of a block; by the
    length of the text where it is None. target_prefix: codes (K, F) that the speech begins with, of which whole
    blocks count; they are part of ``max_frames`` and of what is given. mtp_prompt: the depth decoder sees the
    voice. seed: any integer modulo 2**64. on_block and on_step may raise to cancel.

    ``ValueError`` for what cannot be, at once and not only when the first block is asked for.
    """
    setting = Setting(block, steps, cfg, temperature, min_frames, mtp_temperature, mtp_top_k, mtp_rounds, full_context)
    device = next(model.parameters()).device if device in (None, "auto") else torch.device(device)
    ids = model.config.ids
    scene = context(tok, text, lang, prompt_codes, prompt_text, before, after, speaker, quality, voices, semantic_left,
                    ids)
    _check_text(model, scene)
    begun = torch.zeros(NUM_CODEBOOKS, 0, dtype=torch.int64)
    if target_prefix is not None:
        begun = _begun(model, target_prefix, block)
    most = _most(scene, text, block) if max_frames is None else max_frames
    if most <= begun.shape[1]:
        # Named as the node's inputs are.
        raise ValueError(f"max_seconds: room for {most} frames leaves nothing to speak after the {begun.shape[1]} of "
                         "continue_from; give more, or a shorter beginning." if begun.shape[1] else
                         f"max_frames: {most} is not possible; give 1 or more.")
    return _speak(model, scene, begun, most, setting, int(seed) % 2**64, mtp_prompt, on_block, on_step, device)


def speech_frames(clean: Tensor, end: int = END_ID) -> int:
    """How many of the semantic ids (F,) sound: those before the first that ends the speech."""
    ends = (clean >= end).nonzero()
    return int(ends[0]) if len(ends) else len(clean)


@torch.no_grad()
def _speak(
    model: OmniFish, scene: Context, begun: Tensor, most: int, setting: Setting, seed: int, mtp_prompt: bool,
    on_block: OnProgress, on_step: OnProgress, device: torch.device,
) -> Iterator[tuple[Tensor, Tensor]]:
    block, ids, rng = setting.block, model.config.ids, generator(seed)
    blocks, first = -(-most // block), begun.shape[1] // block
    stream = Stream(model, scene.ids, scene.audio_mask, block, blocks, setting.cfg > 0, device)
    prompt = scene.prompt if mtp_prompt else scene.prompt[:, :0]
    depth = None if model.mtp is None else _Depth(model, stream, prompt, most + block, setting, seed)
    begun = begun if depth else begun[:1]
    for codes in begun.split(block, dim=1) if first else ():
        if depth:
            depth.take(codes, stream.peek(codes[0]))
        stream.commit(_known(codes, setting, ids.mask))
    clean, codes = begun[0], begun
    for number in range(first, blocks):
        def told(done: int, number: int = number) -> None:
            on_step((number - first) * setting.steps + done, (blocks - first) * setting.steps)

        semantic = _decide(stream, number * block, setting, rng, told)
        clean, speech = torch.cat((clean, semantic)), speech_frames(semantic, ids.end)
        whole = semantic.expand(len(codes), -1)
        if depth and speech:
            whole = depth.decode(semantic[:speech], stream.peek(semantic)[:speech])
        codes = torch.cat((codes, whole[:, :speech].cpu()), dim=1)
        on_block(number - first + 1, blocks - first)
        yield clean, codes
        if speech < block:
            return
        stream.commit(_known(whole, setting, ids.mask))


def _decide(stream: Stream, lo: int, setting: Setting, rng: torch.Generator, on_step: Callable[[int], None]) -> Tensor:
    """int64 (F,) on the CPU, the semantic ids of the block that begins with frame ``lo``."""
    ids, rows = stream.model.config.ids, stream.model.config.codebook_rows
    semantic = torch.full((setting.block,), ids.mask)
    waiting = torch.ones(setting.block, dtype=torch.bool)
    for step, count in enumerate(schedule(setting.block, setting.steps), 1):
        # A step that decides nothing draws all the same, so that the steps after it draw what they always did.
        scores = stream.logits(semantic) if count else None
        times = race(setting.block, rows, rng) if setting.temperature > 0 else None
        if scores is not None:
            guided = scores[0] + setting.cfg * (scores[0] - scores[1]) if setting.cfg > 0 else scores[0]
            guided[:, ids.mask] = -math.inf
            guided[: max(0, setting.min_frames - lo), ids.end :] = -math.inf
            drawn, chance = draw(guided, setting.temperature, None if times is None else times.to(guided.device))
            # One transfer; a float32 has room for every id.
            drawn, chance = torch.stack((drawn.float(), chance)).cpu()
            if not chance.isfinite().all():
                raise ValueError(f"model: its scores for the frames {lo} to {lo + setting.block - 1} are NaN or "
                                 "infinite, so that nothing can be drawn. Load it in fp32 or bf16, and check its file.")
            # Which of equals are taken is up to topk, here and wherever the device is.
            surest = chance.masked_fill(~waiting, -1).topk(count).indices
            semantic[surest] = drawn[surest].long()
            waiting[surest] = False
        on_step(step)
    return semantic


class _Depth:
    """The state of the depth decoder: codes and backbone states of the prompt, then of all frames so far."""

    def __init__(self, model: OmniFish, stream: Stream, prompt: Tensor, room: int, setting: Setting, seed: int) -> None:
        self.mtp, self.setting, self.prefix = model.mtp, setting, prompt.shape[1]
        self.end = self.prefix
        self.state = self.mtp.new_state(
            self.prefix + room, model.llm.config.hidden_size, stream.device, getattr(self.mtp, "dtype", torch.float32))
        self.state["seed"] = seed
        if self.prefix:
            self.end = 0
            self.take(prompt.to(stream.device), stream.hidden[-self.prefix :])
            self.mtp.prime(self.state, self.prefix)

    def take(self, codes: Tensor, hidden: Tensor) -> None:
        """int64 (K or 1, F), (F, D) of the next frames"""
        begin, self.end = self.end, self.end + codes.shape[1]
        self.state["codes"][: len(codes), begin : self.end] = codes.to(self.state["codes"].device)
        self.state["states"][0][0, begin : self.end] = hidden.to(self.state["states"][0].dtype)

    def decode(self, semantic: Tensor, hidden: Tensor) -> Tensor:
        """int64 (F,), (F, D) of the next frames -> their codes, int64 (K, F)"""
        lo, setting = self.end, self.setting
        self.take(semantic[None], hidden)
        self.mtp.decode_block(self.state, lo, self.end, setting.block, setting.mtp_rounds, setting.mtp_temperature,
                              setting.mtp_top_k, prefix=self.prefix)
        return self.state["codes"][:, lo : self.end]


def _known(codes: Tensor, setting: Setting, mask: int) -> Tensor:
    """int64 (K or 1, F) -> (K, F), what later blocks see of a block"""
    if setting.full_context and len(codes) == NUM_CODEBOOKS:
        return codes
    known = codes.new_full((NUM_CODEBOOKS, codes.shape[1]), mask)
    known[0] = codes[0]
    return known


def _begun(model: OmniFish, target_prefix: Tensor, block: int) -> Tensor:
    """int64 (K, F), the whole blocks of it; without a depth decoder it may have its semantic codes alone."""
    if model.mtp is None and target_prefix.ndim == 2 and len(target_prefix) == 1:
        target_prefix = torch.cat((target_prefix, target_prefix.new_zeros(NUM_CODEBOOKS - 1, target_prefix.shape[1])))
    codes = checked_codes(target_prefix, "continue_from", model.config.ids)
    return codes[:, : codes.shape[1] // block * block]


def _most(scene: Context, text: str, block: int) -> int:
    """Frames at which a speech is cut that finds no end: twice what the text should take, and two blocks."""
    return int(2 * (scene.pace or FRAMES_PER_CHARACTER) * len(text)) + 2 * block


def _check_text(model: OmniFish, scene: Context) -> None:
    """A tokenizer of another model knows more ids than the table has rows, and a GPU would not survive that."""
    text, rows = scene.ids[0][~scene.audio_mask], model.config.backbone.text_rows
    if not 0 <= int(text.min()) <= int(text.max()) < rows:
        raise ValueError(f"text: ids {int(text.min())} to {int(text.max())} are not in {TEXT_TABLE}, which has {rows} "
                         "rows; take the tokenizer that belongs to the model.")
