"""Voices as files: which recordings make one, what is read from a folder, and what is written into it."""
from __future__ import annotations

import logging
import os
import unicodedata
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kit.audio import tone
from kit.recordings import KINDS, encoded, put, wav
from speechwright import voices
from speechwright.audio import Clip
from speechwright.wires import Voice

RATE_HZ = 24_000
NODE = "Save Voice"


def speech(seconds: float = 1.0, rate_hz: int = RATE_HZ, seed: int = 0) -> torch.Tensor:
    """(T,) a tone with noise."""
    rng = torch.Generator().manual_seed(seed)
    return tone(150, seconds, rate_hz, 0.3) + 0.02 * torch.randn(round(seconds * rate_hz), generator=rng)


def load(path: Path) -> Voice:
    return voices.load(path, "Voice Library")


def save(voice: Voice, folder: Path, overwrite: bool = False, elsewhere: Path | None = None) -> Path:
    return voices.save(voice, folder, overwrite, NODE, elsewhere)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def voice() -> Voice:
    return Voice(Clip(speech(), RATE_HZ), "Good evening.\nZoë here.", "Ada")


class TestLength:
    """A clip that was cut beside a transcript that was not made models say the rest of it first."""

    @pytest.mark.parametrize("transcript", ["", "Hello."])
    def test_up_to_the_limit_untouched(self, transcript):
        clip = Clip(tone(seconds=30.0, rate_hz=8000), 8000)
        assert voices.voice_of(clip, transcript, "Ada", "Voice: audio").clip is clip

    def test_beyond_it_with_a_transcript(self):
        clip = Clip(tone(seconds=30.01, rate_hz=8000), 8000)
        with pytest.raises(ValueError, match=r"^Voice: audio: the recording is 30.01 s long, and one with a transcript "
                                             r"may have 30 s, 5 to 10 s at best\. Shorten it and its transcript alike"):
            voices.voice_of(clip, "Hello.", "Ada", "Voice: audio")

    @pytest.mark.parametrize("still_s", [24.5, 27.0, 29.5])
    def test_beyond_it_without_one(self, caplog, still_s):
        wave = speech(40.0, 8000)
        wave[round((still_s - 0.1) * 8000):round((still_s + 0.1) * 8000)] = 0
        found = voices.voice_of(Clip(wave, 8000), " \n", "Ada", "Voice: audio").clip
        assert abs(found.seconds - still_s) <= 0.1 and torch.equal(found.wave, wave[: len(found.wave)])
        assert found.wave.untyped_storage().nbytes() == found.wave.nbytes      # the rest is let go of
        assert "Voice: audio: the recording is 40.0 s long; its first" in caplog.text
        assert [record.levelno for record in caplog.records] == [logging.WARNING]

    def test_a_second_time_changes_nothing(self):
        once = voices.voice_of(Clip(speech(40.0, 8000), 8000), "", "Ada", "Voice: audio")
        assert voices.voice_of(once.clip, "", "Ada", "Voice: audio").content_hash == once.content_hash

    @pytest.mark.parametrize("wave, text", [
        (torch.full((1,), 0.5), "1 sample "), (speech(0.09), r"give at least 0\.1 s of speech"),
        (torch.zeros(RATE_HZ), "the recording is silent"), (torch.zeros(31 * RATE_HZ), "the recording is silent"),
    ])
    def test_no_speech(self, wave, text):
        with pytest.raises(ValueError, match=f"Voice: audio: .*{text}"):
            voices.voice_of(Clip(wave, RATE_HZ), "", "Ada", "Voice: audio")


