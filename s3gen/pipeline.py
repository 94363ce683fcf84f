"""From what the nodes hold to audio: ``tokenize`` a source, ``read_voice`` a reference, ``speak``.

``speak`` is the whole way from tokens to wave. The networks were trained on half a minute, and their
attention grows with the square of the length; a longer piece is spoken in windows of 30 s that share
4 s with their neighbours. The windows start from one noise, so that they agree where they overlap.
"""
from __future__ import annotations

import logging

import torch
import torch.nn.functional as F
from torch import Tensor

from ..audio import Clip, join, resample
from ..wires import Piece, SpeechTokens
from . import generate, sampling
from .encoder import UPSAMPLING
from .features import RATE_16K_HZ
from .generate import OnStep
from .inputs import step_count
from .model import S3Token2Wav, fade_in
from .reference import ADVISED_SECONDS
from .tokenizer import DROPPED_TOKENS, STRIDE_TOKENS, WINDOW_TOKENS
from .vocoder import CONTEXT_FRAMES, HARMONICS, HOP_SAMPLES, SAMPLE_RATE_HZ

TOKENS_PER_SECOND = 25
SECONDS_PER_TOKEN = 1 / TOKENS_PER_SECOND
SEGMENT_FRAMES = 1500       # mel frames that are vocoded at once, 30 s
SEAM_FRAMES = 8             # over which one window's mel fades into the next
TRIM_FROM_SECONDS = 8.0     # where the end of a long reference is looked for
STILL_MS = 20               # how long the stillest stretch is, at which it is cut

# Reckoned from the tensors of the full-size model that are alive at once, with room to spare; not measured.
READING_BYTES = 512 * 2**20     # of a window of 30 s in the tokenizer
SCORE_BYTES = 200               # of the encoder's attention, for each pair of frames
FRAME_BYTES = 100_000           # of the estimator, for each frame
VOCODER_FRAME_BYTES = 400_000   # for each frame

logger = logging.getLogger(__name__)


def tokenize(model: S3Token2Wav, clip: Clip, device: torch.device, on_window: OnStep | None = None) -> Tensor:
    """What is said in a clip of any length: int64 (1, F) ids at 25 per second, on the CPU.

    ``ValueError`` for less than one token, 40 ms.
    """
    wave = resample(clip.wave, clip.rate_hz, RATE_16K_HZ)
    return model.tokenizer.encode(wave, on_window, device)[None]


def read_voice(model: S3Token2Wav, clip: Clip, device: torch.device) -> dict:
    """A reference as ``S3Token2Wav.embed_ref`` reads it, on the CPU. Beyond 10 s it is cut at a pause."""
    wave = clip.wave
    if clip.seconds > ADVISED_SECONDS:
        wave = wave[: _still_sample(clip)]
        logger.warning("The voice is %.1f s long; its first %.1f s are used: the model was trained on up to %g s.",
                       clip.seconds, len(wave) / clip.rate_hz, ADVISED_SECONDS)
    voice = model.embed_ref(wave, clip.rate_hz, device)
    return {name: entry.cpu() if torch.is_tensor(entry) else entry for name, entry in voice.items()}


