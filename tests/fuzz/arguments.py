"""What the runner of workflows is told: arguments, workflow files, addresses, and names that servers give to files."""
from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

from kit.checkout import CHECKOUT
from speechwright.workflows.runner import cli, graph, jobs
from speechwright.workflows.runner.client import Client

from .choices import Choices
from .laws import FOLDER, bounded, written

PIECES = ("1", "2", "3", ".", "=", ",", "@", "audio", "seed", "text", "family.demo", "Say", '"', "[", "]", "{", "}",
          "null", "true", "1e999", "NaN", "-Infinity", "~nobody", "/", "..", "\\", "\0", "\ud800", "9" * 5000,
          "[" * 3000, "x" * 300,
          '["2",0]', "http://", "[::1", ":", "99999", "é", " ", "\n", "file://", "@/nowhere", "%")
OPTIONS = ("--set", "--batch", "--server", "--output", "--cpu", "--comfyui", "--python", "-h", "--", "-x",
           "voice_conversion", "redecode", "workflow.json")
JSON = ("{}", "[]", "null", "1", '"a"', '{"class_type":"Say"}', '{"class_type":[]}', '{"class_type":"Say","inputs":[]}',
        '{"class_type":"LoadAudio","inputs":{"audio":["2",0]}}', '{"class_type":"Say","inputs":null,"_meta":null}',
        '{"class_type":"Say","inputs":{"seed":1,"text":"x"},"_meta":{"title":{}}}', '{"class_type":"Say","_meta":[]}',
        '{"class_type":null,"inputs":{"a":1}}', '{"class_type":"LoadAudio","inputs":{"audio":"' + "x" * 300 + '"}}')
DICTIONARY = ("1.audio=", "Say.seed=", "3.text=@", "--batch", "--server", "http://")
WORKFLOW = json.dumps({
    "1": {"class_type": "LoadAudio", "_meta": {"title": "Source"}, "inputs": {"audio": "ada.flac"}},
    "2": {"class_type": "Load", "inputs": {"family": "Demo", "family.demo": "S3Gen", "on": True}},
    "3": {"class_type": "Say", "inputs": {"model": ["2", 0], "text": "hello", "seed": 0, "cfg": 0.7}}})


def seeds() -> list[bytes]:
    return [bytes((kind, *range(count))) for kind in range(5) for count in (1, 8, 40)] + [
        b"\0" + WORKFLOW.encode(), b"\0" + b"[" * 3000, b"\4../../x.flac", b"\4", b"\4/", b"\4.."]


def word(choices: Choices) -> str:
    return "".join(choices.pick(PIECES) if choices.number(3) else choices.text(6) for _ in range(choices.number(6)))


def check(raw: bytes) -> None:
    choices = Choices(raw)
    WAYS[choices.number(len(WAYS))](choices)


def a_workflow(choices: Choices) -> None:
    """Any file in place of a workflow."""
    path = written("workflow.json", choices.rest())
    _use(str(path), 2 * path.stat().st_size)


def nodes(choices: Choices) -> None:
    """A workflow whose nodes are odd, and changes to it."""
    entries = ",".join(f'"{number}":{choices.pick(JSON)}' for number in range(choices.number(5)))
    path = written("workflow.json", f"{{{entries}}}".encode())
    _use(str(path), 500, word(choices), word(choices))


def changes(choices: Choices) -> None:
    path = written("workflow.json", WORKFLOW.encode())
    address = choices.pick(("1.audio=", "3.text=", "3.seed=", "Source.audio=", "2.family.demo=", ""))
    _use(str(path), 20_000, address + word(choices), address + word(choices))


def arguments(choices: Choices) -> None:
    """The whole command line, up to where servers are started or asked."""
    words = [choices.pick(OPTIONS) if choices.number(2) else word(choices) for _ in range(choices.number(6))]
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()), bounded(100_000):
        try:
            chosen = cli.parser().parse_args(words)
        except SystemExit as ended:
            assert ended.code in (0, 2) and (said.getvalue() or ended.code == 0)
            return
        _use(chosen.name, 0, *chosen.sets[:1], *chosen.batches[:1])
        for url in chosen.servers:
            _address(url)


def _address(url: str) -> None:
    try:
        assert Client(url).url
    except ValueError as error:
        assert str(error).startswith("--server ") and "give one such as" in str(error)


def names(choices: Choices) -> None:
    """Whatever a server calls a file, it is written into the folder."""
    _address(word(choices))
    folder = FOLDER / "output"
    name = choices.rest().decode("utf-8", "surrogateescape") or word(choices)
    try:
        path = jobs.save(folder, name, b"x")
    except (OSError, jobs.JobFailed):
        return
    assert path.parent == folder and path.is_file()
    path.unlink()
    assert not list(folder.iterdir())


WAYS = (a_workflow, nodes, changes, arguments, names)


def _use(name: str, size: int, change: str = "1.audio=x", batch: str = "1.audio=a,b") -> None:
    """Every step up to the jobs, whose graphs are such as JSON can carry."""
    for step in (lambda: graph.parse_set, lambda: graph.parse_batch):
        try:
            with bounded(10_000 + size):
                workflow = graph.load(name, CHECKOUT / "workflows" / "api")
                made = step()(workflow, change if step() is graph.parse_set else batch)
                values = [made] if step() is graph.parse_set else made
                found = graph.spread_out(graph.assign(workflow, values[:1]), [values])
                sent = [graph.with_uploads(job, Path("nowhere"), lambda path: "x") for _, job in found]
                json.dumps(sent).encode()
        except graph.GraphError as error:
            assert str(error).strip()
