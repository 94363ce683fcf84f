"""Many jobs over several servers: each goes to the least busy one, and on to another if its server dies."""
from __future__ import annotations

import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import graph as graphs
from . import report
from .client import Client, Refused, ServerGone

AT_ONCE = 2         # jobs of ours on one server: one that runs and one that waits, so that it never idles
LOSSES = 2          # servers that may die under one job before the job is suspected


class JobFailed(RuntimeError):
    """The graph was refused, failed in a node, or was interrupted; the text names the node."""


@dataclass
class Job:
    """One graph to run."""

    graph: Mapping
    label: str = ""
    losses: int = 0                             # servers that died under it
    running: dict[Client, str] = field(default_factory=dict)        # server -> prompt id


def least_busy(loads: Mapping[Any, int], ours: Mapping[Any, int]) -> Any | None:
    """The server with the fewest jobs; None, which is to wait, while that one has enough of ours.

    Waiting is better than a server that is busy with others' work: ours will sooner be free.
    """
    if not loads:
        return None
    server = min(loads, key=lambda s: (max(loads[s], ours.get(s, 0)), ours.get(s, 0)))
    return server if ours.get(server, 0) < AT_ONCE else None


def spread(jobs: Sequence[Job], servers: Sequence, work: Callable[[Any, Job], Any],
           on_lost: Callable[[Exception], None]) -> Iterator[tuple[Job, Any]]:
    """Yield (job, result) as each ``work(server, job)`` ends: what it returned, or the error that it raised.

    A ServerGone takes its server out, tells ``on_lost``, and hands the job to another server. When none is
    left, a ServerGone that says so is raised.
    """
    waiting, alive, ours = deque(jobs), list(servers), Counter()
    ended: queue.Queue = queue.Queue()
    last = None

    def lose(server, error) -> None:
        nonlocal last
        if server in alive:
            alive.remove(server)
            last = error
            if alive:
                on_lost(error)

    def start(server, job) -> None:
        try:
            ended.put((server, job, work(server, job)))
        except Exception as error:              # handed on to the caller, as the job's result
            ended.put((server, job, error))

    while waiting or ours.total():
        while waiting and (server := least_busy(_loads(alive, lose), ours)) is not None:
            ours[server] += 1
            threading.Thread(target=start, args=(server, waiting.popleft()), daemon=True).start()
        if waiting and not alive and not ours.total():
            raise ServerGone(f"{last} No server is left for {len(waiting)} of {len(jobs)} jobs.")
        try:
            server, job, result = ended.get(timeout=0.5)        # in slices, so that Ctrl-C is noticed
        except queue.Empty:
            continue
        ours[server] -= 1
        if isinstance(result, ServerGone):
            lose(server, result)
            job.losses += 1
            if job.losses < LOSSES:
                waiting.appendleft(job)
                continue
        yield job, result


def _loads(servers: Sequence, lose: Callable) -> dict:
    loads = {}
    for server in list(servers):
        try:
            loads[server] = server.load()
        except (ServerGone, Refused) as error:
            lose(server, error)
    return loads


def run_job(client: Client, job: Job, clips: Path, output: Path, progress: report.Progress) -> list[Path]:
    """Run one job on one server and fetch what it wrote. The files, in the order of the node ids."""
    def on_event(kind: str, data: Mapping) -> None:
        if kind == "queued":
            job.running[client] = data["prompt_id"]
        progress(kind, data)

    try:
        history = client.run(graphs.with_uploads(job.graph, clips, client.upload), on_event)
    except Refused as error:
        raise JobFailed(report.refusal(error.answer, job.graph)) from error
    finally:
        progress.end()
        job.running.pop(client, None)
    if problem := report.failure(history, job.graph):
        raise JobFailed(problem)
    return [save(output, file["filename"], client.view(file)) for file in written(history)]


def written(history: Mapping) -> list[dict]:
    """The files in the output folder that a job's history names. Previews lie elsewhere and are left out."""
    return [file for _, outputs in sorted(history.get("outputs", {}).items())
            for listed in outputs.values() if isinstance(listed, list)
            for file in listed
            if isinstance(file, dict) and file.get("type") == "output" and isinstance(file.get("filename"), str)]


def save(folder: Path, name: str, content: bytes) -> Path:
    """Write ``content`` under ``name``, or under the next free number after it: nothing is overwritten.

    A name is the server's. What no file in ``folder`` can be called is ``JobFailed``.
    """
    own = Path(name.replace("\\", "/")).name
    if own in ("", "..") or not own.isprintable():
        raise JobFailed(f"the server calls a file {name!r}, and nothing can be written under this name; look for it in "
                        "the server's output folder.")
    folder.mkdir(parents=True, exist_ok=True)
    for path in candidates(folder / own):
        try:
            with open(path, "xb") as file:          # fails if somebody was faster
                file.write(content)
            return path
        except FileExistsError:
            continue
    raise AssertionError("there is always one more number.")


def candidates(path: Path) -> Iterator[Path]:
    """``take_00001.flac``, ``take_00002.flac``, ...; ``take.flac``, ``take_2.flac``, ``take_3.flac``, ..."""
    yield path
    head, _, number = path.stem.rstrip("_").rpartition("_")
    width = len(number) if head and number.isdecimal() else 0
    if not width:
        head, number = path.stem, "1"
    while True:
        number = str(int(number) + 1).zfill(width)
        yield path.with_name(f"{head}_{number}{path.suffix}")
