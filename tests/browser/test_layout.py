"""Where nodes stand: laws for every graph."""
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from browser import layout


@st.composite
def graphs(draw) -> dict:
    """API graphs: each node hears some of those before it."""
    graph = {}
    for number in range(1, draw(st.integers(1, 9)) + 1):
        heard = draw(st.lists(st.sampled_from(list(graph)), max_size=3)) if graph else []
        graph[str(number)] = {"inputs": {f"i{slot}": [node, 0] for slot, node in enumerate(heard)}}
    return graph


sizes_of = st.tuples(st.integers(1, 500), st.integers(1, 500))


@given(graphs(), st.lists(sizes_of, min_size=9, max_size=9))
def test_no_graph_has_two_nodes_on_top_of_each_other(graph, sizes):
    stacks = layout.columns(graph)
    assert sorted(node for stack in stacks for node in stack) == sorted(graph)
    sizes = dict(zip(graph, sizes))
    corners = layout.place(stacks, sizes)
    boxes = {node: layout.box({"pos": corners[node], "size": sizes[node]}) for node in graph}
    assert layout.overlaps(boxes) == []


@given(graphs())
def test_links_lead_right_or_down(graph):
    column = {node: number for number, stack in enumerate(layout.columns(graph)) for node in stack}
    for node, heard in layout.sources(graph).items():
        for source in heard:
            assert column[source] < column[node] or (column[source] == column[node] and len(heard) == 1)


@pytest.mark.parametrize(("other", "meets"), [
    ((0, 0, 10, 10), True), ((9, 9, 5, 5), True), ((10, 0, 5, 5), False), ((0, 10, 5, 5), False), ((2, 2, 1, 1), True)])
def test_boxes_meet_where_they_share_a_point(other, meets):
    assert layout.overlaps({"one": (0, 0, 10, 10), "other": other}) == ([("one", "other")] if meets else [])


def test_a_loader_stands_beside_what_it_feeds():
    graph = {
        "1": {"inputs": {}}, "2": {"inputs": {"a": ["1", 0]}}, "3": {"inputs": {}},
        "4": {"inputs": {"a": ["2", 0], "b": ["3", 0]}}, "5": {"inputs": {"a": ["4", 0]}}}
    assert layout.columns(graph) == [["1"], ["2", "3"], ["4", "5"]]


def test_a_note_has_room_for_its_lines():
    assert layout.note_height("x" * 200) > layout.note_height("x") > 0
    assert layout.note_height("x\n\nx") > layout.note_height("x")
