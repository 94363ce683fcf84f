"""Words for a terminal: what is being done goes to stderr, so that stdout holds the written files alone."""
from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping

BAR_CHARACTERS = 24
QUIET_S = 2.0          # between two lines of progress where no line can be overwritten

_writing = threading.Lock()


def say(text: str) -> None:
    with _writing:
        print(f"[speechwright] {text}", file=sys.stderr, flush=True)


def name_of(graph: Mapping, node_id: str) -> str:
    """``node 4 "S3Token2Wav"``: the id, and the title that the editor shows."""
    node = graph.get(node_id, {})
    title = node.get("_meta", {}).get("title") or node.get("class_type", "unknown")
    return f'node {node_id} "{title}"'


def refusal(answer: Mapping, graph: Mapping) -> str:
    """Why a server did not queue a graph, one line for each fault, with the node and its input."""
    lines = []
    for node_id, found in answer.get("node_errors", {}).items():
        for fault in found.get("errors", []):
            lines.append(f"{name_of(graph, node_id)}: {fault['message']}: {fault['details']}".rstrip(": "))
    if not lines:
        error = answer.get("error", answer)
        if isinstance(error, Mapping):
            error = ": ".join(str(error[key]) for key in ("message", "details") if error.get(key))
        lines.append(str(error))
    return "\n".join(lines)


def failure(history: Mapping, graph: Mapping) -> str | None:
    """Why a queued graph did not finish, or None where it did."""
    status = history.get("status") or {}
    if status.get("completed"):
        return None
    for kind, data in status.get("messages", []):
        if kind == "execution_interrupted":
            return f"{name_of(graph, data['node_id'])}: interrupted."
        if kind == "execution_error":
            error = f"{data['exception_type']}: {data['exception_message'].strip()}"
            return f"{name_of(graph, data['node_id'])}: {error}"
    return "ended without a result and without saying why; the server's log has more."


class Progress:
    """Follows one job: a bar that is redrawn on a terminal, a line now and then elsewhere."""

    def __init__(self, graph: Mapping, label: str = "", redraw: bool = False) -> None:
        self.graph, self.redraw = graph, redraw
        self.lead = f"{label}: " if label else ""
        self.drawn = 0              # characters of the line that stands there now
        self.said_at = 0.0
        self.said = None

    def __call__(self, kind: str, data: Mapping) -> None:
        """Take one of ComfyUI's events."""
        if kind == "executing" and data.get("node") is not None:
            self.end()
            say(self.lead + name_of(self.graph, data["node"]))
        elif kind == "progress" and data.get("max"):
            value, top = data["value"], data["max"]
            if self.redraw:
                filled = round(BAR_CHARACTERS * value / top)
                self._draw(f"  {'#' * filled:.<{BAR_CHARACTERS}} {value}/{top}")
            elif self.said != (value, top) and (value >= top or time.monotonic() - self.said_at > QUIET_S):
                self.said, self.said_at = (value, top), time.monotonic()
                say(f"{self.lead}  {value}/{top}")

    def _draw(self, line: str) -> None:
        with _writing:
            print("\r" + line.ljust(self.drawn), end="", file=sys.stderr, flush=True)
        self.drawn = len(line)

    def end(self) -> None:
        if self.drawn:
            with _writing:
                print(file=sys.stderr, flush=True)
            self.drawn = 0