class TestNames:
    @pytest.mark.parametrize("files, found", [
        ([], {}),
        (["Ada.flac", "Ada.txt", "notes.txt", "Ada.png", "Ada"], {"Ada": "Ada.flac"}),
        (["a.mp3", "a.m4a", "a.opus", "a.ogg", "a.wav", "a.flac"], {"a": "a.flac"}),
        (["a.mp3", "a.m4a", "a.opus", "a.ogg", "a.wav"], {"a": "a.wav"}),
        (["a.mp3", "a.ogg"], {"a": "a.ogg"}), (["a.mp3", "a.m4a"], {"a": "a.m4a"}),
        (["Ada.WAV", "Bo.Mp3"], {"Ada": "Ada.WAV", "Bo": "Bo.Mp3"}),
        (["a.FLAC", "a.flac"], {"a": "a.flac"}), (["A.wav", "a.wav"], {"A": "A.wav", "a": "a.wav"}),
        (["Dr. Who.wav", "v1.2.flac", " x .ogg"], {"Dr. Who": "Dr. Who.wav", "v1.2": "v1.2.flac", " x ": " x .ogg"}),
        (["Zoe\u0308.wav"], {"Zo\u00eb": "Zoe\u0308.wav"}), (["李雷.wav"], {"李雷": "李雷.wav"}),
        (["Zoe\u0308.flac", "Zo\u00eb.flac"], {"Zo\u00eb": "Zo\u00eb.flac"}),
        (["Zo\udceb.wav"], {"Zo?": "Zo\udceb.wav"}),
    ])
    def test_which_file_is_which_voice(self, files, found):
        for order in (files, files[::-1]):
            assert voices.chosen(order) == found

    @pytest.mark.parametrize("name, safe", [
        ("Ada", "Ada"), ("Mary Ann", "Mary Ann"), (" Dr. Who ", "Dr. Who"), ("李雷", "李雷"), ("Zoe\u0308", "Zo\u00eb"),
        ("../x", "_x"), ("a/b", "a_b"), ("a\\b", "a_b"), ("/etc/passwd", "_etc_passwd"), ("C:\\x", "C__x"),
        ("x\0y", "xy"), ("a\nb\tc", "a b c"), ("a<b>:\"|?*", "a_b______"), (".hidden", "hidden"), ("a. . ", "a"),
        ("CON", "_CON"), ("con.x", "_con.x"), ("COM1", "_COM1"), ("lpt¹", "_lpt¹"), ("NUL .x", "_NUL .x"),
        ("CONSTANCE", "CONSTANCE"), ("COM10", "COM10"), ("👩\u200d🚀 1", "👩\u200d🚀 1"), ("\ud800x", "_x"),
        ("a" * 300, "a" * 200), ("ü" * 300, "ü" * 100), ("x" + "李" * 100, "x" + "李" * 66),
        ("a" * 199 + " b", "a" * 199), ("🙂" * 49 + "👩\u200d🚀", "🙂" * 49 + "👩"),
    ])
    def test_safe_name(self, name, safe):
        assert voices.safe_name(name, "Save Voice: name") == safe

    @pytest.mark.parametrize("name", ["", " \n", ".", "..", ". . .", "\u200b", "\0"])
    def test_nothing_left(self, name):
        with pytest.raises(ValueError, match="^Save Voice: name: .* leaves nothing to call a file by; write a name"):
            voices.safe_name(name, "Save Voice: name")

    @given(st.text(st.characters(), min_size=1, max_size=300) | st.text("./\\ :a\u0308\u200d👩", min_size=1))
    def test_laws_of_safe_names(self, name):
        try:
            safe = voices.safe_name(name, "name")
        except ValueError:
            return
        assert voices.safe_name(safe, "name") == safe == unicodedata.normalize("NFC", safe)
        assert 0 < len(safe.encode()) <= voices.MAX_NAME_BYTES + 1 and safe == safe.strip(" .")
        assert Path(safe).name == safe and not set(safe) & set('/\\:*?"<>|\0\n')
        assert voices.chosen([f"{safe}.flac"]) == {safe: f"{safe}.flac"}


