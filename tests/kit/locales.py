"""The texts of the nodes in English, made from their schemas: ``python tests/kit/locales.py`` writes ``locales/en``.

It runs in an environment that has ComfyUI, as the tests do. The other languages are written by hand: there it puts the
same ids, and ``??`` before each text whose English one is another now. The tests are red until those are gone.

The editor looks a text up by the input's id with its dots made underscores: ``family.checkpoint``, an input that comes
with a choice, and ``voices.voice0``, the first of those that grow, are ``family_checkpoint`` and ``voices_voice0``.
It knows ``name`` and ``tooltip`` of inputs and outputs. Values of a choice it shows as they are.
"""
from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from kit.checkout import CHECKOUT

FOLDER = CHECKOUT / "locales"
FILE = "nodeDefs.json"
COMMAND = "python tests/kit/locales.py"
MARK = "?? "
# What reads better than the id in plain words.
LABELS = {"lm": "Language model"}
WRITTEN_LARGE = {"cfg": "CFG", "mtp": "MTP"}


def languages() -> list[str]:
    """Names of the folders, which are the editor's names of the languages."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{FILE}"))


def path(language: str) -> Path:
    return FOLDER / language / FILE


def read(language: str) -> dict[str, dict]:
    return json.loads(path(language).read_text(encoding="utf-8"))


def text_of(definitions: Mapping) -> str:
    """The one form in which the files are written."""
    return json.dumps(definitions, ensure_ascii=False, indent=2) + "\n"


def texts(definitions: Mapping) -> dict[str, str]:
    """``SpeechwrightVoice.inputs.audio.tooltip`` -> its text, in the order of the file."""
    found: dict[str, str] = {}

    def walk(place: str, value) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                walk(f"{place}.{key}" if place else key, inner)
        else:
            found[place] = value

    walk("", definitions)
    return found


def label(name: str) -> str:
    """``split_limit`` as "Split limit", ``family.lm`` as "Language model", ``voices.voice0`` as "Voice 1"."""
    own = name.split(".")[-1]
    if own in LABELS:
        return LABELS[own]
    stem = own.rstrip("0123456789")
    words = [WRITTEN_LARGE.get(word, word) for word in stem.split("_")]
    if stem != own:
        words.append(str(1 + int(own[len(stem):])))         # scripts count voices from 1
    return words[0][:1].upper() + " ".join(words)[1:]


def inputs_of(given: Mapping[str, Mapping], prefix: str = "", choice: str = "") -> Iterator[tuple[str, str, Mapping]]:
    """(id, choice that it comes with, its options) of all inputs that a node may come to have."""
    for name, (kind, options) in {**given.get("required", {}), **given.get("optional", {})}.items():
        yield prefix + name, choice, options
        if kind == "COMFY_DYNAMICCOMBO_V3":
            for option in options["options"]:
                yield from inputs_of(option["inputs"], f"{prefix}{name}.", option["key"])
        if kind == "COMFY_AUTOGROW_V3":
            template = options["template"]
            [(_, _, inner)] = inputs_of(template["input"])
            for index in range(template["max"]):
                yield f"{prefix}{name}.{template['prefix']}{index}", choice, inner


def english(info: Mapping[str, Mapping]) -> dict[str, dict]:
    """The texts of nodes, from what ``/object_info`` tells of them."""
    return {node: {
        "display_name": entry["display_name"],
        "description": entry["description"],
        "inputs": _inputs(entry["input"]),
        "outputs": {str(index): {"name": label(name), "tooltip": tooltip} for index, (name, tooltip) in enumerate(
            zip(entry["output_name"], entry["output_tooltips"]))},
    } for node, entry in info.items()}


def _inputs(given: Mapping[str, Mapping]) -> dict[str, dict[str, str]]:
    """An id that comes with several choices has one place alone, where all its tooltips stand, a line each."""
    told: dict[str, dict[str, str]] = {}
    for name, choice, options in inputs_of(given):
        told.setdefault(name, {})[choice] = options["tooltip"]
    return {key(name): {
        "name": label(name),
        "tooltip": "\n".join(f"{choice}: {tooltip}" if len(tooltips) > 1 else tooltip
                             for choice, tooltip in tooltips.items()),
    } for name, tooltips in told.items()}


def key(name: str) -> str:
    """An input's id as the editor looks it up."""
    return name.replace(".", "_")


def choices(info: Mapping[str, Mapping]) -> dict[str, frozenset[str]]:
    """``SpeechwrightVoice.inputs.audio.tooltip`` -> the values of its choice, of all inputs that are one."""
    found: dict[str, frozenset[str]] = {}
    for node, entry in info.items():
        for name, _, options in inputs_of(entry["input"]):
            values = frozenset(value for value in options.get("options", ()) if isinstance(value, str))
            place = f"{node}.inputs.{key(name)}.tooltip"
            found[place] = found.get(place, frozenset()) | values
    return found


def node_info() -> dict[str, dict]:
    """Node id -> what ``/object_info`` tells of it, of all nodes of the pack, in the order of their list."""
    import asyncio

    from speechwright import nodes

    listed = asyncio.run(asyncio.run(nodes.comfy_entrypoint()).get_node_list())
    infos = [node.GET_NODE_INFO_V1() for node in listed]
    return {info["name"]: info for info in infos}


def follow(before: Mapping, now: Mapping, translated: Mapping) -> dict:
    """A translation of the English texts ``before``, with the ids of ``now`` and a mark where there is work to do."""
    old, target = texts(before), texts(translated)
    known = {text: target[place] for place, text in old.items() if place in target}

    def fill(place: str, value):
        if isinstance(value, Mapping):
            return {name: fill(f"{place}.{name}" if place else name, inner) for name, inner in value.items()}
        if value in known:
            return known[value]
        return MARK + target.get(place, value).removeprefix(MARK)

    return fill("", now)


def main() -> None:
    from conftest import comfyui_root  # which makes the pack and ComfyUI importable
    if comfyui_root() is None:
        sys.exit("This needs ComfyUI: set SPEECHWRIGHT_COMFYUI to its folder.")
    before, now = read("en"), english(node_info())
    for language in languages():
        made = now if language == "en" else follow(before, now, read(language))
        path(language).write_text(text_of(made), encoding="utf-8")
        if marked := [place for place, text in texts(made).items() if text.startswith(MARK)]:
            sys.stderr.write(f"{language}: {', '.join(marked)}\n")


if __name__ == "__main__":
    main()
