"""A bound for what sessions remember of lanes: all of them together, however long the ordering keys are.

Purpose: lanes are remembered by the hash of their endpoint and key. Where there are too many, the session that
remembers most forgets the half of them that it began with first.
Owner: the session table.
"""

from __future__ import annotations

from itertools import islice
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


# Lanes that stop after a failure: which calls do not start because one before them has failed.
#
# Purpose: a session remembers, of each lane and generation of which a call has failed, the first such call.
# Invariants: only calls behind the one that failed are stopped, and none of another generation. The newest failures of
# a
# session are remembered, and a bounded number for all sessions together.
# Owner: the session, which has a part of the table's book of failures.


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


# How far the lanes of sessions have come: no call is executed after a later one of its lane.
#
# Purpose: a router that lost its link fails the calls that were under way and goes on with the next ones. A client that
# changes routers before it gets these failures sends the calls again, and no replica has seen them: they are too late.
# Invariants: only calls that have started count. A lane that was dropped may have come far: a call that may be too late
# in it counts as too late.
# Owner: the session, which has a part of the table's book of lanes.


class Progress:
    """Of one session. Compared by identity."""

    __slots__ = ("_book", "_forgotten", "_last", "_newest", "_resumed_at", "size_bits")

    def __init__(self, book: LaneBook) -> None:
        self._book = book
        self._last: dict[int, int] = {}
        """Hash of a lane, its endpoint and ordering key -> id of the last call that has started."""
        self._newest = 0
        """The highest of these ids that there ever was."""
        self._resumed_at = 0
        """The same when the session's newest connection showed itself: calls up to there were sent before."""
        self._forgotten = 0
        """The highest id of all lanes that were dropped."""
        self.size_bits = 0
        """The book's."""

    def __len__(self) -> int:
        return len(self._last)

    def started(self, endpoint: str, key: str, call_id: int) -> None:
        """A call has started, and so have those before it in its lane."""
        lane = hash((endpoint, key))
        last = self._last.get(lane)
        self._last[lane] = call_id if last is None else max(last, call_id)
        self._newest = max(self._newest, call_id)
        if last is None:
            self._book.added(self)

    def resumed(self) -> None:
        """A newer connection of the session has shown itself."""
        self._resumed_at = self._newest

    def is_passed(self, endpoint: str, key: str, call_id: int, *, again: bool) -> bool:
        """Whether calls that came after this one in its lane have started, or may have.

        `again`: it was sent before on this connection. What comes for the first time comes in order.
        """
        last = self._last.get(hash((endpoint, key)))
        if last is not None:
            return call_id < last
        return call_id < self._forgotten and (again or call_id <= self._resumed_at)

    def forget_half(self) -> int:
        """Forgets the lanes that began first; returns how many."""
        count = (len(self._last) + 1) // 2
        self._forgotten = max(self._forgotten, *islice(self._last.values(), count))
        self._last = dict(islice(self._last.items(), count, None))
        return count
