"""A checkpoint of S3Gen as a model of parts: those that speak, and those that read recordings."""
from __future__ import annotations

import torch
from torch import nn

from ..checkpoint import Checkpoint, open_checkpoint
from ..parts import Decoder, Opened, Part, Reader
from ..wires import S3_V2
from . import pipeline, weights
from .model import SYNTHESIS_PARTS

# Our names of the parts -> theirs.
PARTS = {"synthesis": SYNTHESIS_PARTS, "tokenizer": ("tokenizer",), "speaker": ("speaker_encoder",)}

READER = Reader("tokenizer", pipeline.tokenize, pipeline.READING_BYTES)
DECODER = Decoder(pipeline.read_voice, pipeline.speak, pipeline.working_bytes)


def open_model(checkpoint: Checkpoint) -> Opened:
    """Measure the file, all of whose tensors have to be there and to fit; weights are read when a part is built."""
    path, source = checkpoint.path, str(checkpoint.path)
    config = weights.measure(checkpoint.shapes, source)
    unread = [checkpoint]       # serves the first part; kept longer, it would keep some files in memory

    def build(names: tuple[str, ...], operations, dtype: torch.dtype) -> nn.Module:
        file = unread.pop() if unread else open_checkpoint(path)
        with torch.inference_mode(False):
            state = file.read(lambda name: name.startswith(tuple(f"{part}." for part in names)))
            network = weights.build(state, operations, dtype, names, config, source)
        return network if len(names) > 1 else getattr(network, names[0])

    parts = {
        part: Part((path,), lambda operations, dtype, names=names: build(names, operations, dtype),
                   weights.DTYPES if part == "synthesis" else (torch.float32,))
        for part, names in PARTS.items()
    }
    return Opened("S3Gen", source, S3_V2, config, parts, decoder=DECODER, reader=READER)
