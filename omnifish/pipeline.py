"""From what the nodes hold to audio: ``write`` a prompt, ``sample`` it block by block, ``decode`` its codes.

A text is spoken in pieces, each of which sees its neighbours' words without speaking them. A scene with several
voices is spoken at once, since they belong to what the model sees; a long one in parts between turns, each of which
sees all voices, and its neighbours' words as a piece does.
"""
from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import torch
from torch import Tensor

from .. import repetition, script
from ..audio import Clip, join_row, resample
from ..request import DIALOGUE, SPEECH, Request, Turn, called, preview, turns
from ..text import clean, speakable, split
from ..wires import Piece, PromptPiece, SpeechTokens, Voice
from .codec import FishCodec
from .codec_config import FRAME_SAMPLES, SAMPLE_RATE_HZ
from .config import NUM_CODEBOOKS
from .generate import blocks_cached, speech_frames
from .markup import dialogue_text
from .model import OmniFish
from .prompt import DIALOGUE as SCENE
from .tokenizer import TextTokenizer

FRAMES_PER_SECOND = SAMPLE_RATE_HZ / FRAME_SAMPLES
LANGUAGES = ("en", "pl", "es", "de", "ru", "fr", "pt", "it")
PIECE_CHARACTERS = 300          # that are spoken at once, about 20 s
# OmniVoice, from which the model was trained, speaks no more than 30 s at once. Keys and values, for which there is
# room at twice that, then take half a gigabyte, and every block looks at all of them.
SCENE_CHARACTERS = 400          # of a scene, names included, about 30 s
CONTEXT_CHARACTERS = 120        # of a neighbour's sentence
CONTEXT_SENTENCES = 2           # on each side, as in training
MAX_STEPS = MAX_BLOCK = 64
MAX_SECONDS = 600.0             # of a piece, for all of which there is room from the start
PIECE_PROGRESS = 1000           # that a piece counts for, as nobody knows when it will end
ATTEMPTS = 2                    # at a piece that says nothing, or loops
RETRY_SEED = 0x9E3779B97F4A7C15     # added to its seed in the second
END, LOOP, BUDGET = "end", "loop", "budget"
ENDINGS = {END: "its end id", LOOP: "the stop rule against loops", BUDGET: "its budget of frames"}

OnProgress = Callable[[int, int], None]
Line = tuple[str, str]      # who speaks, and what

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
    stop_on_loop: bool = True       # end where semantic ids repeat, see ``repetition``

    def __post_init__(self) -> None:
        # Of the others ``blocks_cached`` knows the least; more of these would take all memory, and no end.
        limits = {"max_seconds": (0, MAX_SECONDS), "min_seconds": (0, MAX_SECONDS), "steps": (1, MAX_STEPS),
                  "block": (1, MAX_BLOCK), "mtp_rounds": (1, MAX_STEPS)}
        for name, (least, most) in limits.items():
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name}: {getattr(self, name)} is not possible; give {least} to {most:g}.")


@dataclass(frozen=True, eq=False)
class Take:
    """What one piece became: codes int64 (K, F) on the CPU.

    ended: "end" by the model itself, "loop" by the rule against loops, "budget" where its frames ran out. took:
    seconds for all attempts.
    """

    codes: Tensor
    ended: str
    retries: int = 0
    took: float = 0.0


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
        if request.speaker:
            raise ValueError(f"speaker: {request.speaker!r} speaks no dialogue, whose speakers are the voices or the "
                             f"model's own; leave it empty, or choose the mode {SPEECH}.")
        return _scenes(request, found, hear)
    return _texts(request, clean(request.text), request.voices[0] if request.voices else None, hear)


def _check(request: Request) -> None:
    if request.language and request.language not in LANGUAGES:
        raise ValueError(f"language: {request.language!r} is not one of {', '.join(LANGUAGES)}, which OGG TTS speaks.")
    if request.method != "auto":
        raise ValueError(f"method: {request.method!r} is CosyVoice's; OGG TTS knows one, choose auto.")
    if speakable(request.instruction):
        raise ValueError("instruction: OGG TTS follows none; leave it empty, and write tags into the text.")
    if request.speaker == SCENE:
        raise ValueError(f"speaker: {SCENE!r} is what the model is told of a script; choose the mode {DIALOGUE}.")


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
    who = called([voice])[0] if voice else request.speaker or "a voice of the model"
    return pieces, preview(pieces, [who] * len(pieces))


