"""Decisions read off bytes, so that whoever makes bytes, a fuzzer or hypothesis, makes files and texts of any kind."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Option = TypeVar("Option")


class Choices:
    """Each decision takes a byte or two. Where none are left it is the first of its options."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self._place = raw, 0

    @property
    def left(self) -> bool:
        return self._place < len(self._raw)

    def number(self, below: int) -> int:
        """From 0 to below, which may be 65,536 at most."""
        return int.from_bytes(self.bytes(1 if below <= 256 else 2), "little") % below

    def pick(self, options: Sequence[Option]) -> Option:
        return options[self.number(len(options))]

    def bytes(self, count: int) -> bytes:
        """As many as are left, ``count`` at most."""
        found = self._raw[self._place : self._place + count]
        self._place += count
        return found

    def text(self, most: int = 40) -> str:
        """Some characters of any kind."""
        return self.bytes(self.number(most)).decode("utf-8", "replace")

    def rest(self) -> bytes:
        return self.bytes(max(0, len(self._raw) - self._place))
