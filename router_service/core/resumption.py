"""What is known of the calls of one session that has moved here.

Invariants: where a call was found needs no proof; that nobody has it does, and it stays open until every replica that
could have got it was heard, or cannot be.
Owner: the sessions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router_service.core.calls import Run
    from router_service.core.replicas import Replica
    from router_service.core.rosters import RosterVersion

Span = tuple[int, int]
"""Call ids from first to last, both included."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one replica knows of the calls that it was asked about."""

    running: Sequence[Span] = ()
    kept: Sequence[Span] = ()
    evicted: Sequence[Span] = ()
    """Executed, and the outcome no longer kept."""
    forgotten: bool = False
    """It has forgotten calls of the session: of what it does not name it knows nothing."""


class Trace(NamedTuple):
    """Where calls were found."""

    first: int
    last: int
    replica: Replica
    is_evicted: bool


class Resumption:
    """What is known so far."""

    __slots__ = (
        *("asked", "awaited", "awaits_calls", "deaf", "give_up_at", "held", "is_covered"),
        *("is_over", "keys", "lanes", "newest_found", "rosters", "traces", "unanswered"),
    )

    def __init__(self, unanswered: Sequence[Span], rosters: Sequence[RosterVersion]) -> None:
        self.unanswered = unanswered
        self.rosters = rosters
        """What the client has acknowledged since it sent the first of these calls: only replicas of these have them."""
        self.is_covered = False
        """The table names all replicas of these rosters, or says that they have departed."""
        self.is_over = False
        """Nothing more will be known."""
        self.give_up_at = 0.0
        """When to wait no longer, monotonic seconds."""
        self.asked: set[Replica] = set()
        self.awaited: dict[Replica, None] = {}
        """Those of them that have not answered, and may yet."""
        self.deaf = ""
        """A replica that cannot answer, or not fully; empty where all did."""
        self.traces: list[Trace] = []
        self.held: list[tuple[Run, bool]] = []
        """Runs in order of arrival, and whether they were sent before."""
        self.keys: set[str] = set()
        """Ordering keys among them."""
        self.awaits_calls = False
        """Calls are still being sent again, and the client says when it has sent the last one."""
        self.lanes: dict[str, list[Sequence[int]]] = {}
        """Ordering key -> ids of its calls that were sent again."""
        self.newest_found: dict[str, int] = {}
        """Ordering key -> the last of these that was found. Known once it is over."""

    def trace(self, replica: Replica, found: Found) -> None:
        """Keeps what the replica has said."""
        if found.forgotten:
            self.deaf = replica.replica_id
        for spans, is_evicted in ((found.evicted, True), (found.kept, False), (found.running, False)):
            self.traces += [Trace(first, last, replica, is_evicted) for first, last in spans]

    def close(self) -> None:
        """Nothing more will be known."""
        self.is_over = True
        for key, sent in self.lanes.items():
            found = [ids[at] for ids in sent for at, trace in enumerate(self.traces_of(ids)) if trace is not None]
            if found:
                self.newest_found[key] = max(found)
        self.lanes.clear()

    def is_passed(self, run: Run) -> bool:
        """Whether later calls of the run's ordering key were found: it would be executed behind them."""
        return run.ids[0] < self.newest_found.get(run.options.ordering_key, 0)

    def traces_of(self, ids: Sequence[int]) -> list[Trace | None]:
        """Where each of the calls was found. A trace that leads to an outcome goes before one that does not."""
        traces: list[Trace | None] = [None] * len(ids)
        for trace in sorted(self.traces, key=lambda trace: not trace.is_evicted):
            lo, hi = bisect_left(ids, trace.first), bisect_right(ids, trace.last)
            traces[lo:hi] = [trace] * (hi - lo)
        return traces
