"""From a file to a model that ComfyUI manages: header, family, sizes, module, patcher.

``SpeechModel`` is what a SPEECH_MODEL wire carries. It owns its weights: ComfyUI's cache of the loader's
output is the only thing that keeps them alive, and its memory management moves them.
"""
from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import comfy.model_management
import comfy.model_patcher
import comfy.ops
import folder_paths
import torch
from safetensors.torch import save_file

from . import hub, s3gen
from .checkpoint import Checkpoint, open_checkpoint
from .wires import S3_V2

FOLDER_KEYS = ("tts", "TTS")    # under models/, and in extra_model_paths.yaml; packs use both
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MAX_VOICES = 16                 # read voices that a model keeps, a few hundred kilobytes each

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Family:
    """One family of models, as the loader sees it."""

    name: str
    telltale: frozenset[str]            # names that its checkpoints hold, and no other family's
    token_kind: str                     # of the tokens that it reads and decodes
    dtypes: tuple[torch.dtype, ...]     # that it may run in; the first is what "auto" takes
    parts: Mapping[str, tuple[str, ...]]        # what is loaded and moved together; the first at once
    measure: Callable                   # (shapes, source) -> config; an error where tensors lack or do not fit
    build: Callable                     # (tensors, operations, dtype, parts, config, source) -> module
    demos: Mapping[str, Callable[[], dict]]     # title -> small random weights by the published names
    published: Mapping[str, hub.Published]      # path below models/tts -> the checkpoint that belongs there


FAMILIES = (
    Family(
        name="S3Gen", telltale=s3gen.weights.TELLTALE, token_kind=S3_V2, dtypes=s3gen.weights.DTYPES,
        parts={"synthesis": s3gen.model.SYNTHESIS_PARTS, "reference": s3gen.model.REFERENCE_PARTS},
        measure=s3gen.weights.measure, build=s3gen.weights.build, demos=s3gen.demo.DEMOS,
        published=s3gen.weights.PUBLISHED,
    ),
)


def identify(names: set[str], source: str) -> Family:
    """The one family that has these tensors. ``ValueError`` when none or several fit."""
    found = [family for family in FAMILIES if family.telltale <= names]
    if len(found) == 1:
        return found[0]
    known = ", ".join(family.name for family in FAMILIES)
    problem = "several fit" if found else "none fits"
    raise ValueError(
        f"{source}: of the model families ({known}) {problem} its {len(names)} tensors, such as "
        f"{', '.join(sorted(names)[:3])}. Choose a checkpoint of one of them.")


def roots() -> list[Path]:
    """The folders that are searched, each once, the first being where new files belong."""
    folders = [Path(folder_paths.models_dir, key) for key in FOLDER_KEYS]
    for key in FOLDER_KEYS:
        if key in folder_paths.folder_names_and_paths:
            folders += map(Path, folder_paths.get_folder_paths(key))
    seen: dict[str, Path] = {}
    for folder in folders:
        seen.setdefault(os.path.realpath(folder), folder)
    return list(seen.values())


def register_folders() -> None:
    """Tell ComfyUI of our folders, beside those that extra_model_paths.yaml names."""
    for key in FOLDER_KEYS:
        folder_paths.add_model_folder_path(key, os.path.join(folder_paths.models_dir, key))


def checkpoint_names() -> list[str]:
    """Checkpoints in all roots as paths relative to theirs, with / on every system; S3Gen's own names first.

    Links are followed, but for those to a folder above themselves. What is hidden is left out: a download that
    has not ended, or what other systems add to a disk.
    """
    names: dict[str, None] = {}
    for root in roots():
        for folder, below, files in os.walk(root, followlinks=True):
            here = Path(os.path.realpath(folder))
            below[:] = [name for name in below if not name.startswith(".")
                        and not here.is_relative_to(os.path.realpath(os.path.join(folder, name)))]
            for file in files:
                usable = file.lower().endswith(SUFFIXES) and not file.startswith(".")
                if usable and os.path.exists(os.path.join(folder, file)):       # a link may point nowhere
                    names[Path(folder, file).relative_to(root).as_posix()] = None
    return sorted(names, key=lambda name: ("s3gen" not in name.lower(), name.lower(), name))


