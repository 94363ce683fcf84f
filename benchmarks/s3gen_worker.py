"""One side of the benchmark, in a process of its own; ``s3gen.py`` asks it for one thing at a time.

The lines of its input and output are those of ``harness.serve``. Other modes of this file write what both
sides read, and compare what they wrote.
"""
from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import sys
import time
import types
import warnings
from pathlib import Path

import numpy as np
import torch
from harness import CHECKOUT, compare, own_stdout, serve

RECORDING_HZ = 24000
TOKENS_PER_SECOND = 25
SAMPLES_PER_TOKEN = RECORDING_HZ // TOKENS_PER_SECOND
STAGES = ("flow_inference", "hift_inference")


class Side:
    """What both implementations do: load a model, read a voice, speak with it."""

    def __init__(self, inputs: dict[str, torch.Tensor]):
        self.inputs = inputs        # recording (T,), tokens (1, N), and the draws z, phase, noise
        self.model = self.voice = None
        self.seconds: dict[str, float] = {}         # of each stage of the last synthesis
        self.results: dict[str, torch.Tensor] = {}  # of the last synthesis: mel (1, M, F) and wave (1, T)

    def load(self, path: str, meanflow: bool, precision: str) -> None:
        raise NotImplementedError

    def embed(self) -> None:
        self.voice = self.model.embed_ref(self.inputs["recording"], RECORDING_HZ)

    def synthesize(self) -> None:
        """Fills ``results`` and ``seconds``."""
        for stage in STAGES:
            setattr(self.model, stage, self._watched(stage, getattr(self.model, stage)))
        with torch.inference_mode():
            self.results["wave"], _ = self._speak()
        for stage in STAGES:
            delattr(self.model, stage)      # the method comes back from behind it

    def _speak(self) -> tuple:
        raise NotImplementedError

    def _watched(self, name: str, method):
        def watched(*arguments, **keywords):
            start = time.perf_counter()
            result = method(*arguments, **keywords)
            self.seconds[name] = time.perf_counter() - start
            if name == "flow_inference":
                self.results["mel"] = result
            return result
        return watched

    def whole(self, path: str, meanflow: bool, precision: str) -> None:
        """From nothing to the first wave."""
        self.load(path, meanflow, precision)
        self.embed()
        self.synthesize()


class Ours(Side):
    """This checkout, as a package without the ``__init__`` that needs ComfyUI."""

    def __init__(self, inputs: dict[str, torch.Tensor]):
        super().__init__(inputs)
        package = types.ModuleType("speechwright")
        package.__path__ = [str(CHECKOUT)]
        sys.modules["speechwright"] = package
        from speechwright.checkpoint import open_checkpoint
        from speechwright.s3gen import model, weights
        self._open, self._published, self._weights = open_checkpoint, model, weights

    def load(self, path: str, meanflow: bool, precision: str, parts: tuple[str, ...] = ()) -> None:
        parts = parts or self._published.PARTS
        prefixes = tuple(f"{part}." for part in parts)
        checkpoint = self._open(path)
        config = self._weights.measure(checkpoint.shapes, path)
        self.model = self._weights.build(
            checkpoint.read(lambda name: name.startswith(prefixes)), parts=parts, config=config, source=path,
            dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[precision])

    def whole(self, path: str, meanflow: bool, precision: str) -> None:
        """One half of the model reads the voice, the other speaks: one goes before the other comes."""
        self.load(path, meanflow, precision, self._published.REFERENCE_PARTS)
        self.embed()
        self.model = None
        self.load(path, meanflow, precision, self._published.SYNTHESIS_PARTS)
        self.synthesize()

    def _speak(self) -> tuple:
        draws = {name: self.inputs[name] for name in ("z", "phase", "noise")}
        return self.model.inference(self.inputs["tokens"], ref_dict=self.voice, **draws)

    def compile(self) -> None:
        """The first synthesis after this takes minutes and needs a C++ compiler."""
        self.model.flow.decoder.estimator.compile(dynamic=False)


