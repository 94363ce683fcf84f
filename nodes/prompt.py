"""The node that prepares text for the samplers."""
from __future__ import annotations

from comfy_api.latest import io

from ..cosyvoice3 import prompt as cosyvoice3_prompt
from ..s3gen import pipeline as s3gen_pipeline
from ..wires import SpeechPrompt, Voice
from .common import CATEGORY, SpeechModelType, SpeechPromptType, SpeechVoiceType

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
                SpeechModelType.Input("model", tooltip="The model that is to speak: CosyVoice."),
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
                    "mode", options=list(cosyvoice3_prompt.MODES), default=cosyvoice3_prompt.AUTO, optional=True,
                    tooltip="speech: one voice says the whole text. dialogue: a script with a line for each turn, such "
                            "as 'Ada: Hello.', Ada being the name of a connected voice; S1 is the first one. auto: "
                            "dialogue where a line begins with the name of a voice."),
                io.Combo.Input(
                    "method", options=list(cosyvoice3_prompt.METHODS), default=cosyvoice3_prompt.AUTO, optional=True,
                    tooltip="zero-shot: go on as the voice, whose transcript must be exact. cross-lingual: take the "
                            "sound of the voice only, as for another language. instruct: speak as the instruction "
                            "says. auto: instruct with an instruction, else zero-shot with a transcript, else "
                            "cross-lingual."),
                io.String.Input(
                    "instruction", default="", multiline=True, optional=True,
                    tooltip="How to speak, such as 'Please say a sentence in a very soft voice.' or 请用广东话表达。"),
                io.Int.Input(
                    "split_limit", default=0, min=0, max=2000, optional=True, advanced=True,
                    tooltip="Text ids that are spoken at once; longer text is split between sentences. 0: the family's "
                            "own, about 80 for CosyVoice."),
                io.Boolean.Input(
                    "keep_whole", default=False, optional=True, advanced=True,
                    tooltip="Speak the whole text at once, however long; models were trained on sentences."),
            ],
            outputs=[
                SpeechPromptType.Output(display_name="prompt", tooltip="The prompt, for a sampler."),
                io.String.Output(display_name="preview", tooltip="What is spoken by whom, piece by piece."),
            ],
        )

    @classmethod
    def execute(cls, model, text: str, voices: dict | None = None, speech_tokenizer=None,
                mode: str = cosyvoice3_prompt.AUTO, method: str = cosyvoice3_prompt.AUTO, instruction: str = "",
                split_limit: int = 0, keep_whole: bool = False) -> io.NodeOutput:
        model.require("Encode Speech Prompt", "text")
        reader = speech_tokenizer or model

        def read(voice: Voice):
            with reader.loaded("tokenizer", s3gen_pipeline.READING_BYTES) as tokenizer:
                return s3gen_pipeline.tokenize(tokenizer, voice.clip, reader.device)[0].tolist()

        def hear(voice: Voice):
            reader.require("Encode Speech Prompt", "tokenizer")
            reader.require_kind(model.token_kind, "Encode Speech Prompt")
            return reader.voice(f"ids {voice.content_hash}", lambda: read(voice))

        limit = None if keep_whole else split_limit or cosyvoice3_prompt.PIECE_IDS
        connected = [voice for voice in (voices or {}).values() if voice is not None]
        pieces, preview = cosyvoice3_prompt.speech(
            model.text_tokenizer, text, connected, hear, mode, method, instruction, limit)
        return io.NodeOutput(SpeechPrompt(model.family, tuple(pieces)), preview)
