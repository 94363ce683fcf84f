"""From what the user chose to a model that ComfyUI manages: files, family, sizes, modules, patchers.

``SpeechModel`` is what a SPEECH_MODEL wire carries. It owns its weights: ComfyUI's cache of the loader's
output is the only thing that keeps them alive, and its memory management moves them.
"""
from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import comfy.model_management
import comfy.model_patcher
import comfy.ops
import folder_paths
import torch
from safetensors.torch import save_file
from torch import Tensor

from . import cosyvoice3, files, hub, s3gen, voices
from .checkpoint import Checkpoint, open_checkpoint
from .omnifish import checkpoint as ogg
from .omnifish import codec_demo
from .omnifish import demo as ogg_demo
from .omnifish import tokenizer as ogg_tokenizer
from .parts import Opened, Part
from .products import quick
from .wires import MAKERS, Voice

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NO_CODEC = "none"
OGG_FOLDERS, CODEC_FOLDERS = ("diffusion_models",), ("vae",)    # of ComfyUI, where users have such files already
DEMO_VOICE = "Demo voice (English)"
MAX_VOICES = 16                 # read voices that a model keeps, a few hundred kilobytes each

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Family:
    """A kind of checkpoint that one file holds."""

    name: str
    telltale: frozenset[str]                    # names that its checkpoints hold, and no other family's
    open: Callable[[Checkpoint], Opened]        # an error where tensors lack or do not fit
    published: Mapping[str, hub.Published]      # path below models/tts -> the checkpoint that belongs there


@dataclass(frozen=True)
class Demo:
    """A small model of the pack's own: random weights, written to files and loaded like any others, or trained ones."""

    files: Mapping[str, Callable[[], dict]]     # name -> tensors by the published names, of what is written
    open: Callable[[Path], Opened]              # the folder that has them
    home: Path | None = None                    # where all lies already, with a recording of the model's own voice


FAMILIES = (
    Family("S3Gen", s3gen.weights.TELLTALE, s3gen.checkpoint.open_model, s3gen.weights.PUBLISHED),
)
DEMOS = {
    DEMO_VOICE: Demo({}, lambda folder: cosyvoice3.folder.open_folder(
        folder, text_tokenizer=partial(cosyvoice3.tokenizer.load_small, folder)), Path(__file__).with_name("demo")),
    **{title: Demo({"s3gen.safetensors": make}, lambda folder: s3gen.checkpoint.open_model(
        open_checkpoint(folder / "s3gen.safetensors"))) for title, make in s3gen.demo.DEMOS.items()},
    **{title: Demo(make, lambda folder: cosyvoice3.folder.open_folder(
        folder, text_tokenizer=cosyvoice3.tokenizer.demo)) for title, make in cosyvoice3.demo.DEMOS.items()},
    "OGG TTS": Demo(
        {"ogg_tts.safetensors": ogg_demo.random_state, "codec.safetensors": codec_demo.DEMOS["Fish codec"]},
        lambda folder: ogg.open_model(
            folder / "ogg_tts.safetensors", folder / "codec.safetensors",
            text_tokenizer=lambda rows: ogg_tokenizer.demo())),
}


def identify(names: set[str], source: str) -> Family:
    """The one family that has these tensors. ``ValueError`` when none or several fit."""
    found = [family for family in FAMILIES if family.telltale <= names]
    if len(found) == 1:
        return found[0]
    known = ", ".join(family.name for family in FAMILIES)
    problem = "several fit" if found else "none fits"
    advice = "Choose a checkpoint of one of them."
    if belongs := cosyvoice3.folder.belonging(names):
        advice = f"It is {belongs} of CosyVoice: choose the family CosyVoice and the folder of this file."
    elif belongs := ogg.belongs(names):
        advice = f"It is {belongs} of OGG TTS: choose that family."
    raise ValueError(
        f"{source}: of the model families ({known}) {problem} its {len(names)} tensors, such as "
        f"{', '.join(sorted(names)[:3])}. {advice}")


def published_checkpoints() -> dict[str, hub.Published]:
    """Every family's published checkpoints, by the names that they have here."""
    return {name: published for family in FAMILIES for name, published in family.published.items()}


