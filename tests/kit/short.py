"""The example workflows, each with all its nodes and loaders, of which little is asked: runs of a second or two."""
from __future__ import annotations

import json

from kit.checkout import CHECKOUT

API = CHECKOUT / "workflows" / "api"
LITTLE = {
    "SpeechwrightRASSampler": {"max_ratio": 2.5},
    "SpeechwrightS3Token2Wav": {"steps": 2},
    "SpeechwrightBlockDiffusionSampler": {"steps": 2, "cfg": 0.0, "mtp_rounds": 1, "max_seconds": 0.7},
}
TEXTS = {
    "ogg_long_text": {"text": "The lamp burned on. It rained. [pause:0.3s] Nobody went.", "split_limit": 20},
    "cosyvoice3_dialogue": {"text": "Ada: Hello? [pause:0.2s] You?\nBruno: Only me."},
    "dialogue_with_library_voices": {"text": "Ada: The train?\nBruno: It left."},
    "ogg_dialogue": {"text": "Ada: Did you hear?\nBruno: The wind."},
}
WORDS = "Nobody said so."
NETWORKS = {"S3Gen": 3, "S3Gen meanflow": 3, "CosyVoice2": 1, "CosyVoice3": 4, "OGG TTS": 2}    # of each demo
NAMES = sorted(path.stem for path in API.glob("*.json"))


def short(name: str, seed: int) -> dict:
    """The graph of a workflow in the form of the interface."""
    graph = json.loads((API / f"{name}.json").read_text(encoding="utf-8"))
    for node in graph.values():
        inputs = node["inputs"]
        inputs.update(LITTLE.get(node["class_type"], {}))
        if node["class_type"] == "SpeechwrightEncodePrompt":
            inputs.update(TEXTS.get(name, {"text": WORDS}))
        if "seed" in inputs:
            inputs["seed"] = seed
    return graph


def patchers_of(graph: dict) -> int:
    """How many networks the loaders of a graph bring; ComfyUI runs two that are alike once."""
    loaders = {json.dumps(node["inputs"], sort_keys=True): node["inputs"]["family.demo"] for node in graph.values()
               if node["class_type"] == "SpeechwrightLoadModel"}
    return sum(NETWORKS[demo] for demo in loaders.values())
