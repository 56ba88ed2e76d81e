"""Events of slots: what callers ask for, and what replicas answer.

Owner: the edge and the links make them, the scheduler reads them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from router_service.core.callers import Caller
from router_service.core.calls import RouterCallOptions
from router_service.core.events import RouterEvent
from router_service.core.replicas.capacity import ReportedCapacity
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.rosters import ReplicaKey
from router_service.core.slots.slot import Dispatch, OperationAnswer, Release, Renew, Reserve
from slotmesh.wire.chunks import Payload


@dataclass(slots=True, eq=False)
class SlotRequested(RouterEvent):
    """A reservation came that passed the edge's checks; it ends with a DeliverSlot or a DeliverFailure."""

    caller: Caller
    endpoint: str
    options: RouterCallOptions
    wanted: Reserve
    request_id: str = ""
    """A caller that repeats it gets the same slot, or waits with the first one, until all of them have left."""


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
    """The replica's load after them; None where it does not report it."""
