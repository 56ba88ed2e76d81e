"""How far the lanes of sessions have come: no call is executed after a later one of its lane.

Purpose: a router that lost its link fails the calls that were under way and goes on with the next ones. A client that
changes routers before it gets these failures sends the calls again, and no replica has seen them: they are too late.
Invariants: only calls that have started count. A lane that was dropped may have come far: a call that may be too late
in it counts as too late.
Owner: the session, which has a part of the table's book of lanes.
"""

from __future__ import annotations

from itertools import islice

from replica_service.core.lanes.lane_book import LaneBook


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
