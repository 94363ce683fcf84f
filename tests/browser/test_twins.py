"""The editor's workflows: made by the editor from ``workflows/api``, whole, and the same graphs."""
from __future__ import annotations

import io
import json

import pytest
from PIL import Image

from browser import layout, twins
from browser.frontend import Frontend
from browser.queued import with_defaults, without_titles

NAMES = twins.names()
every_workflow = pytest.mark.parametrize("name", NAMES)
AGAIN = "`python tests/run.py --generate` writes it anew"


def text_of(name: str) -> str:
    return (twins.WORKFLOWS / f"{name}.json").read_text(encoding="utf-8")


def values(workflow: dict) -> dict[int, list]:
    """The widgets' values by node. A button has none, and the editor writes that as "" or null."""
    return {node["id"]: [None if value == "" else value for value in node.get("widgets_values", [])]
            for node in workflow["nodes"]}


def test_every_workflow_has_its_twin_its_picture_and_its_note():
    folders = {twins.WORKFLOWS: (".json", ".jpg"), twins.NOTES: (".md",)}
    for folder, endings in folders.items():
        for ending in endings:
            assert sorted(path.stem for path in folder.glob(f"*{ending}")) == NAMES, f"{folder}: {AGAIN}"


@every_workflow
def test_is_what_the_editor_makes_of_the_graph(frontend: Frontend, name: str):
    """Stale files once showed users inputs that no node had any more."""
    made = twins.text_of(twins.make(frontend, name, twins.api_graph(name), twins.note_text(name)))
    assert made == text_of(name), f"workflows/{name}.json is not what the editor makes of it; {AGAIN}"


@every_workflow
def test_opens_whole_and_would_queue_the_same_graph(frontend: Frontend, renderer: str, comfy, name: str):
    graph, saved = twins.api_graph(name), json.loads(text_of(name))
    frontend.drop(text_of(name), name)
    assert frontend.missing() == [] and frontend.marked() == []
    assert without_titles(frontend.prompt()) == with_defaults(graph, comfy)
    again = twins.tidy(frontend.serialise(), name)
    assert again["links"] == saved["links"]
    assert len(saved["links"]) == sum(len(heard) for heard in layout.sources(graph).values())
    shown = frontend.titles()
    assert {node: shown[node] for node in graph} == {node: entry["_meta"]["title"] for node, entry in graph.items()}
    assert values(again) == values(saved)


@every_workflow
def test_a_seed_stays_as_it_is_from_run_to_run(name: str):
    """With the editor's own choice, a shared graph would give everybody another result."""
    for node in json.loads(text_of(name))["nodes"]:
        widgets = [slot["name"] for slot in node["inputs"] if "widget" in slot]
        if "seed" in widgets:
            assert node["widgets_values"][widgets.index("seed") + 1] == "fixed"
        assert "randomize" not in node.get("widgets_values", [])


@every_workflow
def test_nodes_do_not_cover_each_other(name: str):
    nodes = json.loads(text_of(name))["nodes"]
    assert layout.overlaps({f"{node['id']} {node['type']}": layout.box(node) for node in nodes}) == []


@every_workflow
def test_nodes_are_as_large_as_the_file_says(frontend: Frontend, name: str):
    """The editor widens a node that is too small for its inputs, and it then covers its neighbour."""
    frontend.drop(text_of(name), name)
    saved = {node["id"]: node["size"] for node in json.loads(text_of(name))["nodes"]}
    assert {node["id"]: node["size"] for node in twins.tidy(frontend.serialise(), name)["nodes"]} == saved


@every_workflow
def test_nodes_do_not_cover_each_other_in_nodes_2(frontend: Frontend, name: str):
    frontend.set("Comfy.VueNodes.Enabled", True)
    try:
        frontend.drop(text_of(name), name)
        drawn = frontend.drawn()
    finally:
        frontend.set("Comfy.VueNodes.Enabled", False)
    assert len(drawn) == len(json.loads(text_of(name))["nodes"])
    assert layout.overlaps(drawn) == []


@every_workflow
def test_picture_shows_this_twin(name: str):
    path = twins.WORKFLOWS / f"{name}.jpg"
    assert twins.shown(path) == twins.mark(text_of(name)), f"{path.name} shows an older graph; {AGAIN}"
    assert path.stat().st_size <= twins.PICTURE_BYTES
    with Image.open(path) as image:
        assert image.format == "JPEG" and image.width == twins.PICTURE_WIDTH
        assert max(image.convert("L").getextrema()) > 200, "it is dark all over"


def test_a_picture_can_be_taken_again(frontend: Frontend):
    name = NAMES[0]
    with Image.open(io.BytesIO(twins.picture(frontend, text_of(name), name))) as made, \
            Image.open(twins.WORKFLOWS / f"{name}.jpg") as kept:
        assert made.size == kept.size and made.info["comment"] == kept.info["comment"]


@every_workflow
def test_the_note_speaks_of_the_graph(name: str):
    """It tells what to change by names that are on the screen."""
    nodes = json.loads(text_of(name))["nodes"]
    note = next(node for node in nodes if node["type"] == "MarkdownNote")
    text = note["widgets_values"][0]
    assert text == twins.note_text(name) and "Demo" in text
    assert "`" not in text, "Nodes 2.0 shows code as blue on blue"
    titles = {entry["_meta"]["title"] for entry in twins.api_graph(name).values()}
    inputs = {slot["name"].split(".")[-1] for node in nodes for slot in node["inputs"]}
    assert any(f"**{word}**" in text for word in titles | inputs)
