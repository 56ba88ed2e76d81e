"""The partitions of a run whose calls have ordering keys of their own.

Purpose: calls of hundreds of keys for one owner stay one run, one slice and one batch, as long as nothing happens to
some of them. What a partition has to know, which is whether anything of it is at a replica, is counted call by call.
Invariants: such a run never waits: it was sent as a whole when it was made. What comes back of it comes back as runs of
one key each. Each call is counted once at its partition when it is sent, and once when it is there no more.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from router_service.core.calls import RouterCallOptions
from router_service.core.keyed.key_order import CountedPartition, KeyOrder


class PartitionColumn:
    """Parallel to the calls of a run: their keys, the keys' partitions, and the epochs of these partitions' owner."""

    __slots__ = ("_has_left", "epochs", "keys", "options_of", "partitions")

    number = -1
    """There is no single one."""

    def __init__(
        self,
        keys: list[str],
        partitions: Sequence[CountedPartition],
        epochs: list[int],
        options_of: Callable[[str], RouterCallOptions],
    ) -> None:
        """`options_of` gives the calls of one key the options that they have alone."""
        self.keys = keys
        self.partitions = partitions
        self.epochs = epochs
        self.options_of = options_of
        self._has_left: bytearray | None = None
        """One byte a call: 1 where it is at the owner no more. None while all are."""

    def sent(self, _owner_epoch: int) -> None:
        """All its calls left for the owner."""
        for partition, epoch in zip(self.partitions, self.epochs, strict=True):
            partition.sent(epoch)

    def answered(self, _owner_epoch: int, lo: int, count: int, *, is_last: bool) -> Sequence[int]:
        """These calls are at the owner no more; `is_last`: none is. Returns the partitions that may go on."""
        has_left, size = self._has_left, len(self.partitions)
        if has_left is None and is_last:
            self._has_left = bytearray(b"\x01") * size
            return [
                partition.number
                for partition, epoch in zip(self.partitions, self.epochs, strict=True)
                if partition.settled(epoch)
            ]
        if has_left is None:
            has_left = self._has_left = bytearray(size)
        going_on: list[int] = []
        for at in range(size) if is_last else range(lo, lo + count):
            if not has_left[at]:
                has_left[at] = 1
                if self.partitions[at].settled(self.epochs[at]):
                    going_on.append(self.partitions[at].number)
        return going_on

    def refused(self, _owner_epoch: int, lo: int, count: int) -> None:
        """The replica is not the owner of the partitions of these calls, at the epochs at which they were sent."""
        for at in range(lo, lo + count):
            self.partitions[at].refused(self.epochs[at], 0, 1)

    def part(self, lo: int, hi: int) -> PartitionColumn:
        """The column of some of the calls, which are yet to be sent."""
        return PartitionColumn(self.keys[lo:hi], self.partitions[lo:hi], self.epochs[lo:hi], self.options_of)

    def by_key(self, lo: int, hi: int) -> list[tuple[int, int, RouterCallOptions, KeyOrder]]:
        """Some of the calls, neighbours of one key together: from, to, options and partition."""
        parts: list[tuple[int, int, RouterCallOptions, KeyOrder]] = []
        end = lo
        for key, neighbours in groupby(self.keys[lo:hi]):
            begin, end = end, end + len(list(neighbours))
            parts.append((begin, end, self.options_of(key), self.partitions[begin]))
        return parts
