"""Lanes that stop after a failure: which calls do not start because one before them has failed.

Purpose: a session remembers, of each lane and generation of which a call has failed, the first such call.
Invariants: only calls behind the one that failed are stopped, and none of another generation. The newest failures of a
session are remembered, and a bounded number for all sessions together.
Owner: the session, which has a part of the table's book of failures.
"""

from __future__ import annotations

from itertools import islice

from replica_service.core.lanes.lane_book import LaneBook


class Stops:
    """What has failed in the lanes of one session."""

    __slots__ = ("_book", "_failed", "size_bits")

    def __init__(self, book: LaneBook) -> None:
        self._book = book
        self._failed: dict[int, int] = {}
        """Hash of endpoint, ordering key and generation -> id of the first call that failed. The newest last."""
        self.size_bits = 0
        """The book's."""

    def __len__(self) -> int:
        return len(self._failed)

    def failed(self, endpoint: str, key: str, generation: int, call_id: int) -> None:
        """A call has failed."""
        lane = hash((endpoint, key, generation))
        first = self._failed.get(lane)
        self._failed[lane] = call_id if first is None else min(first, call_id)
        if first is None:
            self._book.added(self)

    def is_stopped(self, endpoint: str, key: str, generation: int, call_id: int) -> bool:
        """Whether a call before this one has failed."""
        return self._failed.get(hash((endpoint, key, generation)), call_id) < call_id

    def forget_half(self) -> int:
        """Forgets the oldest failures; returns how many."""
        count = (len(self._failed) + 1) // 2
        self._failed = dict(islice(self._failed.items(), count, None))
        return count
