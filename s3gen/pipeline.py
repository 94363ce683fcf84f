"""From what the nodes hold to audio: ``tokenize`` a source, ``read_voice`` a reference, ``speak``.

``speak`` is the whole way from tokens to wave; how pieces and rows follow each other, and how long ones are
spoken in windows, is told in ``pieces``.
"""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..audio import Clip, resample
from ..wires import Piece, SpeechTokens
from . import generate, pieces, sampling
from .encoder import UPSAMPLING
from .features import RATE_16K_HZ
from .generate import OnStep
from .inputs import guidance_weight, step_count
from .model import S3Token2Wav, fade_in
from .reference import embed
from .speaker import CAMPPlus
from .tokenizer import S3Tokenizer
from .vocoder import CONTEXT_FRAMES, HARMONICS, HOP_SAMPLES, SAMPLE_RATE_HZ

TOKENS_PER_SECOND = 25
SECONDS_PER_TOKEN = 1 / TOKENS_PER_SECOND
SEGMENT_FRAMES = 1500       # mel frames that are vocoded at once, 30 s

StartNoise = Callable[[int, int, int], Tensor]      # (mels, frames, seed) -> (mels, frames)

# Reckoned from the tensors of the full-size model that are alive at once, with room to spare; not measured.
READING_BYTES = 512 * 2**20     # of a window of 30 s in the tokenizer
SCORE_BYTES = 200               # of the encoder's attention, for each pair of frames
FRAME_BYTES = 100_000           # of the estimator, for each frame
VOCODER_FRAME_BYTES = 400_000   # for each frame


def tokenize(tokenizer: S3Tokenizer, clip: Clip, device: torch.device, on_window: OnStep | None = None) -> Tensor:
    """What is said in a clip of any length: int64 (1, F) ids at 25 per second, on the CPU.

    ``ValueError`` for less than one token, 40 ms.
    """
    wave = resample(clip.wave, clip.rate_hz, RATE_16K_HZ)
    return tokenizer.encode(wave, on_window, device)[None]


@torch.no_grad()
def read_voice(tokenizer: S3Tokenizer, speaker: CAMPPlus, clip: Clip, device: torch.device) -> dict:
    """A reference as ``S3Token2Wav.embed_ref`` reads it, on the CPU. Beyond 10 s it is cut at a pause."""
    voice = embed(tokenizer, speaker, pieces.shorten(clip), clip.rate_hz, device)
    return {name: entry.cpu() if torch.is_tensor(entry) else entry for name, entry in voice.items()}


def speak(
    model: S3Token2Wav, tokens: SpeechTokens, voice: pieces.Voices, *, seed: int, steps: int = 0,
    guidance: float = generate.GUIDANCE, fade_ms: float = 0.0, device: torch.device | str = "auto",
    on_step: OnStep | None = None, start_noise: StartNoise | None = None, fades_in: bool = True,
) -> list[Tensor]:
    """Say every row of ``tokens`` with voices of ``read_voice``; (T,) float32 at 24 kHz each, on the CPU.

    voice: that of all pieces, or a function from a piece to its own. start_noise, fades_in: what CosyVoice2
    does otherwise, see ``cosyvoice2``. Row i begins with ``seed + i``, and each further piece of it adds 1; but with
    a ``start_noise`` and seed 0 every piece has seed 0, whose noise is that of the published model. steps: of the
    flow, 0 for the checkpoint's own number. fade_ms: how long pieces fade where they meet.
    ``on_step(done, total)`` counts the flow's steps over all pieces, is called between the vocoder's segments
    too, and may raise to cancel.
    """
    steps = step_count(steps, generate.default_steps(model.flow.decoder.estimator), "steps")
    guidance = guidance_weight(guidance, "cfg")

    def say(piece: Piece, own_seed: int, after_silence: bool, advance: Callable[[int], None]) -> Tensor:
        own_seed = own_seed if seed or start_noise is None else 0
        mel = _mel(model, piece.ids[0], pieces.own(voice, piece), own_seed, steps, guidance, device,
                   lambda *_: advance(1), start_noise)
        wave = _vocode(model, mel, own_seed, device, lambda: advance(0))
        # Within a sentence the joint has a fade of its own, and 20 ms of nothing would be heard.
        return (fade_in(wave) if after_silence and fades_in else wave)[0].cpu()

    return pieces.speak(tokens, say, seed, steps, SAMPLE_RATE_HZ, fade_ms, on_step)


def working_bytes(tokens: SpeechTokens, voice: pieces.Voices) -> int:
    """About how much memory ``speak`` needs beside the weights, for the longest piece."""
    spoken, frames = pieces.longest(tokens, voice)
    return SCORE_BYTES * frames**2 + FRAME_BYTES * frames + VOCODER_FRAME_BYTES * min(spoken, SEGMENT_FRAMES)


def _mel(model, ids: Tensor, voice: dict, seed: int, steps: int, guidance: float, device, step,
         start_noise: StartNoise | None = None) -> Tensor:
    """Ids (N,) -> mel (1, M, 2N)"""
    prompt = UPSAMPLING * int(voice["prompt_token_len"][0])
    mels = model.config.estimator.mels

    def window(ids: Tensor, noise: Tensor) -> Tensor:
        return model.flow_inference(
            ids, ref_dict=voice, finalize=True, z=noise[None], n_cfm_timesteps=steps, guidance=guidance,
            on_step=step, device=device)

    frames = prompt + UPSAMPLING * len(ids)
    z = start_noise(mels, frames, seed) if start_noise else sampling.flow_noise(mels, frames, sampling.flow_rng(seed))
    return pieces.mel_in_windows(ids, z, window)


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
