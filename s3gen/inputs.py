"""What callers hand to the model, checked once: recordings, tokens, voices, pinned draws.

Each function takes what people have (tensors of any device, numpy, lists) and gives tensors of one form,
or a ``ValueError`` that names the argument. Nothing that is passed in is changed.
"""
from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ..audio import MAX_RATE_HZ, MIN_RATE_HZ
from .encoder import UPSAMPLING

MAX_STEPS = 1000        # of the flow, a hundred times what it was made for
VOICE_KEYS = ("prompt_token", "prompt_token_len", "prompt_feat", "embedding")


def tensor_of(value, role: str) -> Tensor:
    """A tensor of whatever holds numbers; of a copy, where torch cannot look at the memory itself."""
    if isinstance(value, Tensor):
        return value.detach()
    try:
        return torch.from_numpy(np.array(value))
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{role}: expected numbers in a tensor, an array or lists, got {type(value).__name__} "
                         f"({problem}).") from problem


def recording_rows(value, role: str = "ref_wav") -> Tensor:
    """(T,) or (B, T) samples in +-1 -> float32 (B, T) on the CPU."""
    wave = tensor_of(value, role)
    if wave.ndim == 1:
        wave = wave[None]
    if wave.ndim != 2 or not len(wave):
        raise ValueError(f"{role}: expected (samples,) or (batch, samples), got {tuple(wave.shape)}.")
    if not wave.is_floating_point():
        raise ValueError(f"{role}: samples are {wave.dtype}; give floats in -1..1.")
    wave = wave.to("cpu", torch.float32)
    if not wave.isfinite().all():
        raise ValueError(f"{role}: the recording has NaN or infinite samples; record or export it again.")
    return wave


def sample_rate(value, role: str = "ref_sr") -> int:
    """A whole number of Hz."""
    try:
        rate_hz = int(value)
        exact = rate_hz == value
    except (TypeError, ValueError, OverflowError):
        exact = False
    if not exact or not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        raise ValueError(f"{role}: {value!r} is no sample rate; give a whole number of Hz, "
                         f"{MIN_RATE_HZ} to {MAX_RATE_HZ}.")
    return rate_hz


def step_count(value, default: int, role: str = "n_cfm_timesteps") -> int:
    """Steps of the flow; None or 0 for ``default``."""
    if value is None or value == 0:
        return default
    if not 0 < value <= MAX_STEPS or int(value) != value:
        raise ValueError(f"{role}: {value!r}; give a whole number from 1 to {MAX_STEPS}, or 0 for the checkpoint's "
                         f"own, {default}.")
    return int(value)


