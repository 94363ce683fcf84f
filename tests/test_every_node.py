"""All nodes under what users bring: every AUDIO input, every text, every decoder, in all families.

What a kind of input means is told once, in ``kit.audio`` and ``kit.odd``; who takes it and who makes it, here.
"""
from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import replace

import folder_paths
import pytest
import torch
import torchaudio
from test_nodes import DEMO, assert_audio, run, speech

from kit.audio import BAD_AUDIO, UNSPEAKABLE, LazyAudio, audio, good_audio
from kit.odd import MUTE, ODD_TEXTS, WORDS
from speechwright import files, nodes
from speechwright.omnifish import pipeline as ogg_pipeline
from speechwright.s3gen import pieces
from speechwright.text import speakable
from speechwright.wires import FISH_44K, S3_V2, S3_V3, Piece, SpeechTokens

TALKERS = ("CosyVoice2", "CosyVoice3", "OGG TTS")
SAID = "He said so, and then he left the room."
CODEC_RATE_HZ = 44_100


@functools.lru_cache(maxsize=8)
def model(demo: str):
    return run(nodes.LoadModel, DEMO | {"demo": demo})


@pytest.fixture(scope="module", autouse=True)
def forgotten():
    """The models go with the tests of this file."""
    yield
    model.cache_clear()
    voice.cache_clear()


@functools.lru_cache(maxsize=2)
def voice(transcript: str = SAID):
    return run(nodes.VoiceNode, audio(speech(2.0, seed=1)), transcript, "Ada")


def encode(demo: str, text: str, *voices, **options):
    """The prompt, with what reads the voices of CosyVoice2."""
    reader = model("S3Gen") if demo == "CosyVoice2" else None
    slots = {f"voice{number}": one for number, one in enumerate(voices)}
    return run(nodes.EncodePrompt, model(demo), text, slots, speech_tokenizer=reader, **options)


def sample(demo: str, prompt, seed: int = 0, **options) -> SpeechTokens:
    node = nodes.BlockDiffusionSampler if demo == "OGG TTS" else nodes.RASSampler
    return run(node, model(demo), prompt, seed, **options)


def decode(tokens: SpeechTokens, demo: str, seed: int = 0) -> dict:
    if demo == "OGG TTS":
        return run(nodes.FishDecode, model(demo), tokens)
    return run(nodes.S3Token2Wav, model(demo), tokens, seed, voice())


# Who takes sound: what errors call it, and the call.
TAKERS: dict[str, tuple[str, Callable]] = {
    "Voice": ("Voice: audio", lambda given: run(nodes.VoiceNode, given)),
    "S3 Tokenize, S3Gen": ("S3 Tokenize: audio", lambda given: run(nodes.S3Tokenize, model("S3Gen"), given)),
    "S3 Tokenize, CosyVoice3": ("S3 Tokenize: audio", lambda given: run(nodes.S3Tokenize, model("CosyVoice3"), given)),
    "Encode Fish Codes": ("Encode Fish Codes: audio", lambda given: run(nodes.FishEncode, model("OGG TTS"), given)),
    "Speech Report": ("Speech Report: audio", lambda given: run(nodes.SpeechReport, audio=given)),
    # Sound is looked at before files are.
    "Transcribe Speech": ("Transcribe Speech: audio", lambda given: run(nodes.Transcribe, given, "nowhere")),
}
READERS = [name for name in TAKERS if name != "Transcribe Speech"]
HEARERS = [name for name in TAKERS if name != "Speech Report"]      # which need speech

# Who makes sound: the kind of tokens, their codebooks and frames per second, and the rate.
DECODERS = {"S3Gen": (S3_V2, 1, 25, 24_000), "S3Gen meanflow": (S3_V2, 1, 25, 24_000),
            "CosyVoice3": (S3_V3, 1, 25, 24_000), "OGG TTS": (FISH_44K, 10, 44_100 / 2048, CODEC_RATE_HZ)}
every_decoder = pytest.mark.parametrize("demo", DECODERS)
every_talker = pytest.mark.parametrize("demo", TALKERS)


def tokens_of(demo: str, *lengths: int, seed: int = 0) -> SpeechTokens:
    """Rows of random ids, of so many frames."""
    kind, codebooks, rate, _ = DECODERS[demo]
    rng = torch.Generator().manual_seed(seed)
    rows = [torch.randint(0, 1024, (codebooks, length), generator=rng) for length in lengths]
    return SpeechTokens(kind, rate, tuple((Piece(row),) for row in rows))


