"""What a newcomer does in the page: open a graph, run it, hear it, read its help, find the templates and nodes."""
from __future__ import annotations

import re

import numpy as np
import pytest
from PIL import Image

from browser import screenshots, twins
from browser.frontend import Frontend
from browser.sound import Sound
from kit.checkout import CHECKOUT

NAMES = twins.names()
IN_NODES_2 = ("cosyvoice3_zero_shot", "ogg_dialogue")
HELP = CHECKOUT / "web" / "docs"
NODES = sorted(path.stem for path in HELP.glob("*.md"))


def text_of(name: str) -> str:
    return (twins.WORKFLOWS / f"{name}.json").read_text(encoding="utf-8")


def sounds_of(comfy, outputs: dict) -> list[Sound]:
    files = [file for _, output in sorted(outputs.items(), key=lambda item: int(item[0]))
             for file in output.get("audio", [])]
    return [Sound.read(comfy.path(file)) for file in files]


@pytest.mark.parametrize(("name", "nodes_2"), [
    *((name, False) for name in NAMES), *((name, True) for name in IN_NODES_2)])
def test_runs_from_the_page_and_sounds_as_from_the_shell(frontend: Frontend, comfy, name: str, nodes_2: bool):
    """Dropped, queued by the page's own queue, played by its own players: the samples are those of run.py."""
    comfy.free(free_memory=True)
    frontend.set("Comfy.VueNodes.Enabled", nodes_2)
    try:
        frontend.drop(text_of(name), name)
        ended = frontend.run()
        assert ended["kind"] == "execution_success", ended
        played = sounds_of(comfy, comfy.get(f"/history/{ended['prompt_id']}")[ended["prompt_id"]]["outputs"])
        heard = frontend.heard(len(played))
    finally:
        frontend.set("Comfy.VueNodes.Enabled", False)
    assert played and sorted(heard) == pytest.approx(sorted(sound.seconds for sound in played), abs=0.01)
    assert frontend.marked() == []
    comfy.free(free_memory=True)
    run = comfy.queue(twins.api_graph(name))
    assert run.completed and not run.cached
    for sound, same in zip(played, [Sound.read(comfy.path(file)) for file in run.files], strict=True):
        assert sound.rate_hz == same.rate_hz and np.array_equal(sound.samples, same.samples)


def test_the_button_runs_the_graph(frontend: Frontend, comfy):
    page = frontend.page
    frontend.drop(text_of("ogg_text_to_speech"), "ogg_text_to_speech")
    before = set(comfy.get("/history"))
    page.get_by_test_id("queue-button").click()
    frontend.heard(1)
    while not set(comfy.get("/history")) - before:
        page.wait_for_timeout(50)
    job, = set(comfy.get("/history")) - before
    assert comfy.get(f"/history/{job}")[job]["status"]["completed"]


@pytest.mark.parametrize("node", NODES)
def test_the_info_button_opens_our_help(frontend: Frontend, node: str):
    page = frontend.page
    text = (HELP / f"{node}.md").read_text(encoding="utf-8")
    frontend.blank()
    frontend.add(node)
    page.get_by_test_id("info-button").click()
    panel = page.locator(".node-help-content")
    panel.wait_for()
    title, first = re.match(r"# (.+)\n\n(\S+ \S+ \S+)", text).groups()
    panel.get_by_role("heading", name=title, exact=True, level=1).wait_for()
    shown = panel.inner_text()
    assert first in shown and "When it stops" in shown
    inputs = set(re.findall(r"^\| `([\w.]+)`", text, re.MULTILINE))
    assert inputs and [name for name in inputs if name not in shown] == []


def test_browse_templates_lists_every_workflow_with_its_picture(frontend: Frontend, comfy):
    assert sorted(comfy.get("/workflow_templates")["speechwright"]) == NAMES
    page = frontend.page
    frontend.command("Comfy.BrowseTemplates")
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("speechwright", exact=True).click()
    for name in NAMES:
        card = dialog.get_by_test_id(f"template-workflow-{name}")
        card.scroll_into_view_if_needed()
        page.wait_for_function("name => [...document.querySelectorAll(`[data-testid='template-workflow-${name}'] img`)]"
                               ".some(image => image.naturalWidth > 0)", arg=name)
    dialog.get_by_test_id(f"template-workflow-{NAMES[0]}").click()
    dialog.wait_for(state="hidden")
    page.wait_for_function("count => app.graph._nodes.length === count",
                           arg=1 + len(twins.api_graph(NAMES[0])))
    assert frontend.missing() == []


def test_search_finds_our_nodes(frontend: Frontend):
    found = frontend.search("tts")
    frontend.page.keyboard.press("Escape")
    assert {"Load Speech Model", "Encode Speech Prompt"} <= set(found)


def test_every_file_that_the_page_needs_is_served(frontend: Frontend, comfy):
    def served(path: str) -> bytes:
        answer = frontend.page.request.get(comfy.url + path)
        assert answer.status == 200, path
        return answer.body()

    for node in NODES:
        assert served(f"/extensions/speechwright/docs/{node}.md") == (HELP / f"{node}.md").read_bytes()
    for name in NAMES:
        picture = served(f"/api/workflow_templates/speechwright/{name}.jpg")
        assert picture == (twins.WORKFLOWS / f"{name}.jpg").read_bytes()


@pytest.mark.parametrize("name", ["graph", "search"])
def test_pictures_of_the_readme_are_there_and_small(name: str):
    path = screenshots.FOLDER / f"{name}.jpg"
    assert path.stat().st_size <= screenshots.BYTES
    with Image.open(path) as image:
        assert image.format == "JPEG" and image.width >= 1400