def published_checkpoints() -> dict[str, hub.Published]:
    """Every family's published checkpoints, by the names that they have here."""
    return {name: published for family in FAMILIES for name, published in family.published.items()}


def checkpoint_choices() -> list[str]:
    """The checkpoints that are here, then those that could be fetched."""
    return list(dict.fromkeys((*checkpoint_names(), *published_checkpoints())))


def find_checkpoint(name: str, download: bool = False,
                    on_progress: Callable[[int, int], None] = hub.unwatched) -> Path:
    """The file of that name in the first root that has it.

    download: fetch what is published and in no root into the first one; on_progress is told of it (bytes that
    are here, bytes in all). ``FileNotFoundError`` says where was looked and where the file is to be had.
    """
    relative = Path(name.replace("\\", "/"))
    if not name.strip() or relative.is_absolute() or any(part.startswith(".") for part in relative.parts):
        raise ValueError(f"checkpoint: {name!r} is not a path inside models/tts; choose one from the list.")
    folders = roots()
    for root in folders:
        if (root / relative).is_file():
            return root / relative
    published = published_checkpoints()
    wanted = published.get(relative.as_posix())
    if wanted and download:
        return hub.fetch(wanted, folders[0] / relative, on_progress)
    advice = (f"It is {wanted}: switch `download` on to fetch it, or put it at {folders[0] / relative}" if wanted else
              f"Put the file there, or choose what can be fetched ({'; '.join(map(str, published.values()))})")
    raise FileNotFoundError(f"checkpoint: {name!r} is in none of {', '.join(map(str, folders))}. {advice}, "
                            "and press R to refresh the list.")


def stamp(name: str) -> str:
    """What changes when the file of that name does: path, size and time; for a missing file its name."""
    try:
        path = find_checkpoint(name)
        status = path.stat()
    except (OSError, ValueError):
        return name
    return f"{path}:{status.st_size}:{status.st_mtime_ns}"


class SpeechModel:
    """A loaded checkpoint: its family and sizes, its patchers, and the voices that it has read.

    The parts that speak are loaded with it; those that read recordings when first needed.
    """

    def __init__(self, family: Family, checkpoint: Checkpoint, reopen: Callable[[], Checkpoint], source: str,
                 dtype: torch.dtype, device: torch.device):
        self.family, self.source, self.dtype, self.device = family, source, dtype, device
        self._reopen = reopen
        self.config = family.measure(checkpoint.shapes, source)
        self._patchers: dict[str, comfy.model_patcher.ModelPatcher] = {}
        self._voices: OrderedDict[str, dict] = OrderedDict()
        self._add(next(iter(family.parts)), checkpoint)

    @property
    def patcher(self):
        """The patcher of the main part, by which ComfyUI knows a model."""
        return next(iter(self._patchers.values()))

    def get_models(self) -> list:
        """All patchers that are loaded."""
        return list(self._patchers.values())

    def is_dynamic(self) -> bool:
        """Whether ComfyUI streams the weights, by which its caches decide what to keep."""
        return getattr(self.patcher, "is_dynamic", lambda: False)()

    def _patcher(self, part: str):
        if part not in self._patchers:
            self._add(part, self._reopen())
        return self._patchers[part]

    def _add(self, part: str, checkpoint: Checkpoint) -> None:
        prefixes = tuple(f"{name}." for name in self.family.parts[part])
        # Weights made in ComfyUI's inference mode could not be used outside it.
        with torch.inference_mode(False):
            tensors = checkpoint.read(lambda name: name.startswith(prefixes))
            module = self.family.build(
                tensors, operations=comfy.ops.disable_weight_init, dtype=self.dtype,
                parts=self.family.parts[part], config=self.config, source=self.source)
        comfy.model_management.archive_model_dtypes(module)
        self._patchers[part] = comfy.model_patcher.CoreModelPatcher(
            module, load_device=self.device, offload_device=comfy.model_management.unet_offload_device())

    @contextmanager
    def loaded(self, part: str, working_bytes: int) -> Iterator[torch.nn.Module]:
        """The network of one part, where it computes (``self.device``), with room for its work."""
        patcher = self._patcher(part)
        comfy.model_management.load_models_gpu([patcher], memory_required=working_bytes, force_full_load=True)
        yield patcher.model

    def voice(self, content_hash: str, read: Callable[[], dict]) -> dict:
        """What ``read`` makes of the recording with that hash; asked for once, then remembered."""
        if content_hash not in self._voices:
            self._voices[content_hash] = read()
            while len(self._voices) > MAX_VOICES:
                self._voices.popitem(last=False)
        self._voices.move_to_end(content_hash)
        return self._voices[content_hash]

    def require(self, family: str, node: str) -> None:
        """``ValueError`` unless this is a model of that family."""
        if self.family.name != family:
            raise ValueError(f"{node}: the model is {self.family.name} ({self.source}); connect a model of {family}.")


