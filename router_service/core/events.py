"""Events: the only way into the scheduler (`RouterScheduler.step`), grouped by their source.

Invariants: events have no behaviour, and are made once per frame, never per call. Each class has exactly one handler;
`handlers_of` in `scheduler.py` has the table. Events of taps are in `features/taps.py`.
Owner: the shell makes them (streams of clients, links to replicas, the table watch, the brake); the scheduler reads
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from router_service.core.calls import (
    Batch,
    Dispatch,
    Failures,
    KeyedBatch,
    OperationAnswer,
    Release,
    Renew,
    Reserve,
    Results,
    RouterCallOptions,
)
from router_service.core.commands import DeliverResults
from router_service.core.limits.capacity import MethodTime, ReportedCapacity
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.rosters import FoundCalls, ReplicaKey, RosterVersion
from router_service.core.routing_table import RoutingTable
from router_service.core.runs import Caller
from slotmesh.calls.handler_figures import NOTHING_EVICTED, Evicted
from slotmesh.calls.method_outlines import NO_TENSORS, MethodOutline, MethodTensors
from slotmesh.calls.trace_context import Traces
from slotmesh.errors import Failure
from slotmesh.streams.chunks import Payload


class RouterEvent:
    """Base of the events of the router's core."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class CallsSubmitted(RouterEvent):
    """Calls came that passed the edge's checks."""

    caller: Caller
    endpoint: str
    batches: Iterable[Batch | KeyedBatch]
    traces: Traces | None = None
    """Of those of the calls that have a trace context; None if none has."""


@dataclass(slots=True, eq=False)
class CallFailedAtEdge(RouterEvent):
    """A call of a lane that stops at failures failed before it was submitted: later calls of its generation fail."""

    caller: Caller
    ordering_key: str
    stop_generation: int
    call_id: int


@dataclass(slots=True, eq=False)
class CallsCancelled(RouterEvent):
    """The caller took calls back. Those that have ended stay so."""

    caller: Caller
    ranges: Iterable[tuple[int, int]]
    """Call ids from first to last, both included."""


@dataclass(slots=True, eq=False)
class CallerLeft(RouterEvent):
    """A caller without a session has disconnected: its calls without an outcome are CANCELLED."""

    caller: Caller
    is_overdue: bool = False
    """The deadline of its rpc has passed: its calls count as not answered in time, not as cancelled."""


@dataclass(slots=True, eq=False)
class ResultsRequested(RouterEvent):
    """The caller reads results whose payloads the router has dropped: their replica is asked for them again."""

    caller: Caller
    endpoint: str
    answered: DeliverResults


@dataclass(slots=True, eq=False)
class RouterTimePassed(RouterEvent):
    """The moment that `RouterScheduler.next_deadline` named has come: what is overdue ends."""


@dataclass(slots=True, eq=False)
class BrakeChanged(RouterEvent):
    """Clients have too many results unread: no more calls are to be started than must be; or no longer."""

    is_braked: bool


@dataclass(slots=True, eq=False)
class TableReceived(RouterEvent):
    """A table came from the controller. An older one changes nothing: `RouterScheduler.table` is the one in force."""

    table: RoutingTable
    own_address: str = ""
    """Of this router, as tables list it."""


@dataclass(slots=True, eq=False)
class LinkOpened(RouterEvent):
    """The replica is connected and has reported its capacity."""

    replica: RoutedReplica
    capacity: ReportedCapacity
    stream_id: str = ""
    """Of the stream to the replica; no other stream has the same."""
    methods: Sequence[str] = ()
    """Names of the handler's methods that the replica reported."""
    outlines: Sequence[MethodOutline] = ()
    """Arguments and results of these methods, if reported."""
    tensors: Mapping[str, MethodTensors] = field(default_factory=lambda: NO_TENSORS)
    """Their tensors by method name, if reported."""


@dataclass(slots=True, eq=False)
class LinkLost(RouterEvent):
    """The connection broke: what a frame has carried and is not answered may have been executed."""

    replica: RoutedReplica
    why: str


@dataclass(slots=True, eq=False)
class LinkFailed(RouterEvent):
    """The replica's link broke, or could not be made: what follows is when it is tried again."""

    replica: RoutedReplica


@dataclass(slots=True, eq=False)
class CapacityReported(RouterEvent):
    """The replica's load changed without a result."""

    replica: RoutedReplica
    capacity: ReportedCapacity


@dataclass(slots=True, eq=False)
class ServiceTimesReported(RouterEvent):
    """The replica reported how long the calls of its methods take. It concerns calls that are sent from now on."""

    replica: RoutedReplica
    times: Mapping[str, MethodTime]
    """By method."""


@dataclass(slots=True, eq=False)
class HandlerStateReported(RouterEvent):
    """The replica's handler reported something of itself."""

    replica: RoutedReplica
    figures: Mapping[str, float]
    """All of them, by name."""
    models: frozenset[str] | None
    """Ids of all models that it has loaded; None: unchanged."""
    evicted: Evicted = NOTHING_EVICTED
    """Blocks of prompts that it holds no longer."""
    max_models: int = 0
    """The number of models that it keeps loaded at most; 0: it loads none by id."""
    load_s: float = 0.0
    """The mean time of a load; 0: unknown."""