def _scenes(
    request: Request, found: list[Turn], hear: Callable[[Voice], Tensor],
) -> tuple[list[PromptPiece], str]:
    """Turns of several voices are one scene, up to the next pause or to what is spoken at once."""
    voices = request.voices
    scenes: list[tuple[list[Line], float]] = [([], 0.0)]
    lead_s = 0.0
    for turn in found:
        for part, pause_s in script.pauses(turn.words):
            if part:
                scenes[-1][0].append((turn.name, " ".join(part.split())))
            if not scenes[0][0]:
                lead_s += pause_s       # before all words
            elif pause_s:
                if scenes[-1][0]:
                    scenes.append(([], 0.0))
                scenes[-2] = (scenes[-2][0], scenes[-2][1] + pause_s)
    parts: list[tuple[list[Line], float]] = []
    for lines, pause_s in filter(itemgetter(0), scenes):
        *others, last = [lines] if request.whole else _parts(lines, request.limit or SCENE_CHARACTERS)
        parts += [*((other, 0.0) for other in others), (last, pause_s)]
    cast = tuple((name, clean(voice.transcript).strip(), hear(voice))
                 for name, voice in zip(called(voices), voices)) or None
    around = [_sentences(clean(request.before)), *(_heard(lines) for lines, _ in parts),
              _sentences(clean(request.after))]
    pieces = []
    for (lines, pause_s), before, after in zip(parts, around, around[2:]):
        content = Scene(dialogue_text(lines), request.language or LANGUAGES[0],
                        before=before[-CONTEXT_SENTENCES:], after=after[:CONTEXT_SENTENCES],
                        speaker=None if cast else SCENE, quality=request.quality or None, voices=cast)
        spoken = " ".join(f"{name}: {words}" for name, words in lines)
        pieces.append(PromptPiece(spoken, content, pause_s, voices[0] if voices else None, 0.0 if pieces else lead_s))
    return pieces, preview(pieces, [""] * len(pieces))


def _parts(lines: Sequence[Line], limit: int) -> list[list[Line]]:
    """A scene in parts of at most ``limit`` characters, between turns; a turn that has more goes on in the next."""
    parts: list[list[Line]] = []
    size = limit
    for name, words in lines:
        room = max(1, limit - len(name) - 2)
        for piece in filter(speakable, split(words, room, len)) if len(words) > room else [words]:
            piece = " ".join(piece.split())
            line = len(name) + 2 + len(piece)
            if size + 1 + line > limit:
                parts.append([])
                size = -1
            parts[-1].append((name, piece))
            size += 1 + line
    return parts


