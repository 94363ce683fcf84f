"""Speech Report as ComfyUI calls it, and through its queue."""
from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from test_nodes import DEMO, run, speech

from kit.audio import BAD_AUDIO, UNSPEAKABLE, LazyAudio, audio, good_audio, tone
from kit.checkout import CHECKOUT
from kit.reports import speech as tokens_of
from kit.reports import spoken
from kit.server import Comfy
from speechwright import nodes
from speechwright.wires import FISH_44K, S3_V3


def report(*args, **kwargs) -> tuple[torch.Tensor, str]:
    with torch.inference_mode():
        return nodes.SpeechReport.execute(*args, **kwargs).args


def assert_image(image: torch.Tensor, width: int = 1200, rows: int = 1) -> None:
    assert image.dtype == torch.float32 and image.device.type == "cpu" and image.is_contiguous()
    assert image.shape[0] == rows and image.shape[2:] == (width, 3) and image.shape[1] > 100
    assert image.min() >= 0 and image.max() <= 1 and len(image.unique()) > 20


@pytest.mark.parametrize("kind, given", good_audio(0.5).items(), ids=good_audio(0.1))
def test_every_wrapping_of_sound(kind, given):
    image, text = report(None, given)
    assert_image(image)
    assert "audio: 0.50 s" in text and "peak -6.0 dBFS" in text


@pytest.mark.parametrize("kind", [kind for kind in BAD_AUDIO if kind != "nothing"])
def test_bad_sound(kind):
    make, text = BAD_AUDIO[kind]
    with pytest.raises(ValueError, match=text) as caught:
        report(None, make())
    assert str(caught.value).startswith("Speech Report: audio")


@pytest.mark.parametrize("kind", UNSPEAKABLE)
def test_sound_without_speech_is_shown(kind):
    image, text = report(None, UNSPEAKABLE[kind][0]())
    assert_image(image)
    assert "silent" in text or kind == "two samples"


def test_a_lazy_recording_is_read_once():
    given = LazyAudio(audio(tone()))
    report(None, given)
    assert given.reads == {"waveform": 1, "sample_rate": 1}
    failing = LazyAudio(audio(tone()), error=RuntimeError("no audio track"))
    with pytest.raises(RuntimeError, match="no audio track"):
        report(None, failing)


@pytest.mark.parametrize("given", [(), (None, None), (None, None, 800, 0)])
def test_nothing_is_connected(given):
    with pytest.raises(ValueError, match="Speech Report: neither tokens nor audio is connected; connect one"):
        report(*given)


@pytest.mark.parametrize("kind", [S3_V3, FISH_44K])
def test_tokens_alone_and_with_sound(kind):
    tokens = tokens_of(kind, 3)
    alone, words = report(tokens)
    both, more = report(tokens, audio(spoken(tokens).wave))
    assert_image(alone)
    assert_image(both)
    assert alone.shape[1] < both.shape[1] and words.splitlines()[1] == more.splitlines()[1]


def test_rows_of_a_batch():
    sounds = audio(torch.stack([speech(0.4, seed=seed) for seed in range(3)])[:, None])
    image, text = report(None, sounds, 400, -1)
    assert_image(image, 400, 3)
    singles = [report(None, sounds, 400, row) for row in range(3)]
    assert torch.equal(image, torch.cat([single for single, _ in singles]))
    assert text.split("\n\n") == [single for _, single in singles]
    with pytest.raises(ValueError, match="there is no row 3 in audio, which has 3; choose 0 to 2, or -1 for all"):
        report(None, sounds, 400, 3)


def test_what_was_given_is_left_alone():
    given, state = audio(speech()), torch.get_rng_state()
    before = given["waveform"].clone()
    tokens = tokens_of(S3_V3, 2)
    ids = [piece.ids.clone() for piece in tokens.batch[0]]
    report(tokens, given)
    assert torch.equal(given["waveform"], before) and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(piece.ids, own) for piece, own in zip(tokens.batch[0], ids))


def test_what_a_demo_says():
    """Tokens of a recording have no history, and their audio keeps their clock."""
    model = run(nodes.LoadModel, DEMO)
    source = audio(speech(2.0))
    tokens = run(nodes.S3Tokenize, model, source)
    sound = run(nodes.S3Token2Wav, model, tokens, 0, run(nodes.VoiceNode, source))
    image, text = report(tokens, sound)
    assert_image(image)
    assert "s3-v2 tokens: 1 piece, 50 frames, 25 per second, 2.00 s" in text and "not sampled here" in text
    assert "note" not in text


def test_through_the_queue(comfy: Comfy):
    """A dialogue's tokens and audio become a picture that ComfyUI saves, and words that it shows."""
    graph = json.loads((CHECKOUT / "workflows" / "api" / "cosyvoice3_dialogue.json").read_text(encoding="utf-8"))
    graph["20"] = {"class_type": "SpeechwrightReport", "inputs": {
        "tokens": ["5", 0], "audio": ["6", 0], "width": 1000, "row": 0}}
    graph["21"] = {"class_type": "SaveImage", "inputs": {"images": ["20", 0], "filename_prefix": "report"}}
    graph["22"] = {"class_type": "PreviewAny", "inputs": {"source": ["20", 1]}}
    done = comfy.queue(graph)
    assert done.completed, done.history["status"]
    file, = done.history["outputs"]["21"]["images"]
    picture = np.asarray(Image.open(comfy.path(file)))
    assert picture.shape[1:] == (1000, 3) and len(np.unique(picture.reshape(-1, 3), axis=0)) > 300
    text, = done.history["outputs"]["22"]["text"]
    lines = text.splitlines()
    assert lines[0] == "Speech Report" and lines[1].startswith("s3-v3 tokens: 4 pieces, ")
    assert "   pause of 0.80 s" in lines and any(line.endswith(": Hello?") for line in lines)
    assert any(line.startswith("peak ") for line in lines)


def test_alone_through_the_queue(comfy: Comfy):
    graph = {"1": {"class_type": "LoadAudio", "inputs": {"audio": "ada.flac"}},
             "2": {"class_type": "SpeechwrightReport", "inputs": {"audio": ["1", 0]}},
             "3": {"class_type": "PreviewImage", "inputs": {"images": ["2", 0]}}}
    done = comfy.queue(graph)
    assert done.completed, done.history["status"]
    assert Image.open(comfy.path(done.history["outputs"]["3"]["images"][0])).width == 1200
