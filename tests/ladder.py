"""The pack tried in older and newer surroundings: ``python tests/ladder.py [options]``.

Each step is a genuine ComfyUI with the requirements that it names, and one transformers, over the tests' own
environment, whose torch it shares. Steps are built, tried and taken away one after the other. The table of the README
comes out.
"""
from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import run
from runner import environment
from runner.environment import ComfyUI, Source
from runner.report import say

from kit import speech

SOURCES = (
    Source("0.16.3", "1.0.0", "4e46654c099b0b3e5f96f2d34d938b54409764202754b33a76e550925a1d1e73"),
    Source("0.24.1", "2.3.1", "dd4a132c219a59c2321158f0a677f159134e004e85888415818c1b217ce93813"),
    environment.SOURCE,
)
NEWEST = "newest"
TRANSFORMERS = ("4.57", NEWEST)
# Torch is shared, and image nodes are not tried.
LEFT_OUT = re.compile(r"(torch(vision|audio)?|comfyui-(workflow-templates|embedded-docs)|kornia|spandrel|PyOpenGL|glfw"
                      r"|comfy-angle)\b(?!-)")
WORKFLOW = "test_writes_its_file_and_shows_its_steps"
# What touches ComfyUI or transformers: the queue, schemas, files, memory. The tests of its page are of one version.
TESTS = (f"test_workflows.py::{WORKFLOW}", *(f"test_workflows.py::{name}" for name in (
    "test_the_pack_is_imported_without_a_word", "test_a_wrong_value_is_refused_by_name",
    "test_an_interrupted_run_leaves_nothing_behind[cosyvoice3_dialogue]",
    "test_an_interrupted_run_leaves_nothing_behind[ogg_dialogue]")),
    "test_import.py", "test_loader.py", "test_transcribe.py")
PYTEST_RAN = (0, 1)         # all passed, some failed; else it was interrupted, or found nothing


@dataclass(frozen=True)
class Step:
    """One row of the table."""

    source: Source
    transformers: str

    def __str__(self) -> str:
        return f"{self.source.comfyui}-{self.transformers}"

    def build(self, folder: Path, base: ComfyUI) -> ComfyUI:
        """This ComfyUI and a Python for it, which sees the packages of ``base``."""
        say(f"Setting up ComfyUI {self.source.comfyui} with transformers {self.transformers} in {folder}")
        comfyui = ComfyUI(folder / "ComfyUI", environment.venv_python(folder / "venv"), ours=True)
        environment.overlay(folder / "venv", base.python)
        self.source.fetch(comfyui.python, folder.parent / "download", comfyui.root)
        wanted = [line for line in (comfyui.root / "requirements.txt").read_text(encoding="utf-8").splitlines()
                  if line.strip() and not line.startswith("#") and not LEFT_OUT.match(line)]
        pinned = "transformers" if self.transformers == NEWEST else f"transformers=={self.transformers}.*"
        environment.pip(comfyui.python, "install", "--no-compile", *wanted)
        environment.pip(comfyui.python, "install", "--no-compile", "--upgrade", pinned)
        return comfyui


@dataclass
class Result:
    """What a step's tests said."""

    workflows: list[bool]
    tests: list[bool]
    failed: list[str]

    @classmethod
    def read(cls, report: Path) -> Result:
        found = cls([], [], [])
        for case in ElementTree.parse(report).iter("testcase"):
            passed = case.find("failure") is None and case.find("error") is None
            name = case.get("name", "")
            (found.workflows if name.startswith(WORKFLOW) else found.tests).append(passed)
            if not passed:
                found.failed.append(f"{case.get('classname')}::{name}")
        return found


def share(passed: list[bool]) -> str:
    return f"{sum(passed)} of {len(passed)}"


def try_step(step: Step, folder: Path, base: ComfyUI, variables: dict[str, str]) -> tuple[str, list[str]]:
    """A row of the table, and the names of the tests that failed."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        comfyui = step.build(folder, base)
        version = "import transformers, sys; print(transformers.__version__, '%d.%d' % sys.version_info[:2])"
        transformers, python = environment.output([comfyui.python, "-c", version], "transformers fails").split()
        report = folder / "report.xml"
        code = run.call([comfyui.python, "-m", "pytest", "-p", "no:cacheprovider", "--junitxml", str(report),
                         *(f"tests/{name}" for name in TESTS)],
                        {**variables, "SPEECHWRIGHT_COMFYUI": str(comfyui.root)})
        if code not in PYTEST_RAN:
            raise environment.SetupError(f"{step}: pytest did not come to its end (exit code {code}).")
        result = Result.read(report)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    cells = step.source.comfyui, transformers, python, share(result.workflows), share(result.tests)
    return f"| {' | '.join(cells)} |", result.failed


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ladder.py", description="Try the pack in each version of ComfyUI and "
                                     "transformers, and print a table. Every step takes some minutes.")
    parser.add_argument("--folder", metavar="DIR", type=Path, help="where steps are built, half a GB each (default: a "
                        "temporary folder)")
    parser.add_argument("--environment", metavar="DIR", type=Path, help="the tests' environment, as of tests/run.py")
    parser.add_argument("--only", metavar="STEP", nargs="+", help="steps to try, such as 0.16.3-4.57 or 0.30.0-newest")
    return parser.parse_args()


def main() -> int:
    chosen = parse()
    base, built = run.prepare(argparse.Namespace(comfyui=None, python=None, environment=chosen.environment))
    variables = {**environment.variables(), speech.FOLDER_VARIABLE: str(built / "speech")}
    speech.fetch(built / "speech")
    steps = [Step(source, version) for version in TRANSFORMERS for source in SOURCES]
    rows, failures = [], []
    with tempfile.TemporaryDirectory(prefix="speechwright-ladder-") as temporary:
        for step in steps:
            if chosen.only and str(step) not in chosen.only:
                continue
            folder = (chosen.folder or Path(temporary)).absolute()
            row, failed = try_step(step, folder / str(step), base, variables)
            rows.append(row)
            failures += [f"{step}: {name}" for name in failed]
            say(row)
    for name in failures:
        say(name)
    print("| ComfyUI | transformers | Python | workflows | tests |\n|---|---|---|---|---|")
    print("\n".join(rows))
    return 1 if failures or not rows else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except environment.SetupError as error:
        sys.exit(str(error))
