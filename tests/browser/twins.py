"""The editor's form of a workflow in API format, its picture, and the files that both are kept in.

The editor itself makes the nodes, links and values; here they are only put in their places, and what differs between
two makings of the same graph, or is told again by the nodes themselves, is left out.
"""
from __future__ import annotations

import hashlib
import io
import json
import uuid
from collections.abc import Mapping
from pathlib import Path

from PIL import Image

from browser import layout
from browser.frontend import Frontend
from kit.checkout import CHECKOUT

WORKFLOWS = CHECKOUT / "workflows"
API = WORKFLOWS / "api"
NOTES = Path(__file__).with_name("notes")
PACK = "speechwright"
# Widths of nodes, fixed, because the editor's own follow the fonts of the machine; heights where it waits for a player.
WIDTHS = {"SpeechwrightEncodePrompt": 420, "SpeechwrightVoice": 340}
WIDTH = 320
LETTER = 6              # of a file name, which is shown whole beside its label
HEIGHTS = {"LoadAudio": 150, "SaveAudio": 130, "PreviewAudio": 110, "PreviewAny": 200, "SpeechwrightVoice": 200,
           "SpeechwrightEncodePrompt": 580}
PICTURE_WIDTH, PICTURE_BYTES, PICTURE_SCALE = 800, 60_000, 1600
MARGIN = 30
SIZES = """() => Object.fromEntries(app.graph._nodes.map(node => [node.id, [...node.computeSize()]]))"""
ARRANGE = """([boxes, note]) => {
    for (const node of app.graph._nodes) {
        const [x, y, width, height] = boxes[node.id]
        node.setSize([width, height])
        node.pos = [x, y]
        for (const widget of node.widgets ?? [])
            if (widget.name === 'control_after_generate') widget.value = 'fixed'
    }
    const node = LiteGraph.createNode('MarkdownNote')
    node.id = note.id
    node.title = note.title
    app.graph.add(node)
    node.widgets[0].value = note.text
    node.setSize(note.size)
    node.pos = note.pos
}"""
# Without the menus, the tool bars and the box around what is chosen.
BARE = ".no-drag, .p-splitter, .selection-toolbox, .side-tool-bar-container { display: none !important }"
FIT = """([box, width, height]) => {
    const canvas = app.canvas, scale = Math.min(width / box[2], height / box[3])
    canvas.deselectAll()
    canvas.ds.scale = scale
    canvas.ds.offset = [-box[0] + (width / scale - box[2]) / 2, -box[1] + (height / scale - box[3]) / 2]
    canvas.setDirty(true, true)
}"""


def names() -> list[str]:
    return sorted(path.stem for path in API.glob("*.json"))


def api_graph(name: str) -> dict:
    return json.loads((API / f"{name}.json").read_text(encoding="utf-8"))


def note_text(name: str) -> str:
    """What the graph says of itself."""
    path = NOTES / f"{name}.md"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: write there, in Markdown, what the graph {name} does and what to change.")
    return path.read_text(encoding="utf-8").strip()


def make(frontend: Frontend, name: str, graph: Mapping, note: str) -> dict:
    """The graph as a UI workflow, with a note at its top left."""
    frontend.load_api(graph, name)
    computed = frontend.page.evaluate(SIZES)
    sizes = {node: _size(graph[node], computed[node][1]) for node in graph}
    stacks = layout.columns(graph)
    note_id = str(1 + max(map(int, graph)))
    sizes[note_id] = (WIDTH, layout.note_height(note))
    stacks[0].insert(0, note_id)
    corners = layout.place(stacks, sizes)
    boxes = {node: [*corners[node], *sizes[node]] for node in graph}
    frontend.page.evaluate(ARRANGE, [boxes, {
        "id": int(note_id), "title": "About this graph", "text": note, "size": sizes[note_id],
        "pos": corners[note_id]}])
    frontend.settle()
    return tidy(frontend.serialise(), name)


def _size(entry: Mapping, height: float) -> tuple[float, float]:
    kind, prefix = entry["class_type"], entry["inputs"].get("filename_prefix", "")
    return max(WIDTHS.get(kind, WIDTH), 180 + LETTER * len(prefix)), HEIGHTS.get(kind) or round(height)


