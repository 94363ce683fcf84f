"""The nodes that sample speech tokens."""
from __future__ import annotations

from comfy_api.latest import io

from ..cosyvoice3 import generate
from ..omnifish import pipeline
from ..s3gen.pipeline import TOKENS_PER_SECOND
from ..wires import Made, Piece, SpeechTokens
from .common import (
    CATEGORY,
    MAX_SEED,
    SpeechModelType,
    SpeechPromptType,
    SpeechTokensType,
    progress_and_interrupt,
)
from .inputs import checked

TOKENS_PER_REPORT = 10      # of a language model; its bar would else move too often to be seen


class RASSampler(io.ComfyNode):
    """A prompt becomes speech tokens."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        options = generate.SamplingOptions()
        return io.Schema(
            node_id="SpeechwrightRASSampler",
            display_name="RAS Sampler",
            category=CATEGORY,
            description="Lets a language model say a prompt as speech tokens, 25 per second, under repetition-aware "
                        "sampling.",
            search_aliases=["tts", "text to speech", "cosyvoice", "sampler", "generate speech", "speak"],
            inputs=[
                SpeechModelType.Input("model", tooltip="The CosyVoice model that the prompt was made for."),
                SpeechPromptType.Input("prompt", tooltip="What to say, from Encode Speech Prompt."),
                io.Int.Input(
                    "seed", default=0, min=0, max=MAX_SEED, control_after_generate=True,
                    tooltip="Each seed is another take. Piece i of a long text uses seed + i."),
                io.Float.Input(
                    "temperature", default=options.temperature, min=0.0, max=5.0, step=0.05, optional=True,
                    tooltip="How freely to draw. The model was made for 1. 0 takes the likeliest token, which soon is "
                            "silence for ever."),
                io.Float.Input(
                    "top_p", default=options.top_p, min=0.01, max=1.0, step=0.01, optional=True,
                    tooltip="Draw from the likeliest tokens that have this share of the probability together."),
                io.Int.Input(
                    "top_k", default=options.top_k, min=1, max=generate.MAX_TOP_K, optional=True,
                    tooltip="Draw from this many of the likeliest tokens at most."),
                io.Int.Input(
                    "window", default=options.window, min=0, max=generate.MAX_WINDOW, optional=True, advanced=True,
                    tooltip="How many tokens are looked back upon for repetition; 0 looks at none."),
                io.Float.Input(
                    "tau", default=options.tau, min=0.0, max=1.0, step=0.01, optional=True, advanced=True,
                    tooltip="Draw anew, from all tokens, where the drawn one has this share of the window already. 0: "
                            "never."),
                io.Float.Input(
                    "min_ratio", default=options.min_ratio, min=0.0, max=50.0, step=0.1, optional=True, advanced=True,
                    tooltip="Tokens for each text id before which a piece may not end. 2 are 80 ms."),
                io.Float.Input(
                    "max_ratio", default=options.max_ratio, min=0.1, max=generate.MAX_RATIO, step=0.1, optional=True,
                    advanced=True,
                    tooltip="Tokens for each text id at which a piece is cut. 20 are 800 ms."),
                io.Boolean.Input(
                    "stop_on_loop", default=options.stop_on_loop, optional=True, advanced=True,
                    tooltip="Stop a piece that goes round in circles, and draw it anew."),
                io.Int.Input(
                    "cap_pauses", default=options.pause_cap, min=0, max=1000, optional=True, advanced=True,
                    tooltip="The most tokens that a silence within a piece may last, of 40 ms each; 0: as long as it "
                            "likes. CosyVoice3 only."),
                io.Int.Input(
                    "retries", default=options.retries, min=0, max=10, optional=True, advanced=True,
                    tooltip="How often a piece that loops or says nothing is drawn anew, with another seed."),
            ],
            outputs=[
                SpeechTokensType.Output(display_name="tokens", tooltip="Speech tokens, s3-v2 or s3-v3."),
                io.String.Output(
                    display_name="report",
                    tooltip="For each piece: its tokens, seconds, redraws, how it ended, retries, and its text."),
            ],
        )

    @classmethod
    @checked
    def execute(cls, model, prompt, seed: int, temperature: float = 1.0, top_p: float = 0.8, top_k: int = 25,
                window: int = 10, tau: float = 0.1, min_ratio: float = 2.0, max_ratio: float = 20.0,
                stop_on_loop: bool = True, cap_pauses: int = 5, retries: int = 1) -> io.NodeOutput:
        model.require("RAS Sampler", "lm")
        prompt.require(model.family, "RAS Sampler")
        options = generate.SamplingOptions(
            temperature=temperature, top_p=top_p, top_k=top_k, window=window, tau=tau, min_ratio=min_ratio,
            max_ratio=max_ratio, stop_on_loop=stop_on_loop, pause_cap=cap_pauses, retries=retries)
        prompts, texts = [piece.content for piece in prompt.pieces], [piece.text for piece in prompt.pieces]
        room = generate.working_bytes(model.config, model.dtype("lm").itemsize, prompts, options)
        with model.loaded("lm", room) as lm:
            takes = generate.decode(
                lm, prompts, [seed + index for index in range(len(prompts))], options,
                progress_and_interrupt(TOKENS_PER_REPORT), model.device, texts)
        pieces = tuple(Piece(take.ids[None], piece.pause_s, piece.voice, piece.lead_s, Made(
            piece.text, take.ended, take.retries, take.redrawn, seconds=take.took))
                       for piece, take in zip(prompt.pieces, takes))
        return io.NodeOutput(SpeechTokens(model.token_kind, TOKENS_PER_SECOND, (pieces,)),
                             generate.report(texts, takes))


class BlockDiffusionSampler(io.ComfyNode):
    """A prompt becomes codes of the Fish codec."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        options = pipeline.Options()
        return io.Schema(
            node_id="SpeechwrightBlockDiffusionSampler",
            display_name="Block Diffusion Sampler",
            category=CATEGORY,
            description="Lets OGG TTS say a prompt as codes of the Fish codec, in blocks of 0.74 s whose frames are "
                        "decided together.",
            search_aliases=["tts", "text to speech", "ogg", "sampler", "generate speech", "speak", "omnifish"],
            inputs=[
                SpeechModelType.Input("model", tooltip="The OGG TTS model that the prompt was made for."),
                SpeechPromptType.Input("prompt", tooltip="What to say, from Encode Speech Prompt."),
                io.Int.Input(
                    "seed", default=0, min=0, max=MAX_SEED, control_after_generate=True,
                    tooltip="Each seed is another take. Piece i of a long text uses seed + i."),
                io.Int.Input(
                    "steps", default=options.steps, min=1, max=pipeline.MAX_STEPS, optional=True,
                    tooltip="In how many steps a block is decided; more are slower."),
                io.Float.Input(
                    "cfg", default=options.cfg, min=0.0, max=10.0, step=0.05, optional=True,
                    tooltip="Classifier-free guidance: how closely to follow text and voice. 0 is off and takes half "
                            "the time."),
                io.Float.Input(
                    "temperature", default=options.temperature, min=0.0, max=5.0, step=0.05, optional=True,
                    tooltip="How freely to draw; 0 takes the likeliest."),
                io.Float.Input(
                    "max_seconds", default=options.max_seconds, min=0.0, max=pipeline.MAX_SECONDS, step=0.1,
                    optional=True, tooltip="Seconds at which a piece is cut. 0: twice what its text should take."),
                io.Int.Input(
                    "block", default=options.block, min=1, max=pipeline.MAX_BLOCK, optional=True, advanced=True,
                    tooltip="Frames that are decided together, of 46 ms each; the model was trained on 16."),
                io.Float.Input(
                    "min_seconds", default=options.min_seconds, min=0.0, max=pipeline.MAX_SECONDS, step=0.1,
                    optional=True, advanced=True, tooltip="Seconds before which a piece does not end."),
                io.Int.Input(
                    "mtp_rounds", default=options.mtp_rounds, min=1, max=pipeline.MAX_STEPS, optional=True,
                    advanced=True,
                    tooltip="In how many rounds each further codebook of a block is decided."),
                io.Float.Input(
                    "mtp_temperature", default=options.mtp_temperature, min=0.0, max=5.0, step=0.05, optional=True,
                    advanced=True, tooltip="How freely to draw the further codebooks; 0 takes the likeliest."),
                io.Int.Input(
                    "mtp_top_k", default=options.mtp_top_k, min=0, max=1024, optional=True, advanced=True,
                    tooltip="Draw them from this many of the likeliest; 0: from all."),
                io.Boolean.Input(
                    "full_context", default=options.full_context, optional=True, advanced=True,
                    tooltip="Later blocks see all codebooks of earlier ones. Off: the semantic one alone, for models "
                            "that were trained so."),
                SpeechTokensType.Input(
                    "continue_from", optional=True,
                    tooltip="Codes that the speech begins with and goes on from, such as those of another run; the "
                            "prompt's text has to begin with what they say. Whole blocks count."),
                io.Boolean.Input(
                    "stop_on_loop", default=options.stop_on_loop, optional=True, advanced=True,
                    tooltip="Stop a piece that goes round in circles, and draw it anew, once."),
            ],
            outputs=[
                SpeechTokensType.Output(display_name="tokens", tooltip="Codes of the Fish codec, fish-44k."),
                io.String.Output(
                    display_name="report", tooltip="For each piece: its frames, seconds, how it ended, retries, and "
                                                   "its text."),
            ],
        )

    @classmethod
    @checked
    def execute(cls, model, prompt, seed: int, steps: int = 6, cfg: float = 1.5, temperature: float = 0.8,
                max_seconds: float = 0.0, block: int = 16, min_seconds: float = 0.0, mtp_rounds: int = 4,
                mtp_temperature: float = 0.0, mtp_top_k: int = 0, full_context: bool = True,
                continue_from=None, stop_on_loop: bool = True) -> io.NodeOutput:
        model.require("Block Diffusion Sampler", "backbone")
        prompt.require(model.family, "Block Diffusion Sampler")
        options = pipeline.Options(steps, cfg, temperature, max_seconds, block, min_seconds, mtp_rounds,
                                   mtp_temperature, mtp_top_k, full_context, stop_on_loop)
        beginning = None
        if continue_from is not None:
            continue_from.require(model.token_kind, "Block Diffusion Sampler")
            beginning = continue_from.batch[0][-1].ids
        dtype = model.dtype("backbone")
        with model.loaded("backbone", pipeline.working_bytes(
                model.config, options, prompt.pieces, dtype.itemsize)) as network:
            takes = pipeline.sample(network, model.text_tokenizer, prompt.pieces, seed, options, beginning,
                                    progress_and_interrupt(), model.device)
        pieces = tuple(Piece(take.codes, piece.pause_s, piece.voice, piece.lead_s, Made(
            piece.text, take.ended, take.retries, block=block, seconds=take.took))
                       for piece, take in zip(prompt.pieces, takes))
        return io.NodeOutput(SpeechTokens(model.token_kind, pipeline.FRAMES_PER_SECOND, (pieces,)),
                             pipeline.report([piece.text for piece in prompt.pieces], takes))
