"""One page of ComfyUI's editor, and what a user does there: open a graph, run it, hear it."""
from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import Page, sync_playwright

from browser import chromium

VIEW = {"width": 1400, "height": 900}
READY_MS = 120_000
STEP_MS = 60_000
# Without the first, the page greets a new user with the template picker on top of the graph.
SETTINGS = {
    "Comfy.TutorialCompleted": True, "Comfy.Locale": "en", "Comfy.Minimap.Visible": False,
    "Comfy.Graph.CanvasInfo": False, "Comfy.VueNodes.Enabled": False, "Comfy.Workflow.Persist": False,
}
READY = "() => window.app?.extensionManager && window.LiteGraph?.registered_node_types?.SpeechwrightLoadModel"
LOAD_API = "async ([graph, name]) => { await app.loadApiJson(graph, name) }"
DROP = """async ([text, name]) => {
    await app.handleFile(new File([text], name + '.json', {type: 'application/json'}), 'file_drop')
}"""
# A browser gives a page 75 players at most, and those of graphs that were closed count until they are let go.
SILENCE = """() => document.querySelectorAll('audio').forEach(audio => {
    audio.removeAttribute('src')
    audio.load()
})"""
MISSING = "() => app.graph._nodes.filter(node => !LiteGraph.registered_node_types[node.type]).map(node => node.type)"
MARKED = "() => app.graph._nodes.filter(node => node.has_errors).map(node => node.title)"
PROMPT = "async () => JSON.stringify((await app.graphToPrompt()).output)"
SERIALISE = "() => JSON.stringify(app.graph.serialize())"
BOXES = """() => [...document.querySelectorAll('[data-node-id]')].map(node => {
    const box = node.getBoundingClientRect()
    return [node.dataset.nodeId, [box.x, box.y, box.width, box.height]]
})"""
# How the job ended; the history is written before the last event, and after the one that tells how.
QUEUE = """async () => {
    let end = {kind: 'silence'}
    const kinds = ['execution_success', 'execution_error', 'execution_interrupted']
    for (const kind of kinds)
        app.api.addEventListener(kind, event => { end = {kind, ...event.detail} }, {once: true})
    const idle = new Promise(resolve => {
        app.api.addEventListener('executing', event => event.detail ?? resolve())
        setTimeout(resolve, 120000)
    })
    if (!await app.queuePrompt(0, 1)) return {kind: 'refused', ...(app.lastNodeErrors ?? {})}
    await idle
    return end
}"""
EMPTY_SPOT = (700, 800)
COUNT = "() => app.graph._nodes.length"
ADD = """kind => {
    const node = LiteGraph.createNode(kind)
    app.graph.add(node)
    node.pos = [200, 150]
    app.canvas.ds.scale = 1
    app.canvas.ds.offset = [0, 0]
    app.canvas.selectNode(node)
}"""
AUDIO = """() => [...document.querySelectorAll('audio')].filter(audio => audio.src)
    .map(audio => ({src: audio.src, seconds: audio.duration}))"""
HEARD = """count => {
    const made = [...document.querySelectorAll('audio')].filter(audio => /type=output/.test(audio.src))
    return made.length >= count && made.every(audio => audio.duration > 0)
}"""
# ComfyUI's own templates, 430 MB, are not installed. Without these lists the picker would show nobody's.
NO_TEMPLATES = {"/templates/index.json": [], "/templates/index_logo.json": {}, "/templates/fuse_options.json": {}}
# A response's status is judged where its address is known. The page begins with a graph of ComfyUI's own, and asks for
# the sizes of its models, which are out of reach.
ELSEWHERE = re.compile(r"^Failed to load resource|huggingface\.co/Comfy-Org/")
# What a user may have and a new one has not, and help in every language; the page asks all the same.
MAY_BE_ABSENT = re.compile(r"/user\.css|/userdata|/docs/\w+/[\w-]+\.md")


