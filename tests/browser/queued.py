"""What the queue gets: API graphs, and what they leave to the nodes."""
from __future__ import annotations

from collections.abc import Mapping


def with_defaults(graph: Mapping, comfy) -> dict:
    """An API graph without titles, with the default of every input that it does not mention."""
    filled = {}
    for node, entry in graph.items():
        schema = comfy.get(f"/object_info/{entry['class_type']}")[entry["class_type"]]["input"]
        given = {**schema.get("required", {}), **schema.get("optional", {})}
        left = {name: options[1]["default"] for name, options in given.items()
                if len(options) > 1 and "default" in options[1]}
        filled[node] = {"class_type": entry["class_type"], "inputs": {**left, **entry["inputs"]}}
    return filled


def without_titles(prompt: Mapping) -> dict:
    return {node: {key: value for key, value in entry.items() if key != "_meta"} for node, entry in prompt.items()}
