"""The nodes that make voices."""
from __future__ import annotations

from dataclasses import replace

from comfy_api.latest import io, ui

from .. import files, voices
from ..audio import one_clip
from .common import CATEGORY, SpeechVoiceType
from .inputs import checked


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
                io.Audio.Input(
                    "audio",
                    tooltip="A recording of one person, 5 to 10 seconds at best; at most 30 with a transcript, and "
                            "without one it is cut there. Stereo is mixed down; any sample rate."),
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
    @checked
    def execute(cls, audio, transcript: str = "", name: str = "voice") -> io.NodeOutput:
        clip = one_clip(audio, "Voice: audio")
        return io.NodeOutput(voices.voice_of(clip, transcript, name, "Voice: audio"))


class VoiceLibrary(io.ComfyNode):
    """A voice from the folder of voices."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeechwrightVoiceLibrary",
            display_name="Voice Library",
            category=CATEGORY,
            description="A voice from models/voices: a recording, called as the voice is, and beside it a text file "
                        "with what is said in it.",
            search_aliases=["voice", "load voice", "speaker", "reference", "clone", "tts", "preset"],
            inputs=[
                io.Combo.Input(
                    "name", options=files.voice_names(),
                    tooltip="A recording in models/voices (flac, wav, ogg, opus, m4a, mp3; at most 30 seconds), with "
                            "its words in NAME.txt or NAME.reference.txt. Scripts call the voice by the file's name. "
                            "R refreshes the list."),
            ],
            outputs=[SpeechVoiceType.Output(display_name="voice", tooltip="The voice, for any model.")],
        )

    @classmethod
    def fingerprint_inputs(cls, name: str | None = None) -> str:
        return files.voice_stamp(name)

    @classmethod
    @checked
    def execute(cls, name: str) -> io.NodeOutput:
        return io.NodeOutput(voices.load(files.find_voice(name, "Voice Library"), "Voice Library"))


class SaveVoice(io.ComfyNode):
    """A voice goes into the folder of voices."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeechwrightSaveVoice",
            display_name="Save Voice",
            category=CATEGORY,
            description="Saves a voice into models/voices, from where Voice Library takes it: NAME.flac, mono in 24 "
                        "bits at the recording's rate, and NAME.txt with the transcript.",
            search_aliases=["voice", "save voice", "speaker", "export voice", "clone", "tts"],
            is_output_node=True,
            inputs=[
                SpeechVoiceType.Input("voice", tooltip="The voice to save."),
                io.String.Input(
                    "name", default="", optional=True,
                    tooltip="What it is saved as; empty: the voice's own name. Characters that files may not have in "
                            "their names become _."),
                io.Boolean.Input(
                    "overwrite", default=False, optional=True,
                    tooltip="Replace a voice of this name. Off: that is an error, and nothing is changed."),
            ],
            outputs=[SpeechVoiceType.Output(
                display_name="voice", tooltip="The same voice, called as it was saved.")],
        )

    @classmethod
    @checked
    def execute(cls, voice, name: str = "", overwrite: bool = False) -> io.NodeOutput:
        called = voices.safe_name(name.strip() or voice.name, "Save Voice: name")
        voice = replace(voice, name=called)
        path = files.save_voice(voice, overwrite, "Save Voice")
        return io.NodeOutput(voice, ui=ui.PreviewText(f"Saved as {path}"))
