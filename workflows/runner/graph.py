"""Workflow files in API format, and the changes that ``--set`` and ``--batch`` make to them.

A graph is what ComfyUI's queue takes:
``{node id: {"class_type": ..., "inputs": {...}, "_meta": {"title": ...}}}``.
"""
from __future__ import annotations

import copy
import itertools
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# Nodes of ComfyUI that read from the input folder, and the input that names the file.
FILE_INPUTS = {"LoadAudio": "audio", "LoadImage": "image"}
MAX_JOBS = 10_000           # that one command makes; each has a graph of its own


class GraphError(ValueError):
    """A workflow, a node, an input or a value that does not exist; the text lists what does."""


def load(name: str, folder: Path) -> dict:
    """The workflow ``name`` of ``folder``, or the one in the file ``name``."""
    names = sorted(path.stem for path in folder.glob("*.json"))
    path = folder / f"{name}.json" if name in names else Path(name)
    if not is_file(path):
        raise GraphError(f"{name}: no such workflow. There are: {', '.join(names)}; or give the path of a "
                         "JSON file in API format.")
    try:
        graph = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise GraphError(f"{path}: cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise GraphError(f"{path}: not a JSON file: {error}.") from error
    if isinstance(graph, dict) and "nodes" in graph and "links" in graph:
        raise GraphError(f"{path}: this is a workflow of the editor. Run its API form: in ComfyUI's menu, "
                         "Export (API); of ours, it is the one in workflows/api.")
    nodes = graph.values() if isinstance(graph, dict) else [None]
    if not all(map(_is_node, nodes)):
        raise GraphError(f"{path}: not a workflow in API format (node id -> class_type and inputs).")
    return graph


def _is_node(node: Any) -> bool:
    if not (isinstance(node, dict) and isinstance(node.get("class_type"), str)):
        return False
    inputs, meta = node.get("inputs", {}), node.get("_meta", {})
    return isinstance(inputs, dict) and isinstance(meta, dict) and isinstance(meta.get("title") or "", str)


def is_file(path: Path) -> bool:
    """Whether there is such a file; there is none where the system takes no such name."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def find_input(graph: Mapping, address: str) -> tuple[str, str]:
    """``node.input`` -> (node id, input). The node is named by its id or its title; inputs may have dots.

    What is chosen in one input decides which others there are, and bears its name: where there is ``family``,
    ``family.checkpoint`` may be set, though another choice has not got it.
    """
    node, dot, name = address.strip().partition(".")
    titles = {node_id: entry.get("_meta", {}).get("title") or entry["class_type"]
              for node_id, entry in graph.items()}
    found = [node] if node in titles else [node_id for node_id, title in titles.items() if title == node]
    if not dot or len(found) != 1:
        nodes = ", ".join(f'{node_id} "{title}"' for node_id, title in titles.items())
        problem = "several nodes have this title" if len(found) > 1 else "no such node"
        raise GraphError(f"{address}: {problem if dot else 'give node.input'}. The nodes: {nodes}.")
    inputs = graph[found[0]].get("inputs", {})
    if name not in inputs and name.partition(".")[0] not in inputs:
        raise GraphError(f'{address}: node {found[0]} "{titles[found[0]]}" has no input {name!r} here. '
                         f"Its inputs: {', '.join(inputs) or 'none'}.")
    return found[0], name


def parse_value(text: str, before: Any) -> Any:
    """JSON where it can be, else the text itself. An input that holds text keeps text: ``7`` is then "7"."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):        # too many digits and brackets count as text too
        return text
    is_link = isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)
    if isinstance(before, str) and not isinstance(value, str) and not is_link:
        return text
    return value


def assign(graph: Mapping, assignments: Sequence[tuple[str, Any]]) -> dict:
    """A copy of ``graph`` with each ``(address, value)`` put in."""
    changed = copy.deepcopy(dict(graph))
    for address, value in assignments:
        node, name = find_input(changed, address)
        changed[node]["inputs"][name] = value
    return changed


def parse_set(graph: Mapping, text: str) -> tuple[str, Any]:
    """``node.input=value`` -> (address, value)."""
    address, is_there, value = text.partition("=")
    if not is_there:
        raise GraphError(f"{text}: give node.input=value.")
    node, name = find_input(graph, address)
    return address, parse_value(value, graph[node]["inputs"].get(name))


def parse_batch(graph: Mapping, text: str) -> list[tuple[str, Any]]:
    """``node.input=VALUES`` -> one (address, value) for each value.

    VALUES is ``@file`` (one a line, empty lines left out), a JSON list, or values with commas between them.
    """
    address, is_there, listed = text.partition("=")
    if not is_there:
        raise GraphError(f"{text}: give node.input=value,value,... or node.input=@file.")
    node, name = find_input(graph, address)
    before = graph[node]["inputs"].get(name)
    values = [parse_value(value, before) if isinstance(value, str) else value for value in _listed(listed)]
    if not values:
        raise GraphError(f"{text}: no values.")
    return [(address, value) for value in values]


def _listed(text: str) -> list:
    if text.startswith("@"):
        try:
            lines = Path(os.path.expanduser(text[1:])).read_text(encoding="utf-8-sig").splitlines()
        except (OSError, ValueError) as error:
            raise GraphError(f"{text}: cannot be read as a text file: {error}.") from error
        return [line.strip() for line in lines if line.strip()]
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if isinstance(values, list):
        return values
    return [value.strip() for value in text.split(",") if value.strip()]


def spread_out(graph: Mapping, batches: Sequence[Sequence[tuple[str, Any]]]) -> list[tuple[str, dict]]:
    """(label, graph) for every combination of the batches' values; without batches, the graph itself."""
    count = math.prod(map(len, batches))
    if count > MAX_JOBS:
        raise GraphError(f"--batch: these are {count:,} combinations; give at most {MAX_JOBS:,} at once.")
    jobs = []
    for combination in itertools.product(*batches):
        label = ", ".join(f"{address}={_short(value)}" for address, value in combination)
        jobs.append((label, assign(graph, combination)))
    return jobs


def _short(value: Any, characters: int = 24) -> str:
    text = str(value)
    return text if len(text) <= characters else text[:characters - 3] + "..."


def with_uploads(graph: Mapping, clips: Path, upload: Callable[[Path], str]) -> dict:
    """A copy of ``graph`` whose file inputs name what ``upload`` made of the local files.

    A file input is local if it names a file on this machine or, as in our workflows, one in ``clips``.
    What it names otherwise is the server's affair.
    """
    changed = copy.deepcopy(dict(graph))
    for node in changed.values():
        name = FILE_INPUTS.get(node["class_type"])
        value = node.get("inputs", {}).get(name)
        if isinstance(value, str) and value:
            for path in (Path(os.path.expanduser(value)), clips / value):
                if is_file(path):
                    node["inputs"][name] = upload(path.resolve())
                    break
    return changed
