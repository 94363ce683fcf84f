"""Every class of fault that users of speech packs report has a test of ours, and a change to our code that it notices.

``faults/01-24.md`` and its like are tables: the class by number and in words, the test, and the change. That was tried:
with it, the test fails. Here they are held to what the tests and the code are.
"""
from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import lru_cache

import pytest

from kit.checkout import CHECKOUT, read, shipped, tracked

SHIPPED, TRACKED = set(shipped()), set(tracked())
TABLES = sorted((CHECKOUT / "tests" / "faults").glob("[0-9][0-9]-[0-9][0-9].md"))
CELL = re.compile(r"(?<!\\)\|")
CHANGE = re.compile(  # file: `old` -> `new`
    r"`?(?P<file>[\w/.]+)`?: (?P<mark>`+) ?(?P<old>.+?) ?(?P=mark) -> (?P<with>`+) ?(?P<new>.*?) ?(?P=with)")


@dataclass(frozen=True)
class Row:
    """A line of a table."""
    entry: int
    words: str
    tests: tuple[str, ...]
    change: str


def rows(table) -> list[Row]:
    found = []
    for line in table.read_text(encoding="utf-8").splitlines():
        if re.match(r"\| *\d", line):
            number, words, test, change = (cell.strip().replace("\\|", "|") for cell in CELL.split(line)[1:-1])
            found.append(Row(int(number), words, tuple(re.findall("`(.+?)`", test)), change))
    return found


ROWS = [row for table in TABLES for row in rows(table)]
every_row = pytest.mark.parametrize("row", ROWS, ids=[f"{row.entry}-{place}" for place, row in enumerate(ROWS)])


@lru_cache(maxsize=64)
def written_in(name: str) -> set[str]:
    """The tests in a file, those of classes as ``Class::test``."""
    body = ast.parse(read(name), name).body
    classes = {node.name: node.body for node in body if isinstance(node, ast.ClassDef)}
    found = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    return found | {f"{kind}::{node.name}" for kind, inner in classes.items() for node in inner
                    if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.stem)
def test_every_class_has_a_row(table):
    first, last = map(int, table.stem.split("-"))
    assert {row.entry for row in rows(table)} == set(range(first, last + 1))


def test_no_class_is_left_out():
    """Classes count from 1 to 48, of which one table has the first half and another the second."""
    assert [table.stem for table in TABLES] == ["01-24", "25-48"]


def test_no_row_stands_twice():
    assert len(set(ROWS)) == len(ROWS) > 0


@every_row
def test_the_test_exists(row):
    assert row.tests
    for test in row.tests:
        file, _, name = test.split("[")[0].partition("::")
        assert file in TRACKED and name.rpartition("::")[2].startswith("test_")
        assert name in written_in(file)


@every_row
def test_the_change_can_be_made(row):
    """What it replaces stands in our code once, as it is quoted, and what it puts there is something else."""
    assert row.words
    change = CHANGE.fullmatch(row.change)
    assert change, f"not a change: {row.change}"
    assert change["file"] in SHIPPED and change["old"] != change["new"]
    assert read(change["file"]).count(change["old"]) == 1
