"""One network of one version, in a process of its own; ``cosyvoice3_token2wav.py`` asks it for one thing at a time.

The lines of its input and output are those of ``harness.serve``. Other modes of this file write the weights, and
compare what two versions gave.
"""
from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from harness import compare, import_checkout, own_stdout, serve
from torch import Tensor

RATE_16K_HZ, RATE_24K_HZ = 16000, 24000
TOKENS_PER_SECOND = 25
TOKENIZER_LAYERS = 12       # of version 3
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CPU = torch.device("cpu")


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def recording(seconds: float, rate_hz: int) -> Tensor:
    """(T,) of noise: no network here is faster or slower for what it hears."""
    return 0.1 * normal(round(seconds * rate_hz), seed=0)


def random_ids(count: int, seed: int) -> Tensor:
    return torch.randint(0, 6561, (count,), generator=torch.Generator().manual_seed(seed))


class Part:
    """A network with its weights and with what it is given; its methods without arguments are timed."""

    def __init__(self, chosen: argparse.Namespace):
        self.chosen = chosen
        self.seconds: dict[str, float] = {}         # of parts of the last call
        self.results: dict[str, Tensor] = {}        # of the last call

    def open(self, file: str):
        """A file of weights, as the checkout that is measured opens it."""
        from speechwright.checkpoint import open_checkpoint
        return open_checkpoint(self.chosen.weights / f"{file}.safetensors")


class Flow(Part):
    def __init__(self, chosen: argparse.Namespace):
        super().__init__(chosen)
        from speechwright.cosyvoice3 import flow, flow_weights
        self.mels = flow.mels
        dtype = DTYPES[chosen.precision]
        if hasattr(flow_weights, "load"):       # which the first version has not
            self.network = flow_weights.load(self.open("flow"), dtype=dtype)
        else:
            self.network = flow_weights.build(self.open("flow").read(), dtype=dtype)
        mels = self.network.config.mels
        self.ids = random_ids(chosen.tokens, 0)
        self.voice = (random_ids(chosen.prompt, 1), normal(2 * chosen.prompt, mels, seed=2),
                      normal(self.network.config.speaker, seed=3))
        self.noise = normal(mels, 2 * (chosen.prompt + chosen.tokens), seed=4)

    def run(self) -> None:
        schedule = self.network.schedule(self.chosen.steps)
        mel, = self.mels(self.network, [self.ids], [self.voice], [self.noise], schedule=schedule)
        self.results = {"mel": mel}


class Vocoder(Part):
    def __init__(self, chosen: argparse.Namespace):
        super().__init__(chosen)
        from speechwright.cosyvoice3 import vocoder_weights
        self.network = vocoder_weights.build(self.open("hift").read())
        self.mel = normal(1, self.network.config.mels, 2 * chosen.tokens, seed=0)

    def run(self) -> None:
        self.results = {"wave": self.network(self.mel, seed=0)}


class Tokenizer(Part):
    def __init__(self, chosen: argparse.Namespace):
        super().__init__(chosen)
        from speechwright.assembly import UNFILLED, fill, shapes_of
        from speechwright.s3gen.config import TokenizerConfig
        from speechwright.s3gen.tokenizer import S3Tokenizer
        state = self.open("speech_tokenizer_v3").read()
        network = S3Tokenizer(TokenizerConfig.from_shapes(shapes_of(state)), UNFILLED, "meta")
        self.network = fill(network, state, lambda _: torch.float32, "the speech tokenizer")
        self.wave = recording(chosen.seconds, RATE_16K_HZ)

    def run(self) -> None:
        self.results = {"ids": self.network.encode(self.wave)}


class Speaker(Part):
    def __init__(self, chosen: argparse.Namespace):
        super().__init__(chosen)
        from speechwright.assembly import UNFILLED, fill, shapes_of
        from speechwright.s3gen.config import SpeakerConfig
        from speechwright.s3gen.features import fbank
        from speechwright.s3gen.speaker import CAMPPlus
        state = self.open("campplus").read()
        network = CAMPPlus(SpeakerConfig.from_shapes(shapes_of(state)), UNFILLED, "meta")
        self.network, self.fbank = fill(network, state, lambda _: torch.float32, "the speaker encoder"), fbank
        self.wave = recording(chosen.seconds, RATE_16K_HZ)

    def run(self) -> None:
        with torch.no_grad():
            self.results = {"embedding": self.network(self.fbank(self.wave)[None])}


class Voice(Part):
    """Our whole way: a recording is read as a voice, and the voice speaks."""

    def __init__(self, chosen: argparse.Namespace):
        super().__init__(chosen)
        from speechwright.audio import Clip
        from speechwright.cosyvoice3 import pipeline
        from speechwright.wires import S3_V3, Piece, SpeechTokens
        flow, vocoder = Flow(chosen).network, Vocoder(chosen).network
        self.pipeline, self.model = pipeline, pipeline.Token2Wav(flow, vocoder)
        self.readers = Tokenizer(chosen).network, Speaker(chosen).network
        self.clip = Clip(recording(chosen.prompt / TOKENS_PER_SECOND, RATE_24K_HZ), RATE_24K_HZ)
        piece = Piece(random_ids(chosen.tokens, 0)[None])
        self.tokens = SpeechTokens(S3_V3, pipeline.TOKENS_PER_SECOND, ((piece,),))
        pipeline.mels, flow.schedule = self._watched("flow", pipeline.mels), self._watched("schedule", flow.schedule)
        vocoder.forward = self._watched("vocoder", vocoder.forward)

    def read_voice(self) -> None:
        self.voice = self.pipeline.read_voice(*self.readers, self.clip, CPU)

    def speak(self) -> None:
        wave, = self.pipeline.speak(self.model, self.tokens, self.voice, steps=self.chosen.steps)
        self.results = {"wave": wave}

    def _watched(self, name: str, function: Callable) -> Callable:
        def watched(*arguments, **keywords):
            start = time.perf_counter()
            result = function(*arguments, **keywords)
            self.seconds[name] = time.perf_counter() - start
            return result
        return watched


