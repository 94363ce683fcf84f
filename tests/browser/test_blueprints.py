"""Blueprints: made by the editor, offered in its search, and as good as the nodes that they stand for."""
from __future__ import annotations

import json

import numpy as np
import pytest

from browser import blueprints, layout, twins
from browser.frontend import Frontend
from browser.sound import Sound

BLUEPRINTS = blueprints.BLUEPRINTS
every_blueprint = pytest.mark.parametrize("name", list(BLUEPRINTS))
# Put the blueprint's node where its parts were: what fed them feeds it, and what heard them hears it.
REPLACE = """([parts, feeds, listeners]) => {
    const graph = app.graph, node = graph._nodes.find(node => node.isSubgraphNode?.())
    for (const id of parts) graph.remove(graph.getNodeById(id))
    for (const [input, origin, slot] of feeds)
        graph.getNodeById(origin).connect(slot, node, node.inputs.findIndex(other => other.name === input))
    for (const [id, input] of listeners) {
        const listener = graph.getNodeById(id)
        node.connect(0, listener, listener.inputs.findIndex(other => other.name === input))
    }
}"""


def text_of(name: str) -> str:
    return (blueprints.FOLDER / f"{name}.json").read_text(encoding="utf-8")


def test_every_blueprint_has_its_file():
    assert {path.stem for path in blueprints.FOLDER.glob("*")} == set(BLUEPRINTS)


@every_blueprint
def test_is_what_the_editor_makes(frontend: Frontend, name: str):
    made = blueprints.text_of(blueprints.make(frontend, name))
    assert made == text_of(name), f"subgraphs/{name}.json is stale; `python tests/run.py --generate` writes it anew"


@every_blueprint
def test_every_input_leads_somewhere_and_no_part_covers_another(name: str):
    outer, = json.loads(text_of(name))["nodes"]
    subgraph, = json.loads(text_of(name))["definitions"]["subgraphs"]
    assert [slot["name"] for slot in outer["inputs"]] == list(BLUEPRINTS[name].inputs)
    assert all(slot["linkIds"] for slot in subgraph["inputs"] + subgraph["outputs"])
    for node in subgraph["nodes"]:
        for slot, entry in enumerate(node["inputs"]):
            ends = (node["id"], slot)
            found = [link["id"] for link in subgraph["links"] if (link["target_id"], link["target_slot"]) == ends]
            assert found == ([entry["link"]] if entry["link"] else [])
    assert layout.overlaps({str(node["id"]): layout.box(node) for node in subgraph["nodes"]}) == []


def test_served_to_the_page(comfy):
    served = comfy.get("/global_subgraphs")
    ours = {entry["name"]: entry_id for entry_id, entry in served.items()
            if entry["info"]["node_pack"] == "custom_nodes.speechwright"}
    assert set(ours) == set(BLUEPRINTS)
    for name, entry_id in ours.items():
        assert comfy.get(f"/global_subgraphs/{entry_id}")["data"] == text_of(name)


@every_blueprint
def test_placed_from_the_search_it_sounds_like_its_parts(frontend: Frontend, renderer: str, comfy, name: str):
    blueprint = BLUEPRINTS[name]
    graph = twins.api_graph(blueprint.workflow)
    frontend.drop((twins.WORKFLOWS / f"{blueprint.workflow}.json").read_text(encoding="utf-8"), blueprint.workflow)
    frontend.place(name)
    feeds = []
    for key, targets in blueprint.inputs.items():
        node, _, slot = targets[0].partition(".")
        if isinstance(graph[node]["inputs"].get(slot), list):
            feeds.append([key, *graph[node]["inputs"][slot]])
    listeners = [[node, slot] for node, entry in graph.items() for slot, value in entry["inputs"].items()
                 if isinstance(value, list) and value[0] in blueprint.nodes and node not in blueprint.nodes]
    frontend.page.evaluate(REPLACE, [list(blueprint.nodes), feeds, listeners])
    frontend.settle()
    comfy.free(free_memory=True)
    ended = frontend.run()
    assert ended["kind"] == "execution_success", ended
    outputs = comfy.get(f"/history/{ended['prompt_id']}")[ended["prompt_id"]]["outputs"]
    kinds = {node: entry["class_type"] for node, entry in frontend.prompt().items()}
    assert sorted(kinds.values()) == sorted(entry["class_type"] for entry in graph.values())
    comfy.free(free_memory=True)
    run = comfy.queue(graph)
    for node, output in outputs.items():
        for file, same in zip(output.get("audio", []), run.history["outputs"][node].get("audio", []), strict=True):
            assert np.array_equal(Sound.read(comfy.path(file)).samples, Sound.read(comfy.path(same)).samples)
    assert any("audio" in output for output in outputs.values())
