"""The router's counters: plain numbers read by a scrape, so that counting costs next to nothing.

Invariants: totals only grow, also if an endpoint or a backend is removed and returns; labels are bounded and come from
the routing table, the reasons and the methods that were executed, never from callers' input.
Owner: the scheduler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from enum import Enum
from typing import Final

from router_service.core.calls import LookUpSlot
from router_service.core.runs import RouterRun
from slotmesh.errors import Failure, Reason
from slotmesh.histogram import CALL_TIMES, Histogram

MAX_METHODS: Final = 32
OTHER: Final = "_other"


class MethodTimes:
    """Times of the executed calls of one method, seconds."""

    __slots__ = ("queue_time", "total_time")

    def __init__(self) -> None:
        self.queue_time = Histogram()
        """From arrival to the replica's outbox, once a slice of answers."""
        self.total_time = Histogram()
        """From arrival to the outcome, once a slice of answers."""


class CallTimes:
    """How long calls take, by endpoint and method: in the queue, and from arrival to outcome.

    Purpose: per-method figures; those of a backend are over all of its methods.
    Invariants: a method has a label of its own once one of its calls was executed, for at most `MAX_METHODS` of an
    endpoint; all others share `OTHER`.
    """

    def __init__(self) -> None:
        self.by_method: dict[tuple[str, str], MethodTimes] = {}
        """By endpoint and method."""
        self._methods: dict[str, int] = {}
        """How many of each endpoint there are."""

    def executed(self, endpoint: str, method: str, waited_s: float, total_s: float, count: int) -> None:
        """Counts `count` calls that were executed together."""
        times = self.by_method.get((endpoint, method)) or self._add(endpoint, method)
        times.queue_time.observe(waited_s, count)
        times.total_time.observe(total_s, count)

    def _add(self, endpoint: str, method: str) -> MethodTimes:
        known = self._methods.get(endpoint, 0)
        if known >= MAX_METHODS:
            return self.by_method.setdefault((endpoint, OTHER), MethodTimes())
        self._methods[endpoint] = known + 1
        return self.by_method.setdefault((endpoint, method), MethodTimes())


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
"""The caller sent a request that no replica could accept."""
BLAMES_CALLER: Final = frozenset({3, 5, 6, 7, 9, 11, 16})
"""Statuses by which a handler blames the caller: INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS,
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
    """How the calls of one backend have ended for their callers, by endpoint, since the router's start.

    Purpose: the controller judges a new version by these figures; `slotmesh.v1.CallEnds` specifies them.
    Invariants: an end counts once, when the caller receives it. Shadows' copies, reservations, cancelled calls, and
    calls that failed because of others of their lane are not counted. Endpoints are those of the table.
    """

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
        """Counts `calls` calls of the run that succeeded."""
        if run.shadow_of is None:
            self.of(run.endpoint).times.observe(now - run.arrived, calls)

    def count(self, failure: Failure, calls: int, endpoint: str) -> None:
        """Counts `calls` calls of the endpoint that ended in this failure."""
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


class BroadcastEnd(Enum):
    """How broadcasts ended."""

    COMPLETED = "completed"
    """Each replica has executed its call."""
    FAILED = "failed"
    """One or more calls failed."""
    REFUSED = "refused"
    """No call began: the endpoint or the backend does not exist, or there are too many replicas."""
    CANCELLED = "cancelled"
    """The client left before each call had its outcome."""


_OUTCOME_OF = {
    Reason.NO_SLOT: ReservationAnswer.NO_SLOT,
    Reason.QUEUE_FULL: ReservationAnswer.REFUSED,
    Reason.CANCELLED: ReservationAnswer.CANCELLED,
}


class PickFault(Enum):
    """Why a pick of a balancer of the user's own was not used, or was late."""

    RAISED = "raised"
    NONE = "none"
    """It picked none of the candidates, although they have room."""
    IMPOSSIBLE = "impossible"
    """It picked what is no candidate: a replica that is full, drains or is unknown, or a value of another type."""
    LATE = "late"
    """It took longer than its budget. Such a pick is used."""
    HOOK = "hook"
    """One of its hooks raised."""
    SET_ASIDE = "set_aside"
    """It was not called, for earlier faults."""


