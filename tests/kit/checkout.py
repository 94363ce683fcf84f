"""What is in the checkout, and which of it is published."""
from __future__ import annotations

import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def tracked() -> list[str]:
    """Paths of all files that git tracks, relative to the checkout."""
    return _listed("--cached")


def shipped() -> list[str]:
    """The tracked files that .comfyignore leaves in, which is what the registry's zip is made of."""
    left_out = set(_listed("--cached", "--ignored", "--exclude-from=.comfyignore"))
    return [name for name in tracked() if name not in left_out]


def read(name: str) -> str:
    """The text of a file of the checkout."""
    return (CHECKOUT / name).read_text(encoding="utf-8")


def _listed(*options: str) -> list[str]:
    # A checkout may belong to another user than the one who tests it; git refuses that unless told.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", *options]
    names = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout
    # A file that was deleted and not yet committed is still listed.
    return [name for name in names.split("\0") if name and (CHECKOUT / name).is_file()]
