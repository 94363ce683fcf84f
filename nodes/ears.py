"""What turns speech into text: folders of it below models/tts, and their networks under ComfyUI's memory management."""
from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import comfy.cli_args
import comfy.model_management
import comfy.model_patcher
import torch
from torch import nn

from .. import files, hub
from ..hearing import folder
from ..hearing.folder import Ear

MARKS = (folder.CONFIG,)

logger = logging.getLogger(__name__)


def choices() -> list[str]:
    """The folders that are here, then those that could be fetched."""
    here = [name for name in files.folder_names(MARKS)
            if folder.kind(files.find_folder(name, {}, folder.find, marks=MARKS))]
    return list(dict.fromkeys((*here, *folder.PUBLISHED)))


def stamp(name: str) -> str:
    """What changes when a file in the folder of that name does; for a missing one its name."""
    try:
        return files.stamp(folder.present(files.find_folder(name, {}, folder.find, marks=MARKS)))
    except (OSError, ValueError):
        return name


def open_ear(name: str, download: bool = False, on_progress: files.OnProgress = hub.unwatched) -> Ear:
    """The folder of that name, whose missing files are fetched if they may be."""
    published = folder.published(files.inside(name, "folder").as_posix())
    return folder.open_folder(files.find_folder(name, published, folder.find, download, on_progress, MARKS))


class SpeechToText(nn.Module):
    """A network as ComfyUI can hold it: it notes the device on a module, which those of transformers refuse."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network


@contextmanager
def loaded(ear: Ear, device: str, working_bytes: int) -> Iterator[tuple[nn.Module, torch.device]]:
    """The network where it computes, with room to work, and that device. Nothing keeps it after the block.

    device: "auto" or "cpu".
    """
    if device not in ("auto", "cpu"):
        raise ValueError(f"Transcribe Speech: device: {device!r} is not known; choose auto or cpu.")
    place = torch.device("cpu") if device == "cpu" else comfy.model_management.get_torch_device()
    maker = comfy.model_patcher.CoreModelPatcher
    if comfy.cli_args.args.novram and maker is comfy.model_patcher.ModelPatcher and place.type != "cpu":
        logger.warning("Transcribe Speech: with --novram the model runs on the processor.")
        place = torch.device("cpu")     # its layers are torch's own, which ComfyUI moves as a whole or not at all
    # Weights made in ComfyUI's inference mode could not be used outside it.
    with torch.inference_mode(False):
        network = ear.build(_dtype(ear, place))
    comfy.model_management.archive_model_dtypes(network)
    patcher = maker(SpeechToText(network), load_device=place,
                    offload_device=comfy.model_management.unet_offload_device())
    comfy.model_management.load_models_gpu([patcher], memory_required=working_bytes, force_full_load=True)
    yield network, place


def _dtype(ear: Ear, device: torch.device) -> torch.dtype:
    """As the weights are stored, where a GPU computes in it; else float32."""
    computes = {torch.float16: comfy.model_management.should_use_fp16,
                torch.bfloat16: comfy.model_management.should_use_bf16}.get(ear.dtype)
    return ear.dtype if device.type == "cuda" and computes and computes(device) else torch.float32
