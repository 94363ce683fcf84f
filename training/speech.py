"""The data set: sentences that a synthesiser speaks, as flat files that are mapped into memory.

Beside the waves stand what the trainings would compute again and again: both mels, and the pitch, which the
synthesiser tells. ``python speech.py --folder F --wordnet W --hours H`` goes on where an earlier run stopped.
"""
from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torchaudio
from pack import SENTENCES, features
from sentences import sentences

RATE_HZ, PITCH_HZ, FRAMES_HZ = 24_000, 80, 50
TOKEN_SAMPLES = 960             # of one speech token; every utterance is a whole number of them
SILENCE_BELOW_HZ = 40.0         # the synthesiser's mark of what has no pitch
TOKENIZER_MELS = 80
PARTS = {                       # name -> type, numbers in a frame, frames of a token
    "wave": (np.int16, 1, 960), "mel": (np.float16, 80, 2), "pitch": (np.float16, 1, 2),
    "log_mel": (np.float16, TOKENIZER_MELS, 4),
}


@dataclass(frozen=True)
class Utterance:
    """Where one is, in tokens from the start, and what it says."""

    start: int
    tokens: int
    text: str


class Speech:
    """What a folder holds so far."""

    def __init__(self, folder: Path):
        lines = (folder / "index.jsonl").read_text(encoding="utf-8").splitlines()
        self.folder, self.utterances = folder, [Utterance(*json.loads(line)) for line in lines]
        self._maps = {}

    def part(self, name: str, start: int, tokens: int) -> np.ndarray:
        """(frames,) or (frames, channels) of so many tokens"""
        kind, channels, frames = PARTS[name]
        if name not in self._maps:
            whole = np.memmap(self.folder / f"{name}.bin", kind, "r")
            self._maps[name] = whole.reshape(-1, channels) if channels > 1 else whole
        return self._maps[name][start * frames : (start + tokens) * frames]


def spoken(say, text: str) -> tuple[np.ndarray, np.ndarray]:
    """A wave at 24 kHz and its pitch in Hz at 80 frames per second, 0 where there is none."""
    from hibari import dsp
    waves, pitches, rng = [], [], np.random.default_rng(0)
    for phonemes in say.phonemize(text):
        outputs = say.sess.run(None, {"ids": np.asarray([say.ids(phonemes)], np.int64),
                                      "speed": np.ones(1, np.float32)})
        parts = [output[0] for output in outputs]
        pitches.append(np.asarray(parts[-1], np.float32).copy())
        waves.append(dsp.synth(*parts, rng))
    return np.concatenate(waves), np.concatenate(pitches)


def measured(wave: np.ndarray, pitch: np.ndarray) -> tuple[int, dict[str, np.ndarray]]:
    """Tokens of an utterance, and its parts."""
    tokens = -(-len(wave) // TOKEN_SAMPLES)
    padded = torch.from_numpy(np.pad(wave, (0, tokens * TOKEN_SAMPLES - len(wave))))
    at_16k = torchaudio.functional.resample(padded, RATE_HZ, 16_000)
    centres = (np.arange(2 * tokens) + 0.5) / FRAMES_HZ * PITCH_HZ - 0.5
    nearest = np.clip(np.rint(centres).astype(int), 0, len(pitch) - 1)
    hertz = np.where(pitch < SILENCE_BELOW_HZ, 0, pitch)[nearest]
    return tokens, {
        "wave": (padded.clamp(-1, 1) * 32767).round().numpy(),
        "mel": features.mel_24k(padded[None])[0].T.numpy(),
        "pitch": hertz,
        "log_mel": features.log_mel_16k(at_16k, TOKENIZER_MELS).T.numpy(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--wordnet", type=Path, required=True, help="the folder with data.noun and its like")
    parser.add_argument("--hours", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    from hibari import Hibari
    torch.set_num_threads(1)
    given.folder.mkdir(parents=True, exist_ok=True)
    index, say = given.folder / "index.jsonl", Hibari()
    done = [Utterance(*json.loads(line)) for line in index.read_text().splitlines()] if index.is_file() else []
    tokens = sum(utterance.tokens for utterance in done)
    for name, (kind, channels, frames) in PARTS.items():        # what was written of an utterance without a line
        path = given.folder / f"{name}.bin"
        path.touch()
        with path.open("r+b") as file:
            file.truncate(tokens * frames * channels * np.dtype(kind).itemsize)
    files = {name: (given.folder / f"{name}.bin").open("ab") for name in PARTS}
    began, first = time.perf_counter(), len(done)
    with index.open("a", encoding="utf-8") as lines, torch.inference_mode():
        for number, text in enumerate(sentences(given.wordnet, SENTENCES, given.seed)):
            if tokens >= given.hours * 3600 * 25:
                break
            if number < first:
                continue
            length, parts = measured(*spoken(say, text))
            for name, (kind, _, _) in PARTS.items():
                files[name].write(np.ascontiguousarray(parts[name], dtype=kind).tobytes())
            for file in files.values():
                file.flush()
            lines.write(json.dumps([tokens, length, text]) + "\n")
            lines.flush()
            tokens += length
            if number % 500 == 0:
                print(f"{number} utterances, {tokens / 25 / 3600:.2f} h, {time.perf_counter() - began:.0f} s: {text}",
                      file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
