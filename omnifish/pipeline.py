"""From what the nodes hold to audio: ``write`` a prompt, ``sample`` it block by block, ``decode`` its codes.

A text is spoken in pieces, each of which sees its neighbours' words without speaking them; a scene with several
voices is spoken at once, since they belong to what the model sees.
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .. import script
from ..audio import Clip, join_row, resample
from ..request import Request, Turn, turns
from ..text import clean, speakable, split
from ..wires import PromptPiece, SpeechTokens, Voice
from .codec import FishCodec
from .codec_config import FRAME_SAMPLES, SAMPLE_RATE_HZ
from .generate import blocks_cached, speech_frames
from .markup import dialogue_text
from .model import OmniFish
from .prompt import DIALOGUE as SCENE
from .tokenizer import TextTokenizer

FRAMES_PER_SECOND = SAMPLE_RATE_HZ / FRAME_SAMPLES
LANGUAGES = ("en", "pl", "es", "de", "ru", "fr", "pt", "it")
PIECE_CHARACTERS = 300          # that are spoken at once, about 20 s
CONTEXT_CHARACTERS = 120        # of a neighbour's sentence
CONTEXT_SENTENCES = 2           # on each side, as in training
PIECE_PROGRESS = 1000           # that a piece counts for, as nobody knows when it will end
RETRY_SEED = 0x9E3779B97F4A7C15     # added to the seed of a piece that said nothing

OnProgress = Callable[[int, int], None]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Scene:
    """One piece as ``blocks_cached`` takes it."""

    text: str               # words, or what ``dialogue_text`` made
    lang: str
    prompt_codes: Tensor | None = None
    prompt_text: str | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    speaker: str | None = None
    quality: str | None = None
    voices: tuple[tuple[str, str, Tensor], ...] | None = None


@dataclass(frozen=True)
class Options:
    """How blocks are drawn; the defaults are the published ones."""

    steps: int = 6
    cfg: float = 1.5
    temperature: float = 0.8
    max_seconds: float = 0.0        # 0: twice what the text should take
    block: int = 16
    min_seconds: float = 0.0
    mtp_rounds: int = 4
    mtp_temperature: float = 0.0
    mtp_top_k: int = 0
    full_context: bool = True


@dataclass(frozen=True, eq=False)
class Take:
    """What one piece became: codes int64 (K, F) on the CPU, and whether the model ended it by itself."""

    codes: Tensor
    ended: bool
    retries: int


def encode_voice(codec: FishCodec, clip: Clip, device: torch.device, on_chunk: OnProgress | None = None) -> Tensor:
    """A recording of any length as codes int64 (K, F), 21.5 frames a second, on the CPU."""
    wave = resample(clip.wave, clip.rate_hz, SAMPLE_RATE_HZ)
    with torch.no_grad():
        return codec.encode(wave[None], on_chunk, device=device)[0]


def write(request: Request, hear: Callable[[Voice], Tensor]) -> tuple[list[PromptPiece], str]:
    """A text or a script as the voices speak it, in pieces, and who speaks which, line by line.

    hear: the codes (K, F) of a voice. ``ValueError`` for a text that cannot be spoken, and for wishes that this
    family does not know.
    """
    _check(request)
    found = turns(request)
    if found is not None:
        return _scenes(request, found, hear)
    return _texts(request, clean(request.text), request.voices[0] if request.voices else None, hear)


def _check(request: Request) -> None:
    if request.language and request.language not in LANGUAGES:
        raise ValueError(f"language: {request.language!r} is not one of {', '.join(LANGUAGES)}, which OGG TTS speaks.")
    if request.method != "auto":
        raise ValueError(f"method: {request.method!r} is CosyVoice's; OGG TTS knows one, choose auto.")
    if speakable(request.instruction):
        raise ValueError("instruction: OGG TTS follows none; leave it empty, and write tags into the text.")


def _texts(
    request: Request, text: str, voice: Voice | None, hear: Callable[[Voice], Tensor],
) -> tuple[list[PromptPiece], str]:
    """One voice, or none, says all of it."""
    limit = request.limit or PIECE_CHARACTERS
    said: list[tuple[str, float]] = []
    lead_s = 0.0
    for part, pause_s in script.pauses(text):
        if not part:
            lead_s += pause_s
            continue
        parts = [" ".join(part.split())] if request.whole else [
            " ".join(piece.split()) for piece in split(part, limit, len) if speakable(piece)]
        said += [(piece, 0.0) for piece in parts[:-1]] + [(parts[-1], pause_s)]
    if not said:
        raise ValueError("text: nothing but pauses; write what is to be said." if text.strip() else
                         "text: empty; write what is to be said.")
    scene = Scene("", request.language or LANGUAGES[0], speaker=request.speaker or None,
                  quality=request.quality or None)
    if voice is not None:
        if not speakable(voice.transcript):
            logger.warning("The voice %r has no transcript; OGG TTS follows a voice better that has one.", voice.name)
        scene = replace(scene, prompt_codes=hear(voice), prompt_text=clean(voice.transcript).strip() or None)
    words = [piece for piece, _ in said]
    pieces = []
    for index, (piece, pause_s) in enumerate(said):
        before = _sentences(words[index - 1] if index else clean(request.before))[-CONTEXT_SENTENCES:]
        after = _sentences(words[index + 1] if index + 1 < len(words) else clean(request.after))[:CONTEXT_SENTENCES]
        pieces.append(PromptPiece(piece, replace(scene, text=piece, before=before, after=after), pause_s, voice,
                                  0.0 if index else lead_s))
    who = voice.name if voice else request.speaker or "a voice of the model"
    return pieces, "\n".join(f"{number}. {who}: {piece.text}" for number, piece in enumerate(pieces, 1))


def _scenes(
    request: Request, found: list[Turn], hear: Callable[[Voice], Tensor],
) -> tuple[list[PromptPiece], str]:
    """Turns of several voices are one scene, up to the next pause."""
    voices = request.voices
    scenes: list[tuple[list[tuple[str, str]], float]] = [([], 0.0)]
    lead_s = 0.0
    for turn in found:
        for part, pause_s in script.pauses(turn.words):
            if part:
                scenes[-1][0].append((turn.name, " ".join(part.split())))
            elif not scenes[-1][0]:
                lead_s += pause_s
                continue
            if pause_s:
                scenes[-1] = (scenes[-1][0], scenes[-1][1] + pause_s)
                scenes.append(([], 0.0))
    scenes = [scene for scene in scenes if scene[0]]
    cast = tuple((voice.name, clean(voice.transcript).strip(), hear(voice)) for voice in voices) or None
    pieces = []
    for index, (lines, pause_s) in enumerate(scenes):
        before = _sentences(clean(request.before)) if not index else ()
        after = _sentences(clean(request.after)) if index + 1 == len(scenes) else ()
        content = Scene(dialogue_text(lines), request.language or LANGUAGES[0], before=before, after=after,
                        speaker=None if cast else SCENE, quality=request.quality or None, voices=cast)
        spoken = " ".join(f"{name}: {words}" for name, words in lines)
        pieces.append(PromptPiece(spoken, content, pause_s, voices[0] if voices else None, 0.0 if index else lead_s))
    return pieces, "\n".join(f"{number}. {piece.text}" for number, piece in enumerate(pieces, 1))


def _sentences(text: str) -> tuple[str, ...]:
    """The sentences of a neighbour, of which long ones come in parts."""
    return tuple(" ".join(part.split()) for part in split(text, CONTEXT_CHARACTERS, len) if speakable(part)) \
        if speakable(text) else ()


def sample(
    model: OmniFish, tok: TextTokenizer, pieces: Sequence[PromptPiece], seed: int, options: Options | None = None,
    beginning: Tensor | None = None, on_progress: OnProgress | None = None, device: torch.device | str = "auto",
) -> list[Take]:
    """Speak every piece, piece i with ``seed + i``.

    beginning: codes (K, F) that the one piece goes on from, and that its result begins with. on_progress: called
    at every step with what is done of what may be to do, and may raise to cancel. ``ValueError`` where nothing
    was said, twice.
    """
    options = options or Options()
    if beginning is not None and len(pieces) != 1:
        raise ValueError(f"continue_from: the prompt has {len(pieces)} pieces, and one can go on from a beginning; "
                         "switch `keep_whole` on in Encode Speech Prompt, or shorten the text.")
    takes = [_speak(model, tok, piece, index, len(pieces), seed + index, options, beginning, on_progress, device)
             for index, piece in enumerate(pieces)]
    if on_progress is not None:
        on_progress(len(pieces) * PIECE_PROGRESS, len(pieces) * PIECE_PROGRESS)
    return takes


def _speak(model, tok, piece: PromptPiece, index: int, count: int, seed: int, options: Options, beginning, on_progress,
           device) -> Take:
    scene: Scene = piece.content
    most = round(options.max_seconds * FRAMES_PER_SECOND) or None

    def told(done: int, total: int) -> None:
        if on_progress is not None:
            on_progress(index * PIECE_PROGRESS + PIECE_PROGRESS * done // total, count * PIECE_PROGRESS)

    for retry in range(2):
        clean_ids = codes = None
        for clean_ids, codes in blocks_cached(  # noqa: B007, the last of them counts
                model, tok, scene.prompt_codes, scene.prompt_text, scene.text, scene.lang, options.block, options.steps,
                options.cfg, options.temperature, most, seed + retry * RETRY_SEED, scene.before, scene.after,
                scene.speaker, scene.quality, options.mtp_temperature, options.mtp_top_k, options.mtp_rounds,
                options.full_context, scene.voices, round(options.min_seconds * FRAMES_PER_SECOND),
                target_prefix=beginning, on_step=told, device=device):
            pass
        if codes is not None and codes.shape[1]:
            ended = speech_frames(clean_ids, model.config.ids.end) < len(clean_ids)
            if not ended:
                logger.warning("Piece %d of %d found no end in %.1f s and was cut there.", index + 1, count,
                               codes.shape[1] / FRAMES_PER_SECOND)
            return Take(codes, ended, retry)
        logger.warning("Piece %d of %d ended before its first frame with seed %d%s.", index + 1, count, seed,
                       "" if retry else "; it is drawn anew")
    raise ValueError(f"speech tokens: piece {index + 1} of {count} ended before its first frame with seed {seed}, "
                     "twice. Raise min_seconds, try another seed, or see whether the transcript is that of the "
                     "recording.")


def report(texts: Sequence[str], takes: Sequence[Take]) -> str:
    """A line for each piece: how long it is, how it ended, and what it took."""
    lines = []
    for number, (text, take) in enumerate(zip(texts, takes), 1):
        ended = "its end id" if take.ended else "its budget of frames"
        kind = "" if take.codes.shape[0] > 1 else ", semantic codes only"
        frames = take.codes.shape[1]
        lines.append(f"piece {number} of {len(takes)}: {frames} frames, {frames / FRAMES_PER_SECOND:.2f} s, ended by "
                     f"{ended}, {take.retries} retries{kind}: {text}")
    return "\n".join(lines)


def working_bytes(model_config, options: Options, pieces: Sequence[PromptPiece], itemsize: int) -> int:
    """About how much memory ``sample`` needs beside the weights, for the longest piece; reckoned, not measured."""
    backbone = model_config.backbone
    column = 2 * backbone.layers * backbone.kv_heads * backbone.head_width * itemsize
    columns = max(map(_columns, pieces)) + round(options.max_seconds * FRAMES_PER_SECOND)
    return 2 * columns * column + 2**28


def _columns(piece: PromptPiece) -> int:
    """Context and speech of a piece, in frames or characters."""
    scene: Scene = piece.content
    heard = [codes for _, _, codes in scene.voices or ()] + ([] if scene.prompt_codes is None else [scene.prompt_codes])
    return 4 * len(scene.text) + 1000 + sum(codes.shape[1] for codes in heard)


def decode(
    codec: FishCodec, tokens: SpeechTokens, *, fade_ms: float = 0.0, device: torch.device | str = "cpu",
    on_chunk: OnProgress | None = None,
) -> list[Tensor]:
    """Every row of codes as (T,) float32 at 44.1 kHz, on the CPU; its pieces joined, with their pauses."""
    total = sum(piece.ids.shape[1] for row in tokens.batch for piece in row)
    done = 0
    waves = []
    for row in tokens.batch:
        said = []
        for piece in row:
            def told(part: int, parts: int, before: int = done, frames: int = piece.ids.shape[1]) -> None:
                if on_chunk is not None:
                    on_chunk(before + frames * part // parts, total)

            with torch.no_grad():
                said.append(codec.decode(piece.ids[None], told, device=device)[0, 0].cpu())
            done += piece.ids.shape[1]
        waves.append(join_row(said, row, SAMPLE_RATE_HZ, fade_ms))
    return waves
