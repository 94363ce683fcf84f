"""The node that shows what happened."""
from __future__ import annotations

from comfy_api.latest import io

from ..audio import clips
from ..report import picture, pipeline
from .common import CATEGORY, SpeechTokensType
from .inputs import checked


class SpeechReport(io.ComfyNode):
    """Tokens and their audio become a picture and words."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SpeechwrightReport",
            display_name="Speech Report",
            category=CATEGORY,
            description="Shows what happened: waveform, mel spectrogram and tokens on one axis of seconds, with "
                        "pieces, blocks, pauses, redraws, how each piece ended and what it cost; and the same as text.",
            search_aliases=["waveform", "spectrogram", "mel", "inspect tokens", "loudness", "debug speech", "tts"],
            inputs=[
                SpeechTokensType.Input(
                    "tokens", optional=True, tooltip="Speech tokens of any kind. Connect these, audio, or both."),
                io.Audio.Input(
                    "audio", optional=True,
                    tooltip="Sound, such as the tokens decoded. Stereo is mixed down; any length and sample rate."),
                io.Int.Input(
                    "width", default=picture.WIDTH, min=picture.MIN_WIDTH, max=picture.MAX_WIDTH, step=8, optional=True,
                    tooltip="Pixels that the picture is wide; its height follows."),
                io.Int.Input(
                    "row", default=0, min=pipeline.ALL_ROWS, max=10_000, optional=True, advanced=True,
                    tooltip="Row of the batch, from 0. -1: all rows, a picture for each."),
            ],
            outputs=[
                io.Image.Output(display_name="image", tooltip="The picture, width as asked; a batch where row is -1."),
                io.String.Output(
                    display_name="report", tooltip="The same in words: times in seconds, loudness in dBFS."),
            ],
        )

    @classmethod
    @checked
    def execute(cls, tokens=None, audio=None, width: int = picture.WIDTH, row: int = 0) -> io.NodeOutput:
        sounds = clips(audio, "Speech Report: audio") if audio is not None else None
        return io.NodeOutput(*pipeline.report(tokens, sounds, row, width))
