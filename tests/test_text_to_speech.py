"""Text in the voice of a person's recording, through the queue of the genuine ComfyUI."""
from __future__ import annotations

import shutil

import numpy as np
import pytest
from test_workflows import graph_of, sound_of

from kit import speech
from kit.server import Comfy, Run

SAMPLER, DECODER = "6", "7"


@pytest.fixture(scope="module")
def person(comfy: Comfy) -> str:
    """The name of the recording in the server's input folder."""
    shutil.copyfile(speech.person(), comfy.booted.base / "input" / "person.wav")
    return "person.wav"


def text_graph(person: str, seed: int, **decoder) -> dict:
    graph = graph_of("cosyvoice2_to_s3gen", seed)
    graph["1"]["inputs"]["audio"] = person
    graph["2"]["inputs"]["transcript"] = "Front center."
    graph[DECODER]["inputs"].update(decoder)
    return graph


def shown(graph: dict) -> dict:
    """The graph with the sampler's report on the screen."""
    return {**graph, "9": {"class_type": "PreviewAny", "_meta": {"title": "Report"},
                           "inputs": {"source": [SAMPLER, 1]}}}


def ran(run: Run) -> set[str]:
    """Ids of the nodes that did their work."""
    return {data["node"] for data in run.of("executing") if data["node"]}


def test_text_in_the_voice_of_a_person(comfy: Comfy, person: str):
    """Finite sound of a plausible length, the same again for the same seed, another take for another."""
    sounds = []
    for seed in (1, 2, 1):
        comfy.free(free_memory=True)
        sounds.append(sound_of(comfy, comfy.queue(text_graph(person, seed))))
    first, other, again = sounds
    assert (first.rate_hz, len(first.samples)) == (24_000, 1) and 5 < first.seconds < 60
    assert np.isfinite(first.samples).all() and np.abs(first.samples).max() > 0.01
    assert np.array_equal(first.samples, again.samples)
    assert first.samples.shape != other.samples.shape or not np.array_equal(first.samples, other.samples)


def test_another_decode_samples_nothing_again(comfy: Comfy, person: str):
    graph = text_graph(person, seed=3)
    first = comfy.queue(graph)
    second = comfy.queue(text_graph(person, seed=3, steps=4))
    assert second.completed and second.cached == set(graph) - {DECODER, "8"} and ran(second) == {DECODER, "8"}
    one, other = sound_of(comfy, first), sound_of(comfy, second)
    assert one.seconds == other.seconds and not np.array_equal(one.samples, other.samples)


def test_cancel_in_mid_piece_leaves_nothing_behind(comfy: Comfy, person: str):
    graph = shown(text_graph(person, seed=4))
    expected = comfy.queue(graph)
    comfy.free(free_memory=True)
    comfy.hold()
    cancelled = comfy.queue(graph, interrupt_on="progress")
    assert cancelled.of("execution_interrupted") and not cancelled.files
    (progress,) = cancelled.of("progress")
    assert progress["node"] == SAMPLER and progress["value"] == 10 < progress["max"]
    after = comfy.queue(graph)
    assert SAMPLER in ran(after)
    assert after.history["outputs"]["9"] == expected.history["outputs"]["9"]
    assert np.array_equal(sound_of(comfy, after).samples, sound_of(comfy, expected).samples)


def test_report_tells_of_each_piece(comfy: Comfy, person: str):
    graph = shown(text_graph(person, seed=5))
    graph["5"]["inputs"] |= {"text": "Who is there? Nobody answered.", "split_limit": 20}
    lines = comfy.queue(graph).history["outputs"]["9"]["text"][0].splitlines()
    assert len(lines) == 2
    for number, (line, text) in enumerate(zip(lines, ("Who is there?", "Nobody answered.")), 1):
        assert line.startswith(f"piece {number} of 2: ") and line.endswith(f" retries: {text}")
        assert " tokens, " in line and " redraws, ended by " in line


def test_what_the_first_model_lacks(comfy: Comfy, person: str):
    graph = text_graph(person, seed=6)
    del graph["5"]["inputs"]["speech_tokenizer"]
    run = comfy.queue(graph)
    (error,) = run.of("execution_error")
    assert error["node_id"] == "5" and "whose speech tokenizer is missing" in error["exception_message"]
    assert "speech_tokenizer_v2.onnx" in error["exception_message"]
