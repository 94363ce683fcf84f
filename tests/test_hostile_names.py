"""Names out of a workflow that lead elsewhere: no node reads, writes or asks outside its own folders."""
from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import save_file

from fuzz.laws import REMEDY
from kit.calls import WORDS, run, sound
from kit.offline import NetworkBlocked
from kit.whisper import write_small
from speechwright import loader, nodes, voices
from speechwright.nodes.load import COSYVOICE_OPTION, OGG_OPTION, S3GEN_OPTION
from speechwright.wires import Voice

SECRET = "secret"           # what lies beside the folder of models, whole and in every form
NAMES = (
    "../../{}", "a/../../../{}", "..\\..\\{}", "{folder}/{}", "./../../{}", "//{folder}/{}",
    "file://{folder}/{}", "~/{}",
    "C:\\{}", "\\\\host\\{}", "http://127.0.0.1:1/{}", "%2e%2e/%2e%2e/{}", "....//....//{}", ".{}", "a/.{}/x",
    "../../{}\0", "a\0b", "\0", "x" * 300, "x/" * 3000, "\ud800", "", " ", ".", "..", "/", "CON", "*", "$HOME/{}",
    "None",
)
PLACES = {
    "S3Gen": lambda name: run(nodes.LoadModel, family={"family": S3GEN_OPTION, "checkpoint": name}),
    "CosyVoice": lambda name: run(nodes.LoadModel, family={"family": COSYVOICE_OPTION, "folder": name}),
    "OGG": lambda name: run(nodes.LoadModel, family={"family": OGG_OPTION, "checkpoint": name, "codec": "none"}),
    "codec": lambda name: run(
        nodes.LoadModel, family={"family": OGG_OPTION, "checkpoint": "good.safetensors", "codec": name}),
    "library": lambda name: run(nodes.VoiceLibrary, name=name),
    "ear": lambda name: run(nodes.Transcribe, audio=sound(0.5), folder=name),
    "S3Gen, fetched": lambda name: run(
        nodes.LoadModel, family={"family": S3GEN_OPTION, "checkpoint": name}, download=True),
    "CosyVoice, fetched": lambda name: run(
        nodes.LoadModel, family={"family": COSYVOICE_OPTION, "folder": name}, download=True),
    "ear, fetched": lambda name: run(nodes.Transcribe, audio=sound(0.5), folder=name, download=True),
}
STAMPS = {
    "S3Gen": lambda name: loader.checkpoint_stamp(name), "CosyVoice": lambda name: loader.folder_stamp(name),
    "OGG": lambda name: loader.ogg_stamp(name, name), "ear": lambda name: nodes.ears.stamp(name),
    "library": lambda name: nodes.VoiceLibrary.fingerprint_inputs(name=name),
}

opened: list[str] = []


def _note(event: str, arguments: tuple) -> None:
    if event == "open" and isinstance(arguments[0], str) and SECRET in os.path.basename(arguments[0]):
        opened.append(arguments[0])


sys.addaudithook(_note)


def a_voice(name: str) -> Voice:
    voice, = run(nodes.VoiceNode, audio=sound(0.5), transcript=WORDS)
    return replace(voice, name=name)


@pytest.fixture
def outside(two_roots, tmp_path) -> Path:
    """A model of every kind, a voice and an ear, beside the folder of models, where only ``../../`` leads."""
    state = loader.DEMOS["OGG TTS"].files["ogg_tts.safetensors"]()
    save_file(state, two_roots[0] / "good.safetensors")
    for name in (SECRET, f"{SECRET}.safetensors", f".{SECRET}"):
        save_file(state, tmp_path / f"{name}.pt")
    write_small(tmp_path / SECRET)
    (two_roots[0] / "a").mkdir()
    (tmp_path / "models" / "voices").mkdir(exist_ok=True)
    voices.save(a_voice(SECRET), tmp_path, False, "Save Voice")
    opened.clear()
    return tmp_path


def spelled(outside: Path) -> list[str]:
    return [name.replace("{folder}", str(outside)).replace("{}", f"{SECRET}{end}")
            for name in NAMES for end in (("", ".pt") if "{}" in name else ("",))]


def content(folder: Path) -> dict:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("place", PLACES)
def test_names_lead_nowhere(place, outside):
    """A workflow may come from a stranger, and a link takes any text past the list of choices."""
    before = content(outside)
    opened.clear()
    for name in spelled(outside):
        with pytest.raises((ValueError, FileNotFoundError)) as caught:
            PLACES[place](name)
        assert not isinstance(caught.value, NetworkBlocked)
        assert REMEDY.search(str(caught.value)) or "choose" in str(caught.value), str(caught.value)
    assert opened == [] and content(outside) == before


@pytest.mark.parametrize("place", STAMPS)
def test_names_are_stamped_without_an_error(place, outside):
    """ComfyUI asks before it runs anything; an error there stops the whole queue."""
    for name in spelled(outside):
        assert isinstance(STAMPS[place](name), str)
    assert opened == []


@pytest.mark.parametrize("given", ["voice", "name"])
def test_voices_are_saved_into_their_folder(given, outside):
    """Whatever a voice is called, by itself or in the node."""
    before = content(outside)
    for name in spelled(outside):
        voice = a_voice(name if given == "voice" else "Ada")
        try:
            saved, = run(nodes.SaveVoice, voice=voice, name=name if given == "name" else "", overwrite=True)
        except ValueError as error:
            assert str(error).startswith("Save Voice: name: ")
            continue
        found, = run(nodes.VoiceLibrary, name=saved.name)
        assert (found.name, found.transcript) == (saved.name, voice.transcript)
    after = content(outside)
    assert {path: after[path] for path in before} == before
    assert {path.parent for path in after.keys() - before.keys()} == {outside / "models" / "voices"}
