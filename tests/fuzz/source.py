"""Choices out of bytes, so that a fuzzer that changes bytes changes choices. Bytes that have run out are zeros."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeVar

ChoiceT = TypeVar("ChoiceT")

_LIMITS: Final = (2**31 - 1, 2**32 - 1, 2**53, 2**63 - 1, 2**64 - 1, -(2**31), -(2**63))
_INTEGERS: Final[tuple[int, ...]] = (0, 1, -1, 2, 7, 255, 8192, 65_536, *_LIMITS)
_FLOATS: Final = (0.0, 1.0, -1.0, 0.5, 1e-323, 1e308, float("inf"), float("-inf"), float("nan"))


class Source:
    """Reads from the front."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes that were not read."""
        return max(len(self._data) - self._at, 0)

    def take(self, count: int) -> bytes:
        """The next bytes, fewer at the end."""
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken

    def byte(self) -> int:
        """The next byte."""
        return (self.take(1) or b"\0")[0]

    def below(self, bound: int) -> int:
        """A number, from 0; the bound is 256 at most."""
        return self.byte() % bound

    def choice(self, of: Sequence[ChoiceT]) -> ChoiceT:
        """One of up to 256."""
        return of[self.below(len(of))]

    def rest(self) -> bytes:
        """All that was not read."""
        return self.take(self.left)

    def integer(self) -> int:
        """A small one, one at the edge of a type, or any of 64 bits."""
        kind = self.below(4)
        if kind == 0:
            return self.byte()
        if kind == 1:
            return self.choice(_INTEGERS)
        return int.from_bytes(self.take(2 if kind == 2 else 8), "big", signed=kind == 3)

    def number(self) -> float:
        """One at the edge, or any of 64 bits."""
        if self.below(2):
            return self.choice(_FLOATS)
        number: float = struct.unpack(">d", self.take(8).ljust(8, b"\0"))[0]
        return number

    def text(self) -> str:
        """Any text, with odd characters in it."""
        return self.take(self.byte() if self.below(8) == 0 else self.below(16)).decode("utf-8", "replace")

    def payload(self) -> bytes:
        """Any bytes."""
        return self.take(self.byte() if self.below(4) == 0 else self.below(16))