def checkpoint_choices() -> list[str]:
    """The checkpoints that are here, then those that could be fetched."""
    return list(dict.fromkeys((*files.checkpoint_names(), *published_checkpoints())))


def folder_choices() -> list[str]:
    """The folders of CosyVoice that are here, then those that could be fetched."""
    return list(dict.fromkeys((*files.folder_names(cosyvoice3.folder.marks()), *cosyvoice3.folder.PUBLISHED)))


def ogg_choices() -> list[str]:
    """Checkpoints that may be OGG TTS's, those that are called so first, then the published one."""
    names = files.checkpoint_names(("ogg", "omnifish"), OGG_FOLDERS)
    return list(dict.fromkeys((*names, *ogg.PUBLISHED)))


def codec_choices() -> list[str]:
    """Files that may be the Fish codec, likely ones first, then the published one, and none."""
    names = files.checkpoint_names(("codec", "fish", "drama"), CODEC_FOLDERS)
    return list(dict.fromkeys((*names, *ogg.PUBLISHED_CODECS, NO_CODEC)))


def checkpoint_stamp(name: str, further: Iterable[str] = ()) -> str:
    """What changes when the file of that name does; for a missing one its name. further: as of ``files.roots``."""
    try:
        return files.stamp([files.find_checkpoint(name, {}, further=further)])
    except (OSError, ValueError):
        return name


def ogg_stamp(checkpoint: str, codec: str) -> str:
    """What changes when one of the two files does; for a missing one its name."""
    return f"{checkpoint_stamp(checkpoint, OGG_FOLDERS)}\n{checkpoint_stamp(codec, CODEC_FOLDERS)}"


def folder_stamp(name: str) -> str:
    """What changes when a file in the folder of that name does; for a missing one its name."""
    try:
        folder = files.find_folder(name, {}, cosyvoice3.folder.find, marks=cosyvoice3.folder.marks())
        return files.stamp(cosyvoice3.folder.present(folder))
    except (OSError, ValueError):
        return name


