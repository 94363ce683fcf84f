"""What errors about files are made of. Pure Python."""
from __future__ import annotations

from collections.abc import Iterable

AGAIN = "Download it again."


def short(value: object) -> str:
    """``value`` in an error: a hostile header must not fill the screen."""
    text = repr(value) if isinstance(value, (str, list, dict)) else str(value)
    return text if len(text) <= 120 else text[:117] + "..."


def some(names: Iterable[str]) -> str:
    names = list(names)
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(short(name) for name in names[:5]) + rest or "nothing"
