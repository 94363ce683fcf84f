"""Every example workflow, through the queue of the genuine ComfyUI, with what a user sees of it."""
from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import pytest

from kit.checkout import CHECKOUT
from kit.server import Comfy, Run
from kit.short import short
from speechwright.workflows.runner.client import Refused
from speechwright.workflows.runner.server import free_port

API = CHECKOUT / "workflows" / "api"
CLIPS = CHECKOUT / "workflows" / "audio"
RUN = CHECKOUT / "workflows" / "run.py"
TOKEN_S = 0.04              # one speech token: the raster of a converted recording


@dataclass(frozen=True)
class Sound:
    """One decoded audio file; samples are (C, T) in -1...1."""

    codec: str
    rate_hz: int
    samples: np.ndarray

    @property
    def seconds(self) -> float:
        return self.samples.shape[1] / self.rate_hz


@dataclass(frozen=True)
class Expected:
    """What a workflow writes: mono FLAC, of so many seconds at least and at most."""

    seconds: tuple[float, float]
    progress: set[str]      # nodes that must show steps
    files: int = 1
    rate_hz: int = 24_000


ADA_S = 5.64
EXPECTED = {
    # Of the demo's text ids, each a byte, comes speech of 80 to 800 ms.
    "cosyvoice2_to_s3gen": Expected(seconds=(5.4, 60.0), progress={"6", "7"}),
    "cosyvoice3_dialogue": Expected(seconds=(5.0, 60.0), progress={"5", "6"}),
    "cosyvoice3_instruct": Expected(seconds=(3.4, 60.0), progress={"5", "6"}),
    "cosyvoice3_zero_shot": Expected(seconds=(5.4, 60.0), progress={"5", "6"}),
    "dialogue_with_library_voices": Expected(seconds=(4.0, 60.0), progress={"5", "6"}),
    # And with OGG TTS about a frame and a half, of 46 ms.
    "ogg_dialogue": Expected(seconds=(0.5, 30.0), progress={"7", "8"}, rate_hz=44_100),
    "ogg_long_text": Expected(seconds=(10.0, 150.0), progress={"5", "7"}, rate_hz=44_100),
    "ogg_text_to_speech": Expected(seconds=(0.5, 20.0), progress={"3", "4"}, rate_hz=44_100),
    "ogg_then_voice_conversion": Expected(seconds=(0.5, 20.0), progress={"3", "4", "8", "9"}),
    "ogg_voice_clone": Expected(seconds=(0.5, 20.0), progress={"5", "6"}, rate_hz=44_100),
    "redecode": Expected(seconds=(2.9, 60.0), progress={"5", "6", "10"}, files=2),
    "voice_conversion": Expected(
        seconds=(ADA_S - TOKEN_S, ADA_S + TOKEN_S), progress={"4", "6", "9", "10"}, files=2),
}
NAMES = sorted(path.stem for path in API.glob("*.json"))
every_workflow = pytest.mark.parametrize("name", NAMES)


def graph_of(name: str, seed: int | None = None) -> dict:
    graph = json.loads((API / f"{name}.json").read_text(encoding="utf-8"))
    for node in graph.values():
        if seed is not None and "seed" in node["inputs"]:
            node["inputs"]["seed"] = seed
    return graph


def decode(path: Path) -> Sound:
    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        resampler = av.AudioResampler(format="fltp")
        parts = [part for frame in container.decode(stream) for part in resampler.resample(frame)]
        frames = [part.to_ndarray() for part in parts]
        return Sound(stream.codec_context.name, stream.rate, np.concatenate(frames, axis=1))


def sounds_of(comfy: Comfy, run: Run) -> list[Sound]:
    assert run.completed, run.history["status"]
    return [decode(comfy.path(file)) for file in run.files]


def sound_of(comfy: Comfy, run: Run) -> Sound:
    """The first one."""
    return sounds_of(comfy, run)[0]


