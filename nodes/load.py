"""The node that loads models."""
from __future__ import annotations

from comfy_api.latest import io

from .. import loader
from ..cosyvoice3 import folder
from ..omnifish import checkpoint
from .common import CATEGORY, SpeechModelType, progress_and_interrupt
from .inputs import checked

S3GEN_OPTION = "S3Gen (Chatterbox / CosyVoice2)"
COSYVOICE_OPTION = "CosyVoice"
OGG_OPTION = "OGG TTS"
DEMO_OPTION = "Demo"


class LoadModel(io.ComfyNode):
    """The only place where checkpoints are loaded."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeechwrightLoadModel",
            display_name="Load Speech Model",
            category=CATEGORY,
            description="Loads a speech model from models/tts, or a tiny random one to try a graph with.",
            search_aliases=["tts", "speech", "voice conversion", "s3gen", "chatterbox", "cosyvoice", "ogg", "fish"],
            inputs=[
                io.DynamicCombo.Input(
                    "family",
                    options=[
                        io.DynamicCombo.Option(S3GEN_OPTION, [
                            io.Combo.Input(
                                "checkpoint", options=loader.checkpoint_choices(),
                                tooltip="An S3Gen file in models/tts: s3gen or s3gen_v3 of Chatterbox, s3gen_meanflow "
                                        "of Chatterbox Turbo (2 steps in place of 10). MIT licence. Those that are "
                                        "not there yet need download."),
                        ]),
                        io.DynamicCombo.Option(COSYVOICE_OPTION, [
                            io.Combo.Input(
                                "folder", options=loader.folder_choices(),
                                tooltip="A folder in models/tts with the files of CosyVoice2-0.5B or "
                                        "Fun-CosyVoice3-0.5B-2512, or some of them: nodes say what they miss. "
                                        "Apache-2.0 licence. Those that are not there yet need download."),
                            io.Combo.Input(
                                "lm", options=list(folder.LMS), default=folder.BASE, optional=True,
                                tooltip="Which language model: base (llm.pt), or RL (llm.rl.pt, CosyVoice3), which "
                                        "says words more exactly and is a little less like the voice."),
                        ]),
                        io.DynamicCombo.Option(OGG_OPTION, [
                            io.Combo.Input(
                                "checkpoint", options=loader.ogg_choices(),
                                tooltip="The checkpoint of OGG TTS, in models/tts or models/diffusion_models. Fish "
                                        "Audio Community licence. It needs tokenizer.json of OmniVoice beside it."),
                            io.Combo.Input(
                                "codec", options=loader.codec_choices(),
                                tooltip="The Fish Audio 44.1 kHz codec, in models/tts or models/vae, such as "
                                        "drama3_codec.safetensors. Built with Fish Audio; its licence forbids some "
                                        "commercial use. none: where nothing is decoded or cloned."),
                            io.Combo.Input(
                                "content", options=list(checkpoint.CONTENTS), default=checkpoint.FULL, optional=True,
                                tooltip="semantic-only: speak without the depth decoder, roughly but intelligibly, "
                                        "where a checkpoint has another one."),
                        ]),
                        io.DynamicCombo.Option(DEMO_OPTION, [
                            io.Combo.Input(
                                "demo", options=loader.demo_titles(),
                                tooltip="Needs no file. The demo voice speaks English; the others are random weights: "
                                        "the graph runs, and the result is noise."),
                        ]),
                    ],
                    tooltip="Which kind of model to load."),
                io.Combo.Input(
                    "precision", options=["auto", *loader.PRECISIONS], default="auto", optional=True, advanced=True,
                    tooltip="Number format of the largest networks. auto: bf16 for language models on GPUs, fp32 for "
                            "all else. bf16 is faster on GPUs and on CPUs with AMX or AVX-512 BF16, and a little less "
                            "exact; on other CPUs it is several times slower."),
                io.Combo.Input(
                    "device", options=["auto", "cpu"], default="auto", optional=True, advanced=True,
                    tooltip="auto: where ComfyUI computes. cpu: on the processor."),
                io.Boolean.Input(
                    "download", default=False, optional=True, advanced=True,
                    tooltip="Fetch the chosen checkpoint (1.06 GB) or what the chosen folder misses (up to 5 GB) from "
                            "Hugging Face if it is not in models/tts. Off: nothing is ever fetched."),
            ],
            outputs=[SpeechModelType.Output(display_name="model", tooltip="The loaded model.")],
        )

    @classmethod
    def fingerprint_inputs(cls, family: dict | None = None, precision: str = "auto", device: str = "auto",
                           download: bool = False) -> str:
        given = family or {}
        if "folder" in given:
            return loader.folder_stamp(given["folder"])
        if "codec" in given:
            return loader.ogg_stamp(given["checkpoint"], given["codec"])
        return loader.checkpoint_stamp(given["checkpoint"]) if "checkpoint" in given else ""

    @classmethod
    @checked
    def execute(cls, family: dict | None = None, precision: str = "auto", device: str = "auto",
                download: bool = False) -> io.NodeOutput:
        # ComfyUI leaves an unknown choice, and what belongs to it, out of the call.
        given = family
        chosen = given.get("family")
        if chosen == DEMO_OPTION:
            return io.NodeOutput(loader.load_demo(given["demo"], precision, device))
        if chosen == COSYVOICE_OPTION:
            return io.NodeOutput(loader.load_folder(
                given["folder"], given.get("lm", folder.BASE), precision, device, download, progress_and_interrupt()))
        if chosen == S3GEN_OPTION:
            return io.NodeOutput(loader.load(
                given["checkpoint"], precision, device, download, progress_and_interrupt()))
        if chosen == OGG_OPTION:
            return io.NodeOutput(loader.load_ogg(
                given["checkpoint"], given["codec"], given.get("content", checkpoint.FULL), precision, device, download,
                progress_and_interrupt()))
        known = ", ".join(map(repr, (S3GEN_OPTION, COSYVOICE_OPTION, OGG_OPTION, DEMO_OPTION)))
        raise ValueError(f"Load Speech Model: family: {(chosen or 'nothing known')!r}; choose one of {known}.")
