"""The genuine ComfyUI server, booted once for all tests, and what a test asks of it."""
from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kit.checkout import CHECKOUT
from speechwright.workflows.runner import server
from speechwright.workflows.runner.client import Client
from speechwright.workflows.runner.environment import ComfyUI

KIT = Path(__file__).parent
SETTLE_S = 60
POLL_S = 0.05
ASK_AGAIN_POLLS = 20


@dataclass
class Run:
    """One job of the queue."""

    history: dict
    events: list[tuple[str, dict]] = field(repr=False)

    @property
    def completed(self) -> bool:
        return self.history["status"]["completed"]

    @property
    def cached(self) -> set[str]:
        """Ids of the nodes that did not run again."""
        return {node for data in self.of("execution_cached") for node in data["nodes"]}

    @property
    def files(self) -> list[dict]:
        """What ComfyUI says it wrote, by the order of the node ids."""
        by_node = sorted(self.history["outputs"].items(), key=lambda item: int(item[0]))
        return [file for _, outputs in by_node for file in outputs.get("audio", [])]

    def of(self, kind: str) -> list[dict]:
        """The data of all events of one kind."""
        return [data for name, data in self.events if name == kind]


class Comfy(Client):
    """A client of the server under test."""

    def __init__(self, booted: server.Booted) -> None:
        super().__init__(booted.url)
        self.booted = booted

    def queue(self, graph: Mapping, interrupt_on: str | None = None) -> Run:
        """Run a graph to its end, or interrupt it at the first event of the kind ``interrupt_on``."""
        events: list[tuple[str, dict]] = []
        job: dict = {}

        def on_event(kind: str, data: Mapping) -> None:
            job.update(data if kind == "queued" else {})
            if kind == interrupt_on and not any(kind == name for name, _ in events):
                self.post("/interrupt", {"prompt_id": job["prompt_id"]})
            events.append((kind, dict(data)))

        return Run(self.run(graph, on_event), events)

    def path(self, file: Mapping) -> Path:
        """Where a file of a job lies."""
        return self.booted.base / file["type"] / file["subfolder"] / file["filename"]

    def log(self) -> str:
        return server.read_log(self.booted)

    def models(self) -> list[str]:
        """The classes of the networks that ComfyUI holds in memory."""
        return self.get("/probe")["models"]

    def census(self) -> dict:
        """What lives in the server, after it has given back what is free."""
        return self.post("/census", {})

    def hold(self) -> None:
        """Stop the next job at its first step of progress until it is interrupted."""
        self.post("/probe/hold", {})

    def await_held(self, seconds: float = 60) -> None:
        limit = time.monotonic() + seconds
        while not self.get("/probe")["holding"]:
            assert time.monotonic() < limit, "no job came to a step of progress."
            time.sleep(POLL_S)

    def free(self, **what: bool) -> None:
        """Ask for memory, and wait until ComfyUI's worker has heard of it and let go of all models.

        The worker does all that it was asked before its next job. It sleeps over a request that comes while it
        collects garbage, hence the repetition.
        """
        limit = time.monotonic() + SETTLE_S
        while time.monotonic() < limit:
            self.post("/free", what)
            for _ in range(ASK_AGAIN_POLLS):
                state = self.get("/probe")
                if not state["asked"] and not state["models"]:
                    return
                time.sleep(POLL_S)
        raise AssertionError(f"ComfyUI was asked for memory {SETTLE_S} s ago: {state}")


@contextmanager
def running(root: Path, *options: str, models: Path | None = None) -> Iterator[Comfy]:
    """The server of the ComfyUI at ``root``, with the pack of this checkout, on the CPU, offline.

    options: more of ComfyUI's own. models: a folder to share.
    """
    comfyui = ComfyUI(root, Path(sys.executable), ours=root.parent == Path(sys.prefix).parent)
    nodes = {"speechwright": CHECKOUT, **{name: KIT / name for name in ("probe.py", "census.py")}}
    with server.booted(comfyui, nodes, audio=CHECKOUT / "workflows" / "audio", cpu=True, models=models,
                       environment={"PYTHONPATH": str(KIT.parent)}, options=options) as booted:
        yield Comfy(booted)