def load(name: str, precision: str = "auto", device: str = "auto", download: bool = False,
         on_progress: Callable[[int, int], None] = hub.unwatched) -> SpeechModel:
    """Load the checkpoint of that name in models/tts, which ``find_checkpoint`` fetches if it may."""
    path = find_checkpoint(name, download, on_progress)
    before = stamp(name)
    checkpoint = open_checkpoint(path)
    family = identify(set(checkpoint.shapes), str(path))

    def reopen() -> Checkpoint:
        if stamp(name) != before:
            raise ValueError(f"{path}: the file has changed or gone since it was loaded; queue the loader again.")
        return open_checkpoint(path)

    return SpeechModel(family, checkpoint, reopen, str(path), _dtype(family, precision), _device(device))


def load_demo(title: str, precision: str = "auto", device: str = "auto") -> SpeechModel:
    """Tiny random weights, written to ComfyUI's temporary folder and loaded like any other checkpoint."""
    demos = {title: family for family in FAMILIES for title in family.demos}
    if title not in demos:
        raise ValueError(f"demo: {title!r} is not one of {', '.join(demos)}.")

    def open_source() -> Checkpoint:
        folder = Path(folder_paths.get_temp_directory())
        path = folder / f"speechwright_demo_{title.replace(' ', '_')}.safetensors"
        if not path.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_suffix(f".{os.getpid()}.part")
            save_file(demos[title].demos[title](), unfinished)
            unfinished.replace(path)
        return open_checkpoint(path)

    logger.warning("Demo weights are random: what they say is noise, of the right length.")
    checkpoint = open_source()
    family = identify(set(checkpoint.shapes), title)
    return SpeechModel(family, checkpoint, open_source, f"Demo {title}", _dtype(family, precision), _device(device))


def demo_titles() -> list[str]:
    """Every demo of every family."""
    return [title for family in FAMILIES for title in family.demos]


def _dtype(family: Family, precision: str) -> torch.dtype:
    allowed = {name: dtype for name, dtype in PRECISIONS.items() if dtype in family.dtypes}
    if precision != "auto" and precision not in allowed:
        raise ValueError(f"precision: {family.name} does not run in {precision}; choose auto, {', '.join(allowed)}.")
    return family.dtypes[0] if precision == "auto" else allowed[precision]


def _device(device: str) -> torch.device:
    if device not in ("auto", "cpu"):
        raise ValueError(f"device: {device!r} is not known; choose auto or cpu.")
    return torch.device("cpu") if device == "cpu" else comfy.model_management.get_torch_device()
