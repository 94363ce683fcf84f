"""``python workflows/run.py NAME``: one command from a workflow's name to written files."""
from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from . import environment, graph, server
from .client import Client, Refused, ServerGone
from .jobs import Job, JobFailed, run_job, spread
from .report import Progress, say

WORKFLOWS = Path(__file__).parents[1]
PACK = WORKFLOWS.parent
INTERRUPTED = 130           # the exit code that shells give to Ctrl-C

EXAMPLES = """examples:
  run.py voice_conversion
  run.py voice_conversion --set 1.audio=mine.wav --set S3Token2Wav.seed=7
  run.py voice_conversion --batch 6.seed=1,2,3 --server http://one:8188 --server http://two:8188

Values are JSON where they can be, text otherwise. What was written goes to stdout, a path a line, in a
batch with a tab and the job's values after it; all else goes to stderr.
Exit codes: 0 all written, 1 something failed, 2 a mistake in the command, 130 interrupted."""


def parser() -> argparse.ArgumentParser:
    names = ", ".join(sorted(path.stem for path in (WORKFLOWS / "api").glob("*.json")))
    options = argparse.ArgumentParser(
        prog="run.py", formatter_class=argparse.RawDescriptionHelpFormatter, epilog=EXAMPLES,
        description="Run a workflow in ComfyUI and write its files. Without --comfyui or --server, the "
                    f"genuine ComfyUI {environment.COMFYUI_VERSION} is set up in "
                    f"{environment.cache_folder()}, once.")
    options.add_argument("name", metavar="NAME", help=f"one of {names}; or a JSON file in API format")
    options.add_argument("--set", dest="sets", metavar="NODE.INPUT=VALUE", action="append", default=[],
                         help="change an input; NODE is an id or a title. The input of Load Audio takes any "
                              "local file. Repeatable")
    options.add_argument("--batch", dest="batches", metavar="NODE.INPUT=V1,V2", action="append", default=[],
                         help="run once for each value: with commas, a JSON list, or @FILE with one a line. "
                              "Repeated, it runs every combination")
    options.add_argument("--output", metavar="DIR", type=Path, default=Path("output"),
                         help="where files are written, under free names (default: output, in this folder)")
    place = options.add_mutually_exclusive_group()
    place.add_argument("--comfyui", metavar="PATH", type=Path,
                       help="use this ComfyUI, its Python and its models; nothing in its folder is changed")
    place.add_argument("--server", dest="servers", metavar="URL", action="append", default=[],
                       help="queue to this running server, which has the pack. Repeatable: each job goes to "
                            "the least busy one")
    options.add_argument("--python", metavar="FILE", type=Path, help="the Python that runs --comfyui PATH")
    options.add_argument("--cpu", action="store_true", help="use the CPU even where there is an accelerator")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit code."""
    options = parser()
    chosen = options.parse_args(arguments)
    if chosen.python and not chosen.comfyui:
        options.error("--python goes with --comfyui.")
    end_on_terminate()
    try:
        jobs = [Job(job, label) for label, job in jobs_of(chosen)]
        clients = [Client(url) for url in dict.fromkeys(chosen.servers)]
    except ValueError as error:
        say(str(error))
        return 2
    try:
        with ExitStack() as stack:
            if not clients:
                clients = [stack.enter_context(local_server(chosen))]
            return run_all(jobs, clients, chosen.output)
    except environment.SetupError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("Interrupted.")
        return INTERRUPTED


def end_on_terminate() -> None:
    """Let a request to terminate take the way of Ctrl-C, so that servers are ended and folders deleted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def jobs_of(chosen: argparse.Namespace) -> list[tuple[str, dict]]:
    workflow = graph.load(chosen.name, WORKFLOWS / "api")
    workflow = graph.assign(workflow, [graph.parse_set(workflow, text) for text in chosen.sets])
    return graph.spread_out(workflow, [graph.parse_batch(workflow, text) for text in chosen.batches])


@contextmanager
def local_server(chosen: argparse.Namespace) -> Iterator[Client]:
    """A client of a server that is booted for it."""
    if chosen.comfyui:
        comfyui = server.find(Path(os.path.expanduser(chosen.comfyui)), chosen.python)
    else:
        comfyui = environment.ensure(environment.default_folder())
    cpu = chosen.cpu or server.needs_cpu(comfyui)
    models = environment.cache_folder() / "models"
    started = time.monotonic()
    say(f"Starting ComfyUI at {comfyui.root}{' on the CPU' if cpu else ''}")
    with server.booted(comfyui, {"speechwright": PACK}, audio=WORKFLOWS / "audio", cpu=cpu,
                       models=models) as booted:
        say(f"Started in {time.monotonic() - started:.0f} s. Models that it downloads are kept in {models}")
        yield Client(booted.url)
        if booted.process.poll() is not None:
            say(f"ComfyUI ended by itself:\n{server.tail(booted)}")


def run_all(jobs: Sequence[Job], clients: Sequence[Client], output: Path) -> int:
    """Run the jobs, print each written file, and return the exit code."""
    redraw = sys.stderr.isatty() and len(jobs) == 1

    def work(client: Client, job: Job) -> list[Path]:
        progress = Progress(job.graph, job.label, redraw)
        return run_job(client, job, WORKFLOWS / "audio", output, progress)

    def on_lost(error: Exception) -> None:
        say(f"{error} Going on without it.")

    failed = 0
    try:
        for job, result in spread(jobs, clients, work, on_lost):
            failed += not tell(job, result)
    except ServerGone as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        cancel(jobs)
        raise
    if failed and len(jobs) > 1:
        say(f"{failed} of {len(jobs)} jobs failed.")
    return 1 if failed else 0


def tell(job: Job, result: list[Path] | Exception) -> bool:
    """Print what came of a job; whether it is what was wanted."""
    lead = f"{job.label}: " if job.label else ""
    if isinstance(result, (JobFailed, OSError)):
        say(f"{lead}{result}")
        return False
    if isinstance(result, Exception):
        raise result
    for path in result:
        print(path, *([job.label] if job.label else []), sep="\t", flush=True)
    if not result:
        say(f"{lead}finished; no node in it writes a file.")
    return True


def cancel(jobs: Sequence[Job]) -> None:
    """Stop what runs, and take out of the queues what waits: on a shared server others come next."""
    for job in jobs:
        for client, prompt_id in list(job.running.items()):
            with suppress(ServerGone, Refused):
                client.cancel(prompt_id)
