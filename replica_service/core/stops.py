"""Lanes that stop after a failure: which calls do not start because one before them has failed.

Purpose: a session remembers, of each lane and generation of which a call has failed, the first such call.
Invariants: only calls behind the one that failed are stopped, and none of another generation. The newest failures of a
session are remembered, and so many of all sessions together.
Owner: the session, which has a part of the table's book of failures.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from replica_service.core.lane_book import LaneBook

if TYPE_CHECKING:
    from replica_service.core.calls import Run


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


def is_stopped(run: Run, index: int) -> bool:
    """Whether a call must not start because one before it has failed."""
    generation = run.options.stop_generation
    if not generation or not run.ordering_key:
        return False
    if index > run.failed_at:
        return True
    record = run.record
    if record is None or record.session is None or not (stops := record.session.stops):
        return False
    return stops.is_stopped(run.endpoint, run.ordering_key, generation, record.call_ids[index])


def is_late(run: Run, now: float) -> bool:
    """Whether a call that ends now has failed, whatever it returns: its lane stops, and its time is over."""
    return run.options.stop_generation > 0 and now >= run.deadline


def mark_failure(run: Run, lo: int) -> None:
    """The same as `note_failure`, where the run is executed, which is told of it later. On any thread."""
    if run.options.stop_generation:
        run.failed_at = min(run.failed_at, lo)


def note_failure(run: Run, lo: int) -> None:
    """The calls of the run from index `lo` on, one at least, have failed."""
    record = run.record
    if run.ordering_key and record is not None and (session := record.session) is not None:
        session.stops.failed(run.endpoint, run.ordering_key, run.options.stop_generation, record.call_ids[lo])
