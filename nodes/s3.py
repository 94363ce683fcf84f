"""The nodes of S3 tokens: recordings into tokens, tokens into audio."""
from __future__ import annotations

from comfy_api.latest import io

from ..audio import check_speech, clips, to_comfy
from ..s3gen import pipeline as s3gen_pipeline
from ..wires import Piece, SpeechTokens, Voice
from .common import (
    CATEGORY,
    MAX_SEED,
    SpeechModelType,
    SpeechTokensType,
    SpeechVoiceType,
    progress_and_interrupt,
)
from .inputs import checked


class S3Tokenize(io.ComfyNode):
    """A recording becomes speech tokens."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeechwrightS3Tokenize",
            display_name="S3 Tokenize",
            category=CATEGORY,
            description="Writes down what is said in a recording as speech tokens, 25 per second. With S3Token2Wav "
                        "and another voice this is voice conversion. Recordings of any length.",
            search_aliases=["voice conversion", "speech to speech", "tokenizer", "encode audio"],
            inputs=[
                SpeechModelType.Input("model", tooltip="An S3Gen or CosyVoice model."),
                io.Audio.Input("audio", tooltip="Speech, of any length and sample rate; rows of a batch stay apart."),
            ],
            outputs=[SpeechTokensType.Output(display_name="tokens", tooltip="Speech tokens, s3-v2 or s3-v3.")],
        )

    @classmethod
    @checked
    def execute(cls, model, audio) -> io.NodeOutput:
        model.require("S3 Tokenize", "tokenizer")
        sources = clips(audio, "S3 Tokenize: audio")
        for source in sources:
            check_speech(source, "S3 Tokenize: audio", s3gen_pipeline.SECONDS_PER_TOKEN)
        report = progress_and_interrupt()
        with model.loaded("tokenizer", s3gen_pipeline.READING_BYTES) as tokenizer:
            rows = [s3gen_pipeline.tokenize(tokenizer, source, model.device, report) for source in sources]
        return io.NodeOutput(SpeechTokens(
            model.token_kind, s3gen_pipeline.TOKENS_PER_SECOND, tuple((Piece(row),) for row in rows)))


class S3Token2Wav(io.ComfyNode):
    """Speech tokens and a voice become audio."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeechwrightS3Token2Wav",
            display_name="S3Token2Wav",
            category=CATEGORY,
            description="Speaks S3 tokens in a voice, as 24 kHz audio.",
            search_aliases=["voice conversion", "tts", "speak", "vocoder", "decode speech tokens", "chatterbox"],
            inputs=[
                SpeechModelType.Input("model", tooltip="An S3Gen or CosyVoice model."),
                SpeechTokensType.Input(
                    "tokens", tooltip="Speech tokens of the kind that the model reads: s3-v2, or s3-v3 of CosyVoice3."),
                io.Int.Input(
                    "seed", default=0, min=0, max=MAX_SEED, control_after_generate=True,
                    tooltip="Each seed is another take. Row i of a batch, and piece i of a long text, use seed + i. "
                            "With CosyVoice 0 is the noise of the published model, for every piece."),
                SpeechVoiceType.Input(
                    "voice", optional=True,
                    tooltip="Who speaks. Not needed where the tokens carry a voice, in whose place this one speaks "
                            "all, nor with the demo voice. The first 10 s are used."),
                io.Int.Input(
                    "steps", default=0, min=0, max=100, optional=True,
                    tooltip="Steps of the flow; more are slower. 0: the checkpoint's own number, 10 (2 for meanflow)."),
                io.Float.Input(
                    "cfg", default=0.7, min=0.0, max=5.0, step=0.05, optional=True,
                    tooltip="Classifier-free guidance: how closely to follow tokens and voice. 0 is off and twice "
                            "as fast. Meanflow models do not use it."),
                io.Float.Input(
                    "joint_fade", default=20.0, min=0.0, max=500.0, step=1.0, optional=True, advanced=True,
                    tooltip="Milliseconds of fade on each side where two pieces meet without a pause."),
            ],
            outputs=[io.Audio.Output(display_name="audio", tooltip="24 kHz mono, one row for each row of tokens.")],
        )

    @classmethod
    @checked
    def execute(cls, model, tokens, seed: int, voice=None, steps: int = 0, cfg: float = 0.7,
                joint_fade: float = 20.0) -> io.NodeOutput:
        model.require("S3Token2Wav", "synthesis", "tokenizer", "speaker")
        tokens.require(model.token_kind, "S3Token2Wav")
        report = progress_and_interrupt()

        def read(voice: Voice) -> dict:
            with model.loaded(("tokenizer", "speaker"), s3gen_pipeline.READING_BYTES) as readers:
                return model.decoder.read_voice(*readers, voice.clip, model.device)

        def voice_of(piece: Piece) -> dict:
            speaker = voice or piece.voice or model.own_voice
            if speaker is None:
                raise ValueError("S3Token2Wav: voice: nothing is connected, and these tokens carry none; connect a "
                                 "Voice.")
            return model.voice(speaker.content_hash, lambda: read(speaker))

        # Read before the networks that speak are loaded: each would push the other out.
        voices = {id(piece): voice_of(piece) for row in tokens.batch for piece in row}
        with model.loaded("synthesis", model.decoder.working_bytes(tokens, lambda piece: voices[id(piece)])) as network:
            waves = model.decoder.speak(
                network, tokens, lambda piece: voices[id(piece)], seed=seed, steps=steps, guidance=cfg,
                fade_ms=joint_fade, device=model.device, on_step=report)
        return io.NodeOutput(to_comfy(waves, s3gen_pipeline.SAMPLE_RATE_HZ))