class SpeechModel:
    """A loaded model: its family and sizes, its patchers, and what it has read of voices.

    Its first part is loaded with it, the others when first needed.
    """

    def __init__(self, opened: Opened, precision: str, device: torch.device, own_voice: Voice | None = None):
        self.family, self.source, self.token_kind = opened.family, opened.source, opened.token_kind
        self.config, self.text_tokenizer, self.decoder = opened.config, opened.text_tokenizer, opened.decoder
        self.write_prompt, self.device, self.own_voice = opened.write_prompt, device, own_voice
        self._opened, self._dtype = opened, _dtype(opened, precision)
        self._before = {name: files.stamp(part.files) for name, part in opened.parts.items()}
        self._patchers: dict[str, comfy.model_patcher.ModelPatcher] = {}
        self._voices: OrderedDict[str, object] = OrderedDict()
        self._changing = threading.RLock()      # of both tables: packs run nodes in threads
        self._patcher(next(iter(opened.parts)))

    @property
    def patcher(self):
        """The patcher of the first part, by which ComfyUI knows a model."""
        return next(iter(self._patchers.values()))

    def get_models(self) -> list:
        """All patchers that are loaded."""
        return list(self._patchers.values())

    def is_dynamic(self) -> bool:
        """Whether ComfyUI streams the weights, by which its caches decide what to keep."""
        return getattr(self.patcher, "is_dynamic", lambda: False)()

    def dtype(self, name: str) -> torch.dtype:
        """What a part runs in: what the user chose, where it can; else what it does best on the device."""
        part: Part = self._opened.parts[name]
        if self._dtype in part.dtypes:
            return self._dtype
        on_gpu = part.on_gpu is not None and self._dtype is None and self.device.type == "cuda"
        if on_gpu and comfy.model_management.should_use_bf16(self.device):
            return part.on_gpu
        return part.dtypes[0]

    def _patcher(self, name: str):
        with self._changing:
            if name not in self._patchers:
                self._patchers[name] = self._build(name)
            return self._patchers[name]

    def _build(self, name: str):
        part = self._opened.parts[name]
        if files.stamp(part.files) != self._before[name]:
            raise ValueError(f"{' and '.join(map(str, part.files))}: the file has changed or gone since it was "
                             "loaded; queue the loader again.")
        # Weights made in ComfyUI's inference mode could not be used outside it.
        with torch.inference_mode(False):
            module = part.build(quick(comfy.ops.disable_weight_init), self.dtype(name))
        comfy.model_management.archive_model_dtypes(module)
        return comfy.model_patcher.CoreModelPatcher(
            module, load_device=self.device, offload_device=comfy.model_management.unet_offload_device())

    @contextmanager
    def loaded(self, parts: str | tuple[str, ...], working_bytes: int) -> Iterator:
        """The network of one part, or those of several, where they compute (``self.device``), with room to work."""
        names = (parts,) if isinstance(parts, str) else parts
        patchers = [self._patcher(name) for name in names]
        comfy.model_management.load_models_gpu(patchers, memory_required=working_bytes, force_full_load=True)
        networks = tuple(patcher.model for patcher in patchers)
        for network in networks:
            _bring_rest(network, self.device)
        yield networks[0] if isinstance(parts, str) else networks

    def voice(self, key: str, read: Callable[[], object]) -> object:
        """What ``read`` makes of the recording that ``key`` stands for; asked for once, then remembered."""
        with self._changing:
            if key in self._voices:
                self._voices.move_to_end(key)
                return self._voices[key]
        found = read()
        with self._changing:
            self._voices[key] = found
            self._voices.move_to_end(key)
            while len(self._voices) > MAX_VOICES:
                self._voices.popitem(last=False)
        return found

    def hear(self, voice: Voice, node: str) -> Tensor:
        """The speech tokens (K, F) of a voice's recording, which is read once."""
        reader = self._opened.reader
        self.require(node, reader.part)

        def read() -> Tensor:
            with self.loaded(reader.part, reader.working_bytes) as network:
                return reader.read(network, voice.clip, self.device)

        return self.voice(f"tokens {voice.content_hash}", read)

    def require_kind(self, kind: str, node: str) -> None:
        """``ValueError`` unless the model's tokens are of that kind."""
        if self.token_kind != kind:
            raise ValueError(f"{node}: {self.family} ({self.source}) reads {self.token_kind} tokens, and {kind} are "
                             f"needed; connect {MAKERS[kind]}.")

    def require(self, node: str, *parts: str) -> None:
        """``ValueError`` naming the first of these parts that the model has not got, and what to do."""
        for part in parts:
            if problem := self._opened.lack(part):
                raise ValueError(f"{node}: {problem}")


def _bring_rest(network: torch.nn.Module, device: torch.device) -> None:
    """Move what ComfyUI left behind.

    With --novram it fetches the weights of its own layers as they compute, and leaves there the norms and other
    small parts of ours, which nobody fetches. They go back with the rest.
    """
    with torch.inference_mode(False):
        for module in network.modules():
            own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
            if not hasattr(module, "comfy_cast_weights") and any(tensor.device != device for tensor in own):
                module._apply(lambda tensor: tensor.to(device), recurse=False)


def load(name: str, precision: str = "auto", device: str = "auto", download: bool = False,
         on_progress: files.OnProgress = hub.unwatched) -> SpeechModel:
    """Load the checkpoint of that name in models/tts, which is fetched if it may be."""
    checkpoint = open_checkpoint(files.find_checkpoint(name, published_checkpoints(), download, on_progress))
    family = identify(set(checkpoint.shapes), str(checkpoint.path))
    return SpeechModel(family.open(checkpoint), precision, _device(device))


def load_folder(name: str, lm: str = cosyvoice3.folder.BASE, precision: str = "auto", device: str = "auto",
                download: bool = False, on_progress: files.OnProgress = hub.unwatched) -> SpeechModel:
    """Load the folder of CosyVoice of that name in models/tts, of which what is missing is fetched if it may be."""
    published = cosyvoice3.folder.published(files.inside(name, "folder").as_posix(), lm)
    folder = files.find_folder(name, published, cosyvoice3.folder.find, download, on_progress,
                               cosyvoice3.folder.marks())
    opened = cosyvoice3.folder.open_folder(
        folder, lm, vocabulary=Path(comfy.model_management.__file__).with_name("text_encoders") / "qwen25_tokenizer",
        cache=Path(folder_paths.get_user_directory(), "speechwright", "cache"), fetchable=bool(published))
    if opened.missing:
        logger.warning("%s is not whole: %s missing; nodes that need them will say so.", folder,
                       ", ".join(name for names in opened.missing.values() for name in names))
    return SpeechModel(opened, precision, _device(device))


