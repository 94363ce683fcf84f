"""Measures what CosyVoice3 makes and reads voices with, beside the first version of this pack that was correct.

``python benchmarks/cosyvoice3_token2wav.py``. Both versions run on the processor, on the same random weights of
full size and with equal draws, in turns and each in a process of its own; medians count, and how far apart their
results are is measured too. The tables go to stdout. The first run builds an environment, writes the weights and
takes the first version out of git, and keeps all three; the pack needs nothing of it.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from harness import (
    CHECKOUT,
    TORCH,
    Worker,
    alternate,
    cache_folder,
    ensure_python,
    environment,
    finished,
    own_folder,
    processor,
    run,
    say,
)

WORKER = Path(__file__).with_name("cosyvoice3_token2wav_worker.py")
TORCHAUDIO = ("--no-deps", "torchaudio==2.11.1")       # its pin would bring another torch
TOKENS_PER_SECOND = 25
MIB = 2**20
FIRST, OURS = "first", "ours"
# The tag of the first version of each; the networks that read a voice are S3Gen's in both.
COMMITS = {"cosyvoice3-flow-first": "b4dfab163cb669ebd9e3aa56c215ae414216035b",
           "cosyvoice3-vocoder-first": "211bc49221e8faf7f66aabe39396465d1e3b6a55"}
TAGS = {"flow": "cosyvoice3-flow-first", "vocoder": "cosyvoice3-vocoder-first",
        "tokenizer": "cosyvoice3-flow-first", "speaker": "cosyvoice3-flow-first"}
TITLES = {"flow": "flow", "vocoder": "vocoder", "tokenizer": "speech tokenizer", "speaker": "speaker encoder"}
ALONE = ("voice", "gains")
MADE_BY = ("s3gen/demo.py", "cosyvoice3/demo_flow.py", "cosyvoice3/demo_vocoder.py")     # the weights


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0], allow_abbrev=False)
    parser.add_argument("--runs", type=int, default=5, help="of everything that is timed (default: 5)")
    parser.add_argument("--threads", type=int, default=2, help="of torch (default: 2)")
    parser.add_argument("--tokens", type=int, default=250, help="25 are one second of speech (default: 250)")
    parser.add_argument("--prompt", type=int, default=75, help="tokens of the voice, at least 3 (default: 75)")
    parser.add_argument("--steps", type=int, default=10, help="of the flow (default: 10)")
    parser.add_argument("--seconds", type=float, default=10,
                        help="of a recording, for what reads a voice (default: 10)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32",
                        help="bf16: measure our flow in that too")
    parser.add_argument("--part", choices=[*TAGS, *ALONE], action="append", help="one of them only")
    parser.add_argument("--environment", metavar="DIR", type=Path,
                        help=f"where it is built (default: a folder in {cache_folder()})")
    return parser.parse_args()


def ensure_weights(folder: Path, python: Path) -> Path:
    """The folder of full-size weights that all are measured with, written the first time."""
    rule = hashlib.sha256(b"".join((CHECKOUT / name).read_bytes() for name in MADE_BY)).hexdigest()[:12]
    path = folder / f"cosyvoice3-{rule}"
    with environment.locked(folder):
        if not path.is_dir():
            say(f"Writing {path.name} to {folder}: once, a minute, 2.4 GB.")
            run([python, WORKER, "weights", path], "the weights could not be made")
    return path


def ensure_version(folder: Path, tag: str) -> Path:
    """The package as it was at a tag of git, or at its commit where the clone has no tags, unpacked the first time."""
    git = ["git", "-c", "safe.directory=*", "-C", CHECKOUT]
    name = tag if run([*git, "tag", "--list", tag], "git cannot list its tags").strip() else COMMITS[tag]
    commit = run([*git, "rev-parse", "--verify", f"{name}^{{commit}}"],
                 f"{tag}: neither the tag nor its commit is in {CHECKOUT}; a shallow clone has no history").strip()
    path = folder / f"{tag}-{commit[:12]}"
    with environment.locked(folder):
        if not path.is_dir():
            with tempfile.TemporaryDirectory(dir=folder) as unfinished:
                archive, root = Path(unfinished, "archive.tar"), Path(unfinished, "root")
                run([*git, "archive", f"--output={archive}", commit, "--", ".", ":(exclude)tests"],
                    f"{tag} could not be read out of git")
                environment.unpack(archive, "", root)
                root.replace(path)
    return path


class Bench:
    """Starts versions of a part, asks them in turns, and writes tables of what they answered."""

    def __init__(self, chosen: argparse.Namespace, python: Path, cache: Path, folder: Path):
        self.chosen, self.python, self.cache, self.folder = chosen, python, cache, folder
        self.weights = ensure_weights(cache, python)

    def start(self, part: str, name: str = OURS, precision: str = "fp32") -> Worker:
        say(f"{part}, {name}")
        package = ensure_version(self.cache, TAGS[part]) if name == FIRST else CHECKOUT
        numbers = [word for key in ("threads", "tokens", "prompt", "steps", "seconds")
                   for word in (f"--{key}", getattr(self.chosen, key))]
        return Worker([self.python, WORKER, "measure", part, "--package", package, "--weights", self.weights,
                       "--precision", precision, *numbers], name)

    def ask(self, what: str, worker: Worker, call: str, **arguments) -> dict:
        answer = worker(call, **arguments)
        say(f"  {what:16} {answer['seconds']:7.2f} s")
        return answer

    def in_turns(self, calls: dict[str, tuple[Worker, str]]) -> dict[str, list[dict]]:
        """Answers to each call, a worker and its method, by name. The first of all counts for memory alone."""
        answers = defaultdict(list)
        for name, (worker, call) in calls.items():
            answers[name].append(self.ask(name, worker, call, results=str(self.folder / f"{name}.npz")))
        for name in alternate(self.chosen.runs, list(calls)):
            answers[name].append(self.ask(name, *calls[name]))
        return answers

    def apart(self, first: str, second: str) -> str:
        """How far the results of two calls are from each other."""
        files = (self.folder / f"{name}.npz" for name in (first, second))
        found = json.loads(run([self.python, WORKER, "compare", *files], "the results could not be compared"))
        (most, norm), = found.values()
        return f"{most:.1e} at most, {norm:.1e} in norm" if most else "nowhere"

    def versions(self, part: str) -> str:
        """Lines of the first table: both versions of a part."""
        sides = [(FIRST, "fp32"), (OURS, "fp32")]
        if part == "flow" and self.chosen.precision == "bf16":
            sides.append((f"{OURS}, bf16", "bf16"))
        with ExitStack() as stack:
            workers = {name: stack.enter_context(self.start(part, name, precision)) for name, precision in sides}
            answers = self.in_turns({name: (worker, "run") for name, worker in workers.items()})
        recorded = part in ("tokenizer", "speaker")
        audio = self.chosen.seconds if recorded else self.chosen.tokens / TOKENS_PER_SECOND
        lines = []
        for name, worker in workers.items():
            seconds = median(answers[name])
            peaks = [mib(found["peak_bytes"]) for found in (worker.ready, answers[name][0])]
            beside = [f"{seconds / median(answers[FIRST]):.2f}", self.apart(name, FIRST)] if name != FIRST else ["", ""]
            cells = [f"{TITLES[part]}, {name}", f"{seconds:.2f}", f"{seconds / audio:.3f}",
                     f"{median(answers[name], 'processor_seconds'):.2f}", *peaks, *beside]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)

    def voice(self) -> str:
        """What a voice costs when it is first used, and what from then on."""
        with self.start("voice") as worker:
            answers = self.in_turns({"read the voice": (worker, "read_voice"), "speak": (worker, "speak")})
        spoken = answers["speak"]
        beside = statistics.median(answer["seconds"] - sum(answer["stages"].values()) for answer in spoken[1:])
        read, speak = median(answers["read the voice"]), median(spoken)
        return "\n".join([
            "| ours, from a recording to a wave | seconds |", "|---|---|",
            f"| first use of a voice | {read + speak:.2f} |",
            f"| of that, reading {self.chosen.prompt / TOKENS_PER_SECOND:g} s of recording | {read:.2f} |",
            f"| each further use | {speak:.2f} |",
            f"| of that, beside flow and vocoder | {beside:.3f} |"])

    def gains(self) -> str:
        """What two ways of our flow gain."""
        lines = ["| our flow | at once | in turn | ratio | apart |", "|---|---|---|---|---|"]
        with self.start("gains") as worker:
            for title, call in (("both halves of guidance, in one step", "guidance"),
                                (f"what is read off the times of {self.chosen.steps} steps", "times")):
                calls = {f"{call}_in_{how}": (worker, f"{call}_in_{how}") for how in ("one", "turn")}
                once, turn = (median(found) for found in self.in_turns(calls).values())
                lines.append(f"| {title} | {once:.3f} s | {turn:.3f} s | {once / turn:.2f} | {self.apart(*calls)} |")
        return "\n".join(lines)


def median(answers: list[dict], key: str = "seconds") -> float:
    """Of all but the first."""
    return statistics.median(answer[key] for answer in answers[1:])


def mib(peak_bytes: int | None) -> str:
    return f"{peak_bytes / MIB:.0f} MiB" if peak_bytes else ""


def report(chosen: argparse.Namespace, bench: Bench) -> None:
    """Print all tables, each line as soon as it is known."""
    print(f"{processor()}, {chosen.threads} threads, {TORCH[0]}; medians of {chosen.runs} in turns; {chosen.tokens} "
          f"tokens behind {chosen.prompt} of the voice, {chosen.steps} steps, recordings of {chosen.seconds:g} s\n",
          flush=True)
    parts = chosen.part or [*TAGS, *ALONE]
    if compared := [part for part in TAGS if part in parts]:
        print("| fp32 | seconds | per second of audio | of all processors | peak memory of loading | in all "
              "| of the first's time | apart from it |\n|---|---|---|---|---|---|---|---|", flush=True)
        for part in compared:
            print(bench.versions(part), flush=True)
    for part in ALONE:
        if part in parts:
            print(f"\n{getattr(bench, part)()}", flush=True)


def main() -> None:
    chosen = parse()
    python = ensure_python((chosen.environment or own_folder("token2wav-")).absolute(), [TORCH, TORCHAUDIO],
                           "1 GB (6 GB with CUDA)", environment.DROP_LIBRARIES_THAT_DO_NOT_LOAD)
    with tempfile.TemporaryDirectory() as folder:
        report(chosen, Bench(chosen, python, cache_folder(), Path(folder)))


if __name__ == "__main__":
    sys.exit(finished(main))