class TestTranscripts:
    @pytest.mark.parametrize("files, found", [
        ([], None), (["b.txt"], None), (["a.txt"], "a.txt"), (["a.reference.txt"], "a.reference.txt"),
        (["a.txt", "a.reference.txt"], "a.txt"), (["a.TXT"], "a.TXT"), (["a.Reference.TXT"], None),
        (["a.reference.txt", "a.reference.wav"], None), (["a.wav.txt"], None),
    ])
    def test_which_file(self, tmp_path, files, found):
        for name in ("a.flac", *files):
            (tmp_path / name).touch()
        assert voices.transcript_of(tmp_path / "a.flac") == (found and tmp_path / found)

    def test_spelled_in_two_ways(self, tmp_path):
        """macOS writes letters and their marks apart, editors together."""
        path = put(tmp_path, "Zoe\u0308.wav", speech())
        (tmp_path / "Zo\u00eb.txt").write_text("Hello.", encoding="utf-8")
        assert (load(path).name, load(path).transcript) == ("Zo\u00eb", "Hello.")

    @pytest.mark.parametrize("raw, found", [
        (b"", ""), (b"\xef\xbb\xbfGood\r\nevening. \r\n", "Good\nevening."), ("Zoe\u0308".encode(), "Zo\u00eb"),
        (b"\xef\xbb\xbf", ""),
    ])
    def test_as_editors_save_it(self, tmp_path, raw, found):
        assert load(put(tmp_path, "a.wav", speech(), words=raw)).transcript == found

    def test_without_one(self, tmp_path):
        assert load(put(tmp_path, "a.wav", speech())).transcript == ""

    @pytest.mark.parametrize("raw, text", [
        ("Zoë".encode("latin-1"), r"a\.txt: the transcript is not in UTF-8 \(byte 2 is 0xeb\); save it in UTF-8"),
        ("Zoë".encode("utf-16"), r"not in UTF-8 \(byte 0 is 0xff\)"),
        (bytes(70_000), r"a\.txt: 70,000 bytes are no transcript; put there what is said .* at most 65,536 bytes"),
    ])
    def test_not_one(self, tmp_path, raw, text):
        path = put(tmp_path, "a.wav", speech(), words=raw)
        with pytest.raises(ValueError, match=f"^Voice Library: .*{text}"):
            load(path)

    def test_a_link_that_leads_nowhere(self, tmp_path):
        path = put(tmp_path, "a.wav", speech())
        (tmp_path / "a.txt").symlink_to(tmp_path / "gone.txt")
        with pytest.raises(OSError, match=r"a\.txt: the transcript cannot be read \(No such file.*or delete it"):
            load(path)


