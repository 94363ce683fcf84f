"""The published files alone, imported by path as ComfyUI does it, in the genuine ComfyUI."""
from __future__ import annotations

import ast
import asyncio
import importlib.util
import json
import logging
import random
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from kit.checkout import CHECKOUT, read, shipped, tracked

SHIPPED = shipped()
WORKFLOWS = [name for name in tracked() if re.fullmatch(r"workflows/api/\w+\.json", name)]

# Names that other packs and ComfyUI itself have put into sys.modules.
DECOYS = (
    "utils", "nodes", "models", "s3gen", "cosyvoice3", "omnifish", "audio", "text", "wires", "checkpoint",
    "loader",
)


class Decoy(ModuleType):
    """Another pack's module: whoever takes anything from it has imported the wrong one."""

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        raise AssertionError(f"{name} was looked for in another pack's {self.__name__}")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    """The zip's files in a folder with a name that no module could have."""
    folder = tmp_path_factory.mktemp("custom_nodes") / "speech wright-0.1 é"
    for name in SHIPPED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, folder / name)
    return folder


def import_pack(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """As ComfyUI does it: by path, the path being the module's name."""
    name = str(folder).replace(".", "_x_")
    spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def import_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Without what an earlier import has left."""
    name = str(folder).replace(".", "_x_")
    for key in [key for key in sys.modules if key.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, key)
    return import_pack(folder, monkeypatch)


@pytest.fixture
def pack(unpacked, monkeypatch) -> ModuleType:
    return import_pack(unpacked, monkeypatch)


@pytest.fixture
def schemas(pack) -> dict:
    """Node id -> schema, of all nodes."""
    async def nodes() -> list:
        return await (await pack.comfy_entrypoint()).get_node_list()
    found = [node.define_schema() for node in asyncio.run(nodes())]
    return {schema.node_id: schema for schema in found}


def input_names(schema, slots: bool = False) -> set[str]:
    """Every input as a saved graph names it, an option's inputs as ``choice.input``; slots: those that grow, too."""
    names = set()
    for entry in schema.inputs:
        names.add(entry.id)
        if slots and hasattr(entry, "template"):
            names |= {f"{entry.id}.{slot.id}" for slot in entry.template.get_all()}
        for option in getattr(entry, "options", None) or []:
            names |= {f"{entry.id}.{inner.id}" for inner in getattr(option, "inputs", [])}
    return names


def test_import_among_other_packs(unpacked, monkeypatch):
    """Two packs once had a ``utils`` each on sys.path, and the second to load got the first one's."""
    import comfy.model_management
    import comfy_api.latest  # noqa: F401  (ComfyUI's own modules are there before any pack)
    for name in [*DECOYS, *(f"{decoy}.model" for decoy in DECOYS)]:
        monkeypatch.setitem(sys.modules, name, Decoy(name))
    path, handlers, threads = list(sys.path), list(logging.getLogger().handlers), torch.get_num_threads()
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    loaded = list(comfy.model_management.current_loaded_models)

    import_pack(unpacked, monkeypatch)

    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
    assert (sys.path, logging.getLogger().handlers, torch.get_num_threads()) == (path, handlers, threads)
    assert comfy.model_management.current_loaded_models == loaded
    assert all(isinstance(sys.modules[name], Decoy) for name in DECOYS)


@pytest.mark.parametrize("lacks", ["comfy_api", "comfy_api.latest", "Autogrow", "DynamicCombo", "ComfyExtension"])
def test_a_comfyui_that_is_too_old_is_told_so(unpacked, monkeypatch, lacks):
    """ComfyUI shows the last line of what an import raised: "'io' has no attribute 'DynamicCombo'" led to reports of
    a broken pack, and to none of an old ComfyUI."""
    import comfy_api.latest
    if lacks.startswith("comfy_api"):
        for name in [name for name in sys.modules if name.startswith("comfy_api")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, lacks, None)
    else:
        monkeypatch.delattr(comfy_api.latest if lacks == "ComfyExtension" else comfy_api.latest.io, lacks)
    oldest = re.search(r"^requires-comfyui = \">=(\d+\.\d+)\.0\"$", read("pyproject.toml"), re.MULTILINE)[1]
    assert f"ComfyUI {oldest} or newer" in read("README.md")
    words = rf"^Speechwright needs ComfyUI {oldest} or newer; update ComfyUI\. .*{lacks}"
    with pytest.raises(ImportError, match=words):
        import_anew(unpacked, monkeypatch)


def test_what_else_fails_in_comfyui_has_its_own_words(unpacked, monkeypatch):
    for name in [name for name in sys.modules if name == "av" or name.startswith(("av.", "comfy_api"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"^import of av halted"):
        import_anew(unpacked, monkeypatch)


def test_two_copies_do_not_share_modules(unpacked, monkeypatch, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(unpacked, copy)
    first, second = import_pack(unpacked, monkeypatch), import_pack(copy, monkeypatch)
    assert first.comfy_entrypoint is not second.comfy_entrypoint


def test_init_defines_two_names(pack):
    assert sorted(pack.__all__) == ["WEB_DIRECTORY", "comfy_entrypoint"]
    assert len(ast.parse(read("__init__.py")).body) == 4        # docstring, import, WEB_DIRECTORY, __all__
    assert (CHECKOUT / pack.WEB_DIRECTORY / "docs").is_dir()
    assert asyncio.iscoroutinefunction(pack.comfy_entrypoint)


def test_every_node_has_a_help_page_that_names_every_input(schemas):
    pages = {Path(name).stem for name in SHIPPED if re.fullmatch(r"web/docs/[^/]+\.md", name)}
    assert pages == set(schemas)
    for node_id, schema in schemas.items():
        page = read(f"web/docs/{node_id}.md")
        assert page.startswith(f"# {schema.display_name}\n")
        names = input_names(schema) | {entry.display_name for entry in schema.outputs}
        assert {name for name in names if f"`{name}`" not in page} == set(), node_id
        for heading in ("## Inputs", "## Output", "## Example", "## When it stops"):
            assert f"\n{heading}\n" in page, node_id


def test_readme_names_every_node(schemas):
    readme = read("README.md")
    titles = [schema.display_name for schema in schemas.values()]
    assert [title for title in titles if f"**{title}**" not in readme] == []


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_name_inputs_that_exist(schemas, name):
    """ComfyUI drops an input that it does not know without a word, so a renamed one would go unseen."""
    graph = json.loads(read(name))
    ours = {key: node for key, node in graph.items() if node["class_type"].startswith("Speechwright")}
    assert ours
    for key, node in ours.items():
        assert set(node["inputs"]) <= input_names(schemas[node["class_type"]], slots=True), key
    assert all(node["_meta"]["title"] for node in graph.values())
