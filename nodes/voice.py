"""The nodes that make voices."""
from __future__ import annotations

from comfy_api.latest import io

from .. import text
from ..audio import check_speech, one_clip
from ..wires import Voice
from .common import CATEGORY, SpeechVoiceType

MIN_VOICE_SECONDS = 0.1     # the least that a speaker encoder can measure


class VoiceNode(io.ComfyNode):
    """A recording becomes a named voice."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeechwrightVoice",
            display_name="Voice",
            category=CATEGORY,
            description="A named voice from a recording of 5 to 10 seconds of clean speech by one person.",
            search_aliases=["clone", "reference", "speaker", "voice", "tts"],
            inputs=[
                io.Audio.Input("audio", tooltip="A recording of one person. Stereo is mixed down; any sample rate."),
                io.String.Input(
                    "transcript", default="", multiline=True, optional=True,
                    tooltip="What is said in the recording, word for word. Voice conversion does not need it."),
                io.String.Input(
                    "name", default="voice", optional=True,
                    tooltip="The name by which scripts call the voice."),
            ],
            outputs=[SpeechVoiceType.Output(display_name="voice", tooltip="The voice, for any model.")],
        )

    @classmethod
    def execute(cls, audio, transcript: str = "", name: str = "voice") -> io.NodeOutput:
        clip = one_clip(audio, "Voice: audio")
        check_speech(clip, "Voice: audio", MIN_VOICE_SECONDS)
        return io.NodeOutput(Voice(clip, text.clean(transcript or "").strip(), text.clean(name or "").strip()))