class TestReading:
    @pytest.mark.parametrize("suffix", [*KINDS, ".WAV", ".Mp3"])
    def test_every_kind(self, tmp_path, suffix):
        wave = speech()
        found = load(put(tmp_path, f"Dr. Who{suffix}", wave, words="Hello."))
        assert (found.name, found.transcript) == ("Dr. Who", "Hello.")
        assert found.clip.rate_hz == (48_000 if suffix == ".opus" else RATE_HZ)
        assert found.clip.seconds == pytest.approx(1.0, abs=0.07)
        assert float(found.clip.wave.std()) == pytest.approx(float(wave.std()), rel=0.1)

    @pytest.mark.parametrize("bits, form, step", [
        (8, 1, 2**-7), (16, 1, 2**-15), (24, 1, 2**-23), (32, 1, 2**-31), (32, 3, 0), (64, 3, 0)])
    @pytest.mark.parametrize("channels", [1, 2])
    def test_every_kind_of_sample(self, tmp_path, bits, form, step, channels):
        """Of stereo the mean is taken, by one rule for all formats of samples."""
        wave = torch.stack([speech(0.5, seed=seed) for seed in range(channels)]).double()      # (C, T)
        flat = wave.T.reshape(-1)
        if form == 3:
            raw = (flat.float() if bits == 32 else flat).numpy().tobytes()
        elif bits == 8:
            raw = (flat / step + 128).round().to(torch.uint8).numpy().tobytes()
        else:
            whole = (flat / step).round().to(torch.int32).numpy().astype("<i4").tobytes()
            raw = b"".join(whole[at:at + bits // 8] for at in range(0, len(whole), 4))
        path = tmp_path / "a.wav"
        path.write_bytes(wav(raw, 44_100, channels, bits, form))
        clip = load(path).clip
        assert clip.rate_hz == 44_100 and clip.wave.shape == (12_000,)
        torch.testing.assert_close(clip.wave, wave.mean(dim=0).float(), atol=step / 2 + 1e-7, rtol=0)

    def test_rate_is_the_file_s_own(self, tmp_path):
        for rate_hz in (8000, 11_025, 44_101, 96_000):
            clip = load(put(tmp_path, "a.flac", speech(0.5, rate_hz), rate_hz)).clip
            assert (clip.rate_hz, len(clip.wave)) == (rate_hz, rate_hz // 2)

    def test_link_s_own_name_and_transcript(self, tmp_path):
        put(tmp_path / "far", "b.wav", speech(), words="Of b.")
        (tmp_path / "a.wav").symlink_to(tmp_path / "far" / "b.wav")
        (tmp_path / "a.txt").write_text("Of a.", encoding="utf-8")
        assert (load(tmp_path / "a.wav").name, load(tmp_path / "a.wav").transcript) == ("a", "Of a.")

    def test_long_files_are_not_kept_whole(self, tmp_path):
        """An hour of a podcast in the folder of voices once took as much memory as a model."""
        path = put(tmp_path, "a.wav", speech(100.0, 8000), 8000)
        clip, seconds = voices.read(path, "Voice Library")
        assert seconds == 100.0 and 30 < clip.seconds < 32
        assert 24 <= load(path).clip.seconds <= 30
        (tmp_path / "a.txt").write_text("Hello.", encoding="utf-8")
        with pytest.raises(ValueError, match=r"a\.wav: the recording is 100.00 s long, and one with a transcript"):
            load(path)

    @pytest.mark.parametrize("raw, text", [
        (b"", r"the file is empty \(0 bytes\); put the recording there again"),
        (b"Entry not found", r"this cannot be read as sound \(.*\)\. If it plays elsewhere, convert it to WAV or FLAC"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "the file holds no sound; put a recording there"),
        (wav(b"", RATE_HZ, 1, 16), "the file holds no sound; put a recording there|cannot be read as sound"),
        (wav(bytes(48_000), RATE_HZ, 1, 16), "the recording is silent"),
        (wav(bytes(2), RATE_HZ, 1, 16), "1 sample .*give at least 0.1 s of speech"),
        (wav(torch.full((24_000,), float("nan")).numpy().tobytes(), RATE_HZ, 1, 32, 3), "24000 samples are NaN"),
        (wav(bytes(48_000), 50, 1, 16), "the sample rate is 50"),
    ], ids=["empty", "text", "picture", "no samples", "silence", "one sample", "NaN", "rate"])
    def test_not_a_recording(self, tmp_path, raw, text):
        path = tmp_path / "a.wav"
        path.write_bytes(raw)
        with pytest.raises(ValueError, match=f"^Voice Library: {path}: .*({text})"):
            load(path)

    def test_a_picture_alone(self, tmp_path):
        """A film without sound has streams, and none of them is sound."""
        import av
        import numpy as np
        with av.open(tmp_path / "a.m4a", "w", format="mp4") as file:
            stream = file.add_stream("mpeg4", rate=10)
            stream.width = stream.height = 16
            frame = av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8), format="rgb24")
            file.mux(stream.encode(frame))
            file.mux(stream.encode(None))
        with pytest.raises(ValueError, match="the file holds no sound; put a recording there"):
            load(tmp_path / "a.m4a")

    def test_two_recordings_in_one_file(self, tmp_path):
        """Copied one behind the other; samples of one kind cannot follow those of another."""
        path = tmp_path / "a.mp3"
        path.write_bytes(b"".join(
            encoded(wave, RATE_HZ, "mp3", "libmp3lame", write_xing="0", id3v2_version="0")
            for wave in (speech(), speech().expand(2, -1))))
        with pytest.raises(ValueError, match="the sound changes amid the file from 24000 Hz and 1 channels to 24000 Hz "
                                             "and 2; convert it to WAV or FLAC"):
            load(path)

    def test_a_file_that_may_not_be_read(self, tmp_path, monkeypatch):
        path = put(tmp_path, "a.wav", speech())

        def refuse(*_, **__):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("builtins.open", refuse)
        with pytest.raises(OSError, match=r"a\.wav: the file cannot be read \(Permission denied\)"):
            voices.read(path, f"Voice Library: {path}")


class TestSaving:
    def test_back_and_forth(self, tmp_path, voice):
        path = save(voice, tmp_path / "models" / "voices")
        assert path == tmp_path / "models" / "voices" / "Ada.flac"
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
