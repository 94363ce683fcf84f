"""A ComfyUI process of our own: found or made, booted on a free port in an isolated folder, and ended.

Its folders (input, output, temp, user, custom_nodes) are made for one run and deleted after it, so a user's
ComfyUI folder is read and never written. Only ``models`` is kept: checkpoints are large.
"""
from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .client import Client, ServerGone
from .environment import ComfyUI, SetupError, variables
from .report import say

LAUNCHER = Path(__file__).with_name("launcher.py")
BOOT_LIMIT_S = 600          # a first import from a slow disk takes minutes
END_LIMIT_S = 10
LOG_LINES = 30
COLOUR = re.compile(r"\x1b\[[\d;]*m")
# The portable build spells its folder with one d.
PYTHON_PLACES = ("venv/bin/python", ".venv/bin/python", "venv/Scripts/python.exe", ".venv/Scripts/python.exe",
                 "python_embeded/python.exe", "python_embedded/python.exe")
NOT_COPIED = (".*", "__pycache__", "tests", "benchmarks", "output")
# Not an accelerator of any kind, so that ComfyUI must be told to use the CPU.
HAS_NONE = """
import sys, torch
kinds = [torch.cuda, torch.backends.mps, getattr(torch, "xpu", None)]
sys.exit(any(kind is not None and kind.is_available() for kind in kinds))
"""


@dataclass(frozen=True)
class Booted:
    """A server that runs."""

    url: str
    base: Path              # its input, output, models ... folders
    log: Path
    process: subprocess.Popen


def find(path: Path, python: Path | None = None) -> ComfyUI:
    """The ComfyUI at ``path``, with ``python`` or else the one that belongs to it."""
    for root in (path, path / "ComfyUI"):
        if (root / "main.py").is_file() and (root / "comfy").is_dir():
            root = root.resolve()
            return ComfyUI(root, python or _own_python(root))
    raise SetupError(f"{path}: no ComfyUI here; a folder with main.py and comfy/ in it is needed.")


def _own_python(root: Path) -> Path:
    """An environment in ComfyUI's folder or beside it, else the Python that runs this."""
    for folder in (root, root.parent):
        for place in PYTHON_PLACES:
            if (folder / place).is_file():
                return folder / place
    return Path(sys.executable)


def needs_cpu(comfyui: ComfyUI) -> bool:
    """Whether ComfyUI's torch finds no accelerator here."""
    return subprocess.run([comfyui.python, "-c", HAS_NONE], check=False,
                          stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


@contextmanager
def booted(comfyui: ComfyUI, nodes: Mapping[str, Path], *, audio: Path, cpu: bool,
           models: Path | None = None, environment: Mapping[str, str] | None = None,
           options: Sequence[str] = ()) -> Iterator[Booted]:
    """A server with the custom ``nodes`` (name -> folder or file) and the clips of the folder ``audio``.

    ``models`` is a folder to keep, or None for one that goes with the rest; ``options`` are more of ComfyUI's own.
    """
    with tempfile.TemporaryDirectory(prefix="speechwright-", ignore_cleanup_errors=True) as folder:
        base = Path(folder).resolve()
        _furnish(base, comfyui, nodes, audio, models)
        port = free_port()
        own = {**variables(), "PYTHONUNBUFFERED": "1", **(environment or {})}
        if not comfyui.ours:
            own["PYTHONDONTWRITEBYTECODE"] = "1"        # its folder stays as it is
        with open(base / "server.log", "wb") as log:
            # In a group of its own, so that Ctrl-C reaches us alone, and we can interrupt its work in order.
            process = subprocess.Popen(
                [*_command(comfyui, base, port, cpu), *options], stdin=subprocess.PIPE, stdout=log, stderr=log, env=own,
                start_new_session=os.name != "nt",
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0))
            server = Booted(f"http://127.0.0.1:{port}", base, base / "server.log", process)
            try:
                _await_answer(server, comfyui)
                _check_imports(server, nodes)
                yield server
            finally:
                _end(process)


def _command(comfyui: ComfyUI, base: Path, port: int, cpu: bool) -> list[str]:
    database = f"sqlite:///{(base / 'user' / 'comfyui.db').as_posix()}"
    return [str(comfyui.python), str(LAUNCHER), str(comfyui.root), "--base-directory", str(base),
            "--database-url", database, "--extra-model-paths-config", str(base / "models.yaml"),
            "--listen", "127.0.0.1", "--port", str(port), "--disable-auto-launch", "--disable-api-nodes",
            *(["--cpu"] if cpu else [])]