class Reference(Side):
    """chatterbox-tts, of which S3Gen alone is imported: the rest wants packages that play no part here."""

    def __init__(self, inputs: dict[str, torch.Tensor]):
        super().__init__(inputs)
        packages = Path(importlib.util.find_spec("s3tokenizer").origin).parents[1]
        for name in ("chatterbox", "chatterbox.models"):
            package = types.ModuleType(name)
            package.__path__ = [str(packages.joinpath(*name.split(".")))]
            sys.modules[name] = package
        from chatterbox.models.s3gen import hifigan
        from chatterbox.models.s3gen.s3gen import S3Token2Wav
        from safetensors.torch import load_file
        self._make, self._load_file = S3Token2Wav, load_file
        self._pin_draws(hifigan)

    def load(self, path: str, meanflow: bool, precision: str) -> None:
        self.model = self._make(meanflow=meanflow)
        missing, unexpected = self.model.load_state_dict(self._load_file(path), strict=False)
        if unexpected or not set(missing) <= set(self._make.ignore_state_dict_missing):
            raise ValueError(f"{path}: missing {missing[:3]}, unexpected {unexpected[:3]}.")
        self.model.eval()

    def _speak(self) -> tuple:
        return self.model.inference(self.inputs["tokens"], ref_dict=self.voice)

    def _pin_draws(self, hifigan) -> None:
        """It draws from torch's global generator; let it find our numbers there instead."""
        z, phase, noise = (self.inputs[name] for name in ("z", "phase", "noise"))
        own = torch.randn_like
        by_shape = {tuple(z.shape): z, tuple(noise.shape): noise}

        class Uniform(hifigan.Uniform):
            def sample(self, sample_shape=()):
                return phase.clone()

        def randn_like(x, **options):
            drawn = by_shape.get(tuple(x.shape))
            return own(x, **options) if drawn is None else drawn.clone()

        hifigan.Uniform = Uniform
        torch.randn_like = randn_like
        # A meanflow model draws the frames of the new tokens a second time; z ends in them.
        torch.randn = lambda *shape, **options: z[:, :, z.shape[2] - shape[2] :].clone()


def write_weights(path: Path, meanflow: bool) -> None:
    """A checkpoint of full size whose tensors are made from their names, as for the golden tests."""
    sys.path.insert(0, str(CHECKOUT / "tests"))
    from safetensors.torch import save_file

    from kit import golden
    unfinished = path.with_suffix(f".{os.getpid()}.part")
    save_file(golden.golden_state(meanflow=meanflow, counters=True), unfinished)
    unfinished.replace(path)


def write_inputs(path: Path, seconds: float, tokens: int) -> None:
    """A voice-like hum of many harmonics, random tokens, and every random number that a synthesis draws."""
    samples = int(seconds * TOKENS_PER_SECOND) * SAMPLES_PER_TOKEN
    times = np.arange(samples) / RECORDING_HZ
    phase = 2 * np.pi * np.cumsum(120 + 30 * np.sin(2 * np.pi * 0.7 * times)) / RECORDING_HZ
    hum = sum(np.sin(k * phase) / k for k in range(1, 20)) * (0.55 + 0.45 * np.sin(2 * np.pi * 3 * times))
    rng = np.random.default_rng(0)
    frames = 2 * (samples // SAMPLES_PER_TOKEN + tokens)
    floats = {
        "recording": 0.1 * hum + 0.003 * rng.standard_normal(samples),
        "z": rng.standard_normal((1, 80, frames)),
        "phase": rng.uniform(-np.pi, np.pi, (1, 9, 1)),
        "noise": rng.standard_normal((1, 9, SAMPLES_PER_TOKEN * tokens)),
    }
    np.savez(path, tokens=rng.integers(0, 6561, (1, tokens)),
             **{name: array.astype(np.float32) for name, array in floats.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    modes = parser.add_subparsers(dest="mode", required=True)
    for name in ("ours", "reference"):
        mode = modes.add_parser(name)
        mode.add_argument("inputs", type=Path)
        mode.add_argument("--threads", type=int, required=True)
    mode = modes.add_parser("weights")
    mode.add_argument("file", type=Path)
    mode.add_argument("--meanflow", action="store_true")
    mode = modes.add_parser("inputs")
    mode.add_argument("file", type=Path)
    mode.add_argument("--seconds", type=float, required=True)
    mode.add_argument("--tokens", type=int, required=True)
    mode = modes.add_parser("compare")
    mode.add_argument("files", type=Path, nargs=2)
    chosen = parser.parse_args()

    answers = own_stdout()
    if chosen.mode == "weights":
        write_weights(chosen.file, chosen.meanflow)
    elif chosen.mode == "inputs":
        write_inputs(chosen.file, chosen.seconds, chosen.tokens)
    elif chosen.mode == "compare":
        print(json.dumps(compare(*chosen.files)), file=answers, flush=True)
    else:
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        torch.set_num_threads(chosen.threads)
        with np.load(chosen.inputs) as arrays:
            inputs = {name: torch.from_numpy(arrays[name]) for name in arrays}
        side = (Ours if chosen.mode == "ours" else Reference)(inputs)
        serve(side, answers, torch=torch.__version__)


if __name__ == "__main__":
    main()
