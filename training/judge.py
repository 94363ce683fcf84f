"""How much of the demo voice's speech is understood: word errors of the 20 sentences of tests/kit/ear.py.

``originals`` are the clips themselves, ``vocoder`` is a mel of each clip made a wave again, ``tokens`` are the clips
read as tokens and spoken by flow and vocoder, ``regression`` has the tokenizer's own decoder in the flow's place,
``text`` is what the language model says. The networks are built by the pack from the files of the folder, which have
their published names; what is missing is left out. ``--without-vocoder`` has Griffin and Lim make waves in its place.
"""
from __future__ import annotations

import argparse
import json
import time
import wave
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torchaudio
from encode import speech_tokenizer
from mels import wave_of
from safetensors.torch import load_file
from speech import TOKENIZER_MELS
from tokenizer import MEL_DEVIATION, MEL_MEAN, Model
from torch import Tensor

from kit import ear
from speechwright.s3gen import cosyvoice2, generate, sampling
from speechwright.s3gen.features import log_mel_16k, mel_24k

Sound = Callable[[Tensor], Tensor]      # of a mel (1, 80, F): (T,)


@lru_cache(maxsize=1)
def vocoder(folder: Path) -> Sound:
    net = cosyvoice2.build(hift=load_file(folder / "hift.safetensors"))
    return lambda mel: net.hift_inference(mel, seed=1)[0][0]


def vocoded(sound: Sound) -> list[Tensor]:
    return [sound(mel_24k(clip[None])) for clip in ear.clips()]


def from_tokens(
    folder: Path, sound: Sound, steps: int, guidance: float, rows: list[Tensor] | None = None,
) -> list[Tensor]:
    """rows: tokens of what is to be said, by no voice; those of the clips where it is None"""
    net = cosyvoice2.build(flow=load_file(folder / "flow.safetensors"))
    estimator, sizes = net.flow.decoder["estimator"], net.config
    nobody = (torch.zeros(0, dtype=torch.int64), torch.zeros(0, sizes.estimator.mels),
              torch.ones(sizes.speaker.embedding))
    if rows is None:
        tokenizer = speech_tokenizer(folder / "speech_tokenizer_v2.safetensors")
        rows = [tokenizer.encode(torchaudio.functional.resample(clip, 24_000, 16_000)) for clip in ear.clips()]
    waves, schedule = [], generate.schedule(estimator, steps, torch.device("cpu"))
    for ids in rows:
        noise = sampling.flow_noise(sizes.estimator.mels, 2 * len(ids), sampling.flow_rng(1))
        condition = net.flow.lay_out([torch.as_tensor(ids)], [nobody], True, torch.device("cpu"))
        mel, = generate.mels(estimator, condition, [noise], schedule, guidance)
        waves.append(sound(mel.T[None]))
    return waves


def regressed(folder: Path, sound: Sound) -> list[Tensor]:
    """What the tokens hold, whatever the flow makes of them: through the decoder of the tokenizer's training."""
    model = Model()
    model.load_state_dict(torch.load(folder / "tokenizer.pt", weights_only=True)["average"])
    waves = []
    for clip in ear.clips():
        at_16k = torchaudio.functional.resample(clip, 24_000, 16_000)
        mu = model.mu(model.digits(log_mel_16k(at_16k, TOKENIZER_MELS)[None])[0])
        waves.append(sound(model.decoder(mu) * MEL_DEVIATION + MEL_MEAN))
    return waves


def spoken(folder: Path, seed: int) -> list[Tensor]:
    """Speech tokens of the 20 sentences, as the language model draws them without an example."""
    from encode import text_tokenizer

    from speechwright.cosyvoice3 import weights
    from speechwright.cosyvoice3.generate import decode
    from speechwright.cosyvoice3.prompt import Prompt
    lm, texts = weights.build(load_file(folder / "llm.safetensors")), text_tokenizer(folder)
    prompts = [Prompt((), tuple(texts.encode(sentence)), ()) for sentence in ear.SENTENCES]
    return [take.ids for take in decode(lm, prompts, [seed + index for index in range(len(prompts))])]


def judged(name: str, waves: list[Tensor], folder: Path, keep: bool) -> None:
    wrong, said, heard = 0, 0, []
    for number, (sentence, sound) in enumerate(zip(ear.SENTENCES, waves), 1):
        text = ear.hear_padded(sound)
        wrong, said = wrong + ear.errors(sentence, text), said + len(ear.words(sentence))
        heard.append(text)
        if keep:
            write(folder / f"{name}_{number:02}.wav", sound)
    line = {"name": name, "errors": wrong, "words": said, "percent": round(100 * wrong / said, 1)}
    print(json.dumps(line), flush=True)
    with (folder / "judged.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({**line, "heard": heard, "at": round(time.time())}) + "\n")


def write(path: Path, sound: Tensor) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(24_000)
        file.writeframes((sound.clamp(-1, 1) * 32767).numpy().astype(np.int16).tobytes())


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--folder", type=Path, required=True)
    parts = ["originals", "vocoder", "regression", "tokens", "text"]
    parser.add_argument("--part", action="append", choices=parts)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--guidance", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="the waves, too")
    parser.add_argument("--without-vocoder", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    folder, mark = given.folder, " without vocoder" if given.without_vocoder else ""
    # Read when first needed: the originals need none.
    sound = (lambda mel: wave_of(mel[0])) if given.without_vocoder else lambda mel: vocoder(folder)(mel)
    makers = {
        "originals": lambda: list(ear.clips()),
        "vocoder": lambda: vocoded(sound),
        "regression": lambda: regressed(folder, sound),
        "tokens": lambda: from_tokens(folder, sound, given.steps, given.guidance),
        "text": lambda: from_tokens(folder, sound, given.steps, given.guidance, spoken(folder, given.seed)),
    }
    needed = {"originals": (), "vocoder": (), "regression": ("front",), "tokens": ("flow", "speech_tokenizer_v2"),
              "text": ("flow", "llm")}
    for name in given.part or makers:
        files = needed[name] if given.without_vocoder or name == "originals" else (*needed[name], "hift")
        if all((folder / f"{file}.safetensors").is_file() for file in files):
            judged(name + mark, makers[name](), folder, given.keep)


if __name__ == "__main__":
    main()
