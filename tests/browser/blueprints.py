"""Blueprints: subgraphs that ComfyUI offers among its nodes, cut by the editor out of the example workflows.

The model stays outside, so that one loaded model serves several of them, and no blueprint asks for files.
"""
from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from browser import layout, twins
from browser.frontend import Frontend
from kit.checkout import CHECKOUT

FOLDER = CHECKOUT / "subgraphs"
INPUT_ID, OUTPUT_ID = -10, -20          # what the editor calls the two ends of a subgraph
END_WIDTH, END_GAP = 128, 80
SLOT = 20


@dataclass(frozen=True)
class Blueprint:
    """Nodes of a workflow that become one, with inputs of these names: each feeds ``node.input`` within."""

    workflow: str
    nodes: tuple[str, ...]
    inputs: Mapping[str, tuple[str, ...]]
    description: str
    aliases: tuple[str, ...]


BLUEPRINTS = {
    "Text to Speech (CosyVoice)": Blueprint(
        "cosyvoice3_zero_shot", ("4", "5", "6"),
        {"model": ("4.model", "5.model", "6.model"), "voice": ("4.voices.voice0",), "text": ("4.text",),
         "instruction": ("4.instruction",), "seed": ("5.seed",)},
        "Says a text in the voice of a recording, with CosyVoice 2 or 3. Connect Load Speech Model and Voice.",
        ("tts", "voice clone", "speak", "say")),
    "Text to Speech (OGG TTS)": Blueprint(
        "ogg_voice_clone", ("4", "5", "6"),
        {"model": ("4.model", "5.model", "6.model"), "voice": ("4.voices.voice0",), "text": ("4.text",),
         "language": ("4.language",), "seed": ("5.seed",)},
        "Says a text in the voice of a recording, or without one in a voice of its own, with OGG TTS. Connect Load "
        "Speech Model and Voice.",
        ("tts", "voice clone", "speak", "say")),
    "Voice Conversion (S3Gen)": Blueprint(
        "voice_conversion", ("4", "6"),
        {"model": ("4.model", "6.model"), "audio": ("4.audio",), "voice": ("6.voice",), "seed": ("6.seed",)},
        "What a recording says, in the voice of another, with S3Gen or CosyVoice3. Connect Load Speech Model, the "
        "recording, and Voice.",
        ("voice changer", "vc", "tts")),
}
CUT = """([ids, name]) => {
    const {subgraph, node} = app.graph.convertToSubgraph(new Set(ids.map(id => app.graph.getNodeById(id))))
    subgraph.name = node.title = name
    for (const input of [...subgraph.inputs]) subgraph.removeInput(input)
    return Number(node.id)
}"""
CONNECT = """inputs => {
    const [subgraph] = app.graph.subgraphs.values()
    for (const [name, targets] of inputs)
        targets.forEach(([id, slotName], index) => {
            const inner = subgraph.getNodeById(id), slot = inner.inputs.find(slot => slot.name === slotName)
            const input = index ? subgraph.inputs.at(-1) : subgraph.addInput(name, slot.type)
            input.connect(slot, inner)
        })
}"""


def make(frontend: Frontend, name: str) -> dict:
    """The blueprint as the editor keeps it: one node, and the subgraph that it stands for."""
    blueprint = BLUEPRINTS[name]
    frontend.drop((twins.WORKFLOWS / f"{blueprint.workflow}.json").read_text(encoding="utf-8"), name)
    inputs = [[key, [target.split(".", 1) for target in targets]] for key, targets in blueprint.inputs.items()]
    node_id = frontend.page.evaluate(CUT, [list(blueprint.nodes), name])
    frontend.settle()                   # a list of voices without its link makes its inputs anew, a moment later
    frontend.page.evaluate(CONNECT, inputs)
    frontend.settle()
    workflow = frontend.serialise()
    node = next(node for node in workflow["nodes"] if int(node["id"]) == node_id)
    return tidy(node, workflow["definitions"]["subgraphs"][0], name)


def tidy(node: dict, subgraph: dict, name: str) -> dict:
    """The blueprint without what differs from one making to the next."""
    blueprint = BLUEPRINTS[name]
    own = str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.{twins.PACK}"))
    ids = {number: int(number) for number in (inner["id"] for inner in subgraph["nodes"])}
    numbers = {link["id"]: number for number, link in enumerate(subgraph["links"], 1)}
    inner = [twins.tidy_node(node, numbers) for node in subgraph["nodes"]]
    left, top, width, height = layout.around(inner)
    for node_of_it in inner:
        node_of_it["pos"] = [node_of_it["pos"][0] - left, node_of_it["pos"][1] - top]
    ends = {}
    for end, x in (("inputs", -END_GAP - END_WIDTH), ("outputs", width + END_GAP)):
        ends[end] = [x, 0, END_WIDTH, SLOT * (len(subgraph[end]) + 2)]
        for slot in subgraph[end]:
            slot.pop("localized_name", None)
            slot.pop("pos", None)
            slot["id"] = str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{slot['name']}.{end}.{own}"))
            slot["linkIds"] = [numbers[link] for link in slot["linkIds"]]
    links = [{**link, "id": numbers[link["id"]], "origin_id": ids.get(link["origin_id"], link["origin_id"]),
              "target_id": ids.get(link["target_id"], link["target_id"])} for link in subgraph["links"]]
    outer = twins.tidy_node(node, {})
    outer["properties"]["cnr_id"] = twins.PACK
    outer.update(id=1, type=own, pos=[0, 0], size=[twins.WIDTH, outer["size"][1]], order=0, title=name)
    definition = {
        "id": own, "version": 1,
        "state": {"lastGroupId": 0, "lastNodeId": max(ids.values()), "lastLinkId": len(links), "lastRerouteId": 0},
        "revision": 0, "config": {}, "name": name, "category": "audio/speech", "description": blueprint.description,
        "inputNode": {"id": INPUT_ID, "bounding": ends["inputs"]},
        "outputNode": {"id": OUTPUT_ID, "bounding": ends["outputs"]},
        "inputs": subgraph["inputs"], "outputs": subgraph["outputs"], "widgets": [],
        "nodes": inner, "groups": [], "links": links, "extra": {},
    }
    return {"revision": 0, "last_node_id": 1, "last_link_id": 0, "nodes": [outer], "links": [], "version": 0.4,
            "definitions": {"subgraphs": [definition]},
            "extra": {"BlueprintDescription": blueprint.description,
                      "BlueprintSearchAliases": list(blueprint.aliases)}}


def text_of(blueprint: Mapping) -> str:
    return json.dumps(blueprint, ensure_ascii=False, indent=1) + "\n"