def test_every_workflow_has_its_expectations():
    assert set(NAMES) == set(EXPECTED)


def test_the_pack_is_imported_without_a_word(comfy: Comfy):
    """ComfyUI goes on without a pack that it cannot import; only its log tells."""
    ours = str(Path("custom_nodes", "speechwright"))
    started, _, _ = comfy.log().partition("Starting server")      # what follows is of jobs, some made to fail
    lines = [line for line in started.splitlines() if ours in line]
    assert len(lines) == 1 and " seconds: " in lines[0], lines


@every_workflow
def test_writes_its_file_and_shows_its_steps(comfy: Comfy, name: str):
    expected = EXPECTED[name]
    comfy.free(free_memory=True)
    run = comfy.queue(graph_of(name))
    sounds = sounds_of(comfy, run)
    assert len(sounds) == expected.files
    for sound in sounds:
        assert (sound.codec, sound.rate_hz, len(sound.samples)) == ("flac", expected.rate_hz, 1)
        assert expected.seconds[0] <= sound.seconds <= expected.seconds[1]
        assert np.isfinite(sound.samples).all() and np.abs(sound.samples).max() > 1e-3
    assert not run.cached
    for node in expected.progress:
        steps = [(data["value"], data["max"]) for data in run.of("progress") if data["node"] == node]
        assert steps == sorted(steps) and steps[-1][0] == steps[-1][1], (node, steps)
    assert run.of("executing")[-1]["node"] is None


@every_workflow
def test_a_second_run_does_nothing_again(comfy: Comfy, name: str):
    graph = short(name, 3)
    comfy.queue(graph)
    again = comfy.queue(graph)
    assert again.completed and again.cached == set(graph)


@every_workflow
def test_a_seed_decides_every_sample(comfy: Comfy, name: str):
    first = sound_of(comfy, comfy.queue(short(name, 1)))
    other = sound_of(comfy, comfy.queue(short(name, 2)))
    comfy.free(free_memory=True)
    run = comfy.queue(short(name, 1))
    assert not run.cached
    assert np.array_equal(sound_of(comfy, run).samples, first.samples)
    assert not np.array_equal(other.samples, first.samples)


@every_workflow
def test_an_interrupted_run_leaves_nothing_behind(comfy: Comfy, name: str):
    """Cancel stops within one step, and the same graph then gives what it gave before."""
    graph = short(name, 4)
    before = sound_of(comfy, comfy.queue(graph))
    comfy.free(free_memory=True)
    comfy.hold()
    run = comfy.queue(graph, interrupt_on="progress")
    assert not run.completed and run.of("execution_interrupted") and not run.files
    assert len(run.of("progress")) == 1
    after = sound_of(comfy, comfy.queue(graph))
    assert np.array_equal(after.samples, before.samples)


@every_workflow
@pytest.mark.parametrize(("what", "results_stay"), [("unload_models", True), ("free_memory", False)])
def test_free_empties_memory(comfy: Comfy, name: str, what: str, results_stay: bool):
    """The buttons in ComfyUI's menu did nothing for packs that hold their weights in a table of their own."""
    comfy.free(free_memory=True)
    graph = short(name, 5)
    first = sound_of(comfy, comfy.queue(graph))
    assert comfy.models()
    comfy.free(**{what: True})
    assert comfy.models() == []
    again = comfy.queue(graph)
    assert again.cached == (set(graph) if results_stay else set())
    # With results kept, a new seed shows that the model comes back from where it was put.
    comfy.queue(short(name, 6))
    assert comfy.models()
    assert np.array_equal(sound_of(comfy, again).samples, first.samples)


@every_workflow
def test_a_wrong_value_is_refused_by_name(comfy: Comfy, name: str):
    graph = graph_of(name, seed=-1)
    node = next(node for node, entry in graph.items() if "seed" in entry["inputs"])
    with pytest.raises(Refused) as refused:
        comfy.queue(graph)
    assert refused.value.answer["node_errors"][node]["errors"][0]["type"] == "value_smaller_than_min"


