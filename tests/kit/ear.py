"""Sentences spoken by a synthesiser, an ear that writes down what it hears, and how many words it got wrong."""
from __future__ import annotations

import re
from functools import lru_cache

import torch
from torch import Tensor
from torchaudio.functional import resample

SENTENCES = (
    "The quick brown fox jumps over the lazy dog near the river bank.",
    "Speech synthesis on a small computer is possible without any network.",
    "Please close the door.",
    "Margaret and Thomas walked to the old harbour before breakfast.",
    "The library opens at nine and closes at half past six.",
    "Seventeen ships left the bay on a cold Thursday morning.",
    "He whispered that nobody would ever find the silver key.",
    "Can you tell me where the nearest station is?",
    "Thunder rolled over the hills while the children slept.",
    "A careful engineer measures twice and cuts once.",
    "The museum bought three paintings from a private collector in Vienna.",
    "Yes, of course.",
    "Although the road was closed, the bus arrived on time.",
    "My neighbour grows tomatoes, beans, and yellow peppers.",
    "In the end the committee accepted every single one of her proposals.",
    "Stop right there!",
    "The water in the lake is warm enough for swimming until late September.",
    "She counted forty seven steps from the gate to the tower.",
    "Nothing in the report explained why the engine failed.",
    "Good morning, and thank you for calling the customer service desk.",
)
SPOKEN_HZ, HEARD_HZ = 24_000, 16_000
EDGE = SPOKEN_HZ // 5
SMALL = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
         "seventeen eighteen nineteen").split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


@lru_cache(maxsize=1)
@torch.inference_mode(False)        # whoever asks first
def clips() -> tuple[Tensor, ...]:
    """The sentences as (T,) at 24 kHz. Not to be changed."""
    import hibari
    import numpy as np

    say = hibari.Hibari()
    return tuple(torch.from_numpy(np.array(say(sentence), dtype=np.float32).reshape(-1)) for sentence in SENTENCES)


@lru_cache(maxsize=1)
def _model():
    from faster_whisper import WhisperModel

    from kit.whisper import wheel
    return WhisperModel(str(wheel()), device="cpu", compute_type="int8", local_files_only=True, cpu_threads=1)


def hear(wave: Tensor) -> str:
    """What faster-whisper hears in (T,) at 16 kHz."""
    segments, _ = _model().transcribe(wave.numpy(), language="en", beam_size=1)
    return " ".join(segment.text.strip() for segment in segments)


def hear_padded(wave: Tensor) -> str:
    """What it hears in (T,) at 24 kHz with silence on either side."""
    return hear(resample(torch.nn.functional.pad(wave, (EDGE, EDGE)), SPOKEN_HZ, HEARD_HZ))


def words(text: str) -> list[str]:
    """In small letters alone, with numbers up to 99 as they are spoken."""
    spelled = re.sub(r"\d+", lambda match: f" {_spell(int(match[0]))} ", text.lower())
    return re.sub(r"[^a-z ]", "", spelled).split()


def _spell(number: int) -> str:
    if number < len(SMALL):
        return SMALL[number]
    tens, ones = divmod(number, 10)
    return TENS[tens - 2] + (f" {SMALL[ones]}" if ones else "")


def errors(said: str, heard: str) -> int:
    """Words that have to be put in, taken out or replaced to come from one text to the other."""
    wanted, found = words(said), words(heard)
    row = list(range(len(found) + 1))
    for index, word in enumerate(wanted, 1):
        before, row[0] = row[0], index
        for place, other in enumerate(found, 1):
            before, row[place] = row[place], min(before + (word != other), row[place] + 1, row[place - 1] + 1)
    return row[-1]
