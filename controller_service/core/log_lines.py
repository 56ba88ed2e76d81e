"""The newest lines of what one replica has written, numbered, within a bound of bytes.

Invariants: lines have ascending numbers, from 0 on, without gaps; the oldest go first; a line that is longer than
`MAX_LINE_BYTES` becomes several; what has no end yet is no line before `end`.
Owner: `shell.replica_logs`.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final

MAX_LINE_BYTES: Final = 8_192
KEPT_BYTES: Final = 256 * 1024
"""Of each replica."""
_LINE_COST: Final = 64
"""What a line takes in memory besides its text."""


class LogLines:
    """A ring of lines."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._lines: deque[str] = deque()
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self._begun = b""
        """A line without an end."""
        self.end_number = 0
        """The number that the next line will have."""

    def feed(self, data: bytes) -> None:
        """More was written."""
        *whole, rest = (self._begun + data).split(b"\n")
        for line in whole:
            self._add(line)
        while len(rest) > MAX_LINE_BYTES:
            self._add(rest[:MAX_LINE_BYTES])
            rest = rest[MAX_LINE_BYTES:]
        self._begun = rest

    def end(self) -> None:
        """Nothing more will be written to the line that has begun."""
        if self._begun:
            begun, self._begun = self._begun, b""
            self._add(begun)

    def tail(self, count: int) -> list[str]:
        """The newest lines, at most so many."""
        skipped = max(0, len(self._lines) - count)
        return [*islice(self._lines, skipped, None)]

    def since(self, number: int) -> tuple[int, list[str]]:
        """The lines from this number on; and how many of them are not kept any more."""
        first = self.end_number - len(self._lines)
        return max(0, first - number), [*islice(self._lines, max(0, number - first), None)]

    def _add(self, line: bytes) -> None:
        for at in range(0, max(1, len(line)), MAX_LINE_BYTES):
            text = line[at : at + MAX_LINE_BYTES].decode(errors="replace").rstrip("\r")
            size = len(text) + _LINE_COST
            self._lines.append(text)
            self._sizes.append(size)
            self._bytes += size
            self.end_number += 1
        while self._bytes > self._kept_bytes and len(self._lines) > 1:
            self._lines.popleft()
            self._bytes -= self._sizes.popleft()
