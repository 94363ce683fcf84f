"""A folder of Whisper or Moonshine as it was published for transformers: which it is, whether it is whole, its network.

Three things are read: ``config.json``, ``tokenizer.json`` and the weights, of which headers and names are checked
before any tensor is. ``generation_config.json`` counts where it is there. Nothing else is needed, a preprocessor's
settings neither: sizes tell them. transformers only makes the network; it is given tensors, not paths, and so reaches
for no file and no address.
"""
from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..assembly import Shapes, check_names, own, shapes_of
from ..checkpoint import Checkpoint, open_checkpoint, short
from ..hub import Published
from ..needed import needed

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONFIG, TOKENIZER, GENERATION = "config.json", "tokenizer.json", "generation_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
FILES = (CONFIG, GENERATION, TOKENIZER, WEIGHTS)
PICKLED = "pytorch_model.bin"       # read as tensors alone
TIED = "proj_out.weight"            # files leave it out: it is the table of the text ids
MULTILINGUAL_IDS = 51865            # of Whisper; its English-only tables have one id less
MAX_JSON_BYTES = 2**20              # of a configuration; published ones have a few thousand

WHISPER, MOONSHINE = "whisper", "moonshine"     # "model_type" of config.json
CLASSES = {WHISPER: ("WhisperConfig", "WhisperForConditionalGeneration"),
           MOONSHINE: ("MoonshineConfig", "MoonshineForConditionalGeneration")}
BUILDING = threading.Lock()     # transformers changes what all of a process see while it makes a network
# What a configuration must not bring along: others' code, kernels and labels, of which as many are made as it tells.
FOREIGN = ("auto_map", "quantization_config", "attn_implementation", "num_labels", "id2label", "label2id")
MAX_LAYERS = 1000           # which are made before they are compared with the weights; published models have 32
END = {WHISPER: "<|endoftext|>", MOONSHINE: "</s>"}

# Names below models/tts -> repository and licence of folders that can be fetched, the smallest first.
PUBLISHED = {
    "whisper/whisper-tiny": ("openai/whisper-tiny", "Apache-2.0"),
    "whisper/whisper-base": ("openai/whisper-base", "Apache-2.0"),
    "whisper/whisper-small": ("openai/whisper-small", "Apache-2.0"),
    "whisper/whisper-large-v3-turbo": ("openai/whisper-large-v3-turbo", "MIT"),
    "moonshine/moonshine-base": ("UsefulSensors/moonshine-base", "MIT"),
}


@dataclass(frozen=True, eq=False)
class Ear:
    """A folder whose files are known to be whole and to fit each other.

    kind: ``WHISPER`` or ``MOONSHINE``. multilingual: whether it is told the language. silenced: ids that it never
    writes; silenced_first: never as the first. weights: the files, of which only headers have been read.
    """
    kind: str
    folder: Path
    config: object
    tokenizer: Tokenizer
    multilingual: bool
    silenced: tuple[int, ...]
    silenced_first: tuple[int, ...]
    weights: tuple[Checkpoint, ...]

    @property
    def title(self) -> str:
        return self.kind.capitalize()

    @property
    def end(self) -> int:
        """The id that ends a text."""
        return self.id(END[self.kind])

    def id(self, token: str) -> int:
        """The id of a control token. ``ValueError`` where the tokenizer has none."""
        found = self.tokenizer.token_to_id(token)
        if found is None or found >= self.config.vocab_size:
            raise ValueError(f"{self.folder / TOKENIZER}: {token} is no id of this model; take the file from the "
                             f"folder of {self.title} that the weights come from.")
        return found

    @property
    def dtype(self) -> torch.dtype:
        """That the weights are stored in."""
        return next(iter(self.weights[0].dtypes.values()))

    def build(self, dtype: torch.dtype) -> nn.Module:
        """The network with its weights, on the CPU."""
        tensors = {name: own(tensor, dtype) for name, tensor in _tensors(self.weights)}
        made = _classes(self.kind)[1]
        with BUILDING:
            network = made.from_pretrained(None, config=self.config, state_dict=tensors, dtype=dtype)
        # What it makes of the configuration holds rules of earlier versions.
        network.generation_config = type(network.generation_config)()
        return network.eval().requires_grad_(False)


def published(name: str) -> dict[str, Published]:
    """File -> where it comes from, for the folder of that name; nothing where it is none of the published ones."""
    if name not in PUBLISHED:
        return {}
    repository, licence = PUBLISHED[name]
    return {file: Published(repository, file, None, None, licence) for file in FILES}


def find(folder: Path, file: str) -> Path | None:
    """The file of that name; for the weights any form of them."""
    names = (WEIGHTS, INDEX, PICKLED) if file == WEIGHTS else (file,)
    return next((folder / name for name in names if (folder / name).is_file()), None)


def kind(folder: Path) -> str | None:
    """Which of ``CLASSES`` a folder says that it is, or None."""
    try:
        found = _json(folder / CONFIG).get("model_type")
    except (OSError, ValueError):
        return None
    return found if isinstance(found, str) and found in CLASSES else None


def present(folder: Path) -> list[Path]:
    """Every file in the folder that is read."""
    found = [find(folder, file) for file in FILES]
    shards = _shards(folder) if found[-1] == folder / INDEX else []
    return [path for path in (*found, *shards) if path is not None]