def load_ogg(checkpoint: str, codec: str, content: str = ogg.FULL, precision: str = "auto",
             device: str = "auto", download: bool = False,
             on_progress: files.OnProgress = hub.unwatched) -> SpeechModel:
    """Load OGG TTS: checkpoint, codec unless it is ``NO_CODEC``, and OmniVoice's tokenizer, fetched if they may be."""
    path = files.find_checkpoint(checkpoint, ogg.PUBLISHED, download, on_progress, further=OGG_FOLDERS)
    sound = None
    if codec != NO_CODEC:
        sound = files.find_checkpoint(codec, ogg.PUBLISHED_CODECS, download, on_progress, "codec", CODEC_FOLDERS)
    roots = files.roots()
    target = roots[0] / ogg.TOKENIZER

    def text_tokenizer(rows: int) -> ogg_tokenizer.TextTokenizer | None:
        places = [path.parent, *(root / folder for root in roots for folder in ("ogg", "omnivoice", "OmniVoice"))]
        found = ogg.find_tokenizer(places, rows)
        if found is None and download:
            hub.fetch(ogg.PUBLISHED_TOKENIZER, target, on_progress)
            found = ogg.find_tokenizer([target.parent], rows)
        return found

    opened = ogg.open_model(path, sound, content, text_tokenizer, (
        f"tokenizer.json of k2-fsa/OmniVoice, in {path.parent} or {target.parent}",))
    return SpeechModel(opened, precision, _device(device))


def load_demo(title: str, precision: str = "auto", device: str = "auto") -> SpeechModel:
    """A model that needs no file of the user's; random weights are written to ComfyUI's temporary folder."""
    if title not in DEMOS:
        raise ValueError(f"demo: {title!r} is not one of {', '.join(DEMOS)}.")
    demo, own_voice = DEMOS[title], None
    if demo.home:
        folder, own_voice = demo.home, voices.load(demo.home / "voice.flac", "Load Speech Model")
    else:
        folder = Path(folder_paths.get_temp_directory(), f"speechwright_demo_{title.replace(' ', '_')}")
        folder.mkdir(parents=True, exist_ok=True)
        logger.warning("Demo weights are random: what they say is noise, of the right length.")
    for file, make in demo.files.items():
        if not (folder / file).is_file():
            unfinished = folder / f"{file}.{os.getpid()}.{threading.get_ident()}.part"
            save_file(make(), unfinished)
            _put(unfinished, folder / file)
    opened = demo.open(folder)
    model = SpeechModel(opened, precision, _device(device), own_voice)
    for part in opened.parts:       # another server that starts empties the folder
        model._patcher(part)
    return model


def _put(finished: Path, path: Path) -> None:
    """Move a file there, unless another was faster: the one that somebody has opened by now stays."""
    try:
        os.link(finished, path)
    except FileExistsError:
        pass
    except OSError:                     # a file system without links
        finished.replace(path)
    finished.unlink(missing_ok=True)


def _dtype(opened: Opened, precision: str) -> torch.dtype | None:
    """None for the best of each part."""
    allowed = {name: dtype for name, dtype in PRECISIONS.items() if dtype in opened.dtypes}
    if precision != "auto" and precision not in allowed:
        raise ValueError(f"precision: {opened.family} does not run in {precision}; choose auto, {', '.join(allowed)}.")
    return allowed.get(precision)


def _device(device: str) -> torch.device:
    if device not in ("auto", "cpu"):
        raise ValueError(f"device: {device!r} is not known; choose auto or cpu.")
    return torch.device("cpu") if device == "cpu" else comfy.model_management.get_torch_device()


def demo_titles() -> list[str]:
    """Every demo of every family."""
    return list(DEMOS)
