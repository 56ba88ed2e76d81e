"""A bound for what sessions remember of lanes: all of them together, however long the ordering keys are.

Purpose: lanes are remembered by the hash of their endpoint and key. Where there are too many, the session that
remembers most forgets the half of them that it began with first.
Owner: the session table.
"""

from __future__ import annotations

from typing import Protocol


class Remembering(Protocol):
    """What one session remembers. Compared by identity."""

    size_bits: int
    """The book's: 0 at first."""

    def __len__(self) -> int: ...

    def __hash__(self) -> int: ...

    def forget_half(self) -> int:
        """Forgets the lanes that began first; returns how many."""


MAX_LANES = 131_072
"""Lanes that all sessions of a replica remember; each takes some 150 bytes."""


class LaneBook:
    """How many lanes each session remembers."""

    __slots__ = ("_by_size", "_max_lanes", "lanes")

    def __init__(self, max_lanes: int = MAX_LANES) -> None:
        self.lanes = 0
        """Of all sessions."""
        self._max_lanes = max_lanes
        self._by_size: list[dict[Remembering, None]] = [{} for _ in range((max_lanes + 1).bit_length() + 1)]
        """Those that remember any lanes, by the number of bits of how many."""

    def added(self, part: Remembering) -> None:
        """One lane more is remembered."""
        self.lanes += 1
        self._put(part)
        if self.lanes > self._max_lanes:
            most = next(iter(next(each for each in reversed(self._by_size) if each)))
            self.lanes -= most.forget_half()
            self._put(most)

    def left(self, part: Remembering) -> None:
        """Drops what the session remembers."""
        self._by_size[part.size_bits].pop(part, None)
        self.lanes -= len(part)

    def _put(self, part: Remembering) -> None:
        bits = len(part).bit_length()
        if bits != part.size_bits:
            self._by_size[part.size_bits].pop(part, None)
            self._by_size[bits][part] = None
            part.size_bits = bits
