"""Building an environment once, whole, and by one process; finding a ComfyUI; the folders of a run."""
from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import pytest

from kit.checkout import CHECKOUT
from speechwright.workflows.runner import environment, server
from speechwright.workflows.runner.environment import ComfyUI, SetupError


@pytest.fixture
def built(monkeypatch) -> list[Path]:
    """Builds are counted, and leave what a real one leaves: a Python that starts, a source, a stamp."""
    folders: list[Path] = []

    def build(folder: Path, comfyui: ComfyUI) -> None:
        folders.append(folder)
        comfyui.root.mkdir(exist_ok=True)
        comfyui.python.parent.mkdir(parents=True, exist_ok=True)
        if not comfyui.python.exists():
            comfyui.python.symlink_to(sys.executable)
        (folder / "stamp").write_text(environment.recipe(), encoding="utf-8")

    monkeypatch.setattr(environment, "_build", build)
    return folders


def test_an_environment_is_built_once(built, tmp_path):
    first = environment.ensure(tmp_path / "new" / "folder")
    assert environment.ensure(tmp_path / "new" / "folder") == first and len(built) == 1
    assert first.ours and first.root.is_absolute() and first.python.is_absolute()


def test_what_is_not_whole_is_built_anew(built, tmp_path):
    """A download that was cut off once left a folder that every later run took for finished."""
    folder = tmp_path / "environment"
    comfyui = environment.ensure(folder)
    stamp = folder / "stamp"
    faults = [stamp.unlink, lambda: stamp.write_text("of another release", encoding="utf-8"),
              comfyui.python.unlink, comfyui.root.rmdir]
    for count, fault in enumerate(faults, start=2):
        fault()
        environment.ensure(folder)
        assert len(built) == count
    environment.ensure(folder)
    assert len(built) == len(faults) + 1


def test_a_build_that_fails_leaves_no_stamp(monkeypatch, tmp_path, capsys):
    def pip(python, *arguments):
        raise SetupError("no network")

    (tmp_path / "packages.stamp").write_text("old", encoding="utf-8")
    monkeypatch.setattr(environment, "_make_venv", lambda python, venv: None)
    monkeypatch.setattr(environment, "pip", pip)
    with pytest.raises(SetupError, match="no network"):
        environment.ensure(tmp_path)
    assert not list(tmp_path.glob("*stamp"))
    assert "2/4 torch" in capsys.readouterr().err


def test_one_process_builds_and_the_other_waits(tmp_path, capsys):
    holder = subprocess.Popen(
        [sys.executable, "-c", "import sys, time; from runner.environment import locked\n"
         "with locked(__import__('pathlib').Path(sys.argv[1])): print('held', flush=True); time.sleep(60)",
         str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT / "workflows")}, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        entered = threading.Event()

        def enter() -> None:
            with environment.locked(tmp_path):
                entered.set()

        threading.Thread(target=enter, daemon=True).start()
        assert not entered.wait(1.0)
        holder.kill()                       # the lock of a process that was killed is free
        assert entered.wait(10.0)
        assert "waiting for it" in capsys.readouterr().err
    finally:
        holder.kill()
        holder.communicate()


