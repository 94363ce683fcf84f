"""Workflows as they were published: ``tests/frozen/VERSION/api`` and ``/ui``, and a list of their hashes.

Users have saved graphs like these. They are added to and never changed, and tests replay them for good.
"""
from __future__ import annotations

import hashlib
from pathlib import Path

from kit.checkout import CHECKOUT

FROZEN = CHECKOUT / "tests" / "frozen"
HASHES = FROZEN / "hashes.txt"
KINDS = {"api": CHECKOUT / "workflows" / "api", "ui": CHECKOUT / "workflows"}


def files(kind: str = "*") -> list[Path]:
    """All frozen files of a kind, the oldest version first."""
    return sorted(FROZEN.glob(f"*/{kind}/*.json"), key=lambda path: (version_of(path), path))


def version_of(path: Path) -> tuple[int, ...]:
    return tuple(map(int, path.parents[1].name.split(".")))


def label(path: Path) -> str:
    """``0.1.0/api/NAME.json``"""
    return path.relative_to(FROZEN).as_posix()


def listed() -> dict[str, str]:
    """The list: hash by label."""
    if not HASHES.exists():
        return {}
    return dict(reversed(line.split("  ", 1)) for line in HASHES.read_text(encoding="utf-8").splitlines())


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def freeze(version: str) -> None:
    """Add a copy of each workflow that this version has not got one of."""
    for kind, folder in KINDS.items():
        for source in sorted(folder.glob("*.json")):
            copy = FROZEN / version / kind / source.name
            if copy.exists():
                continue
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
            with open(HASHES, "a", encoding="utf-8", newline="\n") as lines:
                lines.write(f"{hash_of(copy)}  {label(copy)}\n")