def tidy(workflow: dict, name: str) -> dict:
    """The same workflow without what differs from one making to the next."""
    numbers = {link[0]: number for number, link in enumerate(workflow["links"], 1)}
    nodes = [tidy_node(node, numbers) for node in workflow["nodes"]]
    links = [[numbers[number], int(origin), out, int(target), into, kind]
             for number, origin, out, target, into, kind in workflow["links"]]
    return {
        "id": str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.{PACK}")), "revision": 0,
        "last_node_id": max(node["id"] for node in nodes), "last_link_id": len(links),
        "nodes": nodes, "links": links, "groups": [], "config": {}, "extra": {}, "version": 0.4,
    }


def tidy_node(node: dict, numbers: Mapping[int, int]) -> dict:
    """A node with its links under new ``numbers``, and without the names that its own schema tells again."""
    def untold(slot: Mapping) -> dict:
        return {key: value for key, value in slot.items() if key != "localized_name"}

    # Whoever lacks the pack is told by this which one to install.
    origin = PACK if node["type"].startswith("Speechwright") else "comfy-core"
    properties = {key: value for key, value in node["properties"].items() if key != "ver"}
    return {
        **node, "id": int(node["id"]), "properties": {**properties, "cnr_id": origin},
        "inputs": [{**untold(slot), "link": numbers.get(slot.get("link"))} for slot in node.get("inputs", [])],
        "outputs": [{**untold(slot), "links": [numbers[link] for link in slot.get("links") or [] if link in numbers]
                     or None} for slot in node.get("outputs", [])],
    }


def text_of(workflow: Mapping) -> str:
    """JSON with a line for each node and each link."""
    lines = []
    for key, value in workflow.items():
        if key in ("nodes", "links") and value:
            rows = ",\n".join("    " + json.dumps(row, ensure_ascii=False) for row in value)
            lines.append(f"  {json.dumps(key)}: [\n{rows}\n  ]")
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def extent(workflow: Mapping) -> layout.Box:
    """The box around all nodes, with a margin."""
    left, top, width, height = layout.around(workflow["nodes"])
    return left - MARGIN, top - MARGIN, width + 2 * MARGIN, height + 2 * MARGIN


def mark(text: str) -> str:
    """What a picture bears in its comment, so that it is known what it shows."""
    return hashlib.sha256(text.encode()).hexdigest()


def shown(path: Path) -> str:
    """The mark that a picture bears."""
    with Image.open(path) as image:
        return image.info.get("comment", b"").decode()


def picture(frontend: Frontend, text: str, name: str) -> bytes:
    """A JPEG of the whole graph, 800 points wide."""
    frontend.drop(text, name)
    box = extent(json.loads(text))
    width, height = PICTURE_SCALE, round(PICTURE_SCALE * box[3] / box[2])
    shot = shoot(frontend, box, width, height)
    small = Image.open(io.BytesIO(shot)).convert("RGB")
    small = small.resize((PICTURE_WIDTH, round(PICTURE_WIDTH * small.height / small.width)), Image.LANCZOS)
    return jpeg(small, mark(text), PICTURE_BYTES)


def shoot(frontend: Frontend, box: layout.Box, width: int, height: int) -> bytes:
    """A PNG of what lies in ``box``, without the menus around it."""
    page = frontend.page
    before = page.viewport_size
    page.set_viewport_size({"width": width, "height": height})
    frontend.command("Workspace.ToggleFocusMode")
    style = page.add_style_tag(content=BARE)
    try:
        frontend.settle()
        page.evaluate(FIT, [box, width, height])
        page.wait_for_timeout(600)          # texts over the canvas follow it a little later
        return page.screenshot()
    finally:
        style.evaluate("style => style.remove()")
        frontend.command("Workspace.ToggleFocusMode")
        page.set_viewport_size(before)


def jpeg(image: Image.Image, comment: str, limit: int) -> bytes:
    """The best quality that fits into so many bytes."""
    for quality in range(88, 30, -4):
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality, optimize=True, comment=comment.encode())
        if file.tell() <= limit:
            return file.getvalue()
    raise ValueError(f"the picture does not fit into {limit} bytes.")
