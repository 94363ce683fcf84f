"""Full-size weights and inputs made from names and seeds, and the outputs that go with them.

The golden arrays were computed with weights that no file holds: each tensor is drawn from a generator
that its published name seeds. Zero biases and unit norms would hide faults, so the rules below give
every kind of tensor a spread of its own.
"""
from __future__ import annotations

import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FOLDER = Path(__file__).parents[1] / "golden" / "s3gen"
MIXER = "flow.decoder.estimator.time_embed_mixer.weight"     # what a meanflow model has beside the base
DERIVED = ("tokenizer._mel_filters", "tokenizer.window")     # in some files, computable in all

Shape = tuple[int, ...]


@lru_cache(maxsize=1)
def manifest() -> dict[str, Shape]:
    """Published name -> shape of all 2490 entries of the base model."""
    entries = json.loads((FOLDER / "manifest.json").read_text(encoding="utf-8"))
    return {name: tuple(shape) for name, (shape, _) in entries.items()}


def is_counter(name: str) -> bool:
    return name.endswith("num_batches_tracked")


def weight_shapes(prefix: str = "", meanflow: bool = False) -> dict[str, Shape]:
    """Published name without ``prefix`` -> shape of the weights under it: no counters, no derived tables."""
    shapes = dict(manifest())
    if meanflow:
        shapes[MIXER] = (1024, 2048)
    return {
        name[len(prefix):]: shape for name, shape in shapes.items()
        if name.startswith(prefix) and name not in DERIVED and not is_counter(name)
    }


def named_tensor(name: str, shape: Shape, seed: int = 0) -> Tensor:
    """float32 weights of a published name; seeds other than 0 give other weights by the same rules."""
    normal = np.random.RandomState((zlib.crc32(name.encode()) + seed) % 2**32).standard_normal(shape)
    return torch.from_numpy(np.asarray(_spread(name, shape, normal.astype(np.float32)), dtype=np.float32))


def _spread(name: str, shape: Shape, n: np.ndarray) -> np.ndarray:
    last = name.rsplit(".", 1)[-1]
    if name == "mel2wav.f0_predictor.classifier.bias":
        return np.full(shape, 100)      # keeps f0 voiced
    if name == "mel2wav.f0_predictor.classifier.weight":
        return n * 250 / np.sqrt(512)
    if name == "flow.input_embedding.weight":
        return 0.5 * n
    if last in ("pos_bias_u", "pos_bias_v", "running_mean"):
        return 0.1 * n
    if last == "running_var":
        return 1 + 0.3 * np.abs(n)
    if last == "alpha":
        return 1 + 0.2 * np.abs(n)
    if last == "original0":
        return (0.25 if "conv_post" in name else 1) * (1 + 0.1 * n)
    if last == "bias":
        return 0.1 * n
    if len(shape) == 1:
        return 1 + 0.1 * n
    gain = 0.3 if "project_down" in name else 1
    return n * gain / np.sqrt(n.size / shape[0])


_cache: dict[str, Tensor] = {}


def golden_state(prefix: str = "", meanflow: bool = False, counters: bool = False) -> dict[str, Tensor]:
    """The golden weights under ``prefix``, named without it. Shared between tests: not to be changed.

    ``counters`` adds what a published file holds beside weights: ``num_batches_tracked``, int64 zeros.
    All 264 million numbers take half a minute, so only what is asked for is drawn, once per session.
    """
    shapes = weight_shapes(prefix, meanflow)
    missing = {prefix + name: shape for name, shape in shapes.items() if prefix + name not in _cache}
    with ThreadPoolExecutor(2) as pool:     # the generator lets go of the interpreter
        _cache.update(zip(missing, pool.map(named_tensor, missing, missing.values())))
    state = {name: _cache[prefix + name] for name in shapes}
    if counters:
        names = (name[len(prefix):] for name in manifest() if name.startswith(prefix) and is_counter(name))
        state.update({name: torch.zeros((), dtype=torch.int64) for name in names})
    return state


@lru_cache(maxsize=3)
def load_golden(file: str = "base") -> dict[str, Tensor]:
    """The arrays of ``base``, ``meanflow`` or ``source``, inputs of the base model under ``in_...``."""
    with np.load(FOLDER / f"{file}.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays}


def source_noise() -> Tensor:
    """(1, 9, 3840) float32, the noise of ``source.npz``, which does not hold it."""
    return torch.from_numpy(np.random.RandomState(19).standard_normal((1, 9, 3840)).astype(np.float32))


def assert_within(found: Tensor, expected: Tensor, gate: float) -> None:
    """Same shape, finite, and nowhere further apart than ``gate``."""
    assert found.shape == expected.shape, f"{tuple(found.shape)} != {tuple(expected.shape)}"
    assert found.isfinite().all()
    furthest = (found.double() - expected.double()).abs().max().item()
    assert furthest <= gate, f"{furthest:.3g} apart, the gate is {gate:g}"