def test_only_files_below_the_prefix_are_unpacked(tmp_path):
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        for name in ("vendor/main.py", "vendor/comfy/ops.py", "other.py", "vendor/../../up.py"):
            info = tarfile.TarInfo(f"pack/{name}")
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
        link = tarfile.TarInfo("pack/vendor/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    environment.unpack(tmp_path / "a.tar.gz", "pack/vendor/", tmp_path / "out")
    files = [path for path in tmp_path.rglob("*") if not path.is_dir()]
    found = sorted(path.relative_to(tmp_path).as_posix() for path in files)
    assert found == ["a.tar.gz", "out/comfy/ops.py", "out/main.py"]
    assert (tmp_path / "out" / "main.py").read_bytes() == b"abc"


@pytest.mark.parametrize(("system", "variables", "folder"), [
    ("linux", {}, ".cache/speechwright"),
    ("linux", {"XDG_CACHE_HOME": "/big/cache"}, "/big/cache/speechwright"),
    ("linux", {"XDG_CACHE_HOME": "not/absolute"}, ".cache/speechwright"),
    ("darwin", {}, "Library/Caches/speechwright"), ("win32", {}, "AppData/Local/speechwright"),
    ("win32", {"LOCALAPPDATA": "/users/me/local"}, "/users/me/local/speechwright")])
def test_each_system_has_its_place_for_caches(monkeypatch, system, variables, folder):
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", system)
    assert environment.cache_folder() == Path.home() / folder


def test_other_pythons_do_not_see_this_ones_packages(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("KEPT", "1")
    assert "PYTHONPATH" not in environment.variables() and environment.variables()["KEPT"] == "1"


# A ComfyUI that is there already


def make(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


@pytest.mark.parametrize("place", ["ComfyUI/venv/bin/python", "ComfyUI/.venv/bin/python", "venv/bin/python",
                                   "ComfyUI/venv/Scripts/python.exe", "python_embeded/python.exe"])
def test_a_comfyui_is_run_by_its_own_python(tmp_path, place):
    make(tmp_path / "ComfyUI" / "main.py")
    (tmp_path / "ComfyUI" / "comfy").mkdir()
    python = make(tmp_path / place)
    for path in (tmp_path, tmp_path / "ComfyUI"):
        assert server.find(path) == ComfyUI((tmp_path / "ComfyUI").resolve(), python)
    assert server.find(tmp_path, Path("mine")).python == Path("mine")
    python.unlink()
    assert server.find(tmp_path).python == Path(sys.executable)


def test_a_folder_without_comfyui_is_an_error(tmp_path):
    make(tmp_path / "main.py")
    with pytest.raises(SetupError, match="a folder with main.py and comfy/ in it is needed"):
        server.find(tmp_path)


def furnished(tmp_path: Path, comfyui: ComfyUI, models: Path | None = None) -> Path:
    base = tmp_path / f"base{len(list(tmp_path.glob('base*')))}"
    base.mkdir()
    make(tmp_path / "pack" / "__init__.py")
    clips = tmp_path / "audio"
    for name in ("ada.flac", "ada.txt", "README.md"):
        make(clips / name)
    server._furnish(base, comfyui, {"speechwright": tmp_path / "pack"}, clips, models)
    return base


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_run_has_folders_of_its_own_and_finds_the_users_models(tmp_path):
    root = tmp_path / "ComfyUI"
    for kind in ("vae", "tts"):
        make(root / "models" / kind / "model.safetensors")
    make(root / "models" / "put_models_here")
    base = furnished(tmp_path, ComfyUI(root, Path(sys.executable)))
    assert (base / "custom_nodes" / "speechwright").resolve() == (tmp_path / "pack").resolve()
    assert names(base / "input") == ["ada.flac"]
    assert names(base / "models" / "voices") == ["ada.flac", "ada.txt"]
    paths = json.loads((base / "models.yaml").read_text(encoding="utf-8"))
    assert paths == {"comfyui": {"base_path": str(root / "models"), "tts": "tts", "vae": "vae"}}
    ours = furnished(tmp_path, ComfyUI(root, Path(sys.executable), ours=True))
    assert json.loads((ours / "models.yaml").read_text(encoding="utf-8")) == {}


def test_kept_models_are_linked_and_a_voice_of_the_users_stays(tmp_path):
    kept = tmp_path / "kept"
    make(kept / "voices" / "ada.txt").write_text("mine", encoding="utf-8")
    base = furnished(tmp_path, ComfyUI(tmp_path, Path(sys.executable), ours=True), kept)
    make(base / "models" / "tts" / "downloaded.safetensors")
    assert names(kept) == ["tts", "voices"] and names(kept / "voices") == ["ada.flac", "ada.txt"]
    assert (kept / "voices" / "ada.txt").read_text(encoding="utf-8") == "mine"


def test_a_voice_of_the_users_in_another_format_is_not_hidden(tmp_path):
    """Of two recordings of one name one is taken, and a text belongs to both."""
    kept = tmp_path / "kept"
    make(kept / "voices" / "ada.wav")
    furnished(tmp_path, ComfyUI(tmp_path, Path(sys.executable), ours=True), kept)
    assert names(kept / "voices") == ["ada.wav"]
    (kept / "voices" / "ada.wav").unlink()
    furnished(tmp_path, ComfyUI(tmp_path, Path(sys.executable), ours=True), kept)
    furnished(tmp_path, ComfyUI(tmp_path, Path(sys.executable), ours=True), kept)
    assert names(kept / "voices") == ["ada.flac", "ada.txt"]


def test_without_links_the_pack_is_copied(tmp_path, monkeypatch):
    make(tmp_path / "pack" / "tests" / "test_it.py")
    make(tmp_path / "pack" / ".venv" / "python")
    monkeypatch.setattr(server, "link", lambda link_path, target: False)
    base = furnished(tmp_path, ComfyUI(tmp_path, Path(sys.executable), ours=True))
    assert names(base / "custom_nodes" / "speechwright") == ["__init__.py"]
    with pytest.raises(SetupError, match="no link to"):
        furnished(tmp_path, ComfyUI(tmp_path, Path(sys.executable), ours=True), tmp_path / "kept")


def boot(tmp_path: Path, main: str) -> None:
    """Boot a ComfyUI whose main.py is ``main``."""
    make(tmp_path / "ComfyUI" / "main.py").write_text(main, encoding="utf-8")
    comfyui = ComfyUI(tmp_path / "ComfyUI", Path(sys.executable))
    with server.booted(comfyui, {}, audio=tmp_path, cpu=True) as booted:
        raise AssertionError(f"{booted} answers.")


def test_a_comfyui_that_ends_says_why(tmp_path):
    with pytest.raises(SetupError, match="(?s)No module named 'no_torch'.*name the right one with --python"):
        boot(tmp_path, "import no_torch")


def test_a_pack_that_cannot_be_imported_says_why(tmp_path):
    folder = tmp_path / "custom_nodes" / "speechwright"
    booted = server.Booted("", tmp_path, tmp_path / "server.log", process=None)
    booted.log.write_text(
        f"Traceback: old\nCannot import {folder.with_name('other')} module for custom nodes: old\n"
        f"\x1b[33m[WARNING]\x1b[0m Traceback: new\n[WARNING] Cannot import {folder} module: new\nlater\n",
        encoding="utf-8")
    with pytest.raises(SetupError) as error:
        server._check_imports(booted, {"speechwright": CHECKOUT})
    assert str(error.value) == f"ComfyUI could not import {CHECKOUT}:\nTraceback: new"
    server._check_imports(booted, {"speech": CHECKOUT})


def test_a_server_ends_with_the_command_that_booted_it(tmp_path):
    """A killed command once left a server behind that held the graphics card."""
    main = make(tmp_path / "ComfyUI" / "main.py")
    main.write_text("import time; print('up', flush=True); time.sleep(60)", encoding="utf-8")
    process = subprocess.Popen([sys.executable, str(server.LAUNCHER), str(main.parent)],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "up\n"
        started = time.monotonic()
        process.stdin.close()
        assert process.wait(10) == 0 and time.monotonic() - started < 5
    finally:
        process.kill()
        process.stdout.close()
