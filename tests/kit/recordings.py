"""Voice files as users have them, made with PyAV."""
from __future__ import annotations

import io
import struct
from pathlib import Path

import av
import numpy as np
import torch
from torch import Tensor

from .audio import tone

RATE_HZ = 24_000        # of ``speech``

# Suffix -> container and codec, of those that every build of FFmpeg has. Its own Vorbis knows stereo alone.
KINDS = {".wav": ("wav", "pcm_s16le"), ".flac": ("flac", "flac"), ".mp3": ("mp3", "libmp3lame"),
         ".ogg": ("ogg", "vorbis"), ".opus": ("ogg", "libopus"), ".m4a": ("ipod", "aac")}


def speech(seconds: float = 1.0, rate_hz: int = RATE_HZ, seed: int = 0) -> Tensor:
    """(T,), a tone with noise."""
    rng = torch.Generator().manual_seed(seed)
    return tone(150, seconds, rate_hz, 0.3) + 0.02 * torch.randn(round(seconds * rate_hz), generator=rng)


def encoded(wave: Tensor, rate_hz: int, container: str, codec: str, **options: str) -> bytes:
    """A file of (T,) or (C, T) floats; options are the container's."""
    wave = wave if wave.ndim == 2 else wave.expand(2 if codec == "vorbis" else 1, -1)
    layout = {1: "mono", 2: "stereo"}[wave.shape[0]]
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container, options=options) as file:
        stream = file.add_stream(codec, rate=rate_hz, layout=layout, options={"strict": "experimental"})
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(wave.numpy()), format="fltp", layout=layout)
        frame.sample_rate = rate_hz
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return buffer.getvalue()


def wav(samples: bytes, rate_hz: int, channels: int, bits: int, form: int = 1) -> bytes:
    """A WAV file around raw samples; form 1 holds integers, 3 floats."""
    block = channels * bits // 8
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(samples), b"WAVE", b"fmt ", 16, form, channels, rate_hz,
                       rate_hz * block, block, bits, b"data", len(samples))
    return head + samples


def put(folder: Path, name: str, wave: Tensor, rate_hz: int = 24_000, words: str | bytes | None = None) -> Path:
    """A recording of the kind that its suffix says, and ``NAME.txt`` beside it unless ``words`` is None."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(wave, rate_hz, *KINDS[path.suffix.lower()]))
    if words is not None:
        path.with_name(path.stem + ".txt").write_bytes(words.encode() if isinstance(words, str) else words)
    return path
