"""Operations of callers on slots, and slots that replicas hold, in the model of a router with slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from math import inf
from typing import Any

from router_service.core.calls import Dispatch, Release, Renew, Reserve
from router_service.core.features.slot_operations import (
    OutgoingDispatch,
    OutgoingLookUp,
    OutgoingRelease,
    OutgoingRenew,
)
from router_service.core.limits.capacity import KnownReplica
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.rosters import ReplicaKey
from router_service.core.runs import Caller
from slotmesh.balancers import CallEnd
from slotmesh.calls.request_ids import ReservationIdentity
from slotmesh.errors import Executed, Failure, Reason

MAX_ONGOING = 2
MAX_QUEUED = 12
QUEUE_TIME_S = 30.0
LINK_WAIT_S = 2.0
IDS = ("r0", "r1", "r2", "r3")
POLICIES: tuple[dict[str, float] | None, ...] = ({"b1": 1.0}, {"b1": 0.5, "b2": 0.5}, None)
CHOSEN: dict[str, dict[str, Any]] = {
    "": {},
    "s1": {"shard_key": "s1"},
    "k1": {"affinity_key": "k1"},
    "m1": {"model_id": "m1", "affinity_key": "k1"},
    "p1": {"prefix_blocks": (1, 2)},
}
"""Options that choose a replica, by what a caller is given of them."""
REASONS = (Reason.QUEUE_FULL, Reason.DRAINING)
BOUND_REASONS = (
    *(Reason.REPLICA_GONE, Reason.REPLICA_LOST, Reason.DEADLINE_IN_QUEUE, Reason.DEADLINE_RUNNING),
    *(Reason.SLOT_UNKNOWN, Reason.HANDLER_ERROR),
    *(Reason.STALE_TABLE, Reason.BACKEND_UNAVAILABLE),
)
NOT_SENT = (Reason.REPLICA_GONE, Reason.STALE_TABLE, Reason.BACKEND_UNAVAILABLE, Reason.DEADLINE_IN_QUEUE)


@dataclass(eq=False)
class Operation:
    """What one caller wants: of a slot, or a call."""

    caller: Caller
    work: Reserve | Dispatch | Renew | Release | None
    deadline: float = inf
    request_id: str = ""
    shard: str = ""
    arrivals: int = 0
    """How often a replica got it."""
    outcome: object = None
    has_left: bool = False
    key: ReplicaKey | None = None
    """Of the replica whose slot it is about."""


@dataclass
class Leased:
    """A slot, as its replica knows it."""

    replica: RoutedReplica
    until: float
    state: str = "reserved"


@dataclass
class Held:
    """What one replica holds."""

    replica: RoutedReplica
    linked: bool = False
    calls: dict[int, Operation] = field(default_factory=dict)
    waiting: dict[int, Operation | None] = field(default_factory=dict)
    """Reservations by op id; None where nobody is known to wait: several do, or none."""
    asked: dict[int, tuple[Operation | None, OutgoingDispatch | OutgoingRenew | OutgoingRelease | OutgoingLookUp]] = (
        field(default_factory=dict)
    )
    """What is to be done with its slots."""
    requests: dict[int, ReservationIdentity] = field(default_factory=dict)
    """What identifies the reservations that came over the link, by op id."""
    looked_up: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The order of the newest look-up of each request id."""
    requested: dict[str, str] = field(default_factory=dict)
    """Tokens of slots that were granted while the link broke, by the request id of their reservation."""
    dispatched: dict[int, tuple[Operation, str]] = field(default_factory=dict)

    @property
    def owes(self) -> bool:
        return bool(self.calls or self.waiting or self.asked or self.dispatched)

    def taken(self, slots: dict[str, Leased]) -> int:
        return sum(slot.replica is self.replica and slot.state != "over" for slot in slots.values())


class Listener:
    """A policy that wants to hear what became of what was placed."""

    def __init__(self) -> None:
        self.balance: Counter[KnownReplica] = Counter()

    def sent(self, replica: KnownReplica, count: int, /) -> None:
        assert count > 0
        self.balance[replica] += count

    def ended(self, replica: KnownReplica, count: int, end: CallEnd, latency_s: float, /) -> None:
        assert count > 0
        assert latency_s >= 0
        self.balance[replica] -= count


def judge(
    operation: Operation,
    failure: Failure,
    *,
    weights: Mapping[str, float],
    listed: Mapping[ReplicaKey, str],
    departed: Set[ReplicaKey],
) -> None:
    """What a failure may say: `weights` are those of the endpoint, `listed` the backends of the replicas there are."""
    reason, executed = failure.reason, failure.executed
    match operation.work:
        case Reserve(replica_id=replica_id):
            assert executed is Executed.NO, "a reservation runs nothing"
            if reason is Reason.REPLICA_GONE:
                assert replica_id
                assert not any(key[0] == replica_id and backend in weights for key, backend in listed.items()), (
                    "the wanted replica is there"
                )
            else:
                assert reason in (
                    Reason.NO_SLOT,
                    Reason.QUEUE_FULL,
                    Reason.BAD_REQUEST,
                    Reason.ENDPOINT_NOT_FOUND,
                    Reason.HANDLER_ERROR,
                ) or (reason is Reason.BACKEND_UNAVAILABLE and operation.request_id)
        case Dispatch() | Renew():
            assert reason in BOUND_REASONS
            assert reason is not Reason.REPLICA_GONE or operation.key in departed, "it may live"
            if reason in NOT_SENT:
                assert executed is Executed.NO
                assert not operation.arrivals, "it was sent"
            if reason in (Reason.REPLICA_LOST, Reason.DEADLINE_RUNNING):
                assert executed is Executed.UNKNOWN
                assert operation.arrivals
        case Release():
            assert reason in (Reason.REPLICA_LOST, Reason.STALE_TABLE, Reason.BACKEND_UNAVAILABLE)
            assert bool(operation.arrivals) == (reason is Reason.REPLICA_LOST)
        case None:
            pass
