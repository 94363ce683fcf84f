"""From what the nodes hold to audio: ``tokenize`` a source, ``read_voice`` a reference, ``speak``.

``speak`` is the whole way from tokens to wave: the flow makes a mel, the vocoder a wave of it. Pieces, rows and
windows are S3Gen's (``s3gen.pieces``), and so is ``tokenize``; what differs is told here.
"""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..audio import Clip
from ..s3gen import inputs, pieces, reference
from ..s3gen.encoder import UPSAMPLING
from ..s3gen.features import RATE_24K_HZ, fbank, mel_24k
from ..s3gen.generate import BASE_STEPS, GUIDANCE, OnStep
from ..s3gen.pipeline import READING_BYTES, SAMPLE_RATE_HZ, SECONDS_PER_TOKEN, TOKENS_PER_SECOND, tokenize
from ..s3gen.speaker import CAMPPlus
from ..s3gen.tokenizer import S3Tokenizer
from ..wires import Piece, SpeechTokens
from .flow import MelFlow, mels, start_noise
from .vocoder import SEGMENT_FRAMES, CausalHiFT

__all__ = ["READING_BYTES", "SAMPLE_RATE_HZ", "SECONDS_PER_TOKEN", "TOKENS_PER_SECOND", "read_voice", "speak",
           "tokenize", "working_bytes"]

MEL_TOP_HZ = RATE_24K_HZ / 2    # of the voice's mel, which in S3Gen ends at 8 kHz

# Reckoned from the tensors of the full-size model that are alive at once, with room to spare; not measured.
SCORE_BYTES = 128               # of attention that no fused kernel serves: 16 heads, two rows, for a pair of frames
FRAME_BYTES = 100_000           # of the transformer, for each frame
VOCODER_FRAME_BYTES = 400_000   # for each frame of a segment

# On a CPU torch keeps how it computes each layer at each length, for a thousand of them: a long text, whose pieces all
# differ, would take a gigabyte. So there the vocoder's segments are short, and of two lengths, and the flow sees
# silence behind the last token.
CPU_SEGMENT_FRAMES = 256
CPU_TOKENS = 64


class Token2Wav(nn.Module):
    """The flow and the vocoder, which are moved together."""

    def __init__(self, flow: MelFlow, vocoder: CausalHiFT):
        super().__init__()
        self.flow, self.vocoder = flow, vocoder


@torch.no_grad()
def read_voice(tokenizer: S3Tokenizer, speaker_encoder: CAMPPlus, clip: Clip, device: torch.device) -> dict:
    """A reference as the flow takes it, on the CPU; entries as of ``s3gen.reference.entries``.

    Beyond 10 s it is cut at a pause. All is read of the whole recording, and then tokens and mel are cut to as
    many as both have: each token stands for two frames.
    """
    at_24k, at_16k = reference.both_rates(pieces.shorten(clip), clip.rate_hz, "voice")
    ids, mel = tokenizer.encode(at_16k, device=device), mel_24k(at_24k[None], MEL_TOP_HZ)
    count = min(len(ids), mel.shape[2] // UPSAMPLING)
    embedding = speaker_encoder(fbank(at_16k)[None].to(device))
    return reference.entries(ids[None, :count], mel[:, :, : UPSAMPLING * count], embedding, torch.device("cpu"))


def speak(
    model: Token2Wav, tokens: SpeechTokens, voice: pieces.Voices, *, steps: int = 0,
    guidance: float = GUIDANCE, seed: int = 0, fade_ms: float = 0.0, device: torch.device | str = "auto",
    on_step: OnStep | None = None,
) -> list[Tensor]:
    """Say every row of ``tokens`` with voices of ``read_voice``; (T,) float32 at 24 kHz each, on the CPU.

    voice: that of all pieces, or a function from a piece to its own. seed: with 0 every piece starts from the
    noise of the published model. With another, row i begins with ``seed + i``, and each further piece of it adds
    1. steps: of the flow, 0 for the published number. fade_ms: how long pieces fade where they meet.
    ``on_step(done, total)`` counts the flow's steps over all pieces, is
    called between the vocoder's segments too, and may raise to cancel.
    """
    flow, vocoder = model.flow, model.vocoder
    device = flow.on(device)
    steps, guidance = inputs.step_count(steps, BASE_STEPS, "steps"), inputs.guidance_weight(guidance, "cfg")
    schedule = flow.schedule(steps, device)

    on_cpu = device.type == "cpu"

    def say(piece: Piece, own_seed: int, _: bool, advance: Callable[[int], None]) -> Tensor:
        own_seed = own_seed if seed else 0
        speaker, = inputs.voices(pieces.own(voice, piece), 1, flow.vocabulary, device)

        def window(ids: Tensor, noise: Tensor) -> Tensor:
            return mels(flow, [ids], [speaker], [noise], schedule=schedule, guidance=guidance,
                        on_step=lambda *_: advance(1), device=device, even=CPU_TOKENS if on_cpu else 1)[0][None]

        ids = piece.ids[0]
        z = start_noise(flow.config.mels, len(speaker[1]) + UPSAMPLING * len(ids), own_seed)
        mel = pieces.mel_in_windows(ids, z, window)
        segments = {"segment": CPU_SEGMENT_FRAMES, "even": True} if on_cpu else {}
        return vocoder(mel, seed=own_seed, on_segment=lambda: advance(0), **segments)[0].cpu()

    return pieces.speak(tokens, say, seed, steps, SAMPLE_RATE_HZ, fade_ms, on_step)


def working_bytes(tokens: SpeechTokens, voice: pieces.Voices) -> int:
    """About how much memory ``speak`` needs beside the weights, for the longest piece."""
    spoken, frames = pieces.longest(tokens, voice)
    return SCORE_BYTES * frames**2 + FRAME_BYTES * frames + VOCODER_FRAME_BYTES * min(spoken, SEGMENT_FRAMES)
