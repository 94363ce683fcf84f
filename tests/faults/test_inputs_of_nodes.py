"""Whatever comes over ComfyUI's interface, a node gives its result, or one error that names the input and a remedy."""
from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
import torch
from test_nodes import NODES

from kit.calls import plain, run, same
from speechwright import nodes
from speechwright.nodes import inputs

WIRES = {"SPEECH_MODEL": "model", "SPEECH_VOICE": "voice", "SPEECH_PROMPT": "prompt", "SPEECH_TOKENS": "tokens"}
CALLS = [
    "LoadModel", "VoiceNode", "VoiceLibrary", "SaveVoice", "EncodePrompt", "EncodePrompt of CosyVoice3", "RASSampler",
    "BlockDiffusionSampler", "S3Tokenize", "S3Tokenize of CosyVoice3", "S3Token2Wav", "S3Token2Wav of CosyVoice3",
    "FishEncode", "FishDecode", "Transcribe", "SpeechReport"]
every_call = pytest.mark.parametrize("name", CALLS)


def optional(node) -> list[str]:
    return [name for name, given in inspect.signature(node.execute).parameters.items()
            if given.default is not inspect.Parameter.empty]


def test_every_node_is_called(scene):
    assert set(scene.inputs) == set(CALLS) and {scene.node(name) for name in CALLS} == set(NODES)


@every_call
def test_any_optional_input_may_be_left_out(scene, name):
    """A graph that was saved before an input existed lacked an argument."""
    needed = set(scene.inputs[name]) - set(optional(scene.node(name)))
    kept = needed | {"overwrite", "family"} | ({"tokens"} if name == "SpeechReport" else set())
    kept |= {"max_ratio", "max_seconds", "steps"}       # else long
    if name == "S3Token2Wav":
        kept |= {"voice"}           # its tokens carry none, which is an error of its own
    bare = scene.node(name).execute(**{key: value for key, value in scene.inputs[name].items() if key in kept}).args
    assert bare and bare[0] is not None


def wired(name: str) -> list[tuple[str, str, bool]]:
    schema = getattr(nodes, name.split(" ")[0]).GET_SCHEMA()
    return [(given.id, given.io_type, bool(given.optional)) for given in schema.inputs if given.io_type in WIRES]


@pytest.mark.parametrize("name, given, wire, may_lack", [
    (name, *one) for name in CALLS if " " not in name for one in wired(name)])
def test_what_another_pack_s_switch_brings(scene, name, given, wire, may_lack):
    """ComfyUI lets outputs of any type through, and nulls: 'NoneType' object has no attribute 'require'."""
    values = {"SPEECH_MODEL": scene.models["S3Gen"], "SPEECH_VOICE": scene.inputs["SaveVoice"]["voice"],
              "SPEECH_PROMPT": scene.inputs["RASSampler"]["prompt"],
              "SPEECH_TOKENS": scene.inputs["FishDecode"]["tokens"]}
    del values[wire]
    title = scene.node(name).GET_SCHEMA().display_name
    for value in (*values.values(), 5, "x", [], {}, torch.zeros(1), *(() if may_lack else (None,))):
        found = "nothing" if value is None else type(value).__name__
        with pytest.raises(ValueError, match=f"^{title}: {given}: expected {wire}, got {found}; connect "):
            scene.run(name, **{given: value})


@pytest.mark.parametrize("name, given", [
    (name, given) for name in CALLS
    for given in ("voice", "speech_tokenizer", "continue_from", "voices", "tokens", "audio")
    if given in optional(getattr(nodes, name.split(" ")[0])) and (name, given) != ("S3Token2Wav", "voice")])
def test_nothing_in_an_optional_wire_is_as_if_it_were_not_there(scene, name, given):
    kept = {key: value for key, value in scene.inputs[name].items() if key != given}
    assert same(plain(run(scene.node(name), **kept)), scene.result(name, **{given: None}))


def test_null_is_no_word(scene):
    """ComfyUI makes the text None of a null, and a voice was cloned as one who says that."""
    voice, = scene.run("VoiceNode", transcript="None", name="None")
    assert (voice.transcript, voice.name) == ("", scene.run("VoiceNode", transcript="", name="")[0].name)
    assert scene.run("SaveVoice", name="None", voice=scene.run("SaveVoice")[0])[0].name == "a kept voice"


