"""Long texts and long dialogues through the queue of the genuine ComfyUI, on Demo weights of both families."""
from __future__ import annotations

import re
import time
from dataclasses import dataclass

import numpy as np
import pytest
from test_workflows import sound_of

from kit.server import Comfy, Run

SENTENCES = (
    "The old ship went out to sea before dawn.",
    "Nobody on the pier could say when it would come home, or whether.",
    "It carried salt, rope and 3.5 tons of letters.",
    "Somebody waved.",
    "Then the fog took it, and the gulls fell still.")
LONG = "\n\n".join(" ".join(SENTENCES) for _ in range(9))[:2000]
NAMES = ("Ada", "Bruno", "Cleo")
CLIPS = ("ada.flac", "bruno.flac", "ada.flac")
WORDS = ("Good evening, and welcome aboard. Breakfast is served in the front carriage at half past five.",
         "The old lighthouse keeper watched the last ships until the fog came in.")
SCENE = [f"{NAMES[turn % 3]}: {SENTENCES[turn % 5][:30].rstrip(' ,')}." for turn in range(40)]

NOISE_BYTES = 8 * 2**20        # what the allocator keeps for itself; a second copy of the sound would be 24 MB or more
EVEN = 4.0                      # tokens for each text id
WARM = 2                        # runs of each kind; torch keeps how it computes each length of its own accord
MODEL, PROMPT, SAMPLER, DECODER, SOUND, REPORT = "1", "2", "3", "4", "5", "6"


@dataclass(frozen=True)
class Kind:
    """A family, its sampler and its decoder; what keeps random weights, whose end is chance, from long pieces, and
    what makes all pieces alike; seconds of a character, at least and at most."""
    demo: str
    sampler: str
    decoder: str
    takes_seed: bool
    brief: dict
    even: dict
    pace_s: tuple[float, float]


KINDS = {
    "ogg": Kind("OGG TTS", "BlockDiffusionSampler", "FishDecode", False, {"max_seconds": 6.0}, {"max_seconds": 14.0},
                (0.01, 0.1)),
    "cosyvoice3": Kind("CosyVoice3", "RASSampler", "S3Token2Wav", True, {"max_ratio": 3.0},
                       {"min_ratio": EVEN, "max_ratio": EVEN}, (0.02, 0.15)),
}
every_family = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def node(kind: str, /, **inputs) -> dict:
    return {"class_type": kind, "_meta": {"title": kind}, "inputs": inputs}


def graph(kind: Kind, text: str, seed: int, voices: int = 1, sink: str = "SaveAudio", **decoder) -> dict:
    nodes = {
        MODEL: node("SpeechwrightLoadModel", family="Demo", **{"family.demo": kind.demo}),
        PROMPT: node("SpeechwrightEncodePrompt", model=[MODEL, 0], text=text,
                     **{f"voices.voice{index}": [f"2{index}", 0] for index in range(voices)}),
        SAMPLER: node(f"Speechwright{kind.sampler}", model=[MODEL, 0], prompt=[PROMPT, 0], seed=seed,
                      **({"steps": 2, "cfg": 0.0, "mtp_rounds": 1} if kind.demo == "OGG TTS" else {}), **kind.brief),
        DECODER: node(f"Speechwright{kind.decoder}", model=[MODEL, 0], tokens=[SAMPLER, 0],
                      **({"seed": seed, "steps": 2} if kind.takes_seed else {}), **decoder),
        SOUND: node("SaveAudio", audio=[DECODER, 0], filename_prefix="audio/long") if sink == "SaveAudio"
        else node(sink, audio=[DECODER, 0]),
        REPORT: node("PreviewAny", source=[SAMPLER, 1]),
    }
    for index in range(voices):
        nodes[f"1{index}"] = node("LoadAudio", audio=CLIPS[index])
        nodes[f"2{index}"] = node("SpeechwrightVoice", audio=[f"1{index}", 0], transcript=WORDS[index % 2],
                                  name=NAMES[index])
    return nodes


NOTHING = {"1": node("LoadAudio", audio=CLIPS[0]), "2": node("ProbeAudio", audio=["1", 0])}


def report_of(run: Run) -> list[str]:
    assert run.completed, run.history["status"]
    return run.history["outputs"][REPORT]["text"][0].splitlines()


def spoken(lines: list[str]) -> str:
    return " ".join(re.fullmatch(r"piece \d+ of \d+: .*? retries: (.*)", line)[1] for line in lines)


