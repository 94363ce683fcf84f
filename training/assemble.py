"""Puts the trained voice where the pack looks for it: its files, a speaker encoder, and a recording of the voice.

The flow has no use for what the speaker encoder says, so that one of random weights serves. The recording is what the
flow begins from where no other voice is given; it is spoken by the synthesiser from which the networks learned.
"""
from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np
import pack
import torch
from speech import RATE_HZ, spoken

from speechwright.assembly import shapes_of
from speechwright.audio import Clip
from speechwright.s3gen.config import SpeakerConfig
from speechwright.s3gen.demo import random_tensors
from speechwright.s3gen.speaker import CAMPPlus
from speechwright.voices import flac

TRAINED = ("speech_tokenizer_v2.safetensors", "flow.safetensors", "hift.safetensors", "vocab.json", "merges.txt")
WORDS = "Good morning."         # short, as the beginnings were in the training
SPEAKER = SpeakerConfig(head_channels=4, channels=16, growth=4, bottleneck=16, blocks=(1, 1, 1))
MOST_BYTES = 12 * 10**6         # of all files, with those of a language model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="where the trainings put their results")
    parser.add_argument("--demo", type=Path, default=pack.CHECKOUT / "demo")
    given = parser.parse_args()
    from hibari import Hibari
    given.demo.mkdir(exist_ok=True)
    for name in TRAINED:
        shutil.copyfile(given.folder / name, given.demo / name)
    speaker = random_tensors(shapes_of(CAMPPlus(SPEAKER, device="meta").state_dict()), seed=1)
    pack.write({name: tensor.half() for name, tensor in speaker.items()}, given.demo / "campplus.safetensors")
    wave, _ = spoken(Hibari(), WORDS)
    clip = Clip(torch.from_numpy(wave.astype(np.float32)), RATE_HZ)
    (given.demo / "voice.flac").write_bytes(flac(clip, "assemble"))
    (given.demo / "voice.txt").write_text(f"{WORDS}\n", encoding="utf-8")
    size = sum(path.stat().st_size for path in given.demo.iterdir())
    print(f"{given.demo}: {size} bytes, {clip.seconds:.2f} s of voice")
    if size > MOST_BYTES:
        raise SystemExit(f"That is more than {MOST_BYTES}: train smaller networks.")


if __name__ == "__main__":
    main()
