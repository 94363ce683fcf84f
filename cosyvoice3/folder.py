"""A folder of CosyVoice 2 or 3 as it was published, or those of its files that are there.

Its version is told by shapes, and by the names of files where none has been trained for one version only.
Every file by torch or ONNX may also be one of safetensors that has the same name but for its end.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ..assembly import UNFILLED, Shapes, check_names, fill, measured, shapes_of
from ..checkpoint import open_checkpoint
from ..converted import cached
from ..hub import Published
from ..onnx_weights import OnnxFile, open_onnx
from ..parts import TITLES, Decoder, Opened, Part
from ..s3gen import cosyvoice2, onnx
from ..s3gen import pipeline as s3gen_pipeline
from ..s3gen import weights as s3gen_weights
from ..s3gen.checkpoint import READER
from ..s3gen.config import SpeakerConfig, TokenizerConfig, count
from ..s3gen.speaker import CAMPPlus
from ..s3gen.tokenizer import S3Tokenizer
from ..wires import S3_V2, S3_V3
from . import flow_weights, pipeline, prompt, tokenizer, vocoder_weights, weights
from .config import CONTROL_TABLE
from .flow import start_noise

BASE, RL = "base", "RL"
LMS = {BASE: "llm.pt", RL: "llm.rl.pt"}
FLOW, VOCODER = "flow.pt", "hift.pt"
KINDS = {2: S3_V2, 3: S3_V3}
TOKENIZER_LAYERS = {2: 6, 3: 12}         # of the published speech tokenizers, which nothing else tells apart


@dataclass(frozen=True)
class _Reader:
    """A network that reads recordings, and how its published ONNX file is read."""

    title: str
    config: type
    module: type
    sources: Callable[[OnnxFile], object]       # errors where a file is not whole
    read: Callable[[Path], dict[str, Tensor]]

    def make(self, shapes: Shapes, operations) -> nn.Module:
        return self.module(self.config.from_shapes(shapes), operations, "meta")

    def check(self, shapes: Shapes, path: Path) -> Shapes:
        module = measured(lambda shapes: self.make(shapes, UNFILLED), shapes, str(path), self.title)
        check_names(shapes_of(module.state_dict()), shapes, str(path), self.title)
        return shapes


DECODERS = {
    2: Decoder(s3gen_pipeline.read_voice, partial(s3gen_pipeline.speak, start_noise=start_noise, fades_in=False),
               s3gen_pipeline.working_bytes),
    3: Decoder(pipeline.read_voice, pipeline.speak, pipeline.working_bytes),
}
READERS = {
    "tokenizer": _Reader(onnx.TOKENIZER, TokenizerConfig, S3Tokenizer, onnx.tokenizer_sources,
                         onnx.read_speech_tokenizer),
    "speaker": _Reader(onnx.SPEAKER, SpeakerConfig, CAMPPlus, onnx.speaker_sources, onnx.read_speaker_encoder),
}

# Names below models/tts of the published folders: their repositories and versions.
PUBLISHED = {
    "cosyvoice/Fun-CosyVoice3-0.5B-2512": ("FunAudioLLM/Fun-CosyVoice3-0.5B-2512", 3),
    "cosyvoice/CosyVoice2-0.5B": ("FunAudioLLM/CosyVoice2-0.5B", 2),
}
LICENCE = "Apache-2.0"
TELLTALES = {
    "the language model": weights.TELLTALE,
    "the flow": frozenset({"input_embedding.weight", "spk_embed_affine_layer.weight"}),
    "the vocoder": frozenset({"m_source.l_linear.weight", "conv_pre.bias"}),
}
SHA256 = {"speech_tokenizer_v3.onnx": "23236a74175dbdda47afc66dbadd5bcb41303c467a57c261cb8539ad9db9208d"}


def files(version: int, lm: str = BASE) -> dict[str, tuple[str, ...]]:
    """Part -> the published names of the files that hold it."""
    return {
        "synthesis": (FLOW, VOCODER),
        "lm": (LMS[lm],),
        "text": tuple(f"{tokenizer.FOLDER}/{name}" for name in (tokenizer.VOCABULARY_FILE, tokenizer.MERGES_FILE)),
        "tokenizer": (f"speech_tokenizer_v{version}.onnx",),
        "speaker": ("campplus.onnx",),
    }


def marks() -> frozenset[str]:
    """Names of files by which one knows such a folder."""
    names = {name for version in KINDS for lm in LMS for part, names in files(version, lm).items()
             if part != "text" for name in names}
    return frozenset(names | {str(Path(name).with_suffix(".safetensors")) for name in names})


def published(name: str, lm: str = BASE) -> dict[str, Published]:
    """File -> where it comes from, for the folder of that name; nothing where it is none of the published ones."""
    if name not in PUBLISHED:
        return {}
    repository, version = PUBLISHED[name]
    if lm == RL and version == 2:
        raise ValueError(f"lm: {RL} was published for CosyVoice3 alone; choose {BASE}.")
    return {file: Published(repository, file, None, SHA256.get(file), LICENCE)
            for names in files(version, lm).values() for file in names}


def belonging(names: Iterable[str]) -> str | None:
    """What a file with tensors of these names is in such a folder, or None."""
    names = {name.removeprefix("generator.") for name in names}
    return next((title for title, telltale in TELLTALES.items() if telltale <= names), None)


def find(folder: Path, file: str) -> Path | None:
    """The file of that name, or its twin in safetensors."""
    candidates = (folder / file, (folder / file).with_suffix(".safetensors"))
    return next((path for path in candidates if path.is_file()), None)


def present(folder: Path) -> list[Path]:
    """Every file in the folder that may be read."""
    names = {name for version in KINDS for lm in LMS for names in files(version, lm).values() for name in names}
    return [path for name in sorted(names) if (path := find(folder, name))]


def open_folder(
    folder: Path, lm: str = BASE, *, vocabulary: Path | None = None,
    text_tokenizer: Callable[[int], tokenizer.TextTokenizer] | None = None, cache: Path | None = None,
    fetchable: bool = False,
) -> Opened:
    """Measure what is there; weights are read when a part is built.

    vocabulary: a folder that has the text tokenizer's files where this one lacks them. text_tokenizer: makes
    one of a version without files. cache: where weights converted from ONNX are kept. fetchable: whether what
    is missing could be fetched. ``FileNotFoundError`` lists every file that is looked for where there is none;
    ``ValueError`` for one that is broken or does not fit the others.
    """
    if lm not in LMS:
        raise ValueError(f"lm: {lm!r} is not one of {', '.join(LMS)}.")
    version = _version(folder, lm)
    missing = {part: tuple(file for file in names if find(folder, file) is None)
               for part, names in files(version, lm).items()}
    missing = {part: names for part, names in missing.items() if names}
    found = {part: tuple(find(folder, file) for file in names)
             for part, names in files(version, lm).items() if part not in missing and part != "text"}
    parts = {part: _read_part(found[part][0], network, version, cache) for part, network in READERS.items()
             if part in found}
    config = None
    if "synthesis" in found:
        parts["synthesis"] = (_synthesis_2 if version == 2 else _synthesis_3)(*found["synthesis"])
    if "lm" in found:
        config, parts["lm"] = _lm_part(found["lm"][0])
    if not parts:
        lacking = ", ".join(sorted({name for names in missing.values() for name in names}))
        raise FileNotFoundError(f"{folder}: no part of CosyVoice{version} is whole there; missing: {lacking}. Put the "
                                "published files there, or choose another lm.")
    text = None
    if text_tokenizer is not None:
        text = text_tokenizer(version)
    elif "text" not in missing:
        text = tokenizer.load(folder / tokenizer.FOLDER, version)
    elif vocabulary is not None and (vocabulary / tokenizer.VOCABULARY_FILE).is_file():
        text = tokenizer.load(vocabulary, version)
    if text is not None:
        missing.pop("text", None)
    order = [part for part in TITLES if part in parts]
    return Opened(f"CosyVoice{version}", str(folder), KINDS[version], config, {part: parts[part] for part in order},
                  missing, text, DECODERS[version], READER, None if text is None else partial(prompt.write, text),
                  fetchable)


def _version(folder: Path, lm: str) -> int:
    """2 or 3. What the files say must agree."""
    told = {}
    for path, version in _versions(folder):
        told.setdefault(version, path)
    if len(told) > 1:
        (first, a), (second, b) = told.items()
        raise ValueError(f"{folder}: {a.name} is of CosyVoice{first}, and {b.name} of CosyVoice{second}; "
                         "put the files of one version into one folder.")
    if told:
        return next(iter(told))
    named = [version for version in KINDS if find(folder, f"speech_tokenizer_v{version}.onnx")]
    if len(named) == 1:
        return named[0]
    wanted = sorted({name for version in KINDS for names in files(version, lm).values() for name in names})
    raise FileNotFoundError(
        f"{folder}: neither a language model nor exactly one speech tokenizer of CosyVoice is there. Looked for "
        f"{', '.join(wanted)}. Put the published files of one version there.")


def _versions(folder: Path) -> Iterator[tuple[Path, int]]:
    for name in LMS.values():
        if path := find(folder, name):
            yield path, 2 if CONTROL_TABLE in open_checkpoint(path).shapes else 3
    if path := find(folder, FLOW):
        yield path, 3 if flow_weights.TELLTALE <= open_checkpoint(path).shapes.keys() else 2


def _synthesis_2(flow: Path, hift: Path) -> Part:
    """CosyVoice2's are S3Gen's networks."""
    for part, path in (("flow", flow), ("mel2wav", hift)):
        cosyvoice2.measure(part, open_checkpoint(path).shapes, str(path))

    def build(operations, dtype: torch.dtype) -> nn.Module:
        return cosyvoice2.build(open_checkpoint(flow).read(), open_checkpoint(hift).read(), operations, dtype,
                                str(flow), str(hift))

    return Part((flow, hift), build, s3gen_weights.DTYPES)


def _synthesis_3(flow: Path, hift: Path) -> Part:
    flow_config = flow_weights.measure(open_checkpoint(flow).shapes, str(flow))
    vocoder_config = vocoder_weights.measure(open_checkpoint(hift).shapes, str(hift))

    def build(operations, dtype: torch.dtype) -> nn.Module:
        return pipeline.Token2Wav(
            flow_weights.load(open_checkpoint(flow), operations, dtype, flow_config),
            vocoder_weights.build(open_checkpoint(hift).read(), operations, vocoder_config, str(hift)))

    return Part((flow, hift), build, flow_weights.DTYPES)


def _lm_part(path: Path) -> tuple[object, Part]:
    config = weights.measure(open_checkpoint(path).shapes, str(path))

    def build(operations, dtype: torch.dtype) -> nn.Module:
        state = open_checkpoint(path).read(lambda name: weights.own_name(name) is not None)
        return weights.build(state, operations, dtype, config, str(path))

    return config, Part((path,), build, weights.DTYPES, torch.bfloat16)


def _read_part(path: Path, network: _Reader, version: int, cache: Path | None) -> Part:
    """A part that reads recordings, in float32: from an ONNX file, or from safetensors by our names."""
    converted = path.suffix == ".onnx"
    names = network.sources(open_onnx(path)) if converted else network.check(open_checkpoint(path).shapes, path)
    _require_version(count(names, "encoder.blocks."), version, path)

    def read() -> dict[str, Tensor]:
        if not converted:
            return open_checkpoint(path).read()
        return network.read(path) if cache is None else cached(path, cache, network.read)

    def build(operations, dtype: torch.dtype) -> nn.Module:
        # Weights made in inference mode could not be used outside it.
        with torch.inference_mode(False):
            state = read()
            return fill(network.make(shapes_of(state), operations), state, lambda _: torch.float32, str(path))

    return Part((path,), build)


def _require_version(layers: int, version: int, path: Path) -> None:
    """``ValueError`` for the speech tokenizer of the other version: its tokens mean other sounds."""
    for other, published in TOKENIZER_LAYERS.items():
        if other != version and layers == published:
            raise ValueError(f"{path}: this is the speech tokenizer of CosyVoice{other}, of {layers} layers, and the "
                             f"folder is of CosyVoice{version}, whose has {TOKENIZER_LAYERS[version]}. Put "
                             f"speech_tokenizer_v{version}.onnx as published there.")
