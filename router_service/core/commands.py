"""Commands: what the scheduler has decided. The shell carries them out in order; they have no behaviour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from router_service.core.calls import CallPayload, LeasedSlot, ReleasedSlot, RouterCallOptions
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.rosters import RosterVersion, SessionConnection
from router_service.core.runs import CallerBook, Sent, SliceHolder
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

    caller: CallerBook
    ids: Sequence[int]
    payloads: Sequence[Payload]
    content_type: str
    replica: RoutedReplica
    size: int
    """Payload bytes of the calls that were answered: what the window gets back."""
    first: int
    """Run id of the first of them at the replica, from where they follow one by one."""
    links: int
    """Links to the replica that had been lost when it answered: the run ids are those of the next one."""
    options: RouterCallOptions


@dataclass(slots=True, eq=False)
class DeliverDone:
    """Tell the caller that calls have ended which have no result of their own.

    Either the calls were made with no_reply, or they ended well and the caller has had all their values.
    """

    caller: CallerBook
    ids: Sequence[int]
    size: int
    """Payload bytes of these calls: what the window gets back."""
    replica: SliceHolder | None = None
    first: int = 0
    links: int = 0
    """All three as in DeliverFailure."""


@dataclass(slots=True, eq=False)
class DeliverFailure:
    """Hand one failure to the caller, for all of `ids`."""

    caller: CallerBook
    ids: Sequence[int]
    failure: Failure
    size: int
    """Payload bytes of the calls that failed: what the window gets back."""
    replica: SliceHolder | None = None
    """The replica that keeps this outcome, or knows of calls that the router gave up; None without one."""
    first: int = 0
    """Run id of the first of them there; 0 without a replica."""
    links: int = 0
    """As in DeliverResults."""
    endpoint: str = ""
    """What was called; empty where the caller has no calls of several endpoints, and knows."""
    tenant: str = ""
    """On whose behalf; empty where the calls name none."""


CallDelivery = DeliverResults | DeliverDone | DeliverFailure


@dataclass(slots=True, eq=False)
class DeliverValues:
    """Hand values to the caller, whose calls go on. An id stands once for each value; those of a call are in order."""

    caller: CallerBook
    ids: list[int]
    payloads: list[CallPayload]
    """Parallel to `ids`."""
    content_type: str
    replica: RoutedReplica
    run_ids: list[int]
    """Parallel to `ids`: which run each value is of."""
    links: int
    """As in DeliverResults."""


Delivery = CallDelivery | DeliverValues
"""What a caller receives."""


@dataclass(slots=True, eq=False)
class DeliverSlot:
    """Hand the caller the result of its one slot operation: a slot that was reserved or renewed, or was released."""

    caller: CallerBook
    answer: LeasedSlot | ReleasedSlot


@dataclass(slots=True, eq=False)
class DeliverTaken:
    """Tell the caller of a call with several requests that its handler has begun, or has taken some of them."""

    caller: CallerBook
    replica: RoutedReplica
    """Where they go."""
    run_id: int
    count: int
    """How many were taken; 0: it has begun."""
    links: int
    """As in DeliverResults."""


@dataclass(slots=True, eq=False)
class NameRoster:
    """Tell the client of a session which roster is in force; it acknowledges that."""

    caller: CallerBook
    version: RosterVersion


@dataclass(slots=True, eq=False)
class TakeValues:
    """Report to the replica that `count` values of the run were taken, though no caller reads them."""

    replica: RoutedReplica
    run_id: int
    count: int


@dataclass(slots=True, eq=False)
class OpenLink:
    """Connect to the replica, and reconnect until `Disconnect`."""

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
    """Tell the controller now what waits: calls wait where no replica takes any, so one may have to be started."""


OfLink = Flush | CancelRun | AskReconcile | TakeValues | OpenLink | RetryLink | CloseLink
"""What the link to a replica does."""

RouterCommand = Delivery | DeliverSlot | DeliverTaken | NameRoster | ReportLoad | OfLink
