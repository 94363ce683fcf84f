"""Voice Library and Save Voice: over all folders of voices, as nodes, and in the genuine server."""
from __future__ import annotations

import json
import os
from pathlib import Path

import folder_paths
import pytest
import torch

from kit.audio import audio, tone
from kit.checkout import CHECKOUT
from kit.recordings import put
from kit.server import Comfy, Run
from speechwright import files, nodes
from speechwright.wires import Voice
from speechwright.workflows.runner.client import Refused

CLIPS = CHECKOUT / "workflows" / "audio"
WORDS = "The old lighthouse keeper watched the last ships until the fog came in."


def speech(seconds: float = 1.0, seed: int = 0) -> torch.Tensor:
    """(T,) a tone with noise, at 24 kHz."""
    rng = torch.Generator().manual_seed(seed)
    return tone(150, seconds, level=0.3) + 0.02 * torch.randn(round(seconds * 24_000), generator=rng)


def run(node, *args, **kwargs):
    """The first output of a node, run in inference mode as ComfyUI does."""
    with torch.inference_mode():
        return node.execute(*args, **kwargs)[0]


@pytest.fixture
def roots(tmp_path, monkeypatch) -> tuple[Path, Path]:
    """models/voices and another root, as extra_model_paths.yaml gives them; a third does not exist."""
    models, extra = tmp_path / "models", tmp_path / "elsewhere"
    monkeypatch.setattr(folder_paths, "models_dir", str(models))
    registered = {**folder_paths.folder_names_and_paths, "voices": ([str(tmp_path / "missing"), str(extra)], set())}
    monkeypatch.setattr(folder_paths, "folder_names_and_paths", registered)
    files.register_folders()
    (models / "voices").mkdir(parents=True)
    extra.mkdir()
    return models / "voices", extra


def listed() -> list[str]:
    """What the node offers, as ComfyUI asks for it."""
    return nodes.VoiceLibrary.define_schema().inputs[0].options


class TestList:
    def test_models_voices_is_always_registered(self, roots):
        assert files.voice_roots()[0] == roots[0] and roots[1] in files.voice_roots()
        assert folder_paths.get_folder_paths("voices")[-1] == str(roots[0])

    def test_all_roots_and_folders(self, roots):
        put(roots[0], "Zoe\u0308.wav", speech())
        put(roots[0], "old/v 1.2/Dr. Who.FLAC", speech())
        put(roots[1], "李雷.mp3", speech())
        put(roots[1], "bo.ogg", speech())
        for name in (".hidden.wav", ".cache/x.wav", "notes.txt", "ada.txt", "picture.png"):
            (roots[1] / name).parent.mkdir(exist_ok=True)
            (roots[1] / name).touch()
        assert listed() == ["bo", "old/v 1.2/Dr. Who", "Zo\u00eb", "李雷"]
        for name in listed():
            assert run(nodes.VoiceLibrary, name).name == name.split("/")[-1]
        assert run(nodes.VoiceLibrary, "old\\v 1.2\\Dr. Who").name == "Dr. Who"
        assert run(nodes.VoiceLibrary, "Zoe\u0308").name == "Zo\u00eb"

    def test_first_root_wins(self, roots):
        put(roots[1], "Ada.flac", speech(seed=1), words="Second.")
        assert run(nodes.VoiceLibrary, "Ada").transcript == "Second."
        put(roots[0], "Ada.mp3", speech(), words="First.")
        assert listed() == ["Ada"] and run(nodes.VoiceLibrary, "Ada").transcript == "First."

    def test_links(self, roots, tmp_path):
        put(tmp_path / "far", "x.wav", speech(), words="Far.")
        (roots[0] / "sub").symlink_to(tmp_path / "far")
        (roots[0] / "Ada.wav").symlink_to(tmp_path / "far" / "x.wav")
        (roots[0] / "gone.wav").symlink_to(tmp_path / "gone.wav")
        (roots[0] / "again").symlink_to(roots[0])
        assert listed() == ["Ada", "sub/x"]
        assert run(nodes.VoiceLibrary, "Ada").transcript == "" and run(nodes.VoiceLibrary, "sub/x").transcript == "Far."
        with pytest.raises(FileNotFoundError, match="'gone' is in none of"):
            run(nodes.VoiceLibrary, "gone")

    def test_an_empty_file_is_listed_and_says_so(self, roots):
        (roots[0] / "Ada.wav").touch()
        assert listed() == ["Ada"]
        with pytest.raises(ValueError, match=r"^Voice Library: .*Ada\.wav: the file is empty \(0 bytes\)"):
            run(nodes.VoiceLibrary, "Ada")

    def test_no_voices(self, roots):
        """A list without a choice, or one that raised, took every node of ComfyUI with it."""
        (choice,) = listed()
        assert choice == "(none: put NAME.flac and NAME.txt into models/voices)"
        with pytest.raises(FileNotFoundError, match="^Voice Library: name: there are no voices yet. Put a recording.*"
                                                    f"into {roots[0]}, .* press R"):
            run(nodes.VoiceLibrary, choice)
        assert nodes.VoiceLibrary.fingerprint_inputs(choice) == ""

    def test_no_folder_at_all(self, tmp_path, monkeypatch):
        monkeypatch.setattr(folder_paths, "models_dir", str(tmp_path / "none"))
        monkeypatch.setattr(folder_paths, "folder_names_and_paths", {})
        assert listed() == [files.NO_VOICES]

    def test_a_missing_voice_lists_what_is_there(self, roots):
        for number in range(33):
            put(roots[0], f"v{number:02}.wav", speech(0.1))
        with pytest.raises(FileNotFoundError, match=r"^Voice Library: name: 'Ada' is in none of") as caught:
            run(nodes.VoiceLibrary, "Ada")
        for said in (*map(str, roots), "There are: 'v00', 'v01'", "'v29' and 3 more. Choose one of them", "press R"):
            assert said in str(caught.value)

    @pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../secret", "", "."])
    def test_a_name_is_never_a_way_out(self, roots, name):
        put(roots[0].parent, "secret.wav", speech())
        put(roots[0], "Ada.wav", speech())
        with pytest.raises(FileNotFoundError, match="is in none of"):
            run(nodes.VoiceLibrary, name)

    def test_what_changes_the_fingerprint(self, roots):
        path = put(roots[1], "Ada.wav", speech(), words="Hello.")
        prints = [nodes.VoiceLibrary.fingerprint_inputs("Ada")]
        assert prints == [nodes.VoiceLibrary.fingerprint_inputs(name="Ada")] != [""]

        def changed() -> bool:
            prints.append(nodes.VoiceLibrary.fingerprint_inputs("Ada"))
            return prints[-1] not in prints[:-1]

        os.utime(path, (1, 1))
        assert changed()
        path.with_suffix(".txt").write_text("Hello, you.", encoding="utf-8")
        assert changed()
        path.with_suffix(".txt").unlink()
        assert changed()
        put(roots[0], "Ada.wav", speech())
        assert changed()
        assert nodes.VoiceLibrary.fingerprint_inputs("gone") == nodes.VoiceLibrary.fingerprint_inputs() == ""


