"""A server whose temporary folder another one has emptied."""
from __future__ import annotations

import shutil

from test_workflows import graph_of

from kit.server import Comfy


def test_a_demo_outlives_the_temporary_folder(comfy: Comfy):
    """A second server on the same folder empties it as it starts; the first had parts of its demos there."""
    comfy.free(free_memory=True)
    graph = graph_of("voice_conversion", seed=30)
    loaders = {key: node for key, node in graph.items() if node["class_type"] == "SpeechwrightLoadModel"}
    shown = {f"9{key}": {"class_type": "PreviewAny", "inputs": {"source": [key, 0]}} for key in loaders}
    assert comfy.queue({**loaders, **shown}).completed
    folders = list((comfy.booted.base / "temp").glob("speechwright_demo_*"))
    assert folders
    for folder in folders:
        shutil.rmtree(folder)
    run = comfy.queue({**graph, **shown})
    assert run.completed and set(loaders) <= run.cached, run.history["status"]
