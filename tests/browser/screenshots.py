"""The pictures of the README, taken in the real page."""
from __future__ import annotations

import io

from PIL import Image

from browser import twins
from browser.frontend import Frontend
from kit.checkout import CHECKOUT

FOLDER = CHECKOUT / "assets"
GRAPH = "cosyvoice3_dialogue"
BYTES = 150_000


def write(frontend: Frontend) -> None:
    """Each picture whose subject is another than when it was taken."""
    for name, subject, take in (("graph.jpg", (twins.WORKFLOWS / f"{GRAPH}.json").read_text(encoding="utf-8"), _graph),
                                ("search.jpg", ", ".join(_found(frontend)), _search)):
        path = FOLDER / name
        if not path.exists() or twins.shown(path) != twins.mark(subject):
            image = Image.open(io.BytesIO(take(frontend))).convert("RGB")
            path.write_bytes(twins.jpeg(image, twins.mark(subject), BYTES))


def _graph(frontend: Frontend) -> bytes:
    """A graph after its run, in Nodes 2.0."""
    text = (twins.WORKFLOWS / f"{GRAPH}.json").read_text(encoding="utf-8")
    frontend.set("Comfy.VueNodes.Enabled", True)
    before = frontend.page.viewport_size
    frontend.page.set_viewport_size({"width": 1900, "height": 860})
    try:
        frontend.drop(text, GRAPH)
        frontend.run()
        frontend.heard(1)
        frontend.page.mouse.move(1100, 780)
        frontend.page.wait_for_timeout(6000)        # until the word that a job was queued has gone
        return frontend.page.screenshot()
    finally:
        frontend.set("Comfy.VueNodes.Enabled", False)
        frontend.page.set_viewport_size(before)


def _found(frontend: Frontend) -> list[str]:
    frontend.blank()
    found = frontend.search("tts")
    frontend.page.keyboard.press("Escape")
    return found


def _search(frontend: Frontend) -> bytes:
    before = frontend.page.viewport_size
    frontend.page.set_viewport_size({"width": 1500, "height": 800})
    try:
        frontend.blank()
        frontend.search("tts")
        frontend.page.wait_for_timeout(500)
        return frontend.page.screenshot()
    finally:
        frontend.page.keyboard.press("Escape")
        frontend.page.set_viewport_size(before)
