"""Text in the voice of a person's recording, through the queue of the genuine ComfyUI."""
from __future__ import annotations

import shutil

import numpy as np
import pytest
from test_workflows import graph_of, sound_of

from kit import speech
from kit.server import Comfy, Run

GRAPHS = ("cosyvoice2_to_s3gen", "cosyvoice3_zero_shot")
every_graph = pytest.mark.parametrize("name", GRAPHS)


def node(graph: dict, kind: str) -> str:
    """The id of the one node of a kind."""
    found, = (key for key, entry in graph.items() if entry["class_type"] == kind)
    return found


def inputs(graph: dict, kind: str) -> dict:
    return graph[node(graph, kind)]["inputs"]


def sampler(graph: dict) -> str:
    return node(graph, "SpeechwrightRASSampler")


@pytest.fixture(scope="module")
def person(comfy: Comfy) -> str:
    """The name of the recording in the server's input folder."""
    shutil.copyfile(speech.person(), comfy.booted.base / "input" / "person.wav")
    return "person.wav"


def text_graph(name: str, person: str, seed: int, **decoder) -> dict:
    graph = graph_of(name, seed)
    inputs(graph, "LoadAudio")["audio"] = person
    inputs(graph, "SpeechwrightVoice")["transcript"] = "Front center."
    inputs(graph, "SpeechwrightS3Token2Wav").update(decoder)
    return graph


def shown(graph: dict) -> dict:
    """The graph with the sampler's report on the screen."""
    return {**graph, "99": {"class_type": "PreviewAny", "_meta": {"title": "Report"},
                            "inputs": {"source": [sampler(graph), 1]}}}


def ran(run: Run) -> set[str]:
    """Ids of the nodes that did their work."""
    return {data["node"] for data in run.of("executing") if data["node"]}


@every_graph
def test_text_in_the_voice_of_a_person(comfy: Comfy, person: str, name: str):
    """Finite sound of a plausible length, the same again for the same seed, another take for another."""
    sounds = []
    for seed in (1, 2, 1):
        comfy.free(free_memory=True)
        sounds.append(sound_of(comfy, comfy.queue(text_graph(name, person, seed))))
    first, other, again = sounds
    assert (first.rate_hz, len(first.samples)) == (24_000, 1) and 5 < first.seconds < 60
    assert np.isfinite(first.samples).all() and np.abs(first.samples).max() > 0.01
    assert np.array_equal(first.samples, again.samples)
    assert first.samples.shape != other.samples.shape or not np.array_equal(first.samples, other.samples)


@every_graph
def test_another_decode_samples_nothing_again(comfy: Comfy, person: str, name: str):
    graph = text_graph(name, person, seed=3)
    first = comfy.queue(graph)
    second = comfy.queue(text_graph(name, person, seed=3, steps=4))
    again = {node(graph, "SpeechwrightS3Token2Wav"), node(graph, "SaveAudio")}
    assert second.completed and second.cached == set(graph) - again and ran(second) == again
    one, other = sound_of(comfy, first), sound_of(comfy, second)
    assert one.seconds == other.seconds and not np.array_equal(one.samples, other.samples)


@every_graph
def test_cancel_in_mid_piece_leaves_nothing_behind(comfy: Comfy, person: str, name: str):
    graph = shown(text_graph(name, person, seed=4))
    expected = comfy.queue(graph)
    comfy.free(free_memory=True)
    comfy.hold()
    cancelled = comfy.queue(graph, interrupt_on="progress")
    assert cancelled.of("execution_interrupted") and not cancelled.files
    (progress,) = cancelled.of("progress")
    assert progress["node"] == sampler(graph) and progress["value"] == 10 < progress["max"]
    after = comfy.queue(graph)
    assert sampler(graph) in ran(after)
    assert after.history["outputs"]["99"] == expected.history["outputs"]["99"]
    assert np.array_equal(sound_of(comfy, after).samples, sound_of(comfy, expected).samples)


def test_report_tells_of_each_piece(comfy: Comfy, person: str):
    graph = shown(text_graph(GRAPHS[0], person, seed=5))
    inputs(graph, "SpeechwrightEncodePrompt").update(text="Who is there? Nobody answered.", split_limit=20)
    lines = comfy.queue(graph).history["outputs"]["99"]["text"][0].splitlines()
    assert len(lines) == 2
    for number, (line, text) in enumerate(zip(lines, ("Who is there?", "Nobody answered.")), 1):
        assert line.startswith(f"piece {number} of 2: ") and line.endswith(f" retries: {text}")
        assert " tokens, " in line and " redraws, ended by " in line


def test_what_the_first_model_lacks(comfy: Comfy, person: str):
    graph = text_graph(GRAPHS[0], person, seed=6)
    del inputs(graph, "SpeechwrightEncodePrompt")["speech_tokenizer"]
    run = comfy.queue(graph)
    (error,) = run.of("execution_error")
    assert error["node_id"] == node(graph, "SpeechwrightEncodePrompt")
    assert "whose speech tokenizer is missing" in error["exception_message"]
    assert "speech_tokenizer_v2.onnx" in error["exception_message"]


@pytest.mark.parametrize("name", ["ogg_voice_clone", "ogg_dialogue", "ogg_then_voice_conversion"])
def test_ogg_with_a_person_s_recording(comfy: Comfy, person: str, name: str):
    sounds = []
    for seed in (1, 2, 1):
        graph = graph_of(name, seed)
        for entry in graph.values():
            if entry["class_type"] == "LoadAudio":
                entry["inputs"]["audio"] = person
            if entry["class_type"] == "SpeechwrightVoice" and entry["inputs"]["transcript"]:
                entry["inputs"]["transcript"] = "Front center."
        comfy.free(free_memory=True)
        sounds.append(sound_of(comfy, comfy.queue(graph)))
    first, other, again = sounds
    assert 0.5 < first.seconds < 30 and np.isfinite(first.samples).all() and np.abs(first.samples).max() > 0.01
    assert np.array_equal(first.samples, again.samples)
    assert first.samples.shape != other.samples.shape or not np.array_equal(first.samples, other.samples)