def same(one: object, other: object) -> bool:
    """Whether two results of a taker are equal."""
    if isinstance(one, SpeechTokens):
        return all(torch.equal(a.ids, b.ids) for row, also in zip(one.batch, other.batch) for a, b in zip(row, also))
    waves = (one, other) if torch.is_tensor(one) else (one.clip.wave, other.clip.wave)
    return torch.allclose(*waves, atol=1e-6, rtol=0)        # the mean of six is rounded


class TestTakers:
    @pytest.mark.parametrize("kind", BAD_AUDIO)
    @pytest.mark.parametrize("name", TAKERS)
    def test_bad_sound(self, name, kind):
        role, take = TAKERS[name]
        make, text = BAD_AUDIO[kind]
        if (name, kind) == ("Speech Report", "nothing"):
            role, text = "Speech Report: ", "neither tokens nor audio is connected"
        with pytest.raises(ValueError, match=text) as caught:
            take(make())
        assert str(caught.value).startswith(role)

    @pytest.mark.parametrize("kind", UNSPEAKABLE)
    @pytest.mark.parametrize("name", HEARERS)
    def test_sound_without_speech(self, name, kind):
        """Left and right in opposition are silence, to whoever mixes them; one side alone would be speech."""
        role, take = TAKERS[name]
        make, text = UNSPEAKABLE[kind]
        with pytest.raises(ValueError, match=f"^{role}: .*{text}"):
            take(make())

    @pytest.mark.parametrize("kind", good_audio(0.1))
    @pytest.mark.parametrize("name", READERS)
    def test_every_wrapping_of_sound(self, name, kind):
        """What differs in form alone is the same; what was resampled is as long."""
        take, given = TAKERS[name][1], good_audio(0.4)
        found, plain = take(given[kind]), take(given["mono"])
        if kind in ("stereo", "six channels", "float64", "transposed view", "expanded view", "needs a gradient",
                    "rate 24000.0", "rate of numpy", "rate of torch", "lazy mapping"):
            assert same(found, plain)
        if isinstance(found, SpeechTokens):
            lengths = [row[0].ids.shape for row in (*found.batch, *plain.batch)]
            assert abs(lengths[0][1] - lengths[1][1]) <= 1

    @pytest.mark.parametrize("name", TAKERS)
    def test_a_lazy_recording(self, name):
        """Decoded once, and what goes wrong in the file is told as it is."""
        _, take = TAKERS[name]
        lazy = LazyAudio(audio(speech(0.3)))
        if name in READERS:
            take(lazy)
            assert lazy.reads == {"waveform": 1, "sample_rate": 1}
        for error in (OSError("no audio stream"), KeyError("track"), RuntimeError("codec")):
            with pytest.raises(type(error)) as caught:
                take(LazyAudio(audio(speech(0.3)), error))
            assert caught.value is error

    @pytest.mark.parametrize("name", READERS)
    def test_channels_are_mixed_and_rows_stay_apart(self, name):
        """Never put behind each other, and never the first alone."""
        role, take = TAKERS[name]
        rows = [speech(0.4, seed=seed) for seed in range(3)]
        assert same(take(audio(torch.stack(rows[:2]))), take(audio((rows[0] + rows[1]) / 2)))
        batch = audio(torch.stack(rows)[:, None])
        if name == "Voice":
            with pytest.raises(ValueError, match=f"{role}: the audio is a batch of 3 recordings, and one is needed"):
                take(batch)
        elif name == "Speech Report":
            alone = run(nodes.SpeechReport, audio=audio(rows[2]))
            assert run(nodes.SpeechReport, audio=batch, row=2).shape[2:] == alone.shape[2:]
            assert len(run(nodes.SpeechReport, audio=batch, row=-1)) == 3
        else:
            found = take(batch)
            assert len(found.batch) == 3
            for row, wave in zip(found.batch, rows):
                assert torch.equal(row[0].ids, take(audio(wave)).batch[0][0].ids)

    @pytest.mark.parametrize("name", READERS)
    def test_what_was_given_is_left_alone(self, name):
        given = audio(speech(0.4).clone())
        before = given["waveform"].clone()
        TAKERS[name][1](given)
        assert torch.equal(given["waveform"], before) and given.keys() == {"waveform", "sample_rate"}

    @pytest.mark.parametrize("name", ["S3 Tokenize, S3Gen", "S3 Tokenize, CosyVoice3", "Encode Fish Codes"])
    @pytest.mark.parametrize("seconds", [30.1, 61.0])
    def test_no_end_is_cut_off(self, name, seconds):
        """Of what is longer than a window, too."""
        tokens = TAKERS[name][1](audio(speech(seconds, 16_000), 16_000))
        assert abs(tokens.batch[0][0].ids.shape[1] - seconds * tokens.frames_per_second) <= 1