# The command that runs them


def command(*arguments: object) -> list[str]:
    return [sys.executable, str(RUN), *map(str, arguments)]


def environment(cache: Path) -> dict[str, str]:
    return {**os.environ, "XDG_CACHE_HOME": str(cache), "LOCALAPPDATA": str(cache), "HOME": str(cache)}


def test_run_queues_a_batch_and_goes_on_without_a_dead_server(comfy: Comfy, tmp_path: Path):
    dead = f"127.0.0.1:{free_port()}"
    own = tmp_path / "mine.flac"
    own.write_bytes((CLIPS / "bruno.flac").read_bytes())
    done = subprocess.run(
        command("voice_conversion", "--server", dead, "--server", comfy.url, "--output", tmp_path / "out",
                "--set", f"1.audio={own}", "--batch", "S3Token2Wav.seed=8,9"),
        capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert f"http://{dead} does not answer" in done.stderr and "S3Token2Wav.seed=9" in done.stderr
    paths, labels = zip(*(line.split("\t") for line in done.stdout.splitlines()))
    assert sorted(labels) == ["S3Token2Wav.seed=8", "S3Token2Wav.seed=8", "S3Token2Wav.seed=9", "S3Token2Wav.seed=9"]
    assert len(set(paths)) == 4
    for path in paths:
        assert decode(Path(path)).seconds == pytest.approx(decode(own).seconds, abs=TOKEN_S)


def test_run_says_which_node_failed(comfy: Comfy, tmp_path: Path):
    graph = graph_of("voice_conversion")
    graph["1"] = {"class_type": "EmptyAudio", "_meta": {"title": "Nothing"},
                  "inputs": {"duration": 0.0, "sample_rate": 44100, "channels": 2}}
    (tmp_path / "silent.json").write_text(json.dumps(graph), encoding="utf-8")
    done = subprocess.run(command(tmp_path / "silent.json", "--server", comfy.url, "--output", tmp_path),
                          capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1 and done.stdout == ""
    # Two nodes tokenize it, and whichever comes first stops the run.
    node = r'node (4 "S3 Tokenize"|9 "S3 Tokenize \(CosyVoice3\)")'
    assert re.search(rf"{node}: ValueError: S3 Tokenize: audio", done.stderr)
    assert "Traceback" not in done.stderr


def test_run_stops_its_job_on_ctrl_c(comfy: Comfy, tmp_path: Path):
    comfy.hold()
    process = subprocess.Popen(
        command("voice_conversion", "--server", comfy.url, "--output", tmp_path, "--batch", "6.seed=1,2,3"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        comfy.await_held()
        process.send_signal(signal.SIGINT)
        written, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130 and written == "" and "Interrupted" in said
    assert comfy.load() == 0 and not list(tmp_path.iterdir())


def test_run_boots_a_comfyui_and_leaves_its_folder_alone(comfyui_folder: Path, tmp_path: Path):
    def content() -> dict:
        return {path: path.stat().st_mtime_ns for path in comfyui_folder.rglob("*")
                if path.is_file() and "__pycache__" not in path.parts}

    before = content()
    done = subprocess.run(
        command("voice_conversion", "--comfyui", comfyui_folder, "--python", sys.executable, "--cpu",
                "--output", tmp_path / "out"),
        env=environment(tmp_path / "cache"), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    paths = [Path(line) for line in done.stdout.splitlines()]
    assert sorted(path.name for path in paths) == [
        "voice_conversion_00001.flac", "voice_conversion_cosyvoice3_00001.flac"]
    for path in paths:
        assert path.parent == tmp_path / "out"
        assert decode(path).seconds == pytest.approx(decode(CLIPS / "ada.flac").seconds, abs=TOKEN_S)
    assert content() == before
