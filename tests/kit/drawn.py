"""Graphs of all our nodes as nobody would wire them, drawn from the schemas that the server gives at ``/object_info``.

A graph has one node under test whose inputs are drawn, what good ones it needs for the others, and now and then nodes
that go on with what it gives. ``Look`` ends each output.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hypothesis import strategies as st

from kit.odd import ODD_TEXTS
from kit.odd_nodes import LISTS, NUMBERS, OTHERS, SOUNDS, SPOILT

OURS = "Speechwright"
MARK = "speechwright_was_here"      # in names of files, to find those that lie where they should not
VOICE = "fuzz ada"                  # a voice that the library has, which nothing may change
EAR = "a tiny ear"
MOST_DIGITS = 4000                  # of a number in JSON; Python reads no more
LONG = 100_000                      # characters

# Inputs whose defaults take long, and what is drawn in their place: (input, value).
SHORT = {"max_ratio": 3.0, "min_ratio": 0.0, "max_seconds": 0.7, "min_seconds": 0.0, "steps": 2, "mtp_rounds": 1,
         "retries": 0}
TEXTS = ("Yes.", "Good day. And you?", "好。", "Go on [pause:0.2s] then.", "S1: Yes.\nS2: No.", "Ada: Hi.")

# Good nodes by the name that links know: class, inputs. A link is ("name", output).
FAMILIES = {"s3gen": "S3Gen", "meanflow": "S3Gen meanflow", "cosy2": "CosyVoice2", "cosy3": "CosyVoice3",
            "ogg": "OGG TTS"}
GOOD: dict[str, tuple[str, dict]] = {
    **{name: ("LoadModel", {"family": "Demo", "family.demo": title}) for name, title in FAMILIES.items()},
    "audio": ("OddValue", {"what": "sound speech"}),
    "voice": ("Voice", {"audio": ("audio", 0), "transcript": "He said so.", "name": "Ada"}),
    "bare voice": ("Voice", {"audio": ("audio", 0), "transcript": "", "name": ""}),
    "prompt of cosy3": ("EncodePrompt", {"model": ("cosy3", 0), "text": "Yes. No.", "voices.voice0": ("voice", 0)}),
    "prompt of cosy2": ("EncodePrompt", {"model": ("cosy2", 0), "text": "Yes."}),
    "prompt of ogg": ("EncodePrompt", {"model": ("ogg", 0), "text": "Yes."}),
    "long prompt of cosy3": ("EncodePrompt", {"model": ("cosy3", 0), "text": "Yes. No. " * 150}),
    "long prompt of ogg": ("EncodePrompt", {"model": ("ogg", 0), "text": "Yes. No. " * 150}),
    "tokens of s3gen": ("S3Tokenize", {"model": ("s3gen", 0), "audio": ("audio", 0)}),
    "tokens of cosy3": ("S3Tokenize", {"model": ("cosy3", 0), "audio": ("audio", 0)}),
    "tokens of ogg": ("FishEncode", {"model": ("ogg", 0), "audio": ("audio", 0)}),
}
MODELS = [*FAMILIES]
BY_WIRE = {
    "SPEECH_MODEL": MODELS, "SPEECH_VOICE": ["voice", "bare voice"], "AUDIO": ["audio"],
    "SPEECH_PROMPT": [name for name in GOOD if name.startswith("prompt")],
    "SPEECH_TOKENS": [name for name in GOOD if name.startswith("tokens")],
}
# What fits each node, so that most graphs get as far as the input that is odd.
FITS = {
    "EncodePrompt": [{"model": "cosy3"}, {"model": "cosy2", "speech_tokenizer": "s3gen"}, {"model": "ogg"}],
    "RASSampler": [{"model": "cosy3", "prompt": "prompt of cosy3"}, {"model": "cosy2", "prompt": "prompt of cosy2"}],
    "BlockDiffusionSampler": [{"model": "ogg", "prompt": "prompt of ogg", "continue_from": "tokens of ogg"}],
    "S3Tokenize": [{"model": "s3gen"}, {"model": "cosy3"}],
    "S3Token2Wav": [{"model": "s3gen", "tokens": "tokens of s3gen"},
                    {"model": "meanflow", "tokens": "tokens of s3gen"},
                    {"model": "cosy3", "tokens": "tokens of cosy3"}],
    "FishEncode": [{"model": "ogg"}],
    "FishDecode": [{"model": "ogg", "tokens": "tokens of ogg"}],
}
PATHS = (
    f"../{MARK}", f"../../../../../../../tmp/{MARK}", f"/tmp/{MARK}", f"C:\\{MARK}", f"..\\..\\{MARK}", f"~/{MARK}",
    f"{MARK}\x00.flac", f"{MARK}/b", "\u202e" + MARK, "../../etc/passwd", "/etc/passwd", "/dev/zero", "..", ".", "/",
    "CON", "-rf", "a" * 300, VOICE, f"{VOICE}.flac", f" {VOICE.upper()} ", "%2e%2e%2f", "file:///etc/passwd")
STRINGS = (*ODD_TEXTS.values(), *PATHS, "word " * (LONG // 5), "x" * LONG, "\n" * LONG, "[pause:1s]" * 99, "S1:" * 999,
           "\ud83d", "a\x00b\x07\x1b[31m", "\u202eolleh", "👍" * 99, "é" * 99, "<|im_end|>", "<|endofprompt|>Yes.",
           "[pause:601s]", "[pause:-1s] Yes.", "Zed: Yes.\nAda: No.", "Yes. " * 30)
JSON: tuple = (
    None, True, False, 0, 1, -1, 7, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**MOST_DIGITS - 1, 0.5, -0.0, 1e-300,
    1e308, math.nan, math.inf, -math.inf, "", "yes", "7", "0.5", "nan", "None", "null", [], [1], [1, 2, 3], [[]],
    [[[[[[[[]]]]]]]], {}, {"a": 1}, {"a": {"b": {"c": [1, {"d": None}]}}}, {"__value__": [1, 2]}, {"__value__": None},
    {"__value__": {"a": [1]}}, {"__type__": "x"}, *PATHS[:4], "x" * LONG)


@dataclass
class Node:
    """What the server says of one of our nodes."""

    kind: str                           # without the prefix of ours
    inputs: dict[str, tuple[str, dict]] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    outputs: list[str] = field(default_factory=list)

    def names(self) -> set[str]:
        """Of all inputs, and of those that a choice brings."""
        choices = [choice for wire, options in self.inputs.values() if wire == "COMFY_DYNAMICCOMBO_V3"
                   for choice in options["options"]]
        return {*self.inputs, *(name for choice in choices for group in choice["inputs"].values() for name in group)}


def read(object_info: Mapping) -> dict[str, Node]:
    """All our nodes, those that they call deprecated or experimental too."""
    found = {}
    for kind, told in object_info.items():
        if not kind.startswith(OURS):
            continue
        node = found[kind] = Node(kind.removeprefix(OURS), outputs=list(told["output"]))
        for group in ("required", "optional"):
            for name, (wire, *options) in told["input"].get(group, {}).items():
                node.inputs[name] = (wire, options[0] if options else {})
                if group == "required":
                    node.required.add(name)
    return found


@dataclass
class Drawn:
    """A graph, the node under test in it and what is odd about its inputs."""

    graph: dict
    target: str
    odd: dict[str, object]
    heavy: bool                 # whether much was asked of it, so that it may be stopped


class Graph:
    """A graph that grows by what its nodes need."""

    def __init__(self) -> None:
        self.nodes: dict[str, dict] = {}
        self.ids: dict[object, str] = {}

    def add(self, kind: str, inputs: Mapping[str, object], key: object = None) -> str:
        """A node; its id."""
        place = self.ids[key if key is not None else object()] = str(len(self.nodes) + 1)
        self.nodes[place] = {"class_type": kind, "inputs": {}}
        self.nodes[place]["inputs"] = dict(inputs)
        return place

    def good(self, name: str) -> list:
        """A link to the good node of that name."""
        if name not in self.ids:
            kind, inputs = GOOD[name]
            kind = kind if kind == "OddValue" else OURS + kind
            made = {key: self.good(value[0]) if isinstance(value, tuple) else value for key, value in inputs.items()}
            self.add(kind, made, name)
        return [self.ids[name], 0]

    def odd(self, what: str) -> list:
        """A link to an odd value."""
        if what not in self.ids:
            self.add("OddValue", {"what": what}, what)
        return [self.ids[what], 0]


def odd_links(wire: str) -> st.SearchStrategy[Callable[[Graph], list]]:
    """What may come over a link, most of all where the other end says nothing of what it gives."""
    def value(what: str) -> Callable[[Graph], list]:
        return lambda graph: graph.odd(what)

    def spoilt(name: str, how: str) -> Callable[[Graph], list]:
        return lambda graph: [graph.add("OddTokens", {"tokens": graph.good(name), "how": how}), 0]

    choices = [
        st.sampled_from([f"other {name}" for name in OTHERS]).map(value),
        st.sampled_from([f"number {name}" for name in NUMBERS]).map(value),
        st.sampled_from([*GOOD]).map(lambda name: lambda graph: graph.good(name)),
    ]
    if wire == "AUDIO":
        choices += 4 * [st.sampled_from([f"sound {name}" for name in SOUNDS]).map(value)]
    elif wire == "SPEECH_TOKENS":
        choices += 3 * [st.builds(spoilt, st.sampled_from(BY_WIRE[wire]), st.sampled_from([*SPOILT]))]
    elif wire == "SPEECH_PROMPT":
        long = [name for name in GOOD if name.startswith("long")]
        choices.append(st.sampled_from(long).map(lambda name: lambda graph: graph.good(name)))
    else:
        choices.append(st.sampled_from([*LISTS]).map(
            lambda what: lambda graph: [graph.add("OddList", {"what": what}), 0]))
    return st.one_of(choices)


def limits(options: Mapping) -> list:
    """The limits of a number, and what lies just within and beyond."""
    step = options.get("step", 1)
    return [options[end] + way * step for end in ("min", "max") if end in options for way in (0, 1, -1)]


def odd_values(wire: str, options: Mapping) -> st.SearchStrategy:
    """What an input may have in a graph, but a link."""
    choices = [st.sampled_from(JSON)]
    if wire in ("INT", "FLOAT"):
        choices += 2 * [st.sampled_from(limits(options) or JSON)]
        choices.append(st.integers(-(2**70), 2**70) if wire == "INT" else st.floats())
    elif wire in ("STRING", "COMBO", "COMFY_DYNAMICCOMBO_V3"):
        choices += 2 * [st.sampled_from(STRINGS), st.text(max_size=30)]
    return st.one_of(choices)


def good_value(draw: Callable, name: str, wire: str, options: Mapping) -> object:
    """One of the values that an input is made for."""
    if wire == "COMBO":
        return draw(st.sampled_from(options["options"]))
    if wire == "BOOLEAN":
        return draw(st.booleans()) if name != "download" else False
    if wire == "STRING":
        return draw(st.sampled_from(TEXTS)) if name == "text" else options.get("default", "")
    if name in SHORT:
        return SHORT[name]
    if wire == "INT":
        return draw(st.sampled_from([options.get("default", 0), options.get("min", 0), 3]))
    least, most = options.get("min", 0.0), options.get("max", 1.0)
    return draw(st.sampled_from([options.get("default", least), (least + most) / 8 or least]))


@dataclass(frozen=True)
class Slot:
    """One input as graphs name it."""

    name: str
    wire: str
    options: Mapping
    required: bool


def slots(draw: Callable, node: Node) -> list[Slot]:
    """The inputs of a node, those that a choice brings and those that grow with them."""
    found = []
    for name, (wire, options) in node.inputs.items():
        slot = Slot(name, wire, options, name in node.required)
        if wire == "COMFY_AUTOGROW_V3":
            most = options["template"]["max"]
            numbers = draw(st.sampled_from(((0,), (), (0,), (0, 1), (0, 2), (5,), range(most), range(most + 1))))
            inner, = (one for group in options["template"]["input"].values() for one in group.values())
            prefix = options["template"]["prefix"]
            found += [Slot(f"{name}.{prefix}{number}", inner[0], inner[1], False) for number in numbers]
            continue
        found.append(slot)
        if wire == "COMFY_DYNAMICCOMBO_V3":
            choices = {choice["key"]: choice["inputs"] for choice in options["options"]}
            key = draw(st.sampled_from([*choices, "Demo", "Demo", "Demo"]))
            found[-1] = Slot(name, wire, {"options": [key]}, True)
            for group, inputs in choices[key].items():
                found += [Slot(f"{name}.{inner}", one[0], one[1], group == "required") for inner, one in inputs.items()]
    return found


@st.composite
def graphs(draw: Callable, nodes: Mapping[str, Node], kind: str) -> Drawn:
    """A graph with a node of that kind under test."""
    graph, node = Graph(), nodes[kind]
    inputs, odd = draw_inputs(draw, graph, node, most_odd=3)
    target = graph.add(kind, inputs)
    ends = [(target, node)]
    for _ in range(draw(st.sampled_from((0, 0, 1, 2)))):
        place, last = ends[-1]
        onward = [(other, name, output) for output, wire in enumerate(last.outputs) for other, taker in nodes.items()
                  for name, (takes, _) in taker.inputs.items() if takes == wire and wire in BY_WIRE]
        if not onward:
            break
        other, name, output = draw(st.sampled_from(onward))
        inputs, _ = draw_inputs(draw, graph, nodes[other], most_odd=0)
        ends.append((graph.add(other, {**inputs, name: [place, output]}), nodes[other]))
    for place, last in ends:
        for output in range(len(last.outputs)):
            graph.add("Look", {"value": [place, output]})
    return Drawn(graph.nodes, target, odd, heavy=is_heavy(graph.nodes))


def draw_inputs(draw: Callable, graph: Graph, node: Node, most_odd: int) -> tuple[dict, dict]:
    """The inputs of a node, good but for a few, and those few."""
    fit = draw(st.sampled_from(FITS.get(node.kind, [{}])))
    found = slots(draw, node)
    some = st.lists(st.sampled_from(found), max_size=most_odd, unique_by=lambda slot: slot.name)
    bad = draw(some) if most_odd else ()
    inputs: dict[str, object] = {}
    odd: dict[str, object] = {}
    for slot in found:
        if slot in bad:
            way = draw(st.sampled_from(("absent", "null", "value", "value", "link", "link", "link")))
            if way == "link":
                inputs[slot.name] = draw(odd_links(slot.wire))(graph)
            elif way != "absent":
                inputs[slot.name] = None if way == "null" else draw(odd_values(slot.wire, slot.options))
            odd[slot.name] = inputs.get(slot.name, "absent")
        elif slot.required or draw(st.booleans()):
            if slot.wire in BY_WIRE:
                inputs[slot.name] = graph.good(fit.get(slot.name) or draw(st.sampled_from(BY_WIRE[slot.wire])))
            else:
                inputs[slot.name] = good_choice(draw, slot)
    if most_odd and draw(st.integers(0, 9)) == 0:
        name = draw(st.sampled_from(("voices", "voices.voice99", "voices.voice0.x", "family.x", "family.family", "",
                                     "self", "cls", "unknown", "given")))
        inputs[name] = odd[name] = draw(st.sampled_from(JSON))
    return inputs, odd


def good_choice(draw: Callable, slot: Slot) -> object:
    """A good value of an input that is no wire of ours."""
    if slot.wire == "COMFY_DYNAMICCOMBO_V3":
        return slot.options["options"][0]
    if slot.name == "name" and slot.wire == "COMBO":
        return VOICE
    if slot.name == "folder":
        return draw(st.sampled_from([EAR, *slot.options["options"]]))
    return good_value(draw, slot.name, slot.wire, slot.options)


def is_heavy(graph: Mapping[str, dict]) -> bool:
    """Whether a graph may ask for much: by long texts, or numbers in place of the short ones."""
    def asks(name: str, value: object) -> bool:
        long = isinstance(value, str) and (len(value) > 200 or value == "other long text")
        return long or name in SHORT and value != SHORT[name]

    return any(asks(name, value) for node in graph.values() for name, value in node["inputs"].items())
