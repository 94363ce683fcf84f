"""Builds what the tests need, once, and runs them: ``python tests/run.py [options] [pytest's arguments]``."""
import argparse
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

if sys.version_info < (3, 10):  # noqa: UP036, for those who have an older one
    sys.exit("Python {}.{} is too old here; start this with 3.10 or newer.".format(*sys.version_info[:2]))

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT / "workflows"))

from runner import environment, server  # noqa: E402, from the folder above
from runner.cli import INTERRUPTED, end_on_terminate  # noqa: E402
from runner.report import say  # noqa: E402

from browser import chromium  # noqa: E402, from beside this file
from kit import speech  # noqa: E402

# exec, eval and several statements a line: what the Comfy Registry looks for, whatever pyproject.toml says.
REGISTRY_RULES = "S102,S307,E702"
# All tests: in two processes, each with a server of its own, where files stay whole and keep the order of conftest.py.
WHOLE = ("-n", str(min(2, os.cpu_count() or 1)), "--dist", "loadfile", "--no-loadscope-reorder")


def parse() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="run.py", allow_abbrev=False,
        description="Run the tests in the genuine ComfyUI. Its environment is built once and reused. "
                    "Arguments that are not listed here go to pytest.")
    parser.add_argument("--environment", metavar="DIR", type=Path,
                        help=f"where it is built (default: a folder in {environment.cache_folder()})")
    parser.add_argument("--comfyui", metavar="PATH", type=Path,
                        help="test in this ComfyUI; neither its folder nor its Python is changed")
    parser.add_argument("--python", metavar="FILE", type=Path, help="the Python that runs --comfyui PATH")
    parser.add_argument("--install-chromium", action="store_true",
                        help="where there is no Chromium, have apt-get install it; needs root on Debian or its like")
    parser.add_argument("--generate", action="store_true",
                        help="run no test, but write anew what ComfyUI's editor makes of workflows/api: "
                             "workflows/*.json with their pictures, and subgraphs/*.json")
    parser.add_argument("--lint", action="store_true", help="check the sources with ruff before the tests")
    return parser.parse_known_args()


def prepare(chosen: argparse.Namespace) -> tuple[environment.ComfyUI, Path]:
    """A ComfyUI whose Python has also the tests' packages, and the folder of what was fetched for them."""
    if chosen.comfyui:
        comfyui = server.find(chosen.comfyui.expanduser(), chosen.python)
        name = "tests-" + hashlib.sha256(f"{comfyui.root}{comfyui.python}".encode()).hexdigest()[:12]
        folder = chosen.environment or environment.cache_folder() / name
    else:
        folder = chosen.environment or environment.default_folder()
        comfyui = environment.ensure(folder)
    return environment.ensure_packages(folder, comfyui, CHECKOUT / "tests" / "requirements.txt"), folder


def find_chromium(may_install: bool) -> None:
    """Say which Chromium opens the page, or how to get one: the tests that need it fail without, and others run."""
    try:
        try:
            found = chromium.find()
        except chromium.NoChromium:
            if not may_install:
                raise
            say("Installing Chromium")
            chromium.install()
            found = chromium.find()
        say(f"Tests open ComfyUI's page in {found}")
    except chromium.NoChromium as error:
        say(f"No Chromium: {error}")


def call(command: list, variables: dict[str, str]) -> int:
    """Run a command in the checkout; its exit code.

    It may have a server to end and folders to delete, so it is never killed. Ctrl-C reaches it without us.
    """
    process = subprocess.Popen(command, cwd=CHECKOUT, env=variables)
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    return process.wait()


def main() -> int:
    chosen, arguments = parse()
    end_on_terminate()
    try:
        comfyui, folder = prepare(chosen)
        variables = environment.variables()
        variables["SPEECHWRIGHT_COMFYUI"] = str(comfyui.root)
        say(f"Tests convert a person's recording: {speech.fetch(folder / 'speech')}")
        variables[speech.FOLDER_VARIABLE] = str(folder / "speech")
        find_chromium(chosen.install_chromium)
        commands = [["-m", "pytest", *(arguments or WHOLE)]]
        if chosen.generate:
            commands = [[str(CHECKOUT / "tests" / "browser" / "generate.py")]]
        elif chosen.lint:
            commands[:0] = [["-m", "ruff", "check", "."], ["-m", "ruff", "check", "--select", REGISTRY_RULES, "."]]
        say(f"Tests run in ComfyUI at {comfyui.root}")
        codes = [call([comfyui.python, *command], variables) for command in commands]
        return next((code for code in codes if code), 0)
    except (environment.SetupError, speech.NoRecording) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("Interrupted.")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
