"""A model that is missing, fetched from a hub on this machine in the queue of the genuine ComfyUI."""
from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import save

from kit.checkout import CHECKOUT, shipped
from kit.hub import SETTINGS, Hub, running_hub
from kit.server import KIT, Comfy
from speechwright.files import SUFFIXES
from speechwright.nodes.load import S3GEN_OPTION
from speechwright.s3gen.demo import DEMOS
from speechwright.workflows.runner import server
from speechwright.workflows.runner.environment import ComfyUI

REPOSITORY, FILE, NAME = "owner/models", "s3gen.safetensors", "s3gen/s3gen.safetensors"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as running:
        running.files[f"{REPOSITORY}/{FILE}"] = save(DEMOS["S3Gen"]())
        yield running


@pytest.fixture
def comfy(hub, comfyui_folder, tmp_path, monkeypatch) -> Iterator[Comfy]:
    """A server whose pack knows the hub's model as a published one; nothing else of the pack is changed."""
    content, pack = hub.files[f"{REPOSITORY}/{FILE}"], tmp_path / "speechwright"
    for name in shipped():
        (pack / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, pack / name)
    known = REPOSITORY, FILE, len(content), hashlib.sha256(content).hexdigest(), "MIT"
    with open(pack / "s3gen" / "weights.py", "a", encoding="utf-8") as file:
        file.write(f"\nPUBLISHED = {{{NAME!r}: Published{known!r}}}\n")
    for name in (*SETTINGS, *map(str.upper, SETTINGS)):
        monkeypatch.delenv(name, raising=False)
    asked = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.endpoint}
    comfyui = ComfyUI(comfyui_folder, Path(sys.executable), ours=comfyui_folder.parent == Path(sys.prefix).parent)
    with server.booted(comfyui, {"speechwright": pack, "probe.py": KIT / "probe.py"}, cpu=True,
                       audio=CHECKOUT / "workflows" / "audio",
                       environment={"PYTHONPATH": str(KIT.parent), **asked}) as booted:
        yield Comfy(booted)


def graph(download: bool = True) -> dict:
    """A conversion by S3Gen, with the checkpoint in place of the demo."""
    nodes = json.loads((CHECKOUT / "workflows" / "api" / "voice_conversion.json").read_text(encoding="utf-8"))
    nodes["3"]["inputs"] = {"family": S3GEN_OPTION, "family.checkpoint": NAME, "precision": "auto", "device": "auto",
                            "download": download}
    return {number: nodes[number] for number in ("1", "2", "3", "4", "5", "6", "7")}


def words(comfy: Comfy, run) -> str:
    """What the user is told; nothing is listed as a model then but what could be fetched."""
    error, = run.of("execution_error")
    assert error["node_id"] == "3" and not run.completed
    assert_no_model(comfy)
    return error["exception_message"]


def assert_no_model(comfy: Comfy) -> None:
    info = comfy.get("/object_info/SpeechwrightLoadModel")["SpeechwrightLoadModel"]["input"]["required"]["family"]
    assert json.dumps(info).count(".safetensors\"") == json.dumps(info).count(f"\"{NAME}\"") + 1    # and OGG's
    assert not any(name.endswith(SUFFIXES) for name in comfy.get("/models/tts"))
    assert not (comfy.booted.base / "models" / "tts" / NAME).exists()


def test_a_download_through_the_queue(hub, comfy):
    """Refused, not there, cut in the middle, cancelled, and whole at last, without a byte asked for twice."""
    assert_no_model(comfy)
    assert "switch `download` on" in words(comfy, comfy.queue(graph(download=False))) and hub.requests == []
    hub.refusal = 404, "EntryNotFound"
    assert f"the hub has no {FILE} of {REPOSITORY}" in words(comfy, comfy.queue(graph()))
    hub.refusal, content = None, hub.files[f"{REPOSITORY}/{FILE}"]
    third = len(content) // 3
    hub.cuts = [third, 0]
    told = words(comfy, comfy.queue(graph()))
    assert f"after {third:,} of {len(content):,} bytes" in told and "queue again to go on from there" in told
    hub.trickle = third // 40, 0.1
    cancelled = comfy.queue(graph(), interrupt_on="progress")
    assert cancelled.of("execution_interrupted") and not cancelled.completed
    assert_no_model(comfy)
    hub.trickle, before = None, len(hub.bodies())
    run = comfy.queue(graph())
    assert run.completed and len(run.files) == 1 and comfy.path(run.files[0]).stat().st_size > 1000
    folder = comfy.booted.base / "models" / "tts" / "s3gen"
    assert [path.name for path in folder.iterdir()] == [FILE] and (folder / FILE).read_bytes() == content
    asked = hub.bodies()[before].range
    assert len(hub.bodies()) == before + 1 and int(asked.removeprefix("bytes=").removesuffix("-")) > third
    steps = [data["value"] for data in run.of("progress") if data["node"] == "3"]
    assert steps and steps == sorted(steps)
