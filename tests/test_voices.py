"""Which recordings make a voice, which files are one, and how they are read."""
from __future__ import annotations

import logging
import unicodedata
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kit.audio import tone
from kit.recordings import KINDS, RATE_HZ, encoded, put, speech, wav
from speechwright import voices
from speechwright.audio import Clip
from speechwright.wires import Voice


def load(path: Path) -> Voice:
    return voices.load(path, "Voice Library")


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

    def test_a_name_that_is_no_text(self, tmp_path):
        """A file from a system with another encoding; its name could not be sent to a browser."""
        path = tmp_path / "Zo\udceb.wav"
        path.write_bytes(encoded(speech(), RATE_HZ, "wav", "pcm_s16le"))
        (tmp_path / "Zo\udceb.txt").write_text("Hello.", encoding="utf-8")
        assert (load(path).name, load(path).transcript) == ("Zo?", "Hello.")

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
