"""What all trainings have in common: steps, a learning rate that rises and falls, averaged weights, log, checkpoints.

What a step draws is a function of seed and step alone, so a run that was stopped goes on as if it had not been.
"""
from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

WARM_STEPS = 100
LEAST_RATE = 0.03               # of the learning rate, at the end
AVERAGE = 0.998                 # of the averaged weights, what stays at a step
CLIP = 1.0                      # of the gradient's norm
REPORTED = 25                   # steps of a line of the log


def arguments(title: str, steps: int, rate: float, rows: int) -> argparse.ArgumentParser:
    """The switches of every training, with its own defaults."""
    parser = argparse.ArgumentParser(description=title.partition("\n\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="what speech.py made")
    parser.add_argument("--folder", type=Path, required=True, help="where checkpoints, log and results go")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--rate", type=float, default=rate)
    parser.add_argument("--rows", type=int, default=rows)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--begin", type=Path, help="averaged weights to begin from, such as keep.py wrote")
    parser.add_argument("--keep-every", type=int, default=250, help="steps from checkpoint to checkpoint")
    return parser


def rate_at(step: int, steps: int, rate: float) -> float:
    """Up in a straight line, then down along half a cosine."""
    if step < WARM_STEPS:
        return rate * (step + 1) / WARM_STEPS
    done = min(1.0, (step - WARM_STEPS) / max(1, steps - WARM_STEPS))
    return rate * (LEAST_RATE + (1 - LEAST_RATE) * (1 + math.cos(math.pi * done)) / 2)


def train(name: str, module: nn.Module, given: argparse.Namespace, loss: Callable[[random.Random, int], dict],
          betas: tuple[float, float] = (0.9, 0.98), decay: float = 0.01) -> dict[str, Tensor]:
    """Run to the last step, from a checkpoint where there is one; the averaged weights.

    loss: (draws of a step, step) -> its parts by name, of which the sum is minimised but for those that begin
    with an underscore.
    """
    torch.set_num_threads(given.threads)
    given.folder.mkdir(parents=True, exist_ok=True)
    path, log = given.folder / f"{name}.pt", given.folder / f"{name}.jsonl"
    if given.begin:
        module.load_state_dict({name: tensor.float() for name, tensor in load_file(given.begin).items()})
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(parameters, given.rate, betas, weight_decay=decay, fused=True)
    average = {key: tensor.detach().clone() for key, tensor in module.state_dict().items()}
    first, spent = 0, 0.0
    if path.is_file():
        kept = torch.load(path, weights_only=True)
        module.load_state_dict(kept["module"])
        optimiser.load_state_dict(kept["optimiser"])
        average, first, spent = kept["average"], kept["step"], kept["seconds"]
    print(f"{name}: {sum(parameter.numel() for parameter in parameters)} parameters, from step {first}", flush=True)
    totals: dict[str, float] = {}
    began = time.perf_counter()
    for step in range(first, given.steps):
        rng = random.Random(f"{name} {given.seed} {step}")
        torch.manual_seed(rng.getrandbits(48))
        for group in optimiser.param_groups:
            group["lr"] = rate_at(step, given.steps, given.rate)
        parts = loss(rng, step)
        total = sum(part for key, part in parts.items() if not key.startswith("_"))
        optimiser.zero_grad(set_to_none=True)
        total.backward()
        norm = nn.utils.clip_grad_norm_(parameters, CLIP)
        if norm.isfinite():
            optimiser.step()
        with torch.no_grad():
            keep = min(AVERAGE, (1 + step) / (10 + step))
            for key, tensor in module.state_dict().items():
                if tensor.is_floating_point():
                    average[key].lerp_(tensor, 1 - keep)
                else:
                    average[key].copy_(tensor)
        for key, part in {**parts, "_norm": norm}.items():
            totals[key] = totals.get(key, 0.0) + float(part.detach())
        if (step + 1) % REPORTED == 0:
            seconds = spent + time.perf_counter() - began
            line = {"step": step + 1, "seconds": round(seconds), **{
                key: round(value / REPORTED, 4) for key, value in totals.items()}}
            totals.clear()
            print(json.dumps(line), flush=True)
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        if (step + 1) % given.keep_every == 0 or step + 1 == given.steps:
            save(path, {"module": module.state_dict(), "optimiser": optimiser.state_dict(), "average": average,
                        "step": step + 1, "seconds": spent + time.perf_counter() - began})
    return average


def save(path: Path, value: dict) -> None:
    """Whole or not at all."""
    unfinished = path.with_suffix(".part")
    torch.save(value, unfinished)
    unfinished.replace(path)


def crops(utterances: list, rows: int, tokens: int, rng: random.Random) -> Iterator[tuple[int, int]]:
    """(start, tokens) of so many places that are long enough, each moment of speech as likely as any other."""
    found = 0
    while found < rows:
        one = utterances[rng.randrange(len(utterances))]
        if one.tokens >= tokens:
            yield one.start + rng.randrange(one.tokens - tokens + 1), tokens
            found += 1
