"""Weights that were converted from a file of another kind, kept for the next time."""
from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from .checkpoint import DTYPES, open_checkpoint, opened

CHUNK_BYTES = 2**20

logger = logging.getLogger(__name__)


def cached(
    path: str | os.PathLike, folder: str | os.PathLike, convert: Callable[[Path], dict[str, Tensor]],
) -> dict[str, Tensor]:
    """What ``convert`` makes of a file, kept in ``folder`` under the hash of the file's content.

    Where nothing can be kept it is converted each time. Errors are those of ``convert``, and of a file that is
    not there or cannot be read.
    """
    path = Path(path)
    kept = Path(folder) / f"{_sha256(path)}.safetensors"
    try:
        return open_checkpoint(kept).read()
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        logger.warning("Converting %s again: %s", path.name, error)
    tensors = convert(path)
    try:
        _keep(tensors, kept)
    except OSError as error:
        logger.warning("What was converted from %s is not kept, so it is converted each time: %s", path.name, error)
    return tensors


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with opened(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _keep(tensors: dict[str, Tensor], target: Path) -> None:
    """Write a safetensors file, tensor by tensor: the library's own writer may copy all of them first."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    header, place = {}, 0
    for name, tensor in tensors.items():
        end = place + tensor.numel() * tensor.itemsize
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [place, end]}
        place = end
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)       # readers that map the file want aligned weights
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(f".{os.getpid()}.{threading.get_ident()}.part")
    try:
        with open(unfinished, "wb") as file:
            file.write(len(raw).to_bytes(8, "little") + raw)
            for tensor in tensors.values():
                if tensor.numel():
                    file.write(memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()))
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, target)
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
