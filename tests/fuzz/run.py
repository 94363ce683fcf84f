"""Fuzzes one target with atheris, which has to be there: ``python tests/fuzz/run.py TARGET [libFuzzer's options]``."""
from __future__ import annotations

import hashlib
import importlib
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import atheris

TESTS = Path(__file__).resolve().parents[1]
TARGETS = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if "def check(" in path.read_text("utf-8"))
OPTIONS = {"-timeout": "20", "-rss_limit_mb": "2500", "-max_len": "4096"}


def load(name: str) -> ModuleType:
    """The module of a target. Ours are instrumented while it imports them."""
    package = ModuleType("speechwright")
    package.__path__ = [str(TESTS.parent)]
    sys.modules["speechwright"] = package
    sys.path[0] = str(TESTS)
    for library in ("torch._dynamo", "safetensors.torch", "hypothesis", "pytest"):     # once, and not instrumented
        importlib.import_module(library)
    with atheris.instrument_imports(include=["speechwright"]):
        return importlib.import_module(f"fuzz.{name}")


def main(arguments: list[str]) -> None:
    if not arguments or arguments[0] not in TARGETS:
        sys.exit(f"usage: run.py TARGET [libFuzzer's options]; the targets are {', '.join(TARGETS)}.")
    target, options = load(arguments[0]), arguments[1:]
    with tempfile.TemporaryDirectory() as folder:
        corpus, words = Path(folder, "corpus"), Path(folder, "words")
        corpus.mkdir()
        for seed in target.seeds():
            (corpus / hashlib.sha256(seed).hexdigest()).write_bytes(seed)
        escaped = ("".join(f"\\x{byte:02x}" for byte in word.encode()) for word in target.DICTIONARY)
        words.write_text("".join(f'"{word}"\n' for word in escaped), encoding="ascii")
        given = {option.partition("=")[0] for option in options}
        options += [f"{key}={value}" for key, value in OPTIONS.items() if key not in given]
        if all(option.startswith("-") for option in options):
            options.append(str(corpus))
        if target.DICTIONARY:
            options.append(f"-dict={words}")
        atheris.Setup(["run.py", *options], target.check)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
