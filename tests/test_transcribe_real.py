"""Real speech and real weights: our node against the same model in faster-whisper, and what our audio does to words.

The measure is word errors on twenty sentences; an ear of its own hears the untouched clips in the same run.
"""
from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
import torch
from test_nodes import run
from torch import Tensor

from kit import ear, speech, whisper
from kit.audio import audio
from kit.server import Comfy
from speechwright import nodes
from speechwright.audio import clips, join, resample, sounding
from speechwright.hearing import folder, pipeline
from speechwright.hearing.windows import windows

NAME = "whisper/tiny.en"
WORDS = sum(len(ear.words(sentence)) for sentence in ear.SENTENCES)
ALLOWED = 0.02          # of the words, beyond the ear's own errors


def quiet(seconds: float) -> Tensor:
    """(T,) of faint hiss at 24 kHz, as a room has."""
    rng = torch.Generator().manual_seed(0)
    return 1e-4 * torch.randn(round(seconds * ear.SPOKEN_HZ), generator=rng)


def heard_at(wave: Tensor, rate_hz: int = ear.SPOKEN_HZ) -> str:
    return ear.hear(resample(wave, rate_hz, ear.HEARD_HZ))


@pytest.fixture(scope="module")
def baseline() -> int:
    """The ear's errors on the clips as they were made."""
    found = sum(ear.errors(said, heard_at(clip)) for said, clip in zip(ear.SENTENCES, ear.clips()))
    assert found <= 0.06 * WORDS        # or else the ear is no measure
    return found


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    return whisper.write_folder(tmp_path_factory.mktemp("real") / "tiny.en")


@pytest.fixture
def here(two_roots, real):
    (two_roots[0] / NAME).parent.mkdir()
    (two_roots[0] / NAME).symlink_to(real)


def test_our_words(here, baseline):
    """A batch of the twenty, padded with zeros to the longest as batches are."""
    longest = max(map(len, ear.clips()))
    batch = torch.stack([torch.nn.functional.pad(clip, (0, longest - len(clip))) for clip in ear.clips()])
    lines = run(nodes.Transcribe, audio(batch[:, None]), NAME).split("\n")
    assert len(lines) == len(ear.SENTENCES)
    found = sum(map(ear.errors, ear.SENTENCES, lines))
    assert found <= baseline + ALLOWED * WORDS, lines


def mixed(wave: Tensor) -> Tensor:
    """Through stereo at unlike levels, as ``clips`` mixes it."""
    return clips(audio(torch.stack((wave, 0.4 * wave))), "test")[0].wave


def fours(change: Callable[[Tensor], Tensor]) -> list[tuple[str, Tensor]]:
    """Four changed sentences at a time, joined with pauses and, in the middle, with none: and what is said."""
    found = []
    for begin in range(0, len(ear.SENTENCES), 4):
        several = slice(begin, begin + 4)
        waves = list(map(change, ear.clips()[several]))
        found.append((" ".join(ear.SENTENCES[several]), join(waves, [0.3, 0.0, 0.3], ear.SPOKEN_HZ, 20.0)))
    return found


def trimmed(wave: Tensor) -> Tensor:
    """With a second of room before it, and one behind it that is taken away."""
    padded = torch.cat((quiet(1.0), wave, quiet(1.0)))
    kept = sounding(padded, ear.SPOKEN_HZ, 0.05)
    assert kept < len(padded) - 0.8 * ear.SPOKEN_HZ
    return padded[:kept]


def through(rate_hz: int) -> Callable[[Tensor], Tensor]:
    """There and back."""
    return lambda wave: resample(resample(wave, ear.SPOKEN_HZ, rate_hz), rate_hz, ear.SPOKEN_HZ)


def test_words_after_resampling(baseline):
    """24 to 44.1 kHz and from there to the ear's 16."""
    found = sum(ear.errors(said, heard_at(resample(clip, ear.SPOKEN_HZ, 44_100), 44_100))
                for said, clip in zip(ear.SENTENCES, ear.clips()))
    assert found <= baseline + ALLOWED * WORDS


@pytest.mark.parametrize("change", [through(44_101), mixed, trimmed], ids=["odd rate", "mixed", "trimmed"])
def test_words_after_our_audio_and_joints(baseline, change):
    found = sum(ear.errors(said, heard_at(wave)) for said, wave in fours(change))
    assert found <= baseline + ALLOWED * WORDS


