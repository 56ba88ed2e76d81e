"""What runs and their slices know of the order of keyed calls.

Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class KeyOrder(Protocol):
    """What keeps keyed calls in order: the partition of their key, or a column of partitions where keys differ."""

    @property
    def number(self) -> int:
        """Of the partition; -1 where the calls have partitions of their own."""

    def sent(self, owner_epoch: int) -> None:
        """A slice left for the owner at this epoch."""

    def answered(self, owner_epoch: int, lo: int, count: int, *, is_last: bool) -> Sequence[int]:
        """Calls of a slice, from offset `lo`, have their outcomes, or came back. `is_last`: all of it has left.

        Returns the partitions in which what waits may go on, and which are not listed.
        """

    def refused(self, owner_epoch: int, lo: int, count: int) -> None:
        """The replica of a slice is not the owner for these of its calls."""


class CountedPartition(KeyOrder, Protocol):
    """A partition, as a column of them counts its calls."""

    def settled(self, owner_epoch: int) -> bool:
        """One has left the owner of this epoch. Returns whether what waits may go on, and is not listed."""
