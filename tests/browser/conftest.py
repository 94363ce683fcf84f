"""The page for all tests of this folder, and what must be true of it after each."""
from __future__ import annotations

import pytest

from browser import chromium
from browser.frontend import Frontend, opened

RENDERERS = {"classic": False, "Nodes 2.0": True}


@pytest.fixture(scope="module")
def page(comfy):
    """ComfyUI's editor. Each file has a page of its own, and nobody has an event loop beside it."""
    try:
        with opened(comfy.url, comfy.post) as frontend:
            yield frontend
    except chromium.NoChromium as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def frontend(page: Frontend):
    """The editor, which may not report an error meanwhile."""
    page.forget()
    yield page
    assert page.problems == []


@pytest.fixture(params=list(RENDERERS))
def renderer(request, frontend: Frontend):
    """Each of the two ways in which the editor draws nodes."""
    frontend.set("Comfy.VueNodes.Enabled", RENDERERS[request.param])
    yield request.param
    frontend.set("Comfy.VueNodes.Enabled", False)
