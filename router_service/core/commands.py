"""Commands: what the scheduler has decided; and the step that collects them.

Invariants: the shell carries commands out in order; they have no behaviour. A step belongs to one event: each part of
the core gets it as an argument, adds what it decides, and leaves what follows later to `then`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from router_service.core.calls import CallPayload, LeasedSlot, ReleasedSlot, RouterCallOptions
from router_service.core.limits.capacity import KnownReplica
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.rosters import RosterVersion, SessionConnection
from router_service.core.run_states import QUEUED, ROWS, RunEvent, RunState
from router_service.core.runs import Caller, RouterRun, Sent
from slotmesh.errors import Failure
from slotmesh.streams.chunks import Payload


@dataclass(slots=True, eq=False)
class Flush:
    """The replica's outbox, or its slot operations, were empty: cut frames until both are empty again."""

    replica: RoutedReplica


@dataclass(slots=True, eq=False)
class CancelRun:
    """Cancel `count` calls of the slice at the replica, from offset `lo`."""

    sent: Sent
    lo: int
    count: int
    asks: bool = False
    """Their lanes stop at these calls, and the replica has to confirm it."""


@dataclass(slots=True, eq=False)
class AskReconcile:
    """Ask the replica what became of the session's unanswered calls, and to start nothing of its older epochs."""

    replica: RoutedReplica
    session: SessionConnection


@dataclass(slots=True, eq=False)
class DeliverResults:
    """Hand results to the caller. `ids` and `payloads` are parallel."""

    caller: Caller
    ids: Sequence[int]
    payloads: Sequence[Payload]
    content_type: str
    replica: RoutedReplica
    size: int
    """Payload bytes of the answered calls, returned to the window."""
    first: int
    """Run id of the first of them at the replica; the others have consecutive ids."""
    links: int
    """Links to the replica that had been lost when it answered: the run ids are those of the next one."""
    options: RouterCallOptions


@dataclass(slots=True, eq=False)
class DeliverDone:
    """Report to the caller that calls without a result of their own have ended.

    Either the calls were made with no_reply, or they succeeded and the caller has received all their values.
    """

    caller: Caller
    ids: Sequence[int]
    size: int
    """Payload bytes of these calls, returned to the window."""
    replica: KnownReplica | None = None
    first: int = 0
    links: int = 0
    """All three as in DeliverFailure."""


@dataclass(slots=True, eq=False)
class DeliverFailure:
    """Hand one failure to the caller, for all of `ids`."""

    caller: Caller
    ids: Sequence[int]
    failure: Failure
    size: int
    """Payload bytes of the failed calls, returned to the window."""
    replica: KnownReplica | None = None
    """The replica that keeps this outcome, or has calls that the router gave up; None without one."""
    first: int = 0
    """Run id of the first of them there; 0 without a replica."""
    links: int = 0
    """As in DeliverResults."""
    endpoint: str = ""
    """The endpoint of the calls; empty if the caller calls only one."""
    tenant: str = ""
    """The tenant of the calls; empty if they name none."""


CallDelivery = DeliverResults | DeliverDone | DeliverFailure


@dataclass(slots=True, eq=False)
class DeliverValues:
    """Hand values to the caller; its calls continue. An id stands once for each value; those of a call are in order."""

    caller: Caller
    ids: list[int]
    payloads: list[CallPayload]
    """Parallel to `ids`."""
    content_type: str
    replica: RoutedReplica
    run_ids: list[int]
    """Parallel to `ids`: the run id of each value."""
    links: int
    """As in DeliverResults."""


Delivery = CallDelivery | DeliverValues
"""A command that a caller receives."""


@dataclass(slots=True, eq=False)
class DeliverSlot:
    """Hand the caller the result of its one slot operation: a slot that was reserved or renewed, or was released."""

    caller: Caller
    answer: LeasedSlot | ReleasedSlot


@dataclass(slots=True, eq=False)
class DeliverTargets:
    """Name the replicas of its broadcast to the caller: its calls have the ids 1, 2, … in this order."""

    caller: Caller
    targets: Sequence[RoutedReplica]


@dataclass(slots=True, eq=False)
class DeliverTaken:
    """Report to the caller of a call with several requests that its handler has begun, or has taken some of them."""

    caller: Caller
    replica: RoutedReplica
    """The replica that the requests go to."""
    run_id: int
    count: int
    """Number of taken requests; 0: the handler has begun."""
    links: int
    """As in DeliverResults."""


@dataclass(slots=True, eq=False)
class NameRoster:
    """Announce the current roster to the client of a session, which acknowledges it."""

    caller: Caller
    version: RosterVersion


@dataclass(slots=True, eq=False)
class TakeValues:
    """Report to the replica that `count` values of the run were taken, though no caller reads them."""

    replica: RoutedReplica
    run_id: int
    count: int


@dataclass(slots=True, eq=False)
class OpenLink:
    """Connect to the replica, and reconnect until `CloseLink`."""

    replica: RoutedReplica


@dataclass(slots=True, eq=False)
class RetryLink:
    """Connect to the replica again after `delay_s` seconds."""

    replica: RoutedReplica
    delay_s: float


@dataclass(slots=True, eq=False)
class CloseLink:
    """The replica is no longer of use: disconnect."""

    replica: RoutedReplica


@dataclass(slots=True, eq=False)
class ReportLoad:
    """Send a load report now: calls wait and no replica takes any, so the controller may have to start one."""


@dataclass(slots=True, eq=False)
class ReportRunDefect:
    """Log and count a defect of the router: an event that cannot happen to a run in its state."""

    state: RunState
    event: RunEvent


OfLink = Flush | CancelRun | AskReconcile | TakeValues | OpenLink | RetryLink | CloseLink
"""A command for the link to a replica."""

RouterCommand = (
    Delivery | DeliverSlot | DeliverTaken | DeliverTargets | NameRoster | ReportLoad | ReportRunDefect | OfLink
)


class Step:
    """What one event leads to."""

    __slots__ = ("commands", "has_flipped", "later", "now", "open_results")

    def __init__(self, now: float) -> None:
        self.now = now
        """Monotonic seconds."""
        self.commands: list[RouterCommand] = []
        """What is to be done, in order."""
        self.has_flipped = False
        """A backend has started or stopped being able to serve: what waits finds its place anew."""
        self.open_results: DeliverResults | None = None
        """The delivery that has lists of its own, to which results of other runs can be added."""
        self.later: list[Callable[[Step], None]] | None = None
        """What follows, in order, once the event itself is dealt with; None if nothing does."""

    def advance(self, run: RouterRun, event: RunEvent) -> None:
        """Something happens to the run."""
        try:
            run.state = ROWS[event][run.state]
        except KeyError:
            self.commands.append(ReportRunDefect(run.state, event))

    def unqueue(self, run: RouterRun) -> None:
        """No call of the run waits any longer where it was charged, if it did."""
        if run.state is QUEUED:
            run.uncharge()
            self.advance(run, RunEvent.UNQUEUED)

    def then(self, follow: Callable[[Step], None]) -> None:
        """What follows from this, once the event itself is dealt with."""
        if self.later is None:
            self.later = [follow]
        else:
            self.later.append(follow)