class TestSave:
    def voice(self, name: str = "Ada", transcript: str = WORDS) -> Voice:
        return run(nodes.VoiceNode, audio(speech()), transcript, name)

    def test_into_the_first_root_and_back(self, roots):
        voice = self.voice()
        with torch.inference_mode():
            saved = nodes.SaveVoice.execute(voice)
        assert saved.ui.as_dict() == {"text": (f"Saved as {roots[0] / 'Ada.flac'}",)}
        assert (saved[0].name, saved[0].transcript, saved[0].content_hash) == ("Ada", WORDS, voice.content_hash)
        found = run(nodes.VoiceLibrary, "Ada")
        assert (found.name, found.transcript) == ("Ada", WORDS)
        torch.testing.assert_close(found.clip.wave, voice.clip.wave, atol=2**-24, rtol=0)
        run(nodes.SaveVoice, found, "Bo")
        assert run(nodes.VoiceLibrary, "Bo").content_hash == found.content_hash
        assert sorted(path.name for path in roots[0].iterdir()) == ["Ada.flac", "Ada.txt", "Bo.flac", "Bo.txt"]

    @pytest.mark.parametrize("name, found", [
        ("../x", "_x"), ("a/b", "a_b"), ("CON", "_CON"), ("x\0y", "xy"), ("l" * 300, "l" * 200), ("🙂 Ada", "🙂 Ada"),
        ("Zoe\u0308", "Zo\u00eb"), ("Dr. Who", "Dr. Who"), ("/", "_"),
    ])
    def test_names(self, roots, name, found):
        """Both of the voice and of the node; what is passed on is called as Voice Library will call it."""
        for saved in (run(nodes.SaveVoice, self.voice(name)), run(nodes.SaveVoice, self.voice("Bo"), name, True)):
            assert saved.name == found == run(nodes.VoiceLibrary, found).name
        assert listed() == [found] and sorted(roots[0].iterdir()) == sorted(
            roots[0] / f"{found}{suffix}" for suffix in (".flac", ".txt"))

    @pytest.mark.parametrize("given", ["", None, "  "])
    def test_no_name_is_the_voice_s_own(self, roots, given):
        assert run(nodes.SaveVoice, self.voice(), given).name == "Ada"
        with pytest.raises(ValueError, match="^Save Voice: name: '' leaves nothing to call a file by"):
            run(nodes.SaveVoice, self.voice(""), given)

    def test_overwrite(self, roots):
        run(nodes.SaveVoice, self.voice())
        before = {path.name: path.read_bytes() for path in roots[0].iterdir()}
        with pytest.raises(FileExistsError, match=r"^Save Voice: there is .*Ada\.flac already\..* `overwrite` on"):
            run(nodes.SaveVoice, self.voice(transcript="Other."))
        assert {path.name: path.read_bytes() for path in roots[0].iterdir()} == before
        run(nodes.SaveVoice, self.voice(transcript="Other."), overwrite=True)
        assert run(nodes.VoiceLibrary, "Ada").transcript == "Other."

    def test_a_voice_of_another_root(self, roots, caplog):
        """Saved beside it, the new one would speak in graphs that mean the old one."""
        path = put(roots[1], "Ada.wav", speech(seed=1), words="Old.")
        before = path.read_bytes()
        with pytest.raises(FileExistsError, match=f"there is {path} already"):
            run(nodes.SaveVoice, self.voice())
        run(nodes.SaveVoice, self.voice(), overwrite=True)
        assert path.read_bytes() == before and run(nodes.VoiceLibrary, "Ada").transcript == WORDS
        assert f"Save Voice: {path} stays and is not used" in caplog.text

    def test_a_folder_that_cannot_be_written_to(self, roots):
        roots[0].rmdir()
        roots[0].write_bytes(b"")
        with pytest.raises(OSError, match=r"^Save Voice: .*Ada\.flac cannot be written .*that it is a folder"):
            run(nodes.SaveVoice, self.voice())