def _furnish(base: Path, comfyui: ComfyUI, nodes: Mapping[str, Path], audio: Path,
             models: Path | None) -> None:
    """Make the folders of one run, with links to ``nodes`` and copies of the clips."""
    for name in ("custom_nodes", "input", "output", "temp", "user"):
        (base / name).mkdir()
    if models is None:
        (base / "models").mkdir()
    else:
        models.mkdir(parents=True, exist_ok=True)
        if not link(base / "models", models):
            raise SetupError(f"{base}: no link to {models} can be made. Set TMPDIR or TEMP to a folder that "
                             "allows links.")
    for name, source in nodes.items():
        target = base / "custom_nodes" / name
        if not link(target, source):
            shutil.copytree(source, target, ignore=shutil.ignore_patterns(*NOT_COPIED))
    voices = base / "models" / "voices"
    voices.mkdir(exist_ok=True)
    # Whoever keeps a voice of the same name there has chosen it.
    taken = {file.stem for file in voices.iterdir() if file.suffix != ".txt" and not (audio / file.name).exists()}
    for clip in audio.glob("*.*"):
        if clip.suffix not in (".txt", ".md"):
            shutil.copy(clip, base / "input")
        if clip.suffix != ".md" and clip.stem not in taken and not (voices / clip.name).exists():
            shutil.copy(clip, voices)
    paths = {} if comfyui.ours else _model_paths(comfyui.root)
    # JSON is YAML, with quoting that fits every path.
    (base / "models.yaml").write_text(json.dumps(paths), encoding="utf-8")


def _model_paths(root: Path) -> dict:
    """ComfyUI's configuration that adds each folder in ``root``/models to the places of its kind."""
    kinds = sorted(folder.name for folder in (root / "models").glob("*") if folder.is_dir())
    return {"comfyui": {"base_path": str(root / "models"), **{kind: kind for kind in kinds}}} if kinds else {}


def link(link_path: Path, target: Path) -> bool:
    """Make ``link_path`` lead to ``target``; False where the system does not allow it."""
    try:
        link_path.symlink_to(target.resolve(), target_is_directory=target.is_dir())
        return True
    except OSError:
        pass
    if os.name == "nt" and target.is_dir():         # junctions need no special right there
        made = subprocess.run(["cmd", "/c", "mklink", "/J", str(link_path), str(target.resolve())],
                              check=False, capture_output=True)
        return made.returncode == 0
    return False


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _await_answer(server: Booted, comfyui: ComfyUI) -> None:
    client = Client(server.url)
    limit = time.monotonic() + BOOT_LIMIT_S
    while time.monotonic() < limit:
        if server.process.poll() is not None:
            raise SetupError(f"ComfyUI at {comfyui.root}, run by {comfyui.python}, ended while it started:\n"
                             f"{tail(server)}\nIf that is not its Python, name the right one with --python.")
        try:
            # Another server may have taken the port in between; ours was given our folder.
            if str(server.base) in client.get("/system_stats")["system"]["argv"]:
                return
        except ServerGone:
            time.sleep(0.25)
    raise SetupError(f"ComfyUI at {comfyui.root} did not answer within {BOOT_LIMIT_S} s:\n{tail(server)}")


def _check_imports(server: Booted, nodes: Mapping[str, Path]) -> None:
    """ComfyUI starts without the nodes that it cannot import; say why, before a graph finds them missing."""
    log = read_log(server)
    for name in nodes:
        end = log.find(f"Cannot import {server.base / 'custom_nodes' / name} ")
        if end >= 0:
            cause = log[max(log.rfind("Traceback", 0, end), 0):log.rfind("\n", 0, end)].strip()
            raise SetupError(f"ComfyUI could not import {nodes[name]}:\n{cause}")


def read_log(server: Booted) -> str:
    """The server's log without its colours."""
    return COLOUR.sub("", server.log.read_text(encoding="utf-8", errors="replace"))


def tail(server: Booted) -> str:
    """The last lines of the server's log."""
    return "\n".join(read_log(server).splitlines()[-LOG_LINES:])


def _end(process: subprocess.Popen) -> None:
    process.stdin.close()               # the launcher's sign to leave
    try:
        process.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        say("ComfyUI does not end; killing it.")
        process.kill()
        process.wait()
