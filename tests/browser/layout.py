"""Where the nodes of a graph stand: columns by their distance from the result, no two on top of each other.

A box is (x, y, width, height) of all that is drawn: the body, the title bar above it, and the pack's name above that.
"""
from __future__ import annotations

from collections.abc import Mapping

TITLE = 30              # the bar above a node's own rectangle
BADGE = 24              # the pack's name above the bar
COLUMN_GAP = 50
ROW_GAP = 30
NOTE_LETTERS = 48       # of a note's line, in the narrower of the two renderers
NOTE_LINE = 17

Box = tuple[float, float, float, float]


def sources(graph: Mapping) -> dict[str, list[str]]:
    """For each node of an API graph the nodes that it hears."""
    return {node: [value[0] for value in entry["inputs"].values() if isinstance(value, list)]
            for node, entry in graph.items()}


def columns(graph: Mapping) -> list[list[str]]:
    """Node ids by column, left to right, in the graph's order within each.

    A node stands as far right as its longest chain of sources demands, or just left of its first listener, so that
    a loader is near what it feeds. What only saves or plays one node's result stands below that node.
    """
    heard = sources(graph)
    depth: dict[str, int] = {}

    def measure(node: str) -> int:
        if node not in depth:
            depth[node] = 1 + max(map(measure, heard[node]), default=-1)
        return depth[node]

    for node in graph:
        measure(node)
    for node in sorted(graph, key=depth.get, reverse=True):
        listeners = [depth[other] for other in graph if node in heard[other]]
        depth[node] = min(listeners) - 1 if listeners else depth[node]
    ends = {node: heard[node][0] for node in graph
            if len(heard[node]) == 1 and not any(node in others for others in heard.values())}
    stacks: list[list[str]] = [[] for _ in range(1 + max(depth[node] for node in graph if node not in ends))]
    for node in graph:
        if node not in ends:
            stacks[depth[node]] += [node, *(end for end, source in ends.items() if source == node)]
    return stacks


def place(stacks: list[list[str]], sizes: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Top-left corners of the node bodies; ``sizes`` are (width, height) of bodies."""
    corners, x = {}, 0.0
    for stack in stacks:
        y = 0.0
        for node in stack:
            corners[node] = (x, y + BADGE + TITLE)
            y += BADGE + TITLE + sizes[node][1] + ROW_GAP
        x += max(sizes[node][0] for node in stack) + COLUMN_GAP
    return corners


def box(node: Mapping) -> Box:
    """What a node of a UI workflow covers."""
    (x, y), (width, height) = node["pos"], node["size"]
    return x, y - TITLE - BADGE, width, height + TITLE + BADGE


def around(nodes: list[Mapping]) -> Box:
    """The box that holds all of these nodes of a UI workflow."""
    boxes = [box(node) for node in nodes]
    left, top = min(x for x, *_ in boxes), min(y for _, y, *_ in boxes)
    return (left, top, max(x + width for x, _, width, _ in boxes) - left,
            max(y + height for _, y, _, height in boxes) - top)


def overlaps(boxes: Mapping[str, Box]) -> list[tuple[str, str]]:
    """Pairs of names whose boxes share a point."""
    names = list(boxes)
    return [(one, other) for index, one in enumerate(names) for other in names[index + 1:]
            if _meet(boxes[one], boxes[other])]


def _meet(one: Box, other: Box) -> bool:
    return all(one[axis] < other[axis] + other[axis + 2] and other[axis] < one[axis] + one[axis + 2]
               for axis in (0, 1))


def note_height(text: str) -> int:
    """Room for a Markdown text in a note of a column's width."""
    return 50 + NOTE_LINE * sum(1 + len(line) // NOTE_LETTERS for line in text.splitlines())
