"""Every node with inputs that it runs with: all three families' demos, a voice, and a tiny Whisper."""
from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import folder_paths
import torch

from kit.audio import audio
from kit.tiny import speechlike
from kit.whisper import write_small
from speechwright import nodes
from speechwright.nodes.load import DEMO_OPTION

WORDS = "He said so, and then he left the room."
TEXT = "Good day. And you?"
EAR = "a tiny ear"
VOICE = "a kept voice"
IDS = 24                    # that the tiny ear has room for


def run(node, **inputs) -> object:
    """All outputs of a node, in inference mode as in ComfyUI."""
    with torch.inference_mode():
        return node.execute(**inputs).args


def load(demo: str, precision: str = "fp32") -> object:
    return run(nodes.LoadModel, family={"family": DEMO_OPTION, "demo": demo}, precision=precision)[0]


@dataclass
class Calls:
    """Nodes by name -> the inputs of a short call; where families differ, ``Node of family``."""

    models: dict[str, object]
    inputs: dict[str, dict] = field(default_factory=dict)

    def node(self, name: str) -> type:
        return getattr(nodes, name.split(" ")[0])

    def run(self, called: str, **changed) -> object:
        return run(self.node(called), **{**self.inputs[called], **changed})

    def result(self, called: str, **changed) -> list:
        """What a call gives, as plain values and tensors."""
        return plain(self.run(called, **changed))


def plain(value: object) -> list:
    """Tensors, texts and numbers of an output, in order."""
    if isinstance(value, (torch.Tensor, str, int, float)) or value is None:
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif hasattr(value, "batch"):
        return [value.kind, *(piece.ids for row in value.batch for piece in row)]
    elif hasattr(value, "pieces"):
        return [value.family, *(plain_content(piece.content) for piece in value.pieces)]
    elif hasattr(value, "clip"):
        return [value.clip.wave, value.transcript, value.name]
    elif not isinstance(value, (tuple, list)):
        return [type(value).__name__]
    return [item for part in value for item in plain(part)]


def plain_content(content: object) -> str:
    with torch._tensor_str.printoptions(profile="full"):
        return repr(content)


def same(one: list, other: list) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b
        for a, b in zip(one, other))


def sound(seconds: float, pitch_hz: float = 130.0) -> dict:
    return audio(speechlike(seconds, pitch_hz=pitch_hz))


def calls(precision: str = "fp32") -> Calls:
    """All nodes but those that need files, see ``with_files``."""
    models = {demo: load(demo, precision) for demo in ("S3Gen", "CosyVoice3", "OGG TTS")}
    found = Calls(models)
    given = found.inputs
    given["LoadModel"] = {"family": {"family": DEMO_OPTION, "demo": "S3Gen"}, "precision": precision}
    given["VoiceNode"] = {"audio": sound(2.0), "transcript": WORDS, "name": "Ada"}
    voice, = found.run("VoiceNode")
    given["S3Tokenize"] = {"model": models["S3Gen"], "audio": sound(0.6)}
    given["S3Tokenize of CosyVoice3"] = {"model": models["CosyVoice3"], "audio": sound(0.6)}
    given["FishEncode"] = {"model": models["OGG TTS"], "audio": sound(0.6)}
    for sampler, family, short in (("RASSampler", "CosyVoice3", {"max_ratio": 3.0}),
                                   ("BlockDiffusionSampler", "OGG TTS", {"max_seconds": 0.7, "steps": 2})):
        encode = "EncodePrompt" if family == "OGG TTS" else f"EncodePrompt of {family}"
        given[encode] = {"model": models[family], "text": TEXT, "voices": {"voice0": voice}, "split_limit": 12}
        given[sampler] = {"model": models[family], "prompt": found.run(encode)[0], "seed": 3, **short}
    given["S3Token2Wav"] = {"model": models["S3Gen"], "tokens": found.run("S3Tokenize")[0], "seed": 3, "voice": voice,
                            "steps": 3}
    given["S3Token2Wav of CosyVoice3"] = {
        "model": models["CosyVoice3"], "tokens": found.run("RASSampler")[0], "seed": 3, "steps": 2}
    given["FishDecode"] = {"model": models["OGG TTS"], "tokens": found.run("BlockDiffusionSampler")[0]}
    given["SpeechReport"] = {"tokens": given["FishDecode"]["tokens"], "audio": found.run("FishDecode")[0]}
    given["SaveVoice"] = {"voice": voice, "name": VOICE, "overwrite": True}
    return found


@contextmanager
def with_files(found: Calls) -> Iterator[Calls]:
    """The same with the nodes that read files of the user, which are there meanwhile."""
    ear = Path(folder_paths.models_dir, "tts", EAR)
    write_small(ear, max_target_positions=IDS)
    found.run("SaveVoice")
    found.inputs["VoiceLibrary"] = {"name": VOICE}
    found.inputs["Transcribe"] = {"audio": sound(1.0), "folder": EAR}
    try:
        yield found
    finally:
        shutil.rmtree(ear)
        for path in Path(folder_paths.models_dir, "voices").glob(f"{VOICE}.*"):
            path.unlink()
