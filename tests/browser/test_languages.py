"""The editor in other languages: our nodes bear their names there, and run."""
from __future__ import annotations

import json
import re

import pytest

from browser import chromium, twins
from browser.frontend import Frontend, opened
from kit.checkout import CHECKOUT

LABELS = """() => Object.fromEntries(app.graph._nodes.map(node => {
    const slots = [...(node.inputs ?? []), ...(node.outputs ?? [])]
    return [node.type, [node.getTitle(), ...slots.map(slot => slot.label ?? slot.localized_name)]]
}))"""
# Of those that the editor has, one in each of the scripts that ours are written in.
LANGUAGES = ("zh", "ru", "fr")


@pytest.fixture(scope="module", params=LANGUAGES)
def language(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def page(comfy, language: str):
    """The editor as somebody has it who chose that language."""
    try:
        with opened(comfy.url, comfy.post, language) as frontend:
            yield frontend
    except chromium.NoChromium as error:
        pytest.fail(str(error), pytrace=False)


def test_nodes_and_slots_have_their_names_there(frontend: Frontend, renderer: str, language: str):
    told = json.loads((CHECKOUT / "locales" / language / "nodeDefs.json").read_text(encoding="utf-8"))
    for kind, names in told.items():
        frontend.blank()
        frontend.add(kind)
        title, *labels = frontend.page.evaluate(LABELS)[kind]
        assert title == names["display_name"]
        assert {entry["name"] for entry in names["outputs"].values()} <= set(labels), kind
        if language == "zh":
            assert re.search("[\u4e00-\u9fff]", "".join(labels)), kind


def test_a_graph_opens_and_runs_there(frontend: Frontend):
    name = "cosyvoice3_zero_shot"
    frontend.drop((twins.WORKFLOWS / f"{name}.json").read_text(encoding="utf-8"), name)
    assert frontend.missing() == []
    assert frontend.run()["kind"] == "execution_success"
    assert frontend.heard(1)[0] > 1
