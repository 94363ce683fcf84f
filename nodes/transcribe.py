"""The node that writes down what is said."""
from __future__ import annotations

from comfy_api.latest import io

from ..audio import check_speech, clips
from ..hearing import pipeline
from . import ears
from .common import CATEGORY, progress_and_interrupt
from .inputs import checked

MIN_SECONDS = 0.1           # a short word takes twice as long
WORKING_BYTES = 2**29       # of the largest Whisper: scores of 20 heads over 1500 places, 180 MB, and their softmax


class Transcribe(io.ComfyNode):
    """A recording becomes text."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeechwrightTranscribe",
            display_name="Transcribe Speech",
            category=CATEGORY,
            description="Writes down what is said in a recording of any length, with Whisper or Moonshine: for the "
                        "transcript of a Voice, or as text.",
            search_aliases=["speech to text", "stt", "asr", "whisper", "moonshine", "transcript", "subtitles"],
            inputs=[
                io.Audio.Input("audio", tooltip="Speech, of any length and sample rate; each row of a batch becomes a "
                                                "line."),
                io.Combo.Input(
                    "folder", options=ears.choices(),
                    tooltip="A folder in models/tts with config.json, tokenizer.json and model.safetensors of Whisper "
                            "(MIT or Apache-2.0 licence) or Moonshine (MIT licence). Those that are not there yet "
                            "need download."),
                io.Combo.Input(
                    "language", options=[pipeline.AUTO, *pipeline.LANGUAGES], default=pipeline.AUTO, optional=True,
                    tooltip="What is spoken, as a code such as en. auto: a multilingual Whisper finds out; others know "
                            "one language."),
                io.Combo.Input(
                    "device", options=["auto", "cpu"], default="auto", optional=True, advanced=True,
                    tooltip="auto: where ComfyUI computes. cpu: on the processor."),
                io.Boolean.Input(
                    "download", default=False, optional=True, advanced=True,
                    tooltip="Fetch what the chosen folder misses (150 MB to 1.6 GB) from Hugging Face if it is not in "
                            "models/tts. Off: nothing is ever fetched."),
            ],
            outputs=[io.String.Output(display_name="text", tooltip="The words, a line for each row of the audio.")],
        )

    @classmethod
    def fingerprint_inputs(cls, folder: str | None = None, **_) -> str:
        return ears.stamp(folder or "")

    @classmethod
    @checked
    def execute(cls, audio, folder: str, language: str = "auto", device: str = "auto",
                download: bool = False) -> io.NodeOutput:
        sources = clips(audio, "Transcribe Speech: audio")
        for source in sources:
            check_speech(source, "Transcribe Speech: audio", MIN_SECONDS)
        ear = ears.open_ear(folder, download, progress_and_interrupt())
        pipeline.check_language(ear, language)
        with ears.loaded(ear, device, WORKING_BYTES) as (network, place):
            lines = pipeline.transcribe(ear, network, sources, language, place, progress_and_interrupt())
        return io.NodeOutput("\n".join(lines))
