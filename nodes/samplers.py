"""The nodes that sample speech tokens."""
from __future__ import annotations

from comfy_api.latest import io

from ..cosyvoice3 import generate
from ..s3gen.pipeline import TOKENS_PER_SECOND
from ..wires import Piece, SpeechTokens
from .common import (
    CATEGORY,
    MAX_SEED,
    SpeechModelType,
    SpeechPromptType,
    SpeechTokensType,
    progress_and_interrupt,
)

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
                    "window", default=options.window, min=0, max=500, optional=True, advanced=True,
                    tooltip="How many tokens are looked back upon for repetition; 0 looks at none."),
                io.Float.Input(
                    "tau", default=options.tau, min=0.0, max=1.0, step=0.01, optional=True, advanced=True,
                    tooltip="Draw anew, from all tokens, where the drawn one has this share of the window already. 0: "
                            "never."),
                io.Float.Input(
                    "min_ratio", default=options.min_ratio, min=0.0, max=50.0, step=0.1, optional=True, advanced=True,
                    tooltip="Tokens for each text id before which a piece may not end. 2 are 80 ms."),
                io.Float.Input(
                    "max_ratio", default=options.max_ratio, min=0.1, max=100.0, step=0.1, optional=True, advanced=True,
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
    def execute(cls, model, prompt, seed: int, temperature: float = 1.0, top_p: float = 0.8, top_k: int = 25,
                window: int = 10, tau: float = 0.1, min_ratio: float = 2.0, max_ratio: float = 20.0,
                stop_on_loop: bool = True, cap_pauses: int = 5, retries: int = 1) -> io.NodeOutput:
        model.require("RAS Sampler", "lm")
        prompt.require(model.family, "RAS Sampler")
        options = generate.SamplingOptions(
            temperature=temperature, top_p=top_p, top_k=top_k, window=window, tau=tau, min_ratio=min_ratio,
            max_ratio=max_ratio, stop_on_loop=stop_on_loop, pause_cap=cap_pauses, retries=retries)
        with model.loaded("lm", generate.WORKING_BYTES) as lm:
            takes = generate.decode(
                lm, [piece.content for piece in prompt.pieces], [seed + index for index in range(len(prompt.pieces))],
                options, progress_and_interrupt(TOKENS_PER_REPORT), model.device)
        pieces = tuple(Piece(take.ids[None], piece.pause_s, piece.voice, piece.lead_s)
                       for piece, take in zip(prompt.pieces, takes))
        return io.NodeOutput(SpeechTokens(model.token_kind, TOKENS_PER_SECOND, (pieces,)),
                             generate.report([piece.text for piece in prompt.pieces], takes))
