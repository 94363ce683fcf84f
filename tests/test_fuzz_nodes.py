"""Any graph at all with our nodes: refused in words, run to sound outputs, or ended by one error that helps.

Each test draws graphs around one node, the same each time, until its share of the time is over. By hand
``--fuzz-minutes 30 --fuzz-seed 7`` draws others for as long as told, and lists every kind of fault that it finds.
"""
from __future__ import annotations

import shutil
import time

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from kit.drawn import EAR, VOICE, Drawn, Graph, graphs
from kit.verdict import Broken, Judge
from kit.whisper import write_small
from speechwright.workflows.runner.client import Client

KINDS = ("BlockDiffusionSampler", "EncodePrompt", "FishDecode", "FishEncode", "LoadModel", "RASSampler", "Report",
         "S3Token2Wav", "S3Tokenize", "SaveVoice", "Transcribe", "Voice", "VoiceLibrary")
EXAMPLES = 40               # for each node, unless
SHARE_S = 3.0               # are over before, and
LEAST = 5                   # have been tried


@pytest.fixture(scope="module")
def judge(comfy: Client):
    """The server with a voice and an ear of its own; afterwards it is as it was."""
    models = comfy.booted.base / "models"
    write_small(models / "tts" / EAR, max_target_positions=24)
    kept = {path.name for path in (models / "voices").iterdir()}
    for suffix in (".flac", ".txt"):
        shutil.copy(models / "voices" / f"ada{suffix}", models / "voices" / f"{VOICE}{suffix}")
    found = Judge(comfy)
    yield found
    shutil.rmtree(models / "tts" / EAR)
    for path in (models / "voices").iterdir():
        if path.name not in kept:
            path.unlink()
    comfy.free(free_memory=True)
    print(f"\n{dict(found.counts)}, {found.inputs} odd inputs, {found.probes} probes")


def test_every_node_is_drawn(judge: Judge):
    assert sorted(node.kind for node in judge.nodes.values()) == sorted(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_node(judge: Judge, kind: str):
    end, tried = time.monotonic() + SHARE_S, 0

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(graphs(judge.nodes, f"Speechwright{kind}"))
    def law(drawn):
        nonlocal tried
        if tried < LEAST or time.monotonic() < end:
            tried += 1
            judge.try_(drawn)

    law()


@pytest.mark.parametrize("sampler, model", [("RASSampler", "cosy3"), ("BlockDiffusionSampler", "ogg")])
def test_what_takes_long_can_be_stopped(judge: Judge, sampler: str, model: str):
    graph = Graph()
    text = graph.add("SpeechwrightEncodePrompt", {"model": graph.good(model), "text": "Yes, or no. " * 2000})
    tokens = graph.add(f"Speechwright{sampler}", {"model": graph.good(model), "prompt": [text, 0], "seed": 0})
    graph.add("Look", {"value": [tokens, 0]})
    assert judge.try_(Drawn(graph.nodes, tokens, {}, heavy=True)) == "stopped"


def test_nothing_is_left_behind(judge: Judge):
    judge.check_files()
    judge.check_probe()


def test_by_hand(judge: Judge, request: pytest.FixtureRequest):
    """Nothing, unless minutes are asked for."""
    minutes, number = (request.config.getoption(f"--fuzz-{name}") for name in ("minutes", "seed"))
    end, faults = time.monotonic() + 60 * minutes, {}
    while time.monotonic() < end:
        @seed(number)
        @settings(max_examples=200, suppress_health_check=list(HealthCheck), phases=[Phase.generate],
                  derandomize=False)
        @given(st.sampled_from(sorted(judge.nodes)).flatmap(lambda kind: graphs(judge.nodes, kind)))
        def law(drawn):
            if time.monotonic() > end:
                return
            try:
                judge.try_(drawn)
            except Broken as broken:
                key = f"{broken.law}: {drawn.graph[drawn.target]['class_type']}: {str(broken.told)[:120]}"
                if key not in faults:
                    faults[key] = str(broken)
                    print(f"\n{len(faults)}. {broken}", flush=True)

        law()
        number += 1
        judge.check_probe()
    judge.check_files()
    assert not faults, "\n\n".join(faults.values())
