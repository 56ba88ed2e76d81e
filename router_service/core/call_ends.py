"""How the calls of one backend have ended for their callers, by endpoint: what a controller judges a new version by.

Invariants: totals only grow; an end counts once, where the caller gets it; copies for shadows, reservations, calls that
were taken back and calls that failed for others of their lane are not counted. Endpoints are those of the table.
Owner: the scheduler. `slotmesh.v1.CallEnds` specifies the figures.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from router_service.core.runs import RouterRun
from slotmesh.errors import Failure, Reason
from slotmesh.histogram import CALL_TIMES, Histogram

FAULTS: Final = frozenset(
    {
        *(Reason.HANDLER_ERROR, Reason.BATCH_SIZE_MISMATCH, Reason.METHOD_NOT_FOUND, Reason.NOT_IMPLEMENTED),
        *(Reason.INTERNAL, Reason.REPLICA_LOST, Reason.QUEUE_FULL, Reason.BACKEND_UNAVAILABLE),
    }
)
"""Failures for what the backend is."""
NO_ANSWER: Final = frozenset({Reason.DEADLINE_RUNNING, Reason.DEADLINE_IN_QUEUE, Reason.QUEUE_TIMEOUT})
"""The time was up."""
REFUSALS: Final = frozenset({Reason.BAD_ARGUMENTS, Reason.BAD_REQUEST, Reason.PAYLOAD_TOO_LARGE})
"""The caller had sent what nobody could take."""
BLAMES_CALLER: Final = frozenset({3, 5, 6, 7, 9, 11, 16})
"""Statuses by which a handler says that the caller is wrong: INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS,
PERMISSION_DENIED, FAILED_PRECONDITION, OUT_OF_RANGE and UNAUTHENTICATED."""


class CallEndTotals:
    """Of the calls of one endpoint at one backend."""

    __slots__ = ("failed", "refused", "times", "unanswered")

    def __init__(self) -> None:
        self.times = Histogram(CALL_TIMES)
        """Calls that ended well: from their arrival at the router to their last result."""
        self.failed = 0
        self.unanswered = 0
        self.refused = 0
        """Calls that failed for what their callers had sent."""

    @property
    def total(self) -> int:
        """Calls that ended."""
        return sum(self.times.counts) + self.failed + self.unanswered + self.refused

    def add(self, other: CallEndTotals) -> None:
        """Adds the totals of another one."""
        self.times.add(other.times)
        self.failed += other.failed
        self.unanswered += other.unanswered
        self.refused += other.refused


class CallEndCounts:
    """Totals of one backend since the router's start, by endpoint."""

    __slots__ = ("_known", "by_endpoint")

    def __init__(self, known: Container[str]) -> None:
        """`known`: the names of endpoints that were in a table. Calls in slots may name others."""
        self._known = known
        self.by_endpoint: dict[str, CallEndTotals] = {}
        """By name, of those that have sent calls here; under an empty name those that are not known."""

    def of(self, endpoint: str) -> CallEndTotals:
        """The totals of one endpoint, to be counted in."""
        totals = self.by_endpoint.get(endpoint)
        if totals is None:
            totals = self.by_endpoint.setdefault(endpoint if endpoint in self._known else "", CallEndTotals())
        return totals

    def sum(self) -> CallEndTotals:
        """The totals of the backend: made anew, for a report."""
        total = CallEndTotals()
        for each in self.by_endpoint.values():
            total.add(each)
        return total

    def well(self, run: RouterRun, calls: int, now: float) -> None:
        """So many calls of the run ended well."""
        if run.shadow_of is None:
            self.of(run.endpoint).times.observe(now - run.arrived, calls)

    def count(self, failure: Failure, calls: int, endpoint: str) -> None:
        """So many calls of the endpoint ended in this failure."""
        reason = failure.reason
        if reason in FAULTS:
            if reason is Reason.HANDLER_ERROR and failure.code in BLAMES_CALLER:
                self.of(endpoint).refused += calls
            else:
                self.of(endpoint).failed += calls
        elif reason in NO_ANSWER:
            self.of(endpoint).unanswered += calls
        elif reason in REFUSALS:
            self.of(endpoint).refused += calls