@dataclass(slots=True, eq=False)
class DrainAnnounced(RouterEvent):
    """The replica takes no more runs; what it has is answered or handed back."""

    replica: RoutedReplica


@dataclass(slots=True, eq=False)
class RunsCompleted(RouterEvent):
    """A result frame came: calls that ended, and the replica's load after them."""

    replica: RoutedReplica
    results: Iterable[Results]
    failed: Sequence[Failures]
    capacity: ReportedCapacity | None
    """None if the replica does not report it."""
    done: list[int] | None = None
    """Run ids of calls that ended without a result of their own."""
    values: Iterable[Results] | None = None
    """Of calls that go on, or end in this frame."""


@dataclass(slots=True, eq=False)
class RunsRefused(RouterEvent):
    """The replica did not take these calls; nothing of them was executed."""

    replica: RoutedReplica
    ids: list[int]
    """Run ids."""
    failure: Failure
    capacity: ReportedCapacity


@dataclass(slots=True, eq=False)
class LanesStopped(RouterEvent):
    """Nothing starts behind these calls of lanes that stop at failures: they have failed for their callers."""

    replica: RoutedReplica
    ranges: Iterable[tuple[int, int]]
    """Run ids from first to last, both included."""


@dataclass(slots=True, eq=False)
class StreamedOutcomesLeft(RouterEvent):
    """Outcomes of calls left for the client, and so have their values: they take nothing of the credit any more."""

    caller: Caller
    ids: Iterable[int]
    """Call ids. Those of calls that take one result are ignored."""


@dataclass(slots=True, eq=False)
class RequestsTaken(RouterEvent):
    """Handlers of calls with several requests have begun, or have taken some of them."""

    replica: RoutedReplica
    taken: Sequence[tuple[int, int]]
    """Run ids, and how many of each; 0: it has begun."""


@dataclass(slots=True, eq=False)
class ChunkArrived(RouterEvent):
    """`size` bytes of an announced payload have arrived."""

    caller: Caller
    call_id: int
    size: int


@dataclass(slots=True, eq=False)
class UploadCompleted(RouterEvent):
    """A payload that was announced is complete."""

    caller: Caller
    call_id: int
    payload: Payload


@dataclass(slots=True, eq=False)
class UploadFailed(RouterEvent):
    """A payload that was announced will never be complete."""

    caller: Caller
    call_id: int
    failure: Failure


@dataclass(slots=True, eq=False)
class SessionConnected(RouterEvent):
    """A session has its connection here now: what an earlier one has sent is looked for at the replicas."""

    caller: Caller


@dataclass(slots=True, eq=False)
class RosterAcknowledged(RouterEvent):
    """The client of a session has acknowledged this roster."""

    caller: Caller
    version: RosterVersion


@dataclass(slots=True, eq=False)
class CallsResent(RouterEvent):
    """Calls came that an earlier connection of the session has sent before."""

    caller: Caller
    endpoint: str
    batches: Iterable[Batch]
    age_s: float
    """How long ago they were sent first, seconds."""
    first_roster: RosterVersion | None
    """The newest roster that their client knew when it sent them first; None if it does not say."""
    traces: Traces | None = None
    """As in CallsSubmitted."""


@dataclass(slots=True, eq=False)
class AllCallsResent(RouterEvent):
    """Of the calls that earlier connections of the caller's session have sent, no more are sent again."""

    caller: Caller


@dataclass(slots=True, eq=False)
class SessionDisconnected(RouterEvent):
    """The connection of a session has ended: its calls at replicas go on, the client will send the others again."""

    caller: Caller


@dataclass(slots=True, eq=False)
class SessionReconciled(RouterEvent):
    """The replica has reported on the calls that AskReconcile named."""

    replica: RoutedReplica
    session_id: str
    epoch: int
    found: FoundCalls


@dataclass(slots=True, eq=False)
class SlotRequested(RouterEvent):
    """A reservation came that passed the edge's checks; it ends with a DeliverSlot or a DeliverFailure."""

    caller: Caller
    endpoint: str
    options: RouterCallOptions
    wanted: Reserve
    """A caller that repeats its request id gets the same slot, or waits with the first one, until all have left."""


@dataclass(slots=True, eq=False)
class CallDispatched(RouterEvent):
    """A call came for a slot that this replica has given. It is never sent twice."""

    caller: Caller
    key: ReplicaKey
    options: RouterCallOptions
    payload: Payload
    into: Dispatch


@dataclass(slots=True, eq=False)
class SlotOperationRequested(RouterEvent):
    """A slot of this replica is to be held for longer, or given back; it ends as a reservation does."""

    caller: Caller
    key: ReplicaKey
    op: Renew | Release


@dataclass(slots=True, eq=False)
class SlotAbandoned(RouterEvent):
    """A slot of this replica was granted, and no caller will use it: it is released, and nothing is delivered."""

    key: ReplicaKey
    token: str = field(repr=False)


@dataclass(slots=True, eq=False)
class SlotOperationsAnswered(RouterEvent):
    """The replica answered slot operations."""

    replica: RoutedReplica
    answers: Iterable[OperationAnswer]
    capacity: ReportedCapacity | None = None
    """The replica's load after them; None if it does not report it."""