class TestMakers:
    @every_decoder
    def test_contract_and_round_trip(self, demo):
        """Whatever a decoder makes, every other node takes."""
        found = decode(tokens_of(demo, 10, 13), demo)
        rate_hz = DECODERS[demo][3]
        assert found["sample_rate"] == rate_hz and type(found["sample_rate"]) is int
        assert_audio(found, 13 / DECODERS[demo][2], rows=2)
        for name, (_, take) in TAKERS.items():
            one = {**found, "waveform": found["waveform"][1:]}
            if name == "Transcribe Speech":
                with pytest.raises(FileNotFoundError, match="nowhere"):
                    take(found)
            else:
                take(one if name == "Voice" else found)

    @every_decoder
    @pytest.mark.parametrize("frames", [1, 2, 3])
    def test_the_shortest(self, demo, frames):
        """A token is shorter than the fade that begins a take, and than the vocoder's filters."""
        found = decode(tokens_of(demo, frames), demo)
        assert_audio(found, frames / DECODERS[demo][2])

    @every_decoder
    @pytest.mark.parametrize("value", [3.0, math.nan, -math.inf])
    def test_what_a_network_must_not_give(self, demo, value, monkeypatch, caplog):
        """Loud samples are clamped, with a word; broken ones are never passed on."""
        module = ogg_pipeline if demo == "OGG TTS" else pieces
        monkeypatch.setattr(module, "join_row", lambda *_: torch.full((100,), value))
        if value == 3.0:
            wave = decode(tokens_of(demo, 2), demo)["waveform"]
            assert wave.abs().max() == 1 and "peaks at 3 and is clamped to 1" in caplog.text
        else:
            with pytest.raises(RuntimeError, match="audio row 0: 100 of 100 samples from the model are NaN or inf"):
                decode(tokens_of(demo, 2), demo)

    @pytest.mark.parametrize("demo, codebook, token", [
        *((demo, 0, token) for demo in DECODERS if demo != "OGG TTS" for token in (6561, 6562, 6564, 2**31, 2**62)),
        *(("OGG TTS", *place) for place in (
            (0, 4096), (0, 4097), (0, 4098), (0, 2**62), (1, 1024), (1, 1025), (9, 1024), (9, 4096)))])
    def test_ids_beyond_the_tables(self, demo, codebook, token):
        """Of control, of the mask and of no table: named before any lookup, which on a GPU would end the session."""
        kind, codebooks, rate, _ = DECODERS[demo]
        ids = torch.zeros(codebooks, 5, dtype=torch.int64)
        ids[codebook, 3] = token
        with pytest.raises(ValueError, match=str(token)):
            decode(SpeechTokens(kind, rate, ((Piece(ids),),)), demo)

    @pytest.mark.parametrize("ids, words", [
        ([[0, -1]], "id -1 is negative"), ([[]], "0 frames, so there is nothing to decode"), ([1, 2], "got"),
        ([[0.0]], "expected int64"), ([[True]], "expected int64")])
    def test_ids_that_no_wire_carries(self, ids, words):
        with pytest.raises(ValueError, match=f"^speech tokens: .*{words}"):
            Piece(torch.tensor(ids))


# What the errors of texts begin with: the inputs of Encode Speech Prompt, and what stands in them.
NAMED = ("text", "voices", "instruction", "before", "after", "speaker", "quality", "language", "method", "mode")


