"""The nodes of the Fish codec: recordings into codes, codes into audio."""
from __future__ import annotations

from comfy_api.latest import io

from ..audio import check_speech, clips, to_comfy
from ..omnifish import pipeline
from ..omnifish.codec import WORKING_BYTES
from ..wires import FISH_44K, Piece, SpeechTokens
from .common import CATEGORY, SpeechModelType, SpeechTokensType, progress_and_interrupt
from .inputs import checked

MIN_SECONDS = 0.05      # about one frame


class FishEncode(io.ComfyNode):
    """A recording becomes codes."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeechwrightFishEncode",
            display_name="Encode Fish Codes",
            category=CATEGORY,
            description="Writes a recording down as codes of the Fish Audio 44.1 kHz codec, ten ids for each of 21.5 "
                        "frames a second. Recordings of any length.",
            search_aliases=["fish", "codec", "encode audio", "tokenizer", "ogg"],
            inputs=[
                SpeechModelType.Input("model", tooltip="An OGG TTS model with its codec."),
                io.Audio.Input("audio", tooltip="Sound of any length and sample rate; rows of a batch stay apart."),
            ],
            outputs=[SpeechTokensType.Output(display_name="tokens", tooltip="Codes of the Fish codec, fish-44k.")],
        )

    @classmethod
    @checked
    def execute(cls, model, audio) -> io.NodeOutput:
        model.require("Encode Fish Codes", "codec")
        sources = clips(audio, "Encode Fish Codes: audio")
        for source in sources:
            check_speech(source, "Encode Fish Codes: audio", MIN_SECONDS)
        report = progress_and_interrupt()
        with model.loaded("codec", WORKING_BYTES) as codec:
            rows = [pipeline.encode_voice(codec, source, model.device, report) for source in sources]
        return io.NodeOutput(SpeechTokens(
            FISH_44K, pipeline.FRAMES_PER_SECOND, tuple((Piece(row),) for row in rows)))


class FishDecode(io.ComfyNode):
    """Codes become audio."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeechwrightFishDecode",
            display_name="Decode Fish Codes",
            category=CATEGORY,
            description="Turns codes of the Fish Audio codec into 44.1 kHz audio.",
            search_aliases=["fish", "codec", "decode speech tokens", "vocoder", "ogg", "tts"],
            inputs=[
                SpeechModelType.Input("model", tooltip="An OGG TTS model with its codec."),
                SpeechTokensType.Input("tokens", tooltip="Codes of the kind fish-44k, of any length."),
                io.Float.Input(
                    "joint_fade", default=20.0, min=0.0, max=500.0, step=1.0, optional=True, advanced=True,
                    tooltip="Milliseconds of fade on each side where two pieces meet without a pause."),
            ],
            outputs=[io.Audio.Output(display_name="audio", tooltip="44.1 kHz mono, one row for each row of tokens.")],
        )

    @classmethod
    @checked
    def execute(cls, model, tokens, joint_fade: float = 20.0) -> io.NodeOutput:
        model.require("Decode Fish Codes", "codec")
        tokens.require(FISH_44K, "Decode Fish Codes")
        with model.loaded("codec", WORKING_BYTES) as codec:
            waves = pipeline.decode(codec, tokens, fade_ms=joint_fade, device=model.device,
                                    on_chunk=progress_and_interrupt())
        return io.NodeOutput(to_comfy(waves, pipeline.SAMPLE_RATE_HZ))