def test_long_recordings_lose_no_word(here, baseline):
    """All twenty in one recording of 80 s, three windows and more: what is heard is what each gives alone."""
    wave = torch.cat([part for clip in ear.clips() for part in (clip, quiet(0.5))])
    assert len(wave) > 75 * ear.SPOKEN_HZ
    line = run(nodes.Transcribe, audio(wave), NAME)
    assert "\n" not in line and ear.errors(" ".join(ear.SENTENCES), line) <= baseline + ALLOWED * WORDS


def test_seams_lie_between_sentences():
    """However long the pauses: every window ends in one of them."""
    for pause_s in (0.25, 0.5, 1.5):
        parts, pauses, place = [], [], 0
        for clip in (*ear.clips(), *ear.clips()):
            wave = resample(torch.cat((clip, quiet(pause_s))), ear.SPOKEN_HZ, ear.HEARD_HZ)
            pauses.append((place + len(wave) - round((pause_s + 0.3) * ear.HEARD_HZ), place + len(wave)))
            parts.append(wave)
            place += len(wave)
        for _, end in windows(torch.cat(parts), ear.HEARD_HZ, 30 * ear.HEARD_HZ)[:-1]:
            assert any(begin < end <= stop + 0.1 * ear.HEARD_HZ for begin, stop in pauses), end / ear.HEARD_HZ


def test_noise_alone_has_no_words(here):
    hiss = 0.05 * torch.randn(5 * 16_000, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=r"no words are heard in row 1 \(5\.0 s\)"):
        run(nodes.Transcribe, audio(hiss, 16_000), NAME)


def test_a_person(here):
    """Debian's recording of a man who says two words, at 48 kHz."""
    import av
    import numpy as np
    with av.open(str(speech.person())) as file:
        samples = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
    line = run(nodes.Transcribe, audio(torch.from_numpy(samples), 48_000), NAME)
    assert ear.words(line) == ["front", "center"]


def test_a_row_is_blind_to_its_neighbours(real):
    """Levels of a spectrogram are measured against its loudest place: in a batch that was another row's."""
    heard, known = folder.open_folder(real), [pipeline.Clip(wave, ear.SPOKEN_HZ) for wave in ear.clips()[2:4]]
    quiet_one = pipeline.Clip(0.02 * known[0].wave, ear.SPOKEN_HZ)
    network = heard.build(torch.float32)

    def write(*given: pipeline.Clip) -> list[str]:
        with torch.inference_mode():
            return pipeline.transcribe(heard, network, given, "en", torch.device("cpu"), lambda done, total: None)

    together = write(quiet_one, known[1])
    assert together[:1] == write(quiet_one) and ear.words(together[0]) == ear.words(ear.SENTENCES[2])


def test_in_the_graph(comfy: Comfy, real):
    """Load Audio, Transcribe Speech, and its words as a voice's transcript; nothing stays loaded, Cancel and again."""
    sentence = ear.SENTENCES[0]
    samples = (ear.clips()[0].clamp(-1, 1) * 32767).numpy().astype("<i2").tobytes()
    speech.write_wav(comfy.booted.base / "input" / "fox.wav", samples, ear.SPOKEN_HZ)
    target = comfy.booted.base / "models" / "tts" / NAME
    shutil.copytree(real, target)
    graph = {
        "1": {"class_type": "LoadAudio", "inputs": {"audio": "fox.wav"}},
        "2": {"class_type": "SpeechwrightTranscribe", "inputs": {"audio": ["1", 0], "folder": NAME}},
        "3": {"class_type": "SpeechwrightVoice", "inputs": {"audio": ["1", 0], "transcript": ["2", 0], "name": "Fox"}},
        "4": {"class_type": "SpeechwrightSaveVoice", "inputs": {"voice": ["3", 0]}},
        "5": {"class_type": "PreviewAny", "inputs": {"source": ["2", 0]}},
    }
    try:
        comfy.free(free_memory=True)
        comfy.hold()
        stopped = comfy.queue(graph, interrupt_on="progress")
        assert not stopped.completed and stopped.of("execution_interrupted")[0]["node_id"] == "2"
        done = comfy.queue(graph)
        assert done.completed, done.history["status"]
        (text,), = done.history["outputs"]["5"].values()
        assert ear.errors(sentence, text) <= 2
        kept = (comfy.booted.base / "models" / "voices" / "Fox.txt").read_text(encoding="utf-8")
        assert kept.strip() == text
        assert comfy.queue(graph).cached >= {"1", "2", "3", "5"}
        comfy.free(unload_models=True)
        assert comfy.models() == []
    finally:
        shutil.rmtree(target)
