"""What is known of the calls of one session that has moved here: where each was found, and which may be behind others.

Owner: `Resumptions`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.rosters import RosterVersion
from router_service.core.runs import RouterRun
from slotmesh.wire.ranges import Range, holds, merged

MAX_RESENT = 65_536
"""Runs with ordering keys of which it is remembered that they were sent again: several times what a window holds. Where
there are more, it is not known which key each call that was found has."""


@dataclass(frozen=True, slots=True)
class FoundCalls:
    """What one replica knows of the calls that it was asked about."""

    running: Sequence[Range] = ()
    kept: Sequence[Range] = ()
    evicted: Sequence[Range] = ()
    """Executed, and the outcome no longer kept."""
    forgotten: bool = False
    """The replica has forgotten calls of the session: what it does not name may have run there."""


class Trace(NamedTuple):
    """Where calls were found."""

    first: int
    last: int
    replica: RoutedReplica
    is_evicted: bool


class Resumption:
    """What is known so far of the calls of one session."""

    __slots__ = (
        *("asked", "awaited", "awaits_calls", "deaf", "give_up_at", "held", "is_covered"),
        *("is_over", "keys", "lanes", "newest_found", "newest_of_any_key", "resent"),
        *("rosters", "traces", "unanswered"),
    )

    def __init__(self, unanswered: Sequence[Range], rosters: Sequence[RosterVersion]) -> None:
        self.unanswered = unanswered
        self.rosters = rosters
        """What the client has acknowledged since it sent the first of these calls: only replicas of these have them."""
        self.is_covered = False
        """The table names all replicas of these rosters, or says that they have departed."""
        self.is_over = False
        """Nothing more will be known."""
        self.give_up_at = 0.0
        """When to wait no longer, monotonic seconds."""
        self.asked: set[RoutedReplica] = set()
        self.awaited: dict[RoutedReplica, None] = {}
        """Those of them that have not answered, and may yet."""
        self.deaf = ""
        """A replica that cannot answer, or not fully; empty where all did."""
        self.traces: list[Trace] = []
        self.held: list[tuple[RouterRun, bool]] = []
        """Runs in order of arrival, and whether they were sent before."""
        self.keys: set[str] = set()
        """Ordering keys among them."""
        self.awaits_calls = False
        """Calls are still being sent again, and the client says when it has sent the last one."""
        self.resent = 0
        """Runs with ordering keys that were sent again."""
        self.lanes: dict[str, list[Sequence[int]]] = {}
        """Ordering key -> ids of its calls that were sent again."""
        self.newest_found: dict[str, int] = {}
        """Ordering key -> the last of these that was found. Known once it is over."""
        self.newest_of_any_key = 0
        """The last call that was found, where it is not known which key each of them has."""

    def trace(self, replica: RoutedReplica, found: FoundCalls) -> None:
        """Keeps the replica's answer."""
        if found.forgotten:
            self.deaf = replica.replica_id
        for spans, is_evicted in ((found.evicted, True), (found.kept, False), (found.running, False)):
            self.traces += [Trace(first, last, replica, is_evicted) for first, last in spans]

    def note_resent(self, run: RouterRun) -> None:
        """The run was sent again. Its payload may be under way."""
        if (key := run.options.ordering_key) and not self.is_over:
            self.resent += 1
            if self.resent <= MAX_RESENT:
                self.lanes.setdefault(key, []).append(run.ids)

    def close(self) -> None:
        """Nothing more will be known."""
        self.is_over = True
        found = merged((trace.first, trace.last) for trace in self.traces)
        for key, sent in self.lanes.items():
            for ids in sent:
                newest = next((each for each in reversed(ids) if holds(found, each)), 0)
                self.newest_found[key] = max(newest, self.newest_found.get(key, 0))
        self.lanes.clear()
        if self.awaits_calls or self.resent > MAX_RESENT:
            self.newest_of_any_key = max((last for _, last in found), default=0)

    def is_passed(self, run: RouterRun) -> bool:
        """Whether later calls of the run's ordering key were found, or may have been: it would run behind them."""
        key = run.options.ordering_key
        return bool(key) and run.ids[0] < max(self.newest_found.get(key, 0), self.newest_of_any_key)

    def traces_of(self, ids: Sequence[int]) -> list[Trace | None]:
        """Where each of the calls was found. A trace that leads to an outcome goes before one that does not."""
        traces: list[Trace | None] = [None] * len(ids)
        for trace in sorted(self.traces, key=lambda trace: not trace.is_evicted):
            lo, hi = bisect_left(ids, trace.first), bisect_right(ids, trace.last)
            traces[lo:hi] = [trace] * (hi - lo)
        return traces
