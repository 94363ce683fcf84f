"""OGG TTS on disk: its checkpoint, the Fish codec, and OmniVoice's tokenizer, as a model of parts."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import nn

from ..checkpoint import open_checkpoint
from ..hub import Published
from ..parts import Opened, Part, Reader
from ..wires import FISH_44K
from . import codec_weights, pipeline, tokenizer, weights
from .codec import WORKING_BYTES

FULL, SEMANTIC_ONLY = "full", "semantic-only"
CONTENTS = (FULL, SEMANTIC_ONLY)
FAMILY = "OGG TTS"
PUBLISHED = {
    "ogg/ogg_tts.safetensors": Published(
        "FashionFlora/ogg-tts", "model.safetensors", None, None, "Fish Audio Community"),
}
PUBLISHED_CODECS = {
    "ogg/codec.pth": Published(
        "fishaudio/s2-pro", "codec.pth", 1_871_099_728,
        "74fc41c5a7151c6f350af8bd7e5d6e3accfcc7f3dfbfac23afd35af07052bb2f", "Fish Audio Research"),
}
TOKENIZER = "ogg/tokenizer.json"        # below models/tts
PUBLISHED_TOKENIZER = Published("k2-fsa/OmniVoice", "tokenizer.json", None, None, "Apache-2.0")
READER = Reader("codec", pipeline.encode_voice, WORKING_BYTES)


def belongs(names: Iterable[str]) -> str | None:
    """What a file with tensors of these names is, or None."""
    names = set(names)
    if weights.TELLTALE <= {weights.own_name(name) for name in names}:
        return "the checkpoint"
    return "the codec" if codec_weights.TELLTALE <= {codec_weights.own_name(name) for name in names} else None


def open_model(
    path: Path, codec: Path | None, content: str = FULL,
    text_tokenizer: Callable[[int], tokenizer.TextTokenizer | None] = lambda rows: None, missing: tuple[str, ...] = (),
) -> Opened:
    """Measure both files; weights are read when a part is built.

    codec: None where it is not needed. text_tokenizer: the one for a table of so many rows, or None where it is
    not there, ``missing`` being its files. ``ValueError`` names the file and the first tensors that are missing,
    unexpected or of another shape.
    """
    if content not in CONTENTS:
        raise ValueError(f"content: {content!r} is not one of {', '.join(CONTENTS)}.")
    semantic_only, source = content == SEMANTIC_ONLY, str(path)
    config = weights.measure(open_checkpoint(path).shapes, source, semantic_only)

    def build(operations, dtype: torch.dtype) -> nn.Module:
        state = open_checkpoint(path).read(lambda name: weights.is_read(name, semantic_only))
        return weights.build_model(state, semantic_only=semantic_only, operations=operations, dtype=dtype,
                                   config=config, source=source)

    parts = {"backbone": Part((path,), build, weights.DTYPES, torch.bfloat16)}
    text = text_tokenizer(config.backbone.text_rows)
    lacks = {} if text is not None else {"text": missing}
    if codec is None:
        lacks["codec"] = ("a codec, chosen in Load Speech Model",)
    else:
        codec_weights.measure(open_checkpoint(codec).shapes, str(codec))
        parts["codec"] = Part((codec,), lambda operations, dtype: codec_weights.load_codec(
            open_checkpoint(codec), operations=operations))
    return Opened(FAMILY, source, FISH_44K, config, parts, lacks, text, reader=READER,
                  write_prompt=None if text is None else pipeline.write)


def find_tokenizer(beside: Iterable[Path], rows: int) -> tokenizer.TextTokenizer | None:
    """The tokenizer in the first of these folders that has one, for a table of so many rows."""
    for folder in beside:
        if (folder / tokenizer.FILE).is_file():
            return tokenizer.load(folder, rows)
    return None