def cancel_amid(comfy: Comfy, given: dict, share: float) -> tuple[int, int]:
    """Queue a graph, and interrupt its sampler when it has done that share; how far it was."""
    seen: list[tuple[int, int]] = []
    job: dict = {}

    def watch(event: str, data: dict) -> None:
        job.update(data if event == "queued" else {})
        if event == "progress" and data["node"] == SAMPLER:
            if not any(done >= share * most for done, most in seen) and data["value"] >= share * data["max"]:
                comfy.hold()
                comfy.post("/interrupt", {"prompt_id": job["prompt_id"]})
            seen.append((data["value"], data["max"]))

    history = comfy.run(given, watch)
    comfy.post("/probe/release", {})        # the job may have heard of the interruption before its next step
    assert not history["status"]["completed"] and not history["outputs"].get(SOUND)
    return seen[-1]


@every_family
@pytest.mark.parametrize("text, voices", [(LONG, 1), ("\n".join(SCENE), 3)], ids=["2000 characters", "40 turns"])
def test_long_speech(comfy: Comfy, kind: Kind, text: str, voices: int):
    """Every word is in the report, once and in order; Cancel in the middle leaves nothing; a new joint fade samples
    nothing again."""
    comfy.free(free_memory=True)
    given = graph(kind, text, 1, voices)
    first = comfy.queue(given)
    lines, sound = report_of(first), sound_of(comfy, first)
    assert len(lines) > 3 and [line.split(":")[0] for line in lines] == [
        f"piece {number} of {len(lines)}" for number in range(1, len(lines) + 1)]
    said, words = (re.findall(r"\w+", part) for part in (spoken(lines), text))
    assert [word for word in said if word not in NAMES] == [word for word in words if word not in NAMES]
    low, high = (pace_s * len(text) for pace_s in kind.pace_s)
    assert low < sound.seconds < high and np.isfinite(sound.samples).all() and np.abs(sound.samples).max() > 1e-3
    for busy in (SAMPLER, DECODER):
        steps = [(data["value"], data["max"]) for data in first.of("progress") if data["node"] == busy]
        # Rows of a batch share a step, and ComfyUI leaves out what comes too fast.
        assert steps == sorted(steps) and steps[-1][0] == steps[-1][1] and len(steps) > 5

    other = comfy.queue(graph(kind, text, 1, voices, joint_fade=5.0))
    assert other.completed and set(given) - other.cached == {DECODER, SOUND}
    faded = sound_of(comfy, other)
    assert faded.seconds == sound.seconds and not np.array_equal(faded.samples, sound.samples)

    comfy.free(free_memory=True)
    done, most = cancel_amid(comfy, given, 0.4)
    assert 0.4 * most <= done < most
    again = comfy.queue(given)
    assert SAMPLER not in again.cached and report_of(again) == lines
    assert np.array_equal(sound_of(comfy, again).samples, sound.samples)


def settled(comfy: Comfy) -> int:
    """The bytes that an idle server holds when it gives back no more."""
    held = []
    while len(held) < 5 or min(held[:-4]) - min(held[-4:]) > 2**20:
        comfy.post("/probe/memory", {})
        held.append(comfy.get("/probe/memory")["held"])
        time.sleep(0.1)
    return held[-1]


@pytest.mark.parametrize("kind, text, voices", [
    (KINDS["ogg"], LONG, 1), (KINDS["cosyvoice3"], "\n".join(SCENE), 3)], ids=["ogg", "cosyvoice3"])
def test_memory_of_a_long_run_is_that_of_a_short_one(comfy: Comfy, kind: Kind, text: str, voices: int):
    """A list of all waves, their concatenation and the batch once took three times the sound; masks of 16 prompts
    that were read at once, a hundred megabytes."""

    def rise(text: str, voices: int, seed: int) -> int:
        comfy.queue(NOTHING)                # the sound of the run before goes only with the next one
        comfy.free(free_memory=True)
        before = settled(comfy)
        given = graph(kind, text, seed, voices, sink="ProbeAudio")
        given[SAMPLER]["inputs"].update(kind.even)
        run = comfy.queue(given)
        assert run.completed, run.history["status"]
        found, = run.history["outputs"][SOUND]["bytes"]
        return comfy.get("/probe/memory")["peak"] - before - found

    rises = [(rise(SENTENCES[1], 1, seed), rise(text, voices, seed)) for seed in range(WARM)]
    short, long = rises[-1]
    assert long <= 1.2 * short + NOISE_BYTES, rises
