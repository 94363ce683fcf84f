"""The nodes, a file for each kind: their schemas, and one call for each."""
from __future__ import annotations

from ..files import register_folders
from .comfyui import ComfyExtension, io
from .fish import FishDecode, FishEncode
from .load import LoadModel
from .prompt import EncodePrompt
from .report import SpeechReport
from .s3 import S3Token2Wav, S3Tokenize
from .samplers import BlockDiffusionSampler, RASSampler
from .transcribe import Transcribe
from .voice import SaveVoice, VoiceLibrary, VoiceNode


class SpeechwrightExtension(ComfyExtension):
    async def on_load(self) -> None:
        register_folders()

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [LoadModel, VoiceNode, VoiceLibrary, SaveVoice, EncodePrompt, BlockDiffusionSampler, RASSampler,
                S3Tokenize, S3Token2Wav, FishEncode, FishDecode, Transcribe,
                SpeechReport]


async def comfy_entrypoint() -> SpeechwrightExtension:
    return SpeechwrightExtension()