class TestTexts:
    @every_talker
    @pytest.mark.parametrize("into", ["text", "instruction", "before", "after", "speaker", "quality", "language"])
    def test_every_text_in_every_input(self, demo, into):
        """A prompt of pieces that each have something to speak, or one error that names the input."""
        refused = []
        for text in ODD_TEXTS.values():
            try:
                prompt = encode(demo, **{"text": "One is here.", into: text})
            except ValueError as error:
                named = str(error).removeprefix("Encode Speech Prompt: ").split(":")[0]
                assert named in NAMED, f"{text!r}: {error}"
                refused.append(text)
            else:
                assert prompt.pieces and all(speakable(piece.text) for piece in prompt.pieces), text
        if into == "text":
            assert set(refused) >= {ODD_TEXTS[name] for name in MUTE}
            assert "Hello.\r\nBye.\r\n" not in refused and len(refused) < len(ODD_TEXTS) / 2

    @every_talker
    def test_every_transcript_and_name_of_a_voice(self, demo):
        """The pace of a voice is told by its words: of none, it is not."""
        for text in ODD_TEXTS.values():
            for transcript, name in ((text, "Ada"), (SAID, text)):
                ada = run(nodes.VoiceNode, audio(speech(1.0)), transcript, name)
                prompt = encode(demo, "One is here.", ada)
                assert [piece.voice for piece in prompt.pieces] == [ada], (transcript, name)
        silent = run(nodes.VoiceNode, audio(speech(1.0)), "")
        assert sample(demo, encode(demo, "Good morning to you.", silent)).batch[0][0].ids.shape[1] > 0

    @every_talker
    def test_lines_without_a_letter_add_nothing(self, demo):
        """They died in mid-job, or were spoken as a hum."""
        plain = encode(demo, "Hello.\nBye.")
        prompt = encode(demo, "Hello.\n-----\n(￣▽￣)\n❤\ufe0f\nBye.")
        assert len(prompt.pieces) == len(plain.pieces) == 2
        if demo != "OGG TTS":       # whose model reads signs beside words
            assert [piece.content for piece in prompt.pieces] == [piece.content for piece in plain.pieces]

    @every_talker
    @pytest.mark.parametrize("word", WORDS)
    def test_one_word(self, demo, word):
        """Long enough to be heard, and not babble: within what the text may take."""
        prompt = encode(demo, word)
        frames = sample(demo, prompt).batch[0][0].ids.shape[1]
        if demo == "OGG TTS":
            assert 1 <= frames <= 32 + 2 * 1.6 * len(word) + 16
        else:
            count = len(prompt.pieces[0].content.text_ids)
            assert 2 * count <= frames <= 20 * count

    @every_talker
    def test_many_short_lines(self, demo):
        """In turn by two voices, each piece in its own."""
        bo = run(nodes.VoiceNode, audio(speech(1.0, seed=2)), "And she said no.", "Bo")
        prompt = encode(demo, "Ada: Yes.\nBo: No.\n" * 4, voice(), bo)
        tokens = sample(demo, prompt, max_seconds=1.0) if demo == "OGG TTS" else sample(demo, prompt)
        assert len(tokens.batch[0]) == (1 if demo == "OGG TTS" else 8)
        decoder = "S3Gen" if demo == "CosyVoice2" else demo
        assert decode(tokens, decoder)["waveform"].isfinite().all()

    @every_talker
    def test_a_long_text_at_once(self, demo):
        """Beyond every table of positions there is; what is generated is bounded, too."""
        prompt = encode(demo, "One is here, and two is there. " * 60, keep_whole=True)
        short = {"max_seconds": 0.7, "steps": 1} if demo == "OGG TTS" else {"max_ratio": 0.1, "min_ratio": 0.0}
        (piece,), = sample(demo, prompt, **short).batch
        assert len(prompt.pieces) == 1 and 1 <= piece.ids.shape[1] <= 200

    def test_every_name_is_a_file_in_its_folder(self, tmp_path, monkeypatch):
        monkeypatch.setattr(folder_paths, "models_dir", str(tmp_path / "models"))
        monkeypatch.setattr(folder_paths, "folder_names_and_paths", {})
        files.register_folders()
        for name in ODD_TEXTS.values():
            try:
                saved = run(nodes.SaveVoice, replace(voice(), name=name), overwrite=True)
            except ValueError as error:
                assert str(error).startswith("Save Voice: name: ") and "leaves nothing to call a file by" in str(error)
            else:
                found = run(nodes.VoiceLibrary, saved.name)
                assert (found.name, found.transcript) == (saved.name, SAID)
        assert {path.parent for path in tmp_path.rglob("*") if path.is_file()} == {tmp_path / "models" / "voices"}


def test_no_library_of_codecs_and_no_file_is_needed(monkeypatch):
    """Recordings went through a file, whose library was not there after an update."""
    def refuse(*_, **__):
        raise ImportError("TorchCodec is required")

    for name in ("load", "save", "info"):
        monkeypatch.setattr(torchaudio, name, refuse, raising=False)
    for name in ("torchcodec", "soundfile", "librosa", "pydub", "ffmpeg"):
        monkeypatch.setitem(sys.modules, name, None)
    given = audio(speech(1.0, 44_100), 44_100)
    for name, (_, take) in TAKERS.items():
        if name in READERS:
            take(given)
    for demo in TALKERS:
        short = {"max_seconds": 0.7} if demo == "OGG TTS" else {}
        tokens = sample(demo, encode(demo, "Yes.", run(nodes.VoiceNode, given, SAID)), **short)
        decode(tokens, "S3Gen" if demo == "CosyVoice2" else demo)