def guidance_weight(value: float, role: str = "guidance") -> float:
    """How closely to follow the condition; 0 is off."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{role}: {value!r} is not possible; give 0 or more.")
    return value


def token_rows(tokens, lengths, vocabulary: int, role: str = "speech_tokens") -> list[Tensor]:
    """(N,) or (B, N) ids, and where rows are padded their lengths (B,), as int64 (N_i,) rows on the CPU.

    Ids outside 0..V-1 and empty rows are refused: on a GPU either would poison the process.
    """
    ids = tensor_of(tokens, role)
    if ids.numel() and (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool):
        # Some callers cast a whole dict of a voice, ids included; whole numbers survive that in float32.
        if not ids.is_floating_point() or not torch.equal(ids, ids.round()):
            raise ValueError(f"{role}: expected integer ids, got {ids.dtype}.")
    ids = ids.to("cpu", torch.int64)
    if ids.ndim == 1:
        ids = ids[None]
    if ids.ndim != 2:
        raise ValueError(f"{role}: expected (tokens,) or (batch, tokens), got {tuple(ids.shape)}.")
    if not len(ids):
        raise ValueError(f"{role}: the batch is empty; give at least one row.")
    rows = list(ids)
    if lengths is not None:
        counts = [int(n) for n in tensor_of(lengths, f"{role} lengths").reshape(-1)]
        if len(counts) != len(ids) or not all(0 <= n <= ids.shape[1] for n in counts):
            raise ValueError(f"{role}: lengths {counts} do not fit ids of shape {tuple(ids.shape)}.")
        rows = [row[:n] for row, n in zip(ids, counts)]
    for index, row in enumerate(rows):
        if not len(row):
            raise ValueError(f"{role}: row {index} has 0 tokens, so there is nothing to speak. {_empty_hint(role)}")
        wrong = (row < 0) | (row >= vocabulary)
        if wrong.any():
            position = int(wrong.nonzero()[0])
            raise ValueError(
                f"{role}: id {int(row[position])} at position {position} of row {index}; speech ids are "
                f"0..{vocabulary - 1}. Drop start, stop and other control ids first.")
    return rows


def _empty_hint(role: str) -> str:
    if role == "speech_tokens":
        return ("The source was empty, or the model that wrote them ended at once: try another seed or a longer text. "
                "Text of signs alone, a transcript that is not that of the recording, or a language that the model "
                "does not speak do this.")
    return "Read the voice from a recording again."


def voices(ref_dict: Mapping, rows: int, vocabulary: int, device: torch.device) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Per row of tokens its voice: ids int64 (L,) on the CPU, mel (2L, M) and embedding (D,) on ``device``.

    ``ref_dict`` is what ``embed_ref`` gives, for one voice, which then serves all rows, or for each row.
    """
    missing = [key for key in VOICE_KEYS if ref_dict.get(key) is None]
    if missing:
        raise ValueError(f"ref_dict: {', '.join(missing)} missing; give what embed_ref returns.")
    ids, counts, mels, embeddings = (tensor_of(ref_dict[key], f"ref_dict[{key!r}]") for key in VOICE_KEYS)
    counts = counts.reshape(-1)
    ranks = {"prompt_token": (ids, 2), "prompt_feat": (mels, 3), "embedding": (embeddings, 2)}
    for key, (tensor, rank) in ranks.items():
        if tensor.ndim != rank or len(tensor) != len(counts):
            raise ValueError(f"ref_dict[{key!r}]: expected {rank} axes, the first {len(counts)} as in "
                             f"'prompt_token_len', got {tuple(tensor.shape)}.")
    if len(counts) not in (1, rows):
        raise ValueError(f"ref_dict: {len(counts)} voices for {rows} rows of tokens; give 1, or one for each row.")
    if not (mels.isfinite().all() and embeddings.isfinite().all()):
        raise ValueError("ref_dict: 'prompt_feat' or 'embedding' has NaN or infinite values.")
    # Each token stands for two frames; an odd frame, or tokens without frames, are left out.
    lengths = [min(int(count), mels.shape[1] // UPSAMPLING) for count in counts]
    prompts = token_rows(ids, lengths, vocabulary, "ref_dict['prompt_token']")
    read = [
        (prompt, mel[: UPSAMPLING * len(prompt)].to(device, torch.float32), embedding.to(device, torch.float32))
        for prompt, mel, embedding in zip(prompts, mels, embeddings)
    ]
    return read if len(read) == rows else read * rows


def pinned(value, shape: tuple[int, ...], role: str) -> Tensor | None:
    """A draw that was given instead of a seed: float32 on the CPU, one row for all where only one is given.

    Its last axis may be longer than ``shape`` says, as where the last tokens are held back.
    """
    if value is None:
        return None
    given = tensor_of(value, role)
    fits = given.ndim == len(shape) and given.shape[0] in (1, shape[0]) and given.shape[1:-1] == shape[1:-1]
    if not fits or given.shape[-1] < shape[-1]:
        raise ValueError(f"{role}: expected {shape}, got {tuple(given.shape)}.")
    return given.to("cpu", torch.float32).expand(shape[0], *given.shape[1:])
