"""Where model files are looked for under the genuine ComfyUI, and what its lists offer."""
from __future__ import annotations

import os
from pathlib import Path

import folder_paths
import pytest

from speechwright import files
from speechwright.hub import Published

NAME = "模型 v1/ä b s3gen.safetensors"
PUBLISHED = {"s3gen/s3gen.pt": Published("owner/models", "s3gen.pt", None, None, "MIT")}


@pytest.fixture
def checkpoint(two_roots) -> Path:
    """A file in a folder with a name from far away."""
    path = two_roots[1] / NAME
    path.parent.mkdir()
    path.touch()
    return path


class TestFolders:
    def test_all_roots_are_searched(self, two_roots, checkpoint):
        (two_roots[0] / "b.pt").touch()
        (two_roots[0] / "notes.txt").touch()
        assert files.checkpoint_names() == [NAME, "b.pt"]
        assert files.find_checkpoint(NAME, PUBLISHED) == checkpoint

    def test_first_root_wins(self, two_roots, checkpoint):
        first = two_roots[0] / NAME
        first.parent.mkdir()
        first.touch()
        assert files.checkpoint_names() == [NAME] and files.find_checkpoint(NAME, PUBLISHED) == first

    def test_both_spellings_of_the_folder(self, two_roots):
        """Some packs use models/tts and some models/TTS; on some systems they are the same folder."""
        other = two_roots[0].parent / "TTS"
        other.mkdir(exist_ok=True)
        (other / "a.pth").touch()
        assert files.checkpoint_names() == ["a.pth"]
        assert len({os.path.realpath(root) for root in files.roots()}) == len(files.roots())

    def test_no_folder_at_all(self, tmp_path, monkeypatch):
        """A missing folder once broke /object_info, and with it every node of ComfyUI."""
        monkeypatch.setattr(folder_paths, "models_dir", str(tmp_path / "none"))
        monkeypatch.setattr(folder_paths, "folder_names_and_paths", {})
        assert files.checkpoint_names() == []

    def test_name_saved_on_windows(self, checkpoint):
        assert files.find_checkpoint(NAME.replace("/", "\\"), PUBLISHED) == checkpoint

    def test_links_are_followed(self, two_roots, checkpoint):
        (two_roots[0] / "link.safetensors").symlink_to(checkpoint)
        (two_roots[0] / "folder").symlink_to(checkpoint.parent)
        assert "link.safetensors" in files.checkpoint_names()
        assert "folder/ä b s3gen.safetensors" in files.checkpoint_names()
        (two_roots[0] / "dangling.safetensors").symlink_to(two_roots[0] / "gone")
        with pytest.raises(FileNotFoundError, match="dangling.safetensors"):
            files.find_checkpoint("dangling.safetensors", PUBLISHED)

    def test_a_folder_that_links_to_itself(self, two_roots, checkpoint):
        (two_roots[1] / "again").symlink_to(two_roots[1])
        assert files.checkpoint_names()[0] == NAME

    def test_missing_file_names_folders_and_source(self, two_roots):
        with pytest.raises(FileNotFoundError, match="owner/models") as caught:
            files.find_checkpoint("s3gen.safetensors", PUBLISHED)
        assert str(two_roots[0]) in str(caught.value) and str(two_roots[1]) in str(caught.value)

    @pytest.mark.parametrize("name", ["", " ", "../secret.pt", "a/../../b.pt", "/etc/passwd", "..\\x.pt"])
    def test_names_stay_inside(self, two_roots, name):
        with pytest.raises(ValueError, match="checkpoint: .* is not a path inside models/tts"):
            files.find_checkpoint(name, PUBLISHED)
        with pytest.raises(ValueError, match="folder: .* is not a path inside models/tts"):
            files.find_folder(name, PUBLISHED, nowhere)

    def test_what_is_hidden_is_no_choice(self, two_roots):
        """Parts of downloads, and what macOS leaves on disks of other systems, have the names of checkpoints."""
        for name in (".downloads/s3gen.safetensors", "s3gen/.cache/s3gen.pt", "._s3gen.safetensors"):
            path = two_roots[0] / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            with pytest.raises(ValueError, match="not a path inside models/tts"):
                files.find_checkpoint(name, PUBLISHED)
        assert files.checkpoint_names() == []

    def test_stamp_follows_the_file(self, checkpoint):
        before = files.stamp([checkpoint])
        assert before == files.stamp([checkpoint])
        os.utime(checkpoint, (1, 1))
        assert files.stamp([checkpoint]) != before
        checkpoint.unlink()
        assert files.stamp([checkpoint]) == str(checkpoint)


def nowhere(folder: Path, file: str) -> None:
    """No folder has any file."""


class TestFoldersOfFiles:
    def test_choices_are_folders_with_a_known_file(self, two_roots):
        for name in ("b/llm.pt", "a/ä/flow.pt", "c/notes.txt", ".downloads/llm.pt", "d/.flow.pt"):
            (two_roots[1] / name).parent.mkdir(parents=True)
            (two_roots[1] / name).touch()
        assert files.folder_names({"llm.pt", "flow.pt"}) == ["a/ä", "b"]

    def test_first_root_that_has_it(self, two_roots):
        (two_roots[1] / "a" / "b").mkdir(parents=True)
        assert files.find_folder("a\\b", {}, nowhere) == two_roots[1] / "a" / "b"

    def test_missing_folder_lists_every_file(self, two_roots):
        published = {name: Published("owner/models", name, None, None, "MIT") for name in ("x.pt", "sub/y.json")}
        with pytest.raises(FileNotFoundError, match="folder: 'a' is in none of") as caught:
            files.find_folder("a", published, nowhere)
        for said in (*map(str, two_roots), "owner/models", "x.pt, sub/y.json", "switch `download` on"):
            assert said in str(caught.value)
        with pytest.raises(FileNotFoundError, match="Put the folder there, or choose one that can be fetched"):
            files.find_folder("a", {}, nowhere, download=True)

    def test_only_what_is_missing_is_fetched(self, two_roots, monkeypatch):
        names = ("x.pt", "sub/y.json", "z.pt")
        published = {name: Published("owner/models", name, None, None, "MIT") for name in names}
        fetched = []
        monkeypatch.setattr(files.hub, "fetch", lambda source, target, report: fetched.append((source.file, target)))
        (two_roots[1] / "a").mkdir()
        (two_roots[1] / "a" / "z.pt").touch()

        def find(folder: Path, file: str) -> Path | None:
            return folder / file if (folder / file).is_file() else None

        assert files.find_folder("a", published, find, download=True) == two_roots[1] / "a"
        assert fetched == [(name, two_roots[1] / "a" / name) for name in ("x.pt", "sub/y.json")]
        fetched.clear()
        assert files.find_folder("new", published, find, download=True) == two_roots[0] / "new"
        assert len(fetched) == 3

    def test_empty_folder_does_not_hide_the_one_with_files(self, two_roots):
        """What an interrupted copy leaves in the first root once stood before the whole model in another."""
        (two_roots[0] / "a").mkdir()
        (two_roots[1] / "a").mkdir()
        (two_roots[1] / "a" / "llm.pt").touch()
        assert files.find_folder("a", {}, nowhere, marks={"llm.pt"}) == two_roots[1] / "a"
        assert files.find_folder("a", {}, nowhere) == two_roots[0] / "a"