PICK_TIMES: Final = (1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.1, 1.0)
"""Bounds of times of picks, in seconds."""


class PickCounts:
    """Of a balancer of the user's own."""

    __slots__ = ("faults", "times")

    def __init__(self) -> None:
        self.times = Histogram(PICK_TIMES)
        """How long picks took that were used."""
        self.faults: dict[PickFault, int] = dict.fromkeys(PickFault, 0)


class BackendCounts:
    """Times of one backend's calls, in seconds, and how they ended."""

    __slots__ = (
        *("ended", "far_calls", "known_blocks", "near_calls", "new_blocks", "picks", "preferred"),
        *("queue_time", "replica_time", "reserve_time", "shadow_ended", "spilled"),
    )

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
        self.preferred = 0
        """Calls and reservations with an affinity key that went to the replica of their key, as the next."""
        self.spilled = 0
        """Those that went to another one."""
        self.known_blocks = 0
        """Blocks of the prompts of calls that were sent: their replica had been sent them before, as the next."""
        self.new_blocks = 0
        """Those that were new there."""
        self.picks: PickCounts | None = None
        """Of its balancer, once that was one of the user's own."""
        self.near_calls = 0
        """Unkeyed calls that were sent to replicas of the router's zone, as the next."""
        self.far_calls = 0
        """To other replicas."""

    def sent_to(self, count: int, *, is_near: bool) -> None:
        """Unkeyed calls were sent."""
        if is_near:
            self.near_calls += count
        else:
            self.far_calls += count


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
        self.broadcasts: Counter[tuple[str, ...]] = Counter()
        """Broadcasts that ended, by endpoint and outcome."""
        self.shadows: Counter[tuple[str, ...]] = Counter()
        """Sampled copies that ended, by backend and outcome."""
        self.link_failures: Counter[tuple[str, ...]] = Counter()
        """Links to replicas that broke, by backend."""

    def backend(self, name: str) -> BackendCounts:
        """The counts of a backend that the table names, the same ones whenever it comes back."""
        return self.backends.setdefault(name, BackendCounts(self.endpoints))

    def affinity(self) -> dict[tuple[str, ...], int]:
        """Calls and reservations with an affinity key, by backend and whether the replica of their key got them."""
        found: dict[tuple[str, ...], int] = {}
        for name, each in self.backends.items():
            found[name, "preferred"], found[name, "spilled"] = each.preferred, each.spilled
        return found

    def prefix_blocks(self) -> dict[tuple[str, ...], int]:
        """Blocks of the prompts of calls that were sent, by backend and whether they were known at their replica."""
        found: dict[tuple[str, ...], int] = {}
        for name, each in self.backends.items():
            found[name, "known"], found[name, "new"] = each.known_blocks, each.new_blocks
        return found

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

    def broadcast_ended(self, endpoint: str, how: BroadcastEnd) -> None:
        self.broadcasts[self.label(endpoint), how.value] += 1

    def granted(self, run: RouterRun, counts: BackendCounts, now: float) -> None:
        """The reservation has its slot, at a replica of the backend whose `counts` these are."""
        self.reservations[self.label(run.endpoint), ReservationAnswer.GRANTED.value] += 1
        counts.reserve_time.observe(now - run.arrived, 1)

    def failed(self, run: RouterRun, failure: Failure, count: int, backend: str) -> None:
        """`count` calls of the run failed alike, at this backend; empty: at the one that the failure names."""
        label = self.label(run.endpoint)
        if isinstance(run.slot, LookUpSlot):
            return  # no call of a client
        if run.reserves:
            self.reservations[label, _OUTCOME_OF.get(failure.reason, ReservationAnswer.FAILED).value] += 1
            return
        named = failure.metadata.get("backend", "")
        self.failures[label, named, failure.reason.value] += count
        if (counts := self.backends.get(backend or named)) is not None:
            counts.ended.count(failure, count, label)