@dataclass
class Frontend:
    """The page. ``problems`` is what went wrong in it since the last ``forget``."""

    page: Page
    problems: list[str] = field(default_factory=list)

    def watch(self) -> None:
        self.page.on("pageerror", lambda error: self.problems.append(f"page: {error}"))
        self.page.on("console", self._note_message)
        self.page.on("response", self._note_response)

    def _note_message(self, message) -> None:
        if message.type == "error" and not ELSEWHERE.search(message.text):
            self.problems.append(f"console: {message.text}")

    def _note_response(self, response) -> None:
        if response.status >= 400 and not MAY_BE_ABSENT.search(response.url):
            self.problems.append(f"{response.status}: {response.url}")

    def forget(self) -> None:
        self.problems.clear()

    def settle(self) -> None:
        """Wait until what was changed is drawn."""
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def set(self, name: str, value) -> None:
        """Change one of the editor's settings."""
        self.page.evaluate("async ([name, value]) => { await app.extensionManager.setting.set(name, value) }",
                           [name, value])
        self.settle()

    def blank(self) -> None:
        """Take all nodes off the canvas."""
        self.page.evaluate(SILENCE)
        self.page.evaluate("() => app.graph.clear()")
        self.settle()

    def add(self, kind: str) -> None:
        """Put a node of this type in the middle and choose it."""
        self.page.evaluate(ADD, kind)
        self.settle()

    def search(self, words: str) -> list[str]:
        """Titles of the nodes that the search box finds by these words. It is left open."""
        self.command("Workspace.SearchBox.Toggle")
        self.page.locator("[role=dialog] :is([role=combobox], input)").first.fill(words)
        results = self.page.get_by_test_id("result-item")
        results.first.wait_for()
        return [text.splitlines()[0] for text in results.all_inner_texts()]

    def place(self, title: str) -> None:
        """Choose a node in the search box and put it where the canvas is empty."""
        self.search(title)
        before = self.page.evaluate(COUNT)
        self.page.get_by_test_id("result-item").filter(has_text=title).first.click()
        self.page.wait_for_function(f"count => ({COUNT})() > count", arg=before)
        # It hangs on the pointer until the next click on the canvas.
        for x in (EMPTY_SPOT[0] - 10, EMPTY_SPOT[0]):
            self.page.mouse.move(x, EMPTY_SPOT[1])
            self.settle()
        self.page.mouse.click(*EMPTY_SPOT)
        self.page.wait_for_function("() => !app.graph._nodes.some(node => node.flags.ghost)")

    def command(self, name: str) -> None:
        """Do what a menu entry or a key does."""
        self.page.evaluate("async name => { await app.extensionManager.command.execute(name) }", name)

    def load_api(self, graph: Mapping, name: str) -> None:
        """Open a graph in API format, which the editor lays out by itself."""
        self.page.evaluate(SILENCE)
        self.page.evaluate(LOAD_API, [dict(graph), name])
        self.settle()

    def drop(self, text: str, name: str) -> None:
        """Open a file as if it had been dropped onto the page."""
        self.page.evaluate(SILENCE)
        self.page.evaluate(DROP, [text, name])
        count = len(json.loads(text)["nodes"])
        self.page.wait_for_function("count => app.graph._nodes.length === count", arg=count, timeout=STEP_MS)
        self.settle()

    def serialise(self) -> dict:
        """The open graph as the editor would save it."""
        return json.loads(self.page.evaluate(SERIALISE))

    def prompt(self) -> dict:
        """The open graph as the editor would queue it."""
        return json.loads(self.page.evaluate(PROMPT))

    def missing(self) -> list[str]:
        """Types of nodes in the graph that the editor does not know."""
        return self.page.evaluate(MISSING)

    def marked(self) -> list[str]:
        """Titles of the nodes with a red border."""
        return self.page.evaluate(MARKED)

    def titles(self) -> dict[str, str]:
        """What stands in the title bars, by node id."""
        return self.page.evaluate("() => Object.fromEntries(app.graph._nodes.map(node => [node.id, node.getTitle()]))")

    def drawn(self) -> dict[str, list[float]]:
        """With Nodes 2.0, (x, y, width, height) of each node on the screen."""
        self.page.wait_for_function("() => document.querySelectorAll('[data-node-id]').length === "
                                    "app.graph._nodes.length", timeout=STEP_MS)
        return dict(self.page.evaluate(BOXES))

    def run(self) -> dict:
        """Queue the open graph and wait for its end: ``kind`` and the event's data."""
        return self.page.evaluate(QUEUE)

    def heard(self, count: int) -> list[float]:
        """Seconds of the audio elements that play results, once there are ``count`` of them."""
        self.page.wait_for_function(HEARD, arg=count, timeout=STEP_MS)
        return [audio["seconds"] for audio in self.page.evaluate(AUDIO) if "type=output" in audio["src"]]


@contextmanager
def opened(url: str, post, language: str = "en") -> Iterator[Frontend]:
    """The editor of the server at ``url``; ``post`` sends it settings. Nothing but that server is reached."""
    post("/settings", {**SETTINGS, "Comfy.Locale": language})
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium.find(), headless=True, args=list(chromium.OPTIONS))
        try:
            page = browser.new_page(viewport=VIEW, device_scale_factor=1, locale="en-US", color_scheme="dark")
            page.set_default_timeout(STEP_MS)
            page.route("**/*", lambda route: _pass_on(route, urlsplit(url).netloc))
            frontend = Frontend(page)
            frontend.watch()
            page.goto(url, wait_until="domcontentloaded")
            page.wait_for_function(READY, timeout=READY_MS)
            page.wait_for_load_state("networkidle")
            frontend.blank()
            frontend.forget()
            yield frontend
        finally:
            browser.close()


def _pass_on(route, here: str) -> None:
    address = urlsplit(route.request.url)
    if address.path in NO_TEMPLATES:
        route.fulfill(json=NO_TEMPLATES[address.path])
    elif address.netloc == here or address.scheme in ("data", "blob"):
        route.continue_()
    else:
        route.abort()
