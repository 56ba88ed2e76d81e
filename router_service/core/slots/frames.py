"""What the next frame of slot operations to a replica carries.

Purpose: ids are given here, at the last moment, out of the sequence of the run ids; so whatever names runs names
operations, too.
Invariants: operations go ahead of runs, in the order in which they came. A frame has at most `MAX_FRAME_OPS`
operations, and more than `max_bytes` of payload only where it is one call that has them.
Owner: pure function on the replica's state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never, cast

from router_service.core.calls import RouterCallOptions
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.runs import Sent
from router_service.core.slots.slot import Dispatch, Release, Renew, Reserve
from slotmesh.wire.chunks import Payload

MAX_FRAME_OPS = 128


@dataclass(slots=True, eq=False)
class OutgoingReserve:
    """Lease a slot."""

    op_id: int
    identity: str
    """Here and below, the name of who asks; empty where nobody was asked who they are."""
    endpoint: str
    options: RouterCallOptions
    ttl_s: float
    deadline: float
    """Monotonic seconds; infinite without one."""


@dataclass(slots=True, eq=False)
class OutgoingDispatch:
    """Run a call in a slot; its result comes as that of run `op_id`."""

    op_id: int
    identity: str
    token: str = field(repr=False)
    endpoint: str
    options: RouterCallOptions
    payload: Payload
    deadline: float
    """Monotonic seconds; infinite without one."""
    endpoints: frozenset[str] | None
    """Here and below, those whose slots are known to who asks; None: all."""


@dataclass(slots=True, eq=False)
class OutgoingRenew:
    """Prolong a lease."""

    op_id: int
    identity: str
    token: str = field(repr=False)
    ttl_s: float
    endpoints: frozenset[str] | None


@dataclass(slots=True, eq=False)
class OutgoingRelease:
    """Give a slot back."""

    op_id: int
    identity: str
    token: str = field(repr=False)
    endpoints: frozenset[str] | None


OutgoingOp = OutgoingReserve | OutgoingDispatch | OutgoingRenew | OutgoingRelease


def cut_ops(replica: RoutedReplica, max_bytes: int) -> list[OutgoingOp]:
    """Takes operations out of the replica's, oldest first, until one of the bounds is reached; numbers them."""
    ops: list[OutgoingOp] = []
    size = 0
    waiting = replica.ops
    while waiting and len(ops) < MAX_FRAME_OPS:
        size += len(waiting[0].run.payloads[0])
        if ops and size > max_bytes:
            break
        sent = waiting.popleft()
        replica.inflight.number(sent)
        ops.append(_op(sent))
    return ops


def _op(sent: Sent) -> OutgoingOp:
    run = sent.run
    match run.slot:
        case Reserve(ttl_s=ttl_s, identity=who):
            return OutgoingReserve(sent.first, who, run.endpoint, run.options, ttl_s, run.deadline)
        case Dispatch(token=token, endpoint=endpoint, identity=who, endpoints=known):
            payload = cast("Payload", run.payloads[0])  # it came in one piece
            return OutgoingDispatch(sent.first, who, token, endpoint, run.options, payload, run.deadline, known)
        case Renew(token=token, ttl_s=ttl_s, identity=who, endpoints=known):
            return OutgoingRenew(sent.first, who, token, ttl_s, known)
        case Release(token=token, identity=who, endpoints=known):
            return OutgoingRelease(sent.first, who, token, known)
        case None:
            raise AssertionError("calls without a slot travel in frames of runs")
        case never:
            assert_never(never)