def open_folder(folder: Path) -> Ear:
    """Check what is there; no weights are read.

    FileNotFoundError lists every file that is missing; ValueError for a folder of something else, and for files that
    are broken or do not fit each other.
    """
    settings, found = _json(folder / CONFIG) if (folder / CONFIG).is_file() else None, kind(folder)
    if settings is not None and found is None:
        says = settings.get("model_type") or settings.get("architectures") or "nothing known"
        raise ValueError(f"{folder}: this is no folder of Whisper or Moonshine; {CONFIG} says that it is "
                         f"{short(says)}. Choose a folder of one of them, such as openai/whisper-tiny.")
    _check_present(folder)
    config, expected = _config(folder, found, settings)
    checkpoints = tuple(open_checkpoint(path) for path in _weight_files(folder))
    _check_weights(folder, found, expected, checkpoints)
    told = _json(folder / GENERATION) if (folder / GENERATION).is_file() else settings
    ear = Ear(found, folder, config, _tokenizer(folder), _is_multilingual(found, config, told),
              _ids(told, "suppress_tokens"), _ids(told, "begin_suppress_tokens"), checkpoints)
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    if ear.end not in ends or ear.tokenizer.get_vocab_size() > config.vocab_size:
        raise ValueError(f"{folder / TOKENIZER}: the text ids are another model's: {ear.tokenizer.get_vocab_size()}, "
                         f"ended by {ear.end}, where {CONFIG} says {config.vocab_size}, ended by {ends[0]}. Take both "
                         "files and the weights from one repository.")
    return ear


def _check_present(folder: Path) -> None:
    missing = [file for file in (CONFIG, TOKENIZER, WEIGHTS) if find(folder, file) is None]
    if find(folder, WEIGHTS) == folder / INDEX:
        missing += [path.name for path in _shards(folder) if not path.is_file()]
    if missing:
        raise FileNotFoundError(f"{folder}: of its files these are missing: {', '.join(missing)}. Put them there from "
                                "the repository of this model, or switch `download` on for a folder that can be "
                                f"fetched ({', '.join(PUBLISHED)}).")


def _shards(folder: Path) -> list[Path]:
    """The files that the index of the weights names."""
    table = _json(folder / INDEX).get("weight_map")
    if not isinstance(table, dict) or not table or not all(
            isinstance(name, str) and Path(name).name == name for name in table.values()):
        raise ValueError(f"{folder / INDEX}: the table of files is damaged. Download it again.")
    return [folder / name for name in dict.fromkeys(table.values())]


def _weight_files(folder: Path) -> list[Path]:
    path = find(folder, WEIGHTS)
    return _shards(folder) if path == folder / INDEX else [path]


def _config(folder: Path, kind: str, settings: Mapping) -> tuple[object, Shapes]:
    """transformers' object with the sizes that the file tells, and the tensors of a network of these sizes."""
    sizes = {key: value for key, value in settings.items() if key not in FOREIGN and not key.startswith("_")}
    for key, value in sizes.items():
        if "layers" in key and isinstance(value, (int, float)) and value > MAX_LAYERS:
            raise ValueError(f"{folder / CONFIG}: no network can be made of these sizes ({key} {short(value)}, at most "
                             f"{MAX_LAYERS}). Download the file again.")
    made, network = _classes(kind)
    try:
        config = made.from_dict(sizes)
        with BUILDING, torch.device("meta"):
            return config, shapes_of(network(config).state_dict())
    except Exception as error:      # whatever their checks raise
        raise ValueError(f"{folder / CONFIG}: no network can be made of these sizes ({short(error)}). Download the "
                         "file again.") from error


def _check_weights(folder: Path, kind: str, expected: Shapes, checkpoints: Iterable[Checkpoint]) -> None:
    found: dict[str, tuple[int, ...]] = {}
    for checkpoint in checkpoints:
        found.update(checkpoint.shapes)
    expected = {name: shape for name, shape in expected.items() if name != TIED or name in found}
    check_names(expected, found, str(find(folder, WEIGHTS)), kind.capitalize())


def _tensors(checkpoints: Iterable[Checkpoint]) -> Iterator[tuple[str, Tensor]]:
    for checkpoint in checkpoints:
        yield from checkpoint.read().items()


def _tokenizer(folder: Path) -> Tokenizer:
    path = folder / TOKENIZER
    with needed("tokenizers", "Transcribe Speech"):
        from tokenizers import Tokenizer
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:      # the library raises nothing narrower
        raise ValueError(f"{path}: not a tokenizer ({short(error)}). Download it again.") from error


def _is_multilingual(kind: str, config: object, told: Mapping) -> bool:
    said = told.get("is_multilingual")
    return kind == WHISPER and (said if isinstance(said, bool) else config.vocab_size >= MULTILINGUAL_IDS)


def _ids(told: Mapping, key: str) -> tuple[int, ...]:
    """A list of ids in a configuration; what is no list of ids stands for none."""
    found = told.get(key)
    return tuple(n for n in found if type(n) is int and n >= 0) if isinstance(found, list) else ()


def _json(path: Path) -> dict:
    try:
        if path.stat().st_size > MAX_JSON_BYTES and path.name != INDEX:
            raise ValueError("too large")
        found = json.loads(path.read_text(encoding="utf-8-sig"))
        if not isinstance(found, dict):
            raise ValueError("no JSON object")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: the file is damaged ({short(error)}). Download it again.") from error
    return found


def _classes(kind: str) -> tuple[type, type]:
    """transformers' classes of a configuration and of a network."""
    try:
        import transformers
        configuration, network = (getattr(transformers, name) for name in CLASSES[kind])
    except (ImportError, AttributeError) as error:
        raise ImportError(f"Transcribe Speech: transformers cannot make a {kind.capitalize()} ({short(error)}). "
                          "Install ComfyUI's requirements again, or update it.") from error
    return configuration, network
