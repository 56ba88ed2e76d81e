"""What the router counts: plain numbers that a scrape reads, so that counting costs nothing worth measuring.

Invariants: totals only grow, also when an endpoint or a backend goes and comes back; labels come from the routing table
and the reasons, never from callers' input.
Owner: the scheduler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from enum import Enum

from router_service.core.call_ends import CallEndCounts
from router_service.core.call_times import CallTimes
from router_service.core.runs import RouterRun
from slotmesh.errors import Failure, Reason
from slotmesh.histogram import Histogram

UNKNOWN = ""
"""Label of an endpoint that the table does not name."""


class ShadowOutcome(Enum):
    """What became of sampled copies."""

    COMPLETED = "completed"
    FAILED = "failed"
    """The handler raised, the replica was lost, or their time was up."""
    DROPPED = "dropped"
    """There was no free slot."""


class ReservationAnswer(Enum):
    """How reservations ended for their callers."""

    GRANTED = "granted"
    NO_SLOT = "no_slot"
    """None was free in time."""
    REFUSED = "refused"
    """The queue was full."""
    CANCELLED = "cancelled"
    FAILED = "failed"
    """The endpoint or the wanted replica does not exist, or the replica refused."""


_OUTCOME_OF = {
    Reason.NO_SLOT: ReservationAnswer.NO_SLOT,
    Reason.QUEUE_FULL: ReservationAnswer.REFUSED,
    Reason.CANCELLED: ReservationAnswer.CANCELLED,
}


class BackendCounts:
    """Times of one backend's calls, in seconds, and how they ended."""

    __slots__ = ("ended", "queue_time", "replica_time", "reserve_time", "shadow_ended")

    def __init__(self, endpoints: Container[str]) -> None:
        """`endpoints`: the names of those that were in a table."""
        self.queue_time = Histogram()
        """From arrival to the replica's outbox, once a slice."""
        self.replica_time = Histogram()
        """From there to the answer, once a slice of answers."""
        self.reserve_time = Histogram()
        """From the arrival of a reservation to its grant."""
        self.ended = CallEndCounts(endpoints)
        self.shadow_ended = CallEndCounts(endpoints)
        """Of copies of calls."""


class RouterCounters:
    """Totals since the start of the process."""

    def __init__(self) -> None:
        self.endpoints: set[str] = set()
        """Names that were in a table at any time."""
        self.backends: dict[str, BackendCounts] = {}
        self.times = CallTimes()
        """Of calls that were executed."""
        self.calls: Counter[tuple[str, ...]] = Counter()
        """Calls accepted, by endpoint."""
        self.failures: Counter[tuple[str, ...]] = Counter()
        """Calls failed, by endpoint, backend and reason."""
        self.refusals: Counter[tuple[str, ...]] = Counter()
        """Calls that a replica handed back, by backend and reason."""
        self.retries: Counter[tuple[str, ...]] = Counter()
        """Calls executed again after their replica was lost, by backend."""
        self.reservations: Counter[tuple[str, ...]] = Counter()
        """Reservations that ended, by endpoint and outcome."""
        self.shadows: Counter[tuple[str, ...]] = Counter()
        """Sampled copies that ended, by backend and outcome."""
        self.link_failures: Counter[tuple[str, ...]] = Counter()
        """Links to replicas that broke, by backend."""

    def backend(self, name: str) -> BackendCounts:
        """The counts of a backend that the table names, the same ones whenever it comes back."""
        return self.backends.setdefault(name, BackendCounts(self.endpoints))

    def label(self, endpoint: str) -> str:
        """The endpoint as metrics name it."""
        return endpoint if endpoint in self.endpoints else UNKNOWN

    def copies_ended(self, run: RouterRun, count: int, now: float, failure: Failure | None = None) -> None:
        """`count` copies of the run for a shadow ended well, or in this failure."""
        name = run.shadow_of or ""
        outcome = ShadowOutcome.COMPLETED
        if failure is not None:
            outcome = ShadowOutcome.DROPPED if failure.reason is Reason.NO_SLOT else ShadowOutcome.FAILED
        self.shadows[name, outcome.value] += count
        if (counts := self.backends.get(name)) is None or outcome is ShadowOutcome.DROPPED:
            return
        if failure is None:
            counts.shadow_ended.of(run.endpoint).times.observe(now - run.arrived, count)
        else:
            counts.shadow_ended.count(failure, count, run.endpoint)

    def granted(self, run: RouterRun, counts: BackendCounts, now: float) -> None:
        """The reservation has its slot, at a replica of the backend whose `counts` these are."""
        self.reservations[self.label(run.endpoint), ReservationAnswer.GRANTED.value] += 1
        counts.reserve_time.observe(now - run.arrived, 1)

    def failed(self, run: RouterRun, failure: Failure, count: int, backend: str) -> None:
        """`count` calls of the run failed alike, at this backend; empty: at the one that the failure names."""
        label = self.label(run.endpoint)
        if run.reserves:
            self.reservations[label, _OUTCOME_OF.get(failure.reason, ReservationAnswer.FAILED).value] += 1
            return
        named = failure.metadata.get("backend", "")
        self.failures[label, named, failure.reason.value] += count
        if (counts := self.backends.get(backend or named)) is not None:
            counts.ended.count(failure, count, label)