def test_no_voice_at_all_is_told(scene):
    with pytest.raises(FileNotFoundError, match="Voice Library: name: '' is in none of"):
        scene.run("VoiceLibrary", name="")


# What a link brings that says nothing of what it gives, by the kind of the input that it ends in.
KINDS = {
    "INT": "a whole number", "FLOAT": "a number", "BOOLEAN": "true or false", "STRING": "text", "COMBO": "a choice"}
FOREIGN = ([], {}, [1, 2], {"a": 1}, b"7", 1j, torch.ones(2), torch.zeros(0), np.arange(3), np.array(["a", "b"]),
           object(), int, ValueError("a value"))
FOREIGN_TO = {
    "INT": ("7", "", True, 0.5, math.nan, math.inf), "FLOAT": ("0.5", "", False, np.bool_(True), 10**400),
    "BOOLEAN": ("False", "", 2, -1, math.nan), "STRING": (5, 0.5, True), "COMBO": (5, 0.5, True)}


@pytest.mark.parametrize("name, given, kind", [
    (name, one.id, one.io_type) for name in CALLS if " " not in name
    for one in getattr(nodes, name).GET_SCHEMA().inputs if one.io_type in KINDS])
def test_what_is_of_another_kind(scene, name, given, kind):
    """Lists and tensors in number inputs were bare TypeErrors; the text 'False' was on, and downloads began with it."""
    title = scene.node(name).GET_SCHEMA().display_name
    for value in (*FOREIGN, *FOREIGN_TO[kind]):
        with pytest.raises(ValueError, match=f"^{title}: {given}: expected {KINDS[kind]}, got .{{1,80}}; \\w+ .*"):
            scene.run(name, **{given: value})


@pytest.mark.parametrize("name, given", [
    (name, one.id) for name in CALLS if " " not in name
    for one in getattr(nodes, name).GET_SCHEMA().inputs if one.io_type in KINDS and one.optional])
def test_nothing_in_an_optional_setting_is_as_if_it_were_not_there(scene, name, given):
    """A switch of another pack brought nothing, which was compared with numbers, or was no choice."""
    node, rest = scene.node(name), {key: value for key, value in scene.inputs[name].items() if key != given}
    seen = []
    for changed in ({}, {given: None}):
        called = inputs.checked(lambda cls, **named: seen.append(named))
        called(node, **rest, **changed)
    texts = {key: "" for key in [given] if key in seen[1] and key not in seen[0]}
    assert seen[1].keys() == {**seen[0], **texts}.keys() and seen[1].get(given, "") == ""


@pytest.mark.parametrize("given", [{}, None, {"family": None}, {"family": 5}, {"family": ["Demo"]}])
def test_no_known_family(scene, given):
    with pytest.raises(ValueError, match="^Load Speech Model: family: .*; choose one of"):
        scene.run("LoadModel", family=given)


@pytest.mark.parametrize("given", [5, "Demo", ["Demo"]])
def test_what_is_no_choice_with_what_belongs_to_it(scene, given):
    with pytest.raises(ValueError, match="^Load Speech Model: family: expected a choice, got"):
        scene.run("LoadModel", family=given)


@pytest.mark.parametrize("demo", [None, 5, ["S3Gen"]])
def test_what_belongs_to_a_choice(scene, demo):
    """It was a KeyError where a link brought nothing."""
    for given in ({"family": "Demo", "demo": demo}, {"family": "Demo"} if demo is None else {}):
        if given:
            with pytest.raises(ValueError, match=r"^Load Speech Model: family\.demo: expected a choice, got"):
                scene.run("LoadModel", family=given)


@pytest.mark.parametrize("voices", [5, [], "Ada"])
def test_what_is_no_voices(scene, voices):
    with pytest.raises(ValueError, match=r"^Encode Speech Prompt: voices: expected connections, .* as voices\.voice0 "):
        scene.run("EncodePrompt", voices=voices)


@every_call
def test_a_link_to_an_input_that_there_is_not(scene, name):
    """ComfyUI drops values that are written there and hands links on: unexpected keyword argument."""
    title = scene.node(name).GET_SCHEMA().display_name
    with pytest.raises(ValueError, match=f"^{title}: further is no input of it; (dis)?connect "):
        scene.run(name, further=5)


def test_a_link_to_what_belongs_to_no_choice(scene):
    with pytest.raises(ValueError, match="^Load Speech Model: family: 'nothing known'; choose one of"):
        scene.run("LoadModel", family=None, **{"family.demo": 5})
