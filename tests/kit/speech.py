"""Real speech: a person's recording from Debian, and sentences spoken by a synthesiser from PyPI.

``python tests/run.py`` fetches the recording once; pip installs the synthesiser, whose voice is in its wheel.
"""
from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import wave
from functools import lru_cache
from pathlib import Path

FOLDER_VARIABLE = "SPEECHWRIGHT_SPEECH"
INSTALLED = Path("/usr/share/sounds/alsa")      # where Debian's alsa-utils puts its recordings
PACKAGE = "alsa-utils"
RECORDING = "Front_Center.wav"                  # a man says "front centre": 48 kHz mono, 1.4 s
SENTENCE = ("The library opens at nine and closes at half past six, and although the road was closed, "
            "the bus arrived on time, so that she counted forty seven steps from the gate to the tower.")


class NoRecording(RuntimeError):
    """The recording can be had neither from this system nor from Debian."""


def fetch(folder: Path) -> Path:
    """The recording in ``folder``, put there if it is not: from this system, or out of Debian's package.

    ``NoRecording`` where neither can be had, with what to do.
    """
    path = folder / RECORDING
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    source = INSTALLED / RECORDING
    with tempfile.TemporaryDirectory() as temporary:
        if not source.is_file() and shutil.which("apt-get") and shutil.which("dpkg-deb"):
            download = ["apt-get", "download", PACKAGE]
            if subprocess.run(download, cwd=temporary, capture_output=True).returncode:
                subprocess.run(["apt-get", "update"], capture_output=True)      # a new machine has no lists
                subprocess.run(download, cwd=temporary, capture_output=True)
            for package in Path(temporary).glob("*.deb"):
                subprocess.run(["dpkg-deb", "-x", package, temporary], check=True)
                source = Path(temporary, *INSTALLED.parts[1:], RECORDING)
        if not source.is_file():
            raise NoRecording(
                f"The tests convert a person's recording, and {RECORDING} of Debian's {PACKAGE} is not to be had "
                f"here. Put any recording of a second or two, as a WAV file, at {path}.")
        shutil.copyfile(source, path)
    return path


@lru_cache(maxsize=1)
def person() -> Path:
    """The recording of a person, a WAV file."""
    return fetch(Path(os.environ.get(FOLDER_VARIABLE) or Path(tempfile.gettempdir(), "speechwright-speech")))


@lru_cache(maxsize=1)
def sentence() -> tuple[bytes, int]:
    """A long sentence, about ten seconds, as int16 mono samples and their rate in Hz."""
    import hibari
    import numpy as np

    samples = np.asarray(hibari.Hibari()(SENTENCE), dtype=np.float32).reshape(-1)
    return (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes(), 24_000


def write_wav(path: Path, samples: bytes, rate_hz: int) -> Path:
    """int16 mono samples as a WAV file."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(samples)
    return path
