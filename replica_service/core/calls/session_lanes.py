"""What sessions remember of their lanes, within one bound for all sessions of the replica.

`Stops`: in lanes that stop after a failure, calls after the failed one do not start. `Progress`: no call is executed
after a later one of its lane. Lanes are remembered by the hash of their endpoint and key, so long keys cost no memory.
`LaneBook` keeps the bound: above it, the session that remembers most lanes forgets the older half of them.
Owner: the session table has the books; each session has its part of them.
"""

from __future__ import annotations

from itertools import islice
from typing import Protocol


class Remembering(Protocol):
    """The part of one session. Compared by identity."""

    size_bits: int
    """Used by the book; 0 at first."""

    def __len__(self) -> int: ...

    def __hash__(self) -> int: ...

    def forget_half(self) -> int:
        """Forgets the older half of the lanes; returns their number."""


MAX_LANES = 131_072
"""Lanes that all sessions of a replica remember together, about 150 bytes each."""


class LaneBook:
    """How many lanes each session remembers."""

    __slots__ = ("_by_size", "_max_lanes", "lanes")

    def __init__(self, max_lanes: int = MAX_LANES) -> None:
        self.lanes = 0
        """Total of all sessions."""
        self._max_lanes = max_lanes
        self._by_size: list[dict[Remembering, None]] = [{} for _ in range((max_lanes + 1).bit_length() + 1)]
        """Parts with lanes, by the bit length of their number of lanes."""

    def added(self, part: Remembering) -> None:
        """Counts a lane that the part has added."""
        self.lanes += 1
        self._put(part)
        if self.lanes > self._max_lanes:
            most = next(iter(next(each for each in reversed(self._by_size) if each)))
            self.lanes -= most.forget_half()
            self._put(most)

    def left(self, part: Remembering) -> None:
        """Drops the part of a session."""
        self._by_size[part.size_bits].pop(part, None)
        self.lanes -= len(part)

    def _put(self, part: Remembering) -> None:
        bits = len(part).bit_length()
        if bits != part.size_bits:
            self._by_size[part.size_bits].pop(part, None)
            self._by_size[bits][part] = None
            part.size_bits = bits


class Stops:
    """The first failed call of each lane and stop generation of one session.

    Only calls after the failed one are stopped, and none of another generation. The newest failures are remembered.
    """

    __slots__ = ("_book", "_failed", "size_bits")

    def __init__(self, book: LaneBook) -> None:
        self._book = book
        self._failed: dict[int, int] = {}
        """Hash of endpoint, ordering key and generation -> id of the first call that failed. The newest last."""
        self.size_bits = 0

    def __len__(self) -> int:
        return len(self._failed)

    def failed(self, endpoint: str, key: str, generation: int, call_id: int) -> None:
        """Notes a failed call."""
        lane = hash((endpoint, key, generation))
        first = self._failed.get(lane)
        self._failed[lane] = call_id if first is None else min(first, call_id)
        if first is None:
            self._book.added(self)

    def is_stopped(self, endpoint: str, key: str, generation: int, call_id: int) -> bool:
        """Whether a call before this one has failed."""
        return self._failed.get(hash((endpoint, key, generation)), call_id) < call_id

    def forget_half(self) -> int:
        """Forgets the older half of the failures; returns their number."""
        count = (len(self._failed) + 1) // 2
        self._failed = dict(islice(self._failed.items(), count, None))
        return count


class Progress:
    """The last call that has started in each lane of one session. Compared by identity.

    A router that loses its link fails the calls in transit and continues with the next ones. A client that changes
    routers before it receives these failures sends the calls again, and no replica has a record of them: they are too
    late. Only started calls count. A call that may be too late in a forgotten lane counts as too late.
    """

    __slots__ = ("_book", "_forgotten", "_last", "_newest", "_resumed_at", "size_bits")

    def __init__(self, book: LaneBook) -> None:
        self._book = book
        self._last: dict[int, int] = {}
        """Hash of a lane, its endpoint and ordering key -> id of the last call that has started."""
        self._newest = 0
        """The highest of these ids so far."""
        self._resumed_at = 0
        """`_newest` when the session's newest connection began: calls up to that id were sent before."""
        self._forgotten = 0
        """The highest id of all forgotten lanes."""
        self.size_bits = 0

    def __len__(self) -> int:
        return len(self._last)

    def started(self, endpoint: str, key: str, call_id: int) -> None:
        """Notes that a call and those before it in its lane have started."""
        lane = hash((endpoint, key))
        last = self._last.get(lane)
        self._last[lane] = call_id if last is None else max(last, call_id)
        self._newest = max(self._newest, call_id)
        if last is None:
            self._book.added(self)

    def resumed(self) -> None:
        """Notes that a newer connection of the session has begun."""
        self._resumed_at = self._newest

    def is_passed(self, endpoint: str, key: str, call_id: int, *, again: bool) -> bool:
        """Whether calls after this one in its lane have started, or may have.

        `again`: the call was sent before on this connection. Calls that are sent for the first time arrive in order.
        """
        last = self._last.get(hash((endpoint, key)))
        if last is not None:
            return call_id < last
        return call_id < self._forgotten and (again or call_id <= self._resumed_at)

    def forget_half(self) -> int:
        """Forgets the older half of the lanes; returns their number."""
        count = (len(self._last) + 1) // 2
        self._forgotten = max(self._forgotten, *islice(self._last.values(), count))
        self._last = dict(islice(self._last.items(), count, None))
        return count