def _heard(lines: Sequence[Line]) -> tuple[str, ...]:
    """The sentences of a part, as its neighbours see them."""
    return tuple(sentence for _, words in lines for sentence in _sentences(words))


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
    was said, twice, or scores are unsound; it names the piece and tells of those that are done, as ``report`` does.
    """
    options = options or Options()
    if beginning is not None and len(pieces) != 1:
        raise ValueError(f"continue_from: the prompt has {len(pieces)} pieces, and one can go on from a beginning; "
                         "switch `keep_whole` on in Encode Speech Prompt, or shorten the text.")
    texts, takes, whole = [piece.text for piece in pieces], [], len(pieces) * PIECE_PROGRESS
    for index, piece in enumerate(pieces):
        reached = before = index * PIECE_PROGRESS

        def told(done: int, total: int, before: int = before) -> None:
            nonlocal reached
            reached = max(reached, before + PIECE_PROGRESS * done // total)     # the same again in a second attempt
            if on_progress is not None:
                on_progress(reached, whole)

        try:
            takes.append(_speak(model, tok, piece.content, f"piece {index + 1} of {len(pieces)}", seed + index, options,
                                beginning, told, device))
        except ValueError as error:
            if not takes:
                raise
            raise ValueError(f"{error}\nDone before it:\n{report(texts, takes)}") from error
    if on_progress is not None:
        on_progress(whole, whole)
    return takes


def _speak(model, tok, scene: Scene, name: str, seed: int, options: Options, beginning: Tensor | None,
           told: OnProgress, device) -> Take:
    """One piece, once more where it loops or nothing is said; ``ValueError`` where that is so again."""
    began, best = time.perf_counter(), None
    for retry in range(ATTEMPTS):
        take = _attempt(model, tok, scene, name, seed + retry * RETRY_SEED, options, beginning, told, device)
        spoken = take.codes.shape[1]
        # One copy of a loop is better than nothing at all.
        if spoken or best is None:
            best = replace(take, retries=retry)
        if spoken and take.ended != LOOP:
            break
        logger.warning("%s %s with seed %d%s.", name.capitalize(), f"fell into a loop after {spoken} frames"
                       if spoken else "ended before its first frame", seed,
                       "; it is drawn anew" if retry + 1 < ATTEMPTS else "")
    if not best.codes.shape[1]:
        raise ValueError(f"speech tokens: {name} ended before its first frame with seed {seed}, twice. Raise "
                         "min_seconds, try another seed, or see whether the transcript is that of the recording.")
    if best.ended == BUDGET:
        logger.warning("%s found no end in %.1f s and was cut there.", name.capitalize(),
                       best.codes.shape[1] / FRAMES_PER_SECOND)
    return replace(best, took=time.perf_counter() - began)


def _attempt(model, tok, scene: Scene, name: str, seed: int, options: Options, beginning: Tensor | None,
             told: OnProgress, device) -> Take:
    """A scene as far as it comes: to its end, into a loop, or to its last frame."""
    begun = 0 if beginning is None else beginning.shape[1] // options.block * options.block
    least, most = (round(seconds * FRAMES_PER_SECOND) for seconds in (options.min_seconds, options.max_seconds))
    blocks = blocks_cached(
        model, tok, scene.prompt_codes, scene.prompt_text, scene.text, scene.lang, options.block, options.steps,
        options.cfg, options.temperature, most or None, seed, scene.before, scene.after, scene.speaker, scene.quality,
        options.mtp_temperature, options.mtp_top_k, options.mtp_rounds, options.full_context, scene.voices, least,
        target_prefix=beginning, on_step=told, device=device)
    ended, said, codes = BUDGET, [], torch.zeros(NUM_CODEBOOKS, 0, dtype=torch.int64)
    try:
        for semantic, codes in blocks:  # noqa: B007, the last of them count
            spoken = speech_frames(semantic, model.config.ids.end)
            said = semantic[begun:spoken].tolist()
            if spoken < len(semantic):
                ended = END
            elif options.stop_on_loop and spoken > least and repetition.stop(said):
                ended = LOOP
                break
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if ended == BUDGET and options.stop_on_loop and len(said) > least:
        repetition.trim_at_budget(said)
    return Take(codes[:, : begun + len(said)], ended)


def report(texts: Sequence[str], takes: Sequence[Take]) -> str:
    """A line for each piece that is done: how long it is, how it ended, and what it took."""
    lines = []
    for number, (text, take) in enumerate(zip(texts, takes), 1):
        kind = "" if take.codes.shape[0] > 1 else ", semantic codes only"
        frames = take.codes.shape[1]
        lines.append(f"piece {number} of {len(texts)}: {frames} frames, {frames / FRAMES_PER_SECOND:.2f} s, ended by "
                     f"{ENDINGS[take.ended]}, {take.retries} retries{kind}: {text}")
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
    done, waves = 0, []
    for row in tokens.batch:

        def fill(index: int, room: Tensor, row: Sequence[Piece] = row) -> int:
            nonlocal done
            ids = row[index].ids
            frames, before = ids.shape[1], done

            def told(part: int, parts: int) -> None:
                if on_chunk is not None:
                    on_chunk(before + frames * part // parts, total)

            with torch.no_grad():
                codec.decode(ids[None], told, device=device, out=room[None, None, : FRAME_SAMPLES * frames])
            done += frames
            return FRAME_SAMPLES * frames

        most = FRAME_SAMPLES * sum(piece.ids.shape[1] for piece in row)
        waves.append(join_row(fill, row, most, SAMPLE_RATE_HZ, fade_ms))
    return waves