def _still_sample(clip: Clip) -> int:
    """The middle of the stillest 20 ms between 8 and 10 s."""
    start, end = int(TRIM_FROM_SECONDS * clip.rate_hz), int(ADVISED_SECONDS * clip.rate_hz)
    span = max(1, clip.rate_hz * STILL_MS // 1000)
    energy = F.avg_pool1d(clip.wave[start:end].square()[None], span, stride=max(1, span // 2))[0]
    return start + int(energy.argmin()) * max(1, span // 2) + span // 2


def speak(
    model: S3Token2Wav, tokens: SpeechTokens, voice: dict, *, seed: int, steps: int = 0,
    guidance: float = generate.GUIDANCE, fade_ms: float = 0.0, device: torch.device | str = "auto",
    on_step: OnStep | None = None,
) -> list[Tensor]:
    """Say every row of ``tokens`` with one voice of ``read_voice``; (T,) float32 at 24 kHz each, on the CPU.

    Row i begins with ``seed + i``, and each further piece of it adds 1. steps: of the flow, 0 for the
    checkpoint's own number. fade_ms: how long pieces fade where they meet. ``on_step(done, total)``
    counts the flow's steps over all pieces, is called between the vocoder's segments too, and may
    raise to cancel.
    """
    steps = step_count(steps, generate.default_steps(model.flow.decoder.estimator), "steps")
    total = steps * sum(len(_windows(piece.ids.shape[1])) for row in tokens.batch for piece in row)
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if on_step is not None:
            on_step(done, total)

    def say(piece: Piece, seed: int, after_silence: bool) -> Tensor:
        mel = _mel(model, piece.ids[0], voice, seed, steps, guidance, device, lambda *_: advance(1))
        wave = _vocode(model, mel, seed, device, lambda: advance(0))
        # Within a sentence the joint has a fade of its own, and 20 ms of nothing would be heard.
        return (fade_in(wave) if after_silence else wave)[0].cpu()

    waves = []
    for number, row in enumerate(tokens.batch):
        pauses = [piece.pause_s for piece in row]
        said = [say(piece, seed + number + index, index == 0 or pauses[index - 1] > 0)
                for index, piece in enumerate(row)]
        waves.append(join(said, pauses, SAMPLE_RATE_HZ, fade_ms))
    return waves


def working_bytes(tokens: SpeechTokens, voice: dict) -> int:
    """About how much memory ``speak`` needs beside the weights, for the longest piece."""
    longest = max(piece.ids.shape[1] for row in tokens.batch for piece in row)
    frames = UPSAMPLING * (min(longest, WINDOW_TOKENS) + int(voice["prompt_token_len"][0]))
    vocoded = min(UPSAMPLING * longest, SEGMENT_FRAMES)
    return SCORE_BYTES * frames**2 + FRAME_BYTES * frames + VOCODER_FRAME_BYTES * vocoded


def _windows(tokens: int) -> list[tuple[int, int]]:
    """The first and the last token (exclusive) of each window over a piece."""
    windows = [(0, min(tokens, WINDOW_TOKENS))]
    while windows[-1][1] < tokens:
        start = windows[-1][0] + STRIDE_TOKENS
        windows.append((start, min(tokens, start + WINDOW_TOKENS)))
    return windows


def _mel(model, ids: Tensor, voice: dict, seed: int, steps: int, guidance: float, device, step) -> Tensor:
    """Ids (N,) -> mel (1, M, 2N)"""
    prompt = UPSAMPLING * int(voice["prompt_token_len"][0])
    mels = model.config.estimator.mels
    z = sampling.flow_noise(mels, prompt + UPSAMPLING * len(ids), sampling.flow_rng(seed))
    mel = None
    for start, end in _windows(len(ids)):
        noise = torch.cat((z[:, :prompt], z[:, prompt + UPSAMPLING * start : prompt + UPSAMPLING * end]), dim=1)
        window = model.flow_inference(
            ids[start:end], ref_dict=voice, finalize=True, z=noise[None], n_cfm_timesteps=steps,
            guidance=guidance, on_step=step, device=device)
        mel = window if mel is None else _splice(mel, window, UPSAMPLING * start)
    return mel


def _splice(mel: Tensor, window: Tensor, start: int) -> Tensor:
    """Go over from ``mel`` (1, M, F) to ``window``, whose first frame stands at ``start``, amid their overlap."""
    seam = start + UPSAMPLING * DROPPED_TOKENS
    fade = torch.linspace(0, 1, SEAM_FRAMES, device=mel.device)
    after = window[:, :, seam - start :]
    met = torch.lerp(mel[:, :, seam : seam + SEAM_FRAMES], after[:, :, :SEAM_FRAMES], fade)
    return torch.cat((mel[:, :, :seam], met, after[:, :, SEAM_FRAMES:]), dim=2)


def _vocode(model, mel: Tensor, seed: int, device, pause) -> Tensor:
    """Mel (1, M, F) -> (1, 480 F), a segment at a time.

    A segment is decoded with as many frames beside it as can reach it, so that the pieces equal the
    whole. The harmonics go on in the phase in which the segment before left them.
    """
    frames = mel.shape[2]
    if frames <= SEGMENT_FRAMES:
        pause()
        return model.hift_inference(mel, seed=seed, device=device)[0]
    rng = sampling.vocoder_rng(seed)
    phase = sampling.start_phase(HARMONICS, rng)[None].to(mel)
    phase[:, 0] = 0
    vocoder, sources, waves = model.mel2wav, [], []
    segments = [(start, min(frames, start + SEGMENT_FRAMES)) for start in range(0, frames, SEGMENT_FRAMES)]
    for start, end in segments:
        left = max(0, start - CONTEXT_FRAMES)
        f0 = vocoder.pitch(mel[:, :, left : end + CONTEXT_FRAMES])[:, start - left : end - left]
        noise = sampling.source_noise(HARMONICS, HOP_SAMPLES * (end - start), rng)[None].to(mel)
        source, phase = vocoder.source(f0, phase, noise), vocoder.advance(f0, phase)
        sources.append(source)
    source = torch.cat(sources, dim=2)
    for start, end in segments:
        pause()
        left, right = max(0, start - CONTEXT_FRAMES), end + CONTEXT_FRAMES
        wave = vocoder.decode(mel[:, :, left:right], source[:, :, HOP_SAMPLES * left : HOP_SAMPLES * right])
        waves.append(wave[:, HOP_SAMPLES * (start - left) : HOP_SAMPLES * (end - left)])
    return torch.cat(waves, dim=1)
