"""Writes what the editor makes of ``workflows/api``: ``python tests/run.py --generate`` starts this.

    workflows/NAME.json     the graph as ComfyUI lists it among its templates
    workflows/NAME.jpg      its picture there
    subgraphs/NAME.json     blueprints
    assets/*.jpg            the README's pictures
    tests/frozen            a copy of each workflow that this version has not got one of
"""
from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from conftest import comfyui_root  # noqa: E402, which also makes the pack importable

from browser import blueprints, screenshots, twins  # noqa: E402
from browser.frontend import Frontend, opened  # noqa: E402
from kit import frozen  # noqa: E402
from kit.checkout import read  # noqa: E402
from kit.server import running  # noqa: E402


def write_twins(frontend: Frontend) -> None:
    names = twins.names()
    for path in twins.WORKFLOWS.glob("*.j*"):
        if path.stem not in names:
            path.unlink()
    for name in names:
        text = twins.text_of(twins.make(frontend, name, twins.api_graph(name), twins.note_text(name)))
        (twins.WORKFLOWS / f"{name}.json").write_text(text, encoding="utf-8")
        shot = twins.WORKFLOWS / f"{name}.jpg"
        # Two pictures of one graph differ in a few bytes, which nobody needs in the history.
        if not shot.exists() or twins.shown(shot) != twins.mark(text):
            shot.write_bytes(twins.picture(frontend, text, name))
        sys.stderr.write(f"{name}\n")


def write_blueprints(frontend: Frontend) -> None:
    blueprints.FOLDER.mkdir(exist_ok=True)
    for path in blueprints.FOLDER.glob("*.json"):
        if path.stem not in blueprints.BLUEPRINTS:
            path.unlink()
    for name in blueprints.BLUEPRINTS:
        text = blueprints.text_of(blueprints.make(frontend, name))
        (blueprints.FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
        sys.stderr.write(f"{name}\n")


def write_all(frontend: Frontend) -> None:
    write_twins(frontend)
    write_blueprints(frontend)


def main() -> None:
    root = comfyui_root()
    if root is None:
        sys.exit("This needs ComfyUI: run `python tests/run.py --generate`, which builds one.")
    with running(root) as comfy:
        for write in (write_all, screenshots.write):        # the second in a page without the first one's tabs
            with opened(comfy.url, comfy.post) as frontend:
                write(frontend)
                if frontend.problems:
                    sys.exit("The page reported: " + "\n".join(frontend.problems))
    frozen.freeze(re.search(r'^version = "(.*)"$', read("pyproject.toml"), re.MULTILINE)[1])


if __name__ == "__main__":
    main()
