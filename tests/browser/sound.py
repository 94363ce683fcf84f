"""Samples of an audio file."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np


@dataclass(frozen=True)
class Sound:
    """What a file holds; samples are (C, T)."""

    rate_hz: int
    samples: np.ndarray

    @property
    def seconds(self) -> float:
        return self.samples.shape[1] / self.rate_hz

    @classmethod
    def read(cls, path: Path) -> Sound:
        with av.open(str(path)) as container:
            stream = container.streams.audio[0]
            resampler = av.AudioResampler(format="fltp")
            parts = [part for frame in container.decode(stream) for part in resampler.resample(frame)]
            return cls(stream.rate, np.concatenate([part.to_ndarray() for part in parts], axis=1))
