"""The node that prepares text for the samplers."""
from __future__ import annotations

from comfy_api.latest import io

from ..cosyvoice3.prompt import METHODS
from ..omnifish.pipeline import LANGUAGES
from ..request import MODES, Request
from ..wires import SpeechPrompt, Voice
from .common import CATEGORY, SpeechModelType, SpeechPromptType, SpeechVoiceType
from .inputs import checked

MAX_VOICES = 8


class EncodePrompt(io.ComfyNode):
    """Text becomes what a sampler reads."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeechwrightEncodePrompt",
            display_name="Encode Speech Prompt",
            category=CATEGORY,
            description="Prepares a text for a language model that speaks: splits it into pieces, and adds how the "
                        "voice speaks, or how it is to speak.",
            search_aliases=["tts", "text to speech", "speak", "say", "clone", "cosyvoice", "instruct", "zero-shot"],
            inputs=[
                SpeechModelType.Input("model", tooltip="The model that is to speak: CosyVoice or OGG TTS."),
                io.String.Input(
                    "text", default="", multiline=True,
                    tooltip="What is to be said, of any length, or a script. [pause:0.8s] is silence; other tags, such "
                            "as [laughter], reach the model."),
                io.Autogrow.Input(
                    "voices", optional=True,
                    template=io.Autogrow.TemplatePrefix(
                        SpeechVoiceType.Input("voice", tooltip="Who speaks, with the transcript of the recording."),
                        prefix="voice", min=0, max=MAX_VOICES),
                    tooltip="Who speaks. Without a voice here, connect one to the decoder."),
                SpeechModelType.Input(
                    "speech_tokenizer", optional=True,
                    tooltip="A second model that reads the voice, where the first one has no speech tokenizer: S3Gen "
                            "for CosyVoice2."),
                io.Combo.Input(
                    "mode", options=list(MODES), default="auto", optional=True,
                    tooltip="speech: one voice says the whole text. dialogue: a script with a line for each turn, such "
                            "as 'Ada: Hello.', Ada being the name of a connected voice; S1 is the first one. auto: "
                            "dialogue where a line begins with the name of a voice or with S1."),
                io.Combo.Input(
                    "method", options=list(METHODS), default="auto", optional=True,
                    tooltip="CosyVoice. zero-shot: go on as the voice, whose transcript must be exact. cross-lingual: "
                            "take the sound of the voice only, as for another language. instruct: speak as the "
                            "instruction says; with transcript, as the voice too. auto: instruct with an "
                            "instruction, else zero-shot with a transcript, else cross-lingual."),
                io.String.Input(
                    "instruction", default="", multiline=True, optional=True,
                    tooltip="How to speak, such as 'Please say a sentence in a very soft voice.' or 请用广东话表达。"),
                io.Int.Input(
                    "split_limit", default=0, min=0, max=2000, optional=True, advanced=True,
                    tooltip="Text ids (CosyVoice) or characters (OGG TTS) that are spoken at once; longer text is "
                            "split between sentences. 0: the family's own, 80 and 300."),
                io.Boolean.Input(
                    "keep_whole", default=False, optional=True, advanced=True,
                    tooltip="Speak the whole text at once, however long; models were trained on sentences."),
                io.Combo.Input(
                    "language", options=list(LANGUAGES), default="en", optional=True,
                    tooltip="OGG TTS: the language of the text. CosyVoice finds out by itself."),
                io.String.Input(
                    "before", default="", multiline=True, optional=True, advanced=True,
                    tooltip="OGG TTS: what comes before the text, up to two sentences. It is not spoken, and colours "
                            "how the text is."),
                io.String.Input(
                    "after", default="", multiline=True, optional=True, advanced=True,
                    tooltip="OGG TTS: what comes after the text, in the same manner."),
                io.String.Input(
                    "speaker", default="", optional=True, advanced=True,
                    tooltip="OGG TTS: a speaker that the model knows by name, such as pl_3."),
                io.String.Input(
                    "quality", default="", optional=True, advanced=True,
                    tooltip="OGG TTS: the id of a recording whose sound is wanted, such as q35."),
            ],
            outputs=[
                SpeechPromptType.Output(display_name="prompt", tooltip="The prompt, for a sampler."),
                io.String.Output(
                    display_name="preview",
                    tooltip="What is spoken by whom, piece by piece, with the pauses in seconds."),
            ],
        )

    @classmethod
    @checked
    def execute(cls, model, text: str, voices: dict | None = None, speech_tokenizer=None,
                mode: str = "auto", method: str = "auto", instruction: str = "",
                split_limit: int = 0, keep_whole: bool = False, language: str = "en", before: str = "", after: str = "",
                speaker: str = "", quality: str = "") -> io.NodeOutput:
        model.require("Encode Speech Prompt", "text")
        reader = speech_tokenizer or model

        def hear(voice: Voice):
            reader.require_kind(model.token_kind, "Encode Speech Prompt")
            return reader.hear(voice, "Encode Speech Prompt")

        pieces, preview = model.write_prompt(
            Request(text, tuple((voices or {}).values()), mode, method, instruction, split_limit, keep_whole, language,
                    before, after, speaker, quality), hear)
        return io.NodeOutput(SpeechPrompt(model.family, tuple(pieces)), preview)
