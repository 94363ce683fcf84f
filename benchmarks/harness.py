"""What the benchmarks have in common: an environment for the reference, commands, names of things."""
from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT / "workflows"))

from runner import environment  # noqa: E402, from the folder above
from runner.report import say  # noqa: E402

TORCH = ("torch==2.13.0", "numpy", "safetensors")


class BenchmarkError(RuntimeError):
    """A process of the benchmark ended; the text says which, and its own words stand above."""


def run(command: list, problem: str) -> str:
    """What a command writes to stdout. ``problem`` says what it means when it fails."""
    done = subprocess.run([str(part) for part in command], env=environment.variables(),
                          stdout=subprocess.PIPE, encoding="utf-8", check=False)
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
