"""What the benchmarks have in common: an environment for the reference, commands, names of things.

The last functions are for the processes in which something is measured.
"""
from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
import types
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TypeVar

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT / "workflows"))

from runner import environment  # noqa: E402, from the folder above
from runner.report import say  # noqa: E402

TORCH = ("torch==2.13.0", "numpy", "safetensors")

Side = TypeVar("Side")


class BenchmarkError(RuntimeError):
    """A process of the benchmark ended; the text says which, and its own words stand above."""


def run(command: list, problem: str) -> str:
    """What a command writes to stdout. ``problem`` says what it means when it fails."""
    try:
        done = subprocess.run([str(part) for part in command], env=environment.variables(),
                              stdout=subprocess.PIPE, encoding="utf-8", check=False)
    except OSError as error:
        raise BenchmarkError(f"{problem}: {error}.") from error
    if done.returncode:
        raise BenchmarkError(f"{problem} (exit code {done.returncode}; its own words stand above).")
    return done.stdout


def ensure_python(folder: Path, packages: Sequence[tuple[str, ...]], size: str, check: str) -> Path:
    """A Python with these groups of packages, built in ``folder`` the first time; ``check`` is run in it."""
    python, stamp = environment.venv_python(folder / "venv"), folder / "stamp"
    recipe = json.dumps([packages, check, sys.version])
    with environment.locked(folder):
        if not (stamp.is_file() and stamp.read_text(encoding="utf-8") == recipe):
            stamp.unlink(missing_ok=True)
            say(f"Setting up the reference in {folder}: once, some minutes, {size}.")
            run([sys.executable, "-m", "venv", "--clear", folder / "venv"],
                "the environment could not be made")
            manner = ["--quiet", "--quiet", "--disable-pip-version-check", "--no-input"]
            for arguments in packages:
                run([python, "-m", "pip", *manner, "install", *arguments],
                    f"pip could not install {' '.join(arguments)}")
            run([python, "-c", check], "what was installed does not load")
            stamp.write_text(recipe, encoding="utf-8")
    return python


def own_folder(name: str) -> Path:
    """Where the environment of that name belongs: one for each Python."""
    return cache_folder() / f"{name}python{sys.version_info[0]}.{sys.version_info[1]}"


def cache_folder() -> Path:
    """Where what the benchmarks make once is kept."""
    return environment.cache_folder() / "benchmarks"


def processor() -> str:
    """Its name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(": ")[2] for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def import_checkout(folder: Path = CHECKOUT) -> None:
    """Make a checkout the package ``speechwright``, without the ``__init__`` that needs ComfyUI."""
    package = types.ModuleType("speechwright")
    package.__path__ = [str(folder)]
    sys.modules["speechwright"] = package


def in_turns(runs: int, sides: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Median seconds of each; who was first is last the next time. The first turn does not count."""
    seconds = defaultdict(list)
    names = list(sides)
    for turn in range(runs + 1):
        for name in names if turn % 2 else names[::-1]:
            start = time.perf_counter()
            sides[name]()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in seconds.items()}


def resident_bytes() -> int:
    """Memory of this process that is in use now; 0 where the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def bf16_features() -> list[str]:
    """What the processor has for products of bf16, as far as the system tells."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return []
    return [name for name in ("amx_bf16", "avx512_bf16") if name in flags]


def alternate(runs: int, sides: Sequence[Side]) -> Iterator[Side]:
    """Everyone in turn; who was first is last the next time."""
    for turn in range(runs):
        yield from sides if turn % 2 == 0 else sides[::-1]


# Processes that are asked for one thing at a time


class Worker:
    """A process that ``serve``s; as a context manager it is ended on the way out."""

    def __init__(self, command: list, name: str):
        self.name = name
        self.process = subprocess.Popen(
            [str(part) for part in command], env=environment.variables() | {"TQDM_DISABLE": "1"},
            encoding="utf-8", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.ready = self._answer()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()     # it has nothing to finish, and may be in the middle of a call
        self.process.communicate()

    def __call__(self, call: str, **arguments) -> dict:
        print(json.dumps({"call": call, **arguments}), file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise BenchmarkError(f"{self.name}: its process ended; its own words stand above.")
        return json.loads(line)


def own_stdout() -> IO[str]:
    """Where a process writes its answers; what libraries print goes to stderr from now on."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def serve(side, answers: IO[str], **ready) -> None:
    """Do what each line of the input asks for, until it ends; ``ready`` stands in a first line.

    A line is a JSON object, {"call": method of ``side``, ...arguments}, and is answered by one with the
    seconds that the call took, on the wall and of all processors together. With {"results": file} the
    tensors ``side.results`` are written there.
    """
    import numpy as np
    print(json.dumps({**ready, "peak_bytes": peak_bytes()}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        call, file = request.pop("call"), request.pop("results", None)
        wall, processors = time.perf_counter(), time.process_time()
        getattr(side, call)(**request)
        answer = {
            "seconds": time.perf_counter() - wall, "processor_seconds": time.process_time() - processors,
            "peak_bytes": peak_bytes(), "stages": side.seconds,
        }
        if file:
            np.savez(file, **{name: tensor.float().numpy() for name, tensor in side.results.items()})
        print(json.dumps(answer), file=answers, flush=True)


def compare(first: Path, second: Path) -> dict[str, list[float]]:
    """Per result: the largest difference, and the difference in relation to the second, both as norms."""
    import numpy as np
    with np.load(first) as ours, np.load(second) as theirs:
        return {
            name: [float(np.abs(ours[name] - theirs[name]).max()),
                   float(np.linalg.norm(ours[name] - theirs[name]) / np.linalg.norm(theirs[name]))]
            for name in theirs
        }


def peak_bytes() -> int | None:
    """The most memory that this process has ever held; None where the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def finished(measure: Callable[[], None]) -> int:
    """The exit code of a benchmark; what stopped it is said in words."""
    try:
        measure()
    except (BenchmarkError, environment.SetupError) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("Interrupted.")
        return 130
    return 0
