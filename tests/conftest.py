"""What every test stands on: the package under an alias, the genuine ComfyUI on the CPU, and no network.

ComfyUI is found through SPEECHWRIGHT_COMFYUI, or beside the environment that runs pytest.
``python tests/run.py`` builds both and starts pytest.
"""
from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

CHECKOUT = Path(__file__).parents[1]
THREADS = 1         # tiny networks lose more by waiting for a second thread than they gain
LONGEST = ("test_long_queue.py", "test_fuzz_nodes.py", "test_memory.py", "test_workflows.py", "test_two_servers.py",
           "test_queue.py")

# A request to terminate takes the way of Ctrl-C: fixtures end what they started.
signal.signal(signal.SIGTERM, signal.default_int_handler)

# Read once, when the numeric libraries are first loaded; the server under test inherits it.
os.environ["OMP_NUM_THREADS"] = str(THREADS)
os.environ["HF_HUB_OFFLINE"] = "1"

# The checkout's folder may have any name, and its __init__ needs ComfyUI: tests import the modules
# as parts of a package that has the checkout as its path and no __init__ at all.
speechwright = ModuleType("speechwright")
speechwright.__path__ = [str(CHECKOUT)]
sys.modules["speechwright"] = speechwright
# `python -m pytest` would let anybody import our text, audio ... by those names.
sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != CHECKOUT]

# Hypothesis draws the same examples each time: a red run is red again when somebody looks.
settings.register_profile("speechwright", derandomize=True, deadline=None, database=None)
settings.load_profile("speechwright")


def comfyui_root() -> Path | None:
    """ComfyUI's folder, or None where there is none."""
    named = os.environ.get("SPEECHWRIGHT_COMFYUI")
    root = Path(named) if named else Path(sys.prefix).parent / "ComfyUI"
    return root.resolve() if (root / "main.py").is_file() else None


def use_comfyui(root: Path) -> None:
    """Make ``import comfy`` and its like mean the genuine ones, told to run on the CPU.

    ComfyUI reads its options from the command line when they are first imported. The base directory keeps
    its other folders out of the way: importing ``folder_paths`` makes an input folder.
    """
    from speechwright.workflows.runner.launcher import TorchvisionOperators
    base = tempfile.TemporaryDirectory(prefix="speechwright-tests-")
    use_comfyui.base = base                     # deleted with the interpreter
    sys.meta_path.insert(0, TorchvisionOperators())
    sys.path.insert(0, str(root))
    arguments, sys.argv = sys.argv, ["main.py", "--cpu", "--base-directory", base.name]
    try:
        import comfy.options
        comfy.options.enable_args_parsing()
        import comfy.cli_args  # noqa: F401
    finally:
        sys.argv = arguments


if ROOT := comfyui_root():
    use_comfyui(ROOT)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz-minutes", type=float, default=0.0, help="how long test_fuzz_nodes.py draws graphs by hand")
    parser.addoption("--fuzz-seed", type=int, default=0, help="of the graphs that it draws then")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take minutes first: the last to start, one of two processes would wait for the other."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def pytest_report_header() -> str:
    return f"ComfyUI: {ROOT or 'none; `python tests/run.py` builds one'}"


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    import torch
    torch.set_num_threads(THREADS)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    from kit.offline import block_network
    block_network(monkeypatch.setattr)


@pytest.fixture(scope="session")
def comfyui_folder() -> Path:
    """The genuine ComfyUI's folder."""
    if ROOT is None:
        pytest.fail("this needs ComfyUI: run `python tests/run.py`, which builds one.", pytrace=False)
    return ROOT


@pytest.fixture(scope="session")
def comfy(comfyui_folder: Path):
    """A client of the genuine server, booted at the first test that asks for it and ended after the last."""
    from kit.server import running
    with running(comfyui_folder) as client:
        yield client


@pytest.fixture
def two_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """models/tts and another root, as extra_model_paths.yaml gives them; a third does not exist."""
    import folder_paths

    from speechwright import files
    models, extra = tmp_path / "models", tmp_path / "elsewhere"
    monkeypatch.setattr(folder_paths, "models_dir", str(models))
    registered = dict(folder_paths.folder_names_and_paths)
    registered["TTS"] = ([str(tmp_path / "missing"), str(extra)], set())
    registered.pop("tts", None)
    monkeypatch.setattr(folder_paths, "folder_names_and_paths", registered)
    files.register_folders()
    (models / "tts").mkdir(parents=True)
    extra.mkdir()
    return models / "tts", extra
