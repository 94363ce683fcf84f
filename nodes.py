"""The nodes: their schemas, and one call for each."""
from __future__ import annotations

from collections.abc import Callable

import comfy.model_management
import comfy.utils
from comfy_api.latest import ComfyExtension, io

from . import loader, text
from .audio import check_speech, clips, one_clip, to_comfy
from .s3gen import pipeline as s3gen_pipeline
from .wires import S3_V2, Piece, SpeechTokens, Voice

CATEGORY = "audio/speech"
MAX_SEED = 2**64 - 1
MIN_VOICE_SECONDS = 0.1     # the least that a speaker encoder can measure
S3GEN_OPTION = "S3Gen (Chatterbox / CosyVoice2)"
DEMO_OPTION = "Demo"

SpeechModelType = io.Custom("SPEECH_MODEL")
SpeechVoiceType = io.Custom("SPEECH_VOICE")
SpeechTokensType = io.Custom("SPEECH_TOKENS")


def progress_and_interrupt() -> Callable[[int, int], None]:
    """A callback (done, total) that moves the node's bar, and raises when the user has pressed Cancel."""
    bars: list[comfy.utils.ProgressBar] = []

    def report(done: int, total: int) -> None:
        comfy.model_management.throw_exception_if_processing_interrupted()
        if not bars:
            bars.append(comfy.utils.ProgressBar(total))
        bars[0].update_absolute(done, total)

    return report


class LoadModel(io.ComfyNode):
    """The only place where checkpoints are loaded."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeechwrightLoadModel",
            display_name="Load Speech Model",
            category=CATEGORY,
            description="Loads a speech model from models/tts, or a tiny random one to try a graph with.",
            search_aliases=["tts", "speech", "voice conversion", "s3gen", "chatterbox", "cosyvoice", "checkpoint"],
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
                        io.DynamicCombo.Option(DEMO_OPTION, [
                            io.Combo.Input(
                                "demo", options=loader.demo_titles(),
                                tooltip="Tiny random weights: the graph runs, and the result is noise."),
                        ]),
                    ],
                    tooltip="Which kind of model to load."),
                io.Combo.Input(
                    "precision", options=["auto", *loader.PRECISIONS], default="auto", optional=True, advanced=True,
                    tooltip="Number format of the largest network. auto: the family's own (fp32 for S3Gen). "
                            "bf16 is faster on GPUs and on CPUs with AMX, and a little less exact; on other CPUs it is "
                            "several times slower."),
                io.Combo.Input(
                    "device", options=["auto", "cpu"], default="auto", optional=True, advanced=True,
                    tooltip="auto: where ComfyUI computes. cpu: on the processor."),
                io.Boolean.Input(
                    "download", default=False, optional=True, advanced=True,
                    tooltip="Fetch the chosen checkpoint from Hugging Face (1.06 GB) if it is not in models/tts. "
                            "Off: nothing is ever fetched."),
            ],
            outputs=[SpeechModelType.Output(display_name="model", tooltip="The loaded model.")],
        )

    @classmethod
    def fingerprint_inputs(cls, family: dict | None = None, precision: str = "auto", device: str = "auto",
                           download: bool = False) -> str:
        return loader.stamp(family["checkpoint"]) if family and "checkpoint" in family else ""

    @classmethod
    def execute(cls, family: dict | None = None, precision: str = "auto", device: str = "auto",
                download: bool = False) -> io.NodeOutput:
        # ComfyUI leaves an unknown choice, and what belongs to it, out of the call.
        if family is None or family.get("family") not in (S3GEN_OPTION, DEMO_OPTION):
            raise ValueError(f"Load Speech Model: family: {(family or {}).get('family', 'nothing known')!r}; "
                             f"choose {S3GEN_OPTION!r} or {DEMO_OPTION!r}.")
        if family["family"] == DEMO_OPTION:
            return io.NodeOutput(loader.load_demo(family["demo"], precision, device))
        return io.NodeOutput(loader.load(
            family["checkpoint"], precision, device, download, progress_and_interrupt()))


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
                SpeechModelType.Input("model", tooltip="An S3Gen model."),
                io.Audio.Input("audio", tooltip="Speech, of any length and sample rate; rows of a batch stay apart."),
            ],
            outputs=[SpeechTokensType.Output(display_name="tokens", tooltip="Speech tokens, s3-v2.")],
        )

    @classmethod
    def execute(cls, model, audio) -> io.NodeOutput:
        model.require("S3Gen", "S3 Tokenize")
        sources = clips(audio, "S3 Tokenize: audio")
        for source in sources:
            check_speech(source, "S3 Tokenize: audio", s3gen_pipeline.SECONDS_PER_TOKEN)
        report = progress_and_interrupt()
        with model.loaded("reference", s3gen_pipeline.READING_BYTES) as network:
            rows = [s3gen_pipeline.tokenize(network, source, model.device, report) for source in sources]
        return io.NodeOutput(SpeechTokens(
            S3_V2, s3gen_pipeline.TOKENS_PER_SECOND, tuple((Piece(row),) for row in rows)))


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
                SpeechModelType.Input("model", tooltip="An S3Gen model."),
                SpeechTokensType.Input("tokens", tooltip="Speech tokens of the kind that the model reads: s3-v2."),
                io.Int.Input(
                    "seed", default=0, min=0, max=MAX_SEED, control_after_generate=True,
                    tooltip="Each seed is another take. Row i of a batch, and piece i of a long text, use seed + i."),
                SpeechVoiceType.Input(
                    "voice", optional=True,
                    tooltip="Who speaks. Not needed where the tokens carry a voice. The first 10 s are used."),
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
    def execute(cls, model, tokens, seed: int, voice=None, steps: int = 0, cfg: float = 0.7,
                joint_fade: float = 20.0) -> io.NodeOutput:
        model.require("S3Gen", "S3Token2Wav")
        tokens.require(model.family.token_kind, "S3Token2Wav")
        voice = voice or tokens.voice
        if voice is None:
            raise ValueError("S3Token2Wav: voice: nothing is connected, and these tokens carry none; connect a Voice.")
        report = progress_and_interrupt()

        def read_voice() -> dict:
            with model.loaded("reference", s3gen_pipeline.READING_BYTES) as network:
                return s3gen_pipeline.read_voice(network, voice.clip, model.device)

        conditions = model.voice(voice.content_hash, read_voice)
        with model.loaded("synthesis", s3gen_pipeline.working_bytes(tokens, conditions)) as network:
            waves = s3gen_pipeline.speak(
                network, tokens, conditions, seed=seed, steps=steps, guidance=cfg, fade_ms=joint_fade,
                device=model.device, on_step=report)
        return io.NodeOutput(to_comfy(waves, s3gen_pipeline.SAMPLE_RATE_HZ))


class SpeechwrightExtension(ComfyExtension):
    async def on_load(self) -> None:
        loader.register_folders()

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [LoadModel, VoiceNode, S3Tokenize, S3Token2Wav]


async def comfy_entrypoint() -> SpeechwrightExtension:
    return SpeechwrightExtension()
