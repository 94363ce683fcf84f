"""Audio as users send it: odd but fine, plainly wrong, and fine but without speech."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

RATE_HZ = 24_000


def tone(hz: float = 220.0, seconds: float = 1.0, rate_hz: int = RATE_HZ, level: float = 0.5) -> Tensor:
    """(T,) float32 sine."""
    time = torch.arange(round(seconds * rate_hz), dtype=torch.float64) / rate_hz
    return (level * torch.sin(2 * math.pi * hz * time)).float()


def speechlike(seconds: float, rate_hz: int = RATE_HZ, pitch_hz: float = 130.0) -> Tensor:
    """(T,) a buzz with a little noise."""
    time = torch.arange(int(seconds * rate_hz)) / rate_hz
    buzz = sum(torch.sin(2 * torch.pi * pitch_hz * k * time) / k for k in range(1, 9))
    noise = torch.randn(len(time), generator=torch.Generator().manual_seed(3))
    return 0.1 * buzz + 0.003 * noise


def audio(wave: Tensor, rate_hz: object = RATE_HZ) -> dict:
    """AUDIO of (T,), (C, T) or (B, C, T)."""
    return {"waveform": wave.reshape((1,) * (3 - wave.ndim) + tuple(wave.shape)), "sample_rate": rate_hz}


class LazyAudio(Mapping):
    """A mapping that decodes when it is read, as video loaders hand on; it can be indexed and nothing else.

    ``reads`` counts by key. ``error`` is raised in place of a value, as for a video without sound.
    """
    def __init__(self, values: dict, error: Exception | None = None) -> None:
        self.values_by_key, self.error, self.reads = values, error, dict.fromkeys(values, 0)

    def __getitem__(self, key: str) -> object:
        self.reads[key] += 1
        if self.error is not None:
            raise self.error
        return self.values_by_key[key]

    def __iter__(self) -> Iterator:
        raise AssertionError("a lazy mapping was iterated, which decodes the whole file")

    def __len__(self) -> int:
        raise AssertionError("a lazy mapping was asked for its length")


def good_audio(seconds: float = 1.0) -> dict[str, Mapping]:
    """One tone in many wrappings, each of which has to work."""
    wave = tone(seconds=seconds)
    wrapped = {
        "mono": audio(wave),
        "stereo": audio(wave.repeat(2, 1)),
        "six channels": audio(wave.repeat(6, 1)),
        "int16": audio((wave * 2**15).round().to(torch.int16)),
        "int32": audio((wave.double() * 2**31).round().to(torch.int32)),
        "uint8": audio((wave * 128 + 128).round().to(torch.uint8)),
        "float64": audio(wave.double()),
        "float16": audio(wave.half()),
        "bfloat16": audio(wave.bfloat16()),
        "transposed view": audio(wave.repeat(2, 1).T.contiguous().T),
        "expanded view": audio(wave.expand(2, -1)),
        "needs a gradient": audio(wave.clone().requires_grad_()),
        "rate 24000.0": audio(wave, float(RATE_HZ)),
        "rate of numpy": audio(wave, np.int64(RATE_HZ)),
        "rate of torch": audio(wave, torch.tensor(RATE_HZ)),
        "lazy mapping": LazyAudio(audio(wave)),
    }
    for rate_hz in (8_000, 16_000, 22_050, 44_100, 48_000, 96_000, 44_101):
        wrapped[f"{rate_hz} Hz"] = audio(tone(seconds=seconds, rate_hz=rate_hz), rate_hz)
    return wrapped


def _broken_at(index: int, value: float) -> Tensor:
    wave = tone()
    wave[index] = value
    return wave


# What is wrong -> a maker of it, and what the error has to say.
BAD_AUDIO: dict[str, tuple[Callable[[], object], str]] = {
    "nothing": (lambda: None, "no audio"),
    "a number": (lambda: 5, "expected AUDIO, got int"),
    "a tensor": (tone, "expected AUDIO, got Tensor"),
    "a latent": (lambda: {"samples": torch.zeros(1, 4, 8, 8)}, "no 'waveform', .* connect an AUDIO output"),
    "no rate": (lambda: {"waveform": torch.zeros(1, 1, 5)}, "no 'sample_rate', .* connect an AUDIO output"),
    "a list for a waveform": (lambda: {"waveform": [0.0], "sample_rate": RATE_HZ}, "of type list"),
    "rank 1": (lambda: {"waveform": tone(), "sample_rate": RATE_HZ}, r"got \(24000,\)"),
    "rank 2": (lambda: {"waveform": tone()[None], "sample_rate": RATE_HZ}, r"got \(1, 24000\)"),
    "rank 4": (lambda: {"waveform": tone()[None, None, None], "sample_rate": RATE_HZ}, "got"),
    "no rows": (lambda: audio(torch.zeros(0, 1, 5)), r"got \(0, 1, 5\)"),
    "no channels": (lambda: audio(torch.zeros(1, 0, 5)), r"got \(1, 0, 5\)"),
    "no samples": (lambda: audio(torch.zeros(0)), r"got \(1, 1, 0\)"),
    "NaN": (lambda: audio(_broken_at(7, math.nan)), "1 of 24000 samples are NaN or infinite"),
    "infinity": (lambda: audio(_broken_at(-1, -math.inf)), "1 of 24000 samples are NaN or infinite"),
    "float64 beyond float32": (lambda: audio(tone().double() * 1e300), "NaN or infinite"),
    "no scale of audio": (lambda: audio(tone() * 1e30), "largest sample is 5e"),
    "booleans": (lambda: audio(tone() > 0), "torch.bool"),
    "complex": (lambda: audio(tone().to(torch.complex64)), "torch.complex64"),
    "rate 0": (lambda: audio(tone(), 0), "sample rate is 0"),
    "rate below 0": (lambda: audio(tone(), -24_000), "sample rate is -24000"),
    "rate 44100.5": (lambda: audio(tone(), 44_100.5), "sample rate is 44100.5"),
    "rate NaN": (lambda: audio(tone(), math.nan), "sample rate is nan"),
    "rate infinite": (lambda: audio(tone(), math.inf), "sample rate is inf"),
    "rate as text": (lambda: audio(tone(), "44100"), "sample rate is '44100'"),
    "rate True": (lambda: audio(tone(), True), "sample rate is True"),
    "rate None": (lambda: audio(tone(), None), "sample rate is None"),
    "two rates": (lambda: audio(tone(), torch.tensor([24_000, 24_000])), "sample rate is tensor"),
    "rate of frames": (lambda: audio(tone(), 50), "sample rate is 50"),
    "rate of radio": (lambda: audio(tone(), 10**9), "sample rate is 1000000000"),
}

# Sound in form, but no voice: refused where speech is needed.
UNSPEAKABLE: dict[str, tuple[Callable[[], dict], str]] = {
    "one sample": (lambda: audio(torch.full((1,), 0.5)), "1 sample "),
    "two samples": (lambda: audio(torch.tensor([0.5, -0.5])), "2 samples "),
    "silence": (lambda: audio(torch.zeros(2 * RATE_HZ)), "silent"),
    "constant offset": (lambda: audio(torch.full((2 * RATE_HZ,), 0.5)), "silent"),
    "noise at 1e-8": (lambda: audio(1e-8 * tone(seconds=2)), "silent"),
    "opposite channels": (lambda: audio(torch.stack([tone(seconds=2), -tone(seconds=2)])), "silent"),
}