class InTwoCalls:
    """An estimator that computes the two halves of guidance one after the other."""

    meanflow = False

    def __init__(self, estimator):
        self.estimator = estimator

    def under(self, condition, guided: bool) -> Callable[[Tensor, Tensor], Tensor]:
        parts = {name: torch.zeros_like(getattr(condition, name)) for name in ("mu", "speaker", "prompt")}
        halves = [self.estimator.under(given, False) for given in (condition, replace(condition, **parts))]
        return lambda x, time: torch.cat([half(x, time) for half in halves])


class Gains(Flow):
    """What our flow would take otherwise, as far as that can be switched."""

    @torch.no_grad()
    def __init__(self, chosen: argparse.Namespace):
        super().__init__(chosen)
        from speechwright.s3gen import generate
        self.solve, self.estimator = generate.mels, self.network.decoder["estimator"]
        self.one_step = self.network.schedule(1)
        self.times = generate.time_grid(chosen.steps, meanflow=False)
        self.condition = self.network.lay_out([self.ids], [self.voice], True, CPU)

    def guidance_in_one(self) -> None:
        self._step(self.estimator)

    def guidance_in_turn(self) -> None:
        self._step(InTwoCalls(self.estimator))

    @torch.no_grad()
    def _step(self, estimator) -> None:
        mel, = self.solve(estimator, self.condition, [self.noise], self.one_step)
        self.results = {"mel": mel}

    @torch.no_grad()
    def times_in_one(self) -> None:
        self.results = {"times": self.estimator.embed_time(self.times[:-1])}

    @torch.no_grad()
    def times_in_turn(self) -> None:
        self.results = {"times": torch.cat([self.estimator.embed_time(time) for time in self.times[:-1].split(1)])}


PARTS = {"flow": Flow, "vocoder": Vocoder, "tokenizer": Tokenizer, "speaker": Speaker, "voice": Voice, "gains": Gains}


def write_weights(folder: Path) -> None:
    """Random weights of the published sizes, a file for each network; the folder is there once all are."""
    from safetensors.torch import save_file

    from speechwright.assembly import shapes_of
    from speechwright.cosyvoice3 import demo_flow, demo_vocoder
    from speechwright.cosyvoice3.config import FlowConfig
    from speechwright.s3gen.config import SpeakerConfig, TokenizerConfig, VocoderConfig
    from speechwright.s3gen.demo import SEED, random_tensors
    from speechwright.s3gen.speaker import CAMPPlus
    from speechwright.s3gen.tokenizer import S3Tokenizer

    def of(network: torch.nn.Module) -> dict[str, Tensor]:
        return random_tensors(shapes_of(network.state_dict()), SEED)

    unfinished = folder.with_suffix(".part")
    unfinished.mkdir(parents=True, exist_ok=True)
    for file, make in {
        "flow": lambda: demo_flow.random_state(FlowConfig()),
        "hift": lambda: demo_vocoder.random_state(VocoderConfig()),
        "speech_tokenizer_v3": lambda: of(S3Tokenizer(TokenizerConfig(layers=TOKENIZER_LAYERS), device="meta")),
        "campplus": lambda: of(CAMPPlus(SpeakerConfig(), device="meta")),
    }.items():
        save_file(make(), unfinished / f"{file}.safetensors")
    unfinished.replace(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    modes = parser.add_subparsers(dest="mode", required=True)
    mode = modes.add_parser("measure")
    mode.add_argument("part", choices=PARTS)
    mode.add_argument("--package", type=Path, required=True)
    mode.add_argument("--weights", type=Path, required=True)
    mode.add_argument("--precision", choices=DTYPES, default="fp32")
    for name in ("threads", "tokens", "prompt", "steps"):
        mode.add_argument(f"--{name}", type=int, required=True)
    mode.add_argument("--seconds", type=float, required=True)
    mode = modes.add_parser("weights")
    mode.add_argument("folder", type=Path)
    mode = modes.add_parser("compare")
    mode.add_argument("files", type=Path, nargs=2)
    chosen = parser.parse_args()

    answers = own_stdout()
    if chosen.mode == "weights":
        import_checkout()
        write_weights(chosen.folder)
    elif chosen.mode == "compare":
        print(json.dumps(compare(*chosen.files)), file=answers, flush=True)
    else:
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        torch.set_num_threads(chosen.threads)
        import_checkout(chosen.package)
        serve(PARTS[chosen.part](chosen), answers, torch=torch.__version__)


if __name__ == "__main__":
    main()
