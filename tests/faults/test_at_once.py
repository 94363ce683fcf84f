"""Threads of one process on the same models: packs run nodes in threads, and nothing of one may reach another."""
from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

import folder_paths
import pytest

from kit.calls import Calls, plain, same, sound
from speechwright import files, loader, voices
from speechwright.audio import Clip
from speechwright.wires import Voice

WORKING = ["RASSampler", "BlockDiffusionSampler", "S3Token2Wav", "S3Token2Wav of CosyVoice3", "S3Tokenize",
           "S3Tokenize of CosyVoice3", "FishEncode", "FishDecode", "EncodePrompt", "EncodePrompt of CosyVoice3",
           "VoiceLibrary"]
LIMIT_S = 120


def at_once(*jobs: Callable[[], object]) -> list:
    """What each gave, or raised, all begun together."""
    found, begin = [None] * len(jobs), threading.Barrier(len(jobs))

    def work(index: int) -> None:
        begin.wait()
        try:
            found[index] = jobs[index]()
        except Exception as error:
            found[index] = error

    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    return found


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_all_nodes_at_once_on_three_models(scene: Calls):
    """Samplers, decoders and readers of all families, twice over, and voices that nobody has read yet."""
    alone = {name: plain(scene.run(name)[0]) for name in WORKING}
    for model in scene.models.values():
        model._voices.clear()
    found = at_once(*(lambda name=name: plain(scene.run(name)[0]) for name in (*WORKING, *WORKING)))
    wrong = [name for name, one in zip((*WORKING, *WORKING), found) if not (
        isinstance(one, list) and same(one, alone[name]))]
    assert not wrong, (wrong, [one for one in found if isinstance(one, Exception)])


def test_a_part_is_built_once(comfyui_folder, monkeypatch):
    """Two threads that need a part which is not loaded yet both built it: its weights were there twice."""
    built = []
    model = loader.load_demo("S3Gen")
    model._patchers = {"synthesis": model.patcher}
    quick = loader.quick
    monkeypatch.setattr(loader, "quick", lambda operations: built.append(1) or time.sleep(0.1) or quick(operations))
    first, *others = at_once(*(lambda: model._patcher("tokenizer") for _ in range(4)))
    assert len(built) == 1 and all(other is first for other in others)


class Slow(OrderedDict):
    """A table that others change between a look at it and what follows."""

    def __contains__(self, key) -> bool:
        found = super().__contains__(key)
        time.sleep(0.001)
        return found


def test_voices_that_push_each_other_out(comfyui_folder, monkeypatch):
    """One thread forgot a voice between another's look at the table and its taking of it."""
    monkeypatch.setattr(loader, "MAX_VOICES", 2)
    model = loader.load_demo("CosyVoice2")
    model._voices = Slow()

    def read(offset: int) -> list:
        return [model.voice(str(number % 5), lambda number=number: number % 5) - number % 5
                for number in range(offset, offset + 60)]

    assert at_once(*(lambda offset=offset: read(offset) for offset in range(4))) == [[0] * 60] * 4
    assert len(model._voices) == 2


def named(words: str, pitch_hz: float) -> Voice:
    return Voice(Clip(sound(0.5, pitch_hz)["waveform"][0, 0], 24_000), words, "At once")


@pytest.fixture
def folder(comfyui_folder, monkeypatch, tmp_path) -> Path:
    monkeypatch.setattr(files, "voice_roots", lambda: [tmp_path / "voices"])
    return tmp_path / "voices"


def test_a_name_is_given_once(folder, hasty):
    """Both found the name free, and the second took the place of the first, without `overwrite`."""
    found = at_once(*(lambda index=index: files.save_voice(named(f"Words {index}.", 90.0 + 20 * index), False, "Save")
                      for index in range(6)))
    paths = [one for one in found if isinstance(one, Path)]
    assert len(paths) == 1 and sum(isinstance(one, FileExistsError) for one in found) == 5, found
    kept = voices.load(paths[0], "Voice Library")
    assert kept.transcript == f"Words {found.index(paths[0])}."


def test_words_stay_with_their_recording(folder, monkeypatch):
    """Of two that were saved over one another, the words of one stood beside the recording of the other."""
    made = [named(f"Words {index}.", 90.0 + 20 * index) for index in range(3)]
    known = {}
    for index, voice in enumerate(made):
        found = voices.load(voices.save(dataclasses.replace(voice, name=str(index)), folder, False, "Save"), "Library")
        known[found.content_hash] = found.transcript
    replace, waited = voices.os.replace, []

    def slowly(source: Path, target: Path) -> None:
        if target.suffix == ".flac" and not waited:     # the first has written its words, and the others come
            waited.append(target)
            time.sleep(1.0)
        replace(source, target)

    monkeypatch.setattr(voices.os, "replace", slowly)
    assert all(isinstance(one, Path) for one in at_once(
        *(lambda voice=voice: files.save_voice(voice, True, "Save Voice") for voice in made)))
    kept = voices.load(folder / "At once.flac", "Voice Library")
    assert known[kept.content_hash] == kept.transcript and not list(folder.glob(".*"))


def test_demos_are_written_at_once(comfyui_folder, monkeypatch, tmp_path):
    monkeypatch.setattr(folder_paths, "get_temp_directory", lambda: str(tmp_path))
    found = at_once(*(lambda: loader.load_demo("CosyVoice2") for _ in range(4)))
    states = [model.patcher.model.state_dict() for model in found]
    assert all(tensor.equal(states[0][name]) for state in states for name, tensor in state.items())
    assert not list(tmp_path.rglob("*.part"))
