"""Voices written into a folder: what comes back of them, whose names they respect, and what is left when it fails."""
from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
import torch

from kit.recordings import RATE_HZ, put, speech
from speechwright import voices
from speechwright.audio import Clip
from speechwright.wires import Voice


def load(path: Path) -> Voice:
    return voices.load(path, "Voice Library")


def save(voice: Voice, folder: Path, overwrite: bool = False, elsewhere: Path | None = None) -> Path:
    return voices.save(voice, folder, overwrite, "Save Voice", elsewhere)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def voice() -> Voice:
    return Voice(Clip(speech(), RATE_HZ), "Good evening.\nZoë here.", "Ada")


class TestSaving:
    def test_back_and_forth(self, tmp_path, voice, caplog):
        caplog.set_level(logging.INFO)
        path = save(voice, tmp_path / "models" / "voices")
        assert path == tmp_path / "models" / "voices" / "Ada.flac" and f"saved as {path}." in caplog.text
        assert set(content(path.parent)) == {"Ada.flac", "Ada.txt"}
        found = load(path)
        assert (found.name, found.transcript, found.clip.rate_hz) == (voice.name, voice.transcript, RATE_HZ)
        torch.testing.assert_close(found.clip.wave, voice.clip.wave, atol=2**-24, rtol=0)
        again = load(save(found, tmp_path / "again"))
        assert again.content_hash == found.content_hash
        assert content(path.parent) == content(tmp_path / "again")

    @pytest.mark.parametrize("rate_hz", [2000, 11_025, 22_050, 44_101, 96_000, 768_000])
    def test_every_rate(self, tmp_path, rate_hz):
        wave = speech(0.25, rate_hz)
        found = load(save(Voice(Clip(wave, rate_hz), "", "a"), tmp_path)).clip
        assert found.rate_hz == rate_hz and float((found.wave - wave).abs().max()) <= 2**-24

    @pytest.mark.parametrize("samples", [2400, 4095, 4096, 4097, 9000])
    def test_every_length(self, tmp_path, samples):
        wave = speech()[:samples]
        assert load(save(Voice(Clip(wave, RATE_HZ), "", "a"), tmp_path)).clip.wave.shape == (samples,)

    def test_what_24_bits_hold_is_kept_exactly(self, tmp_path):
        full = 2**23
        steps = torch.randint(-full, full, (RATE_HZ,), generator=torch.Generator().manual_seed(0))
        steps[:4] = torch.tensor([-full, full - 1, 1, -1])
        wave = steps.float() / full
        path = save(Voice(Clip(wave, RATE_HZ), "", "a"), tmp_path)
        assert torch.equal(load(path).clip.wave, wave)
        head = int.from_bytes(path.read_bytes()[18:26], "big")          # STREAMINFO: rate, channels, bits
        assert (head >> 44, (head >> 41 & 7) + 1, (head >> 36 & 31) + 1) == (RATE_HZ, 1, 24)

    def test_full_scale_and_beyond(self, tmp_path, caplog):
        wave = speech()
        wave[100], wave[200] = 1.0, -1.0
        assert float((load(save(Voice(Clip(wave, RATE_HZ), "", "a"), tmp_path)).clip.wave - wave).abs().max()) <= 2**-23
        assert not caplog.records
        found = load(save(Voice(Clip(4 * wave, RATE_HZ), "", "b"), tmp_path)).clip.wave
        assert float((found - wave).abs().max()) <= 2**-23 and "the recording peaks at 4" in caplog.text

    def test_a_taken_name(self, tmp_path, voice):
        for name in ("Ada.flac", "Ada.wav", "Ada.OGG", "Ada.txt", "Ada.TXT", "Ada.reference.txt"):
            folder = tmp_path / name.replace(".", "_")
            folder.mkdir()
            (folder / name).write_bytes(b"the user's")
            with pytest.raises(FileExistsError, match=rf"^Save Voice: there is {folder / name} already\. Give the "
                                                      r"voice another name, or switch `overwrite` on\."):
                save(voice, folder)
            assert content(folder) == {name: b"the user's"}

    @pytest.mark.parametrize("name", ["Ada2.flac", "ada.wav", "Adab.txt", "Ada.png", "XAda.txt", "Ada.x.txt"])
    def test_a_name_that_is_only_similar(self, tmp_path, voice, name):
        (tmp_path / name).write_bytes(b"the user's")
        save(voice, tmp_path)
        assert content(tmp_path)[name] == b"the user's" and len(content(tmp_path)) == 3

    def test_a_name_in_another_folder(self, tmp_path, voice, caplog):
        other = tmp_path / "other" / "Ada.wav"
        with pytest.raises(FileExistsError, match=f"there is {other} already"):
            save(voice, tmp_path, elsewhere=other)
        save(voice, tmp_path, overwrite=True, elsewhere=other)
        assert f"{other} stays and is not used: Ada.flac comes before it." in caplog.text

    def test_overwriting(self, tmp_path, voice, caplog):
        """Whatever else is there by this name, what was saved is what is found; and nothing else is touched."""
        others = {"Ada.wav": b"1", "Ada.FLAC": b"2", "Ada.reference.txt": b"3", "Bo.txt": b"4"}
        for name, raw in others.items():
            (tmp_path / name).write_bytes(raw)
        save(Voice(voice.clip, "Before.", "Ada"), tmp_path, overwrite=True)
        silent = Voice(Clip(speech(seed=1), RATE_HZ), "", "Ada")
        path = save(silent, tmp_path, overwrite=True)
        assert voices.chosen(os.listdir(tmp_path))["Ada"] == path.name
        assert load(path).transcript == "" and float((load(path).clip.wave - silent.clip.wave).abs().max()) <= 2**-24
        found = content(tmp_path)
        assert {name: found[name] for name in others} == others and len(found) == 6
        assert "Ada.reference.txt stays and is not used: Ada.flac comes before it." in caplog.text

    def test_a_link_is_replaced_and_what_it_leads_to_stays(self, tmp_path, voice):
        far = put(tmp_path / "far", "x.flac", speech(seed=2))
        before = far.read_bytes()
        (tmp_path / "Ada.flac").symlink_to(far)
        save(voice, tmp_path, overwrite=True)
        assert far.read_bytes() == before and not (tmp_path / "Ada.flac").is_symlink()

    def test_a_link_that_leads_nowhere_takes_the_name_too(self, tmp_path, voice):
        (tmp_path / "Ada.flac").symlink_to(tmp_path / "gone")
        with pytest.raises(FileExistsError, match="Ada.flac already"):
            save(voice, tmp_path)

    def test_a_name_in_another_case_where_case_does_not_count(self, tmp_path, voice, monkeypatch):
        """On Windows and macOS Ada.flac is ada.flac, though a folder lists it as it was first written."""
        (tmp_path / "ADA.flac").write_bytes(b"the user's")
        here = os.path.lexists
        monkeypatch.setattr(voices.os.path, "lexists", lambda path: here(Path(path).with_name("ADA.flac")))
        with pytest.raises(FileExistsError, match=r"Ada\.flac already"):
            save(voice, tmp_path)
        assert content(tmp_path) == {"ADA.flac": b"the user's"}

    def test_no_folder_can_be_made(self, tmp_path, voice):
        (tmp_path / "voices").write_bytes(b"a file")
        with pytest.raises(OSError, match=r"^Save Voice: .*Ada\.flac cannot be written \(.*\)\. See that ComfyUI may "
                                          "write into .*voices, that it is a folder and that the disk has room"):
            save(voice, tmp_path / "voices")
        assert content(tmp_path) == {"voices": b"a file"}

    @pytest.mark.parametrize("before", [{}, {"Ada.flac": b"old sound", "Ada.txt": b"old words"}, {"Ada.flac": b"old"}])
    @pytest.mark.parametrize("fails_at", [1, 2])
    @pytest.mark.parametrize("step", ["_write", "replace"])
    def test_a_write_that_fails_leaves_what_was_there(self, tmp_path, voice, monkeypatch, before, fails_at, step):
        for name, raw in before.items():
            (tmp_path / name).write_bytes(raw)
        whom = voices if step == "_write" else voices.os
        original, calls = getattr(whom, step), []

        def fail_once(*args):
            calls.append(args)
            if len(calls) == fails_at:
                raise PermissionError(13, "Permission denied")
            original(*args)

        with monkeypatch.context() as patch:
            patch.setattr(whom, step, fail_once)
            with pytest.raises(OSError, match=r"Ada\.flac cannot be written \(Permission denied\)"):
                save(voice, tmp_path, overwrite=True)
        assert content(tmp_path) == before

    @pytest.mark.parametrize("done", range(4))
    def test_a_crash_leaves_no_half_file(self, tmp_path, voice, monkeypatch, done):
        """The process ends after so many steps: what has a final name then is whole, and no voice is without words."""
        class Crash(BaseException):
            pass

        steps = []

        def counted(original):
            def run(*args):
                if len(steps) == done:
                    raise Crash
                steps.append(args)
                original(*args)
            return run

        whole = content(save(voice, tmp_path / "whole").parent)
        folder = tmp_path / "crashed"
        with monkeypatch.context() as patch:
            patch.setattr(voices, "_write", counted(voices._write))
            patch.setattr(voices.os, "replace", counted(os.replace))
            with pytest.raises(Crash):
                save(voice, folder)
        left = content(folder)
        assert left == {name: whole[name] for name in left} and voices.chosen(left) == {}
        save(voice, folder, overwrite=True)
        assert content(folder) == whole