def test_long_recordings():
    """The rules of files hold for the node Voice too."""
    with pytest.raises(ValueError, match="^Voice: audio: the recording is 31.00 s long, and one with a transcript"):
        run(nodes.VoiceNode, audio(speech(31.0)), "Hello.")
    assert 24 <= run(nodes.VoiceNode, audio(speech(31.0))).clip.seconds <= 30


# In the genuine server, whose models/voices has the clips of the examples


def saving(name: str, overwrite: bool = False, source: str = "bruno") -> dict:
    return {
        "1": {"class_type": "SpeechwrightVoiceLibrary", "inputs": {"name": source}},
        "2": {"class_type": "SpeechwrightSaveVoice",
              "inputs": {"voice": ["1", 0], "name": name, "overwrite": overwrite}},
    }


def error_of(done: Run) -> dict:
    return next(data for kind, data in done.history["status"]["messages"] if kind == "execution_error")


def offered(comfy: Comfy) -> list[str]:
    name = comfy.get("/object_info/SpeechwrightVoiceLibrary")["SpeechwrightVoiceLibrary"]["input"]["required"]["name"]
    return name[1]["options"]


def test_save_voice_in_the_queue(comfy: Comfy):
    """What is saved is offered at once, speaks in the next run, and is not saved over."""
    folder = comfy.booted.base / "models" / "voices"
    assert {"ada", "bruno"} <= set(offered(comfy)) and "kept/Zoë" not in offered(comfy)
    done = comfy.queue(saving("Zoë 1.2/3"))
    assert done.completed
    assert done.history["outputs"]["2"]["text"] == [f"Saved as {folder / 'Zoë 1.2_3.flac'}"]
    assert (folder / "Zoë 1.2_3.txt").read_text(encoding="utf-8") == WORDS
    assert "Zoë 1.2_3" in offered(comfy)
    taken = comfy.queue(saving("Zoë 1.2_3", source="ada"))
    assert not taken.completed and error_of(taken)["node_id"] == "2"
    assert "Give the voice another name, or switch `overwrite` on." in error_of(taken)["exception_message"]
    assert comfy.queue(saving("Zoë 1.2_3", True, source="ada")).completed
    assert (folder / "Zoë 1.2_3.txt").read_bytes() == (CLIPS / "ada.txt").read_bytes().strip()


def test_a_changed_voice_is_read_again(comfy: Comfy):
    """ComfyUI keeps results; a recording that was replaced spoke as before until a restart."""
    folder = comfy.booted.base / "models" / "voices"
    put(folder, "changing.wav", speech(), words="One.")
    graph = saving("changed", True, "changing")
    assert comfy.queue(graph).completed and comfy.queue(graph).cached == {"1", "2"}
    (folder / "changing.txt").write_text("Two.", encoding="utf-8")
    assert comfy.queue(graph).cached == set()
    assert (folder / "changed.txt").read_text(encoding="utf-8") == "Two."


def test_a_voice_that_is_not_there_is_refused_by_name(comfy: Comfy):
    with pytest.raises(Refused) as refused:
        comfy.queue(saving("x", source="nobody"))
    assert refused.value.answer["node_errors"]["1"]["errors"][0]["type"] == "value_not_in_list"


def test_the_script_is_spoken_by_both(comfy: Comfy):
    """Both voices of the library answer to their names, whatever their case."""
    path = CHECKOUT / "workflows" / "api" / "dialogue_with_library_voices.json"
    graph = json.loads(path.read_text(encoding="utf-8"))
    graph["8"] = {"class_type": "PreviewAny", "inputs": {"source": ["4", 1]}}
    done = comfy.queue(graph)
    assert done.completed
    lines = done.history["outputs"]["8"]["text"][0].splitlines()
    assert [line.split()[1] for line in lines] == ["ada", "bruno", "bruno", "ada"], lines
