"""Leased slots: requests of clients, operations for replicas, and the answers of replicas.

Invariants: requests are checked by the rules of every server (`slot_requests`); an answer of a newer protocol
fails its operation, not the link.
Owner: pure functions of the router's edge.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from router_service.convert.options import options_from_wire, put_identity
from router_service.core.calls import LeasedSlot, OperationAnswer, ReleasedSlot, Reserve, RouterCallOptions
from router_service.core.features.slot_operations import (
    OutgoingDispatch,
    OutgoingLookUp,
    OutgoingOp,
    OutgoingRelease,
    OutgoingRenew,
    OutgoingReserve,
)
from slotmesh.calls.request_ids import ReservationIdentity
from slotmesh.convert.slot_requests import put_seconds, reservation_failure, seconds_of, ttl_of
from slotmesh.errors import Failure, Reason
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.status import from_wire
from slotmesh.streams.chunks import joined
from slotmesh.v1 import call_pb2, slot_service_pb2


def reservation_from_wire(
    wire: slot_service_pb2.ReserveSlotRequest, identity: str = "", request: ReservationIdentity | None = None
) -> tuple[RouterCallOptions, Reserve] | Failure:
    """The reservation, or the failure for an invalid one. Its options are for routing: a slot serves any method.

    `identity`: the identity of the caller. `request`: what identifies the reservation, if it may be repeated.
    """
    if failure := reservation_failure(wire):
        return failure
    ttl_s, options = ttl_of(wire), options_from_wire(wire.options)
    if isinstance(ttl_s, Failure):
        return ttl_s
    if isinstance(options, Failure):
        return options
    excluded = frozenset(wire.excluded_replica_ids)
    replica_id = wire.replica_id
    return options, Reserve(ttl_s=ttl_s, replica_id=replica_id, excluded=excluded, identity=identity, request=request)


def slot_to_wire(slot: LeasedSlot) -> slot_service_pb2.Slot:
    """A slot, for the client."""
    wire = slot_service_pb2.Slot(
        token=slot.token,
        backend=slot.backend,
        replica_id=slot.replica_id,
        replica_address=slot.replica_address,
        ongoing=slot.ongoing,
    )
    put_seconds(wire.ttl, slot.ttl_s)
    put_seconds(wire.expire_time, slot.expire_time_s)
    return wire


def add_op(frame: replica_service_pb2.SlotOps, outgoing: OutgoingOp, now: float) -> None:
    """Adds one operation to a frame for a replica."""
    op = frame.ops.add(op_id=outgoing.op_id, identity=outgoing.identity)
    if not isinstance(outgoing, OutgoingReserve | OutgoingLookUp) and outgoing.endpoints is not None:
        op.endpoints.extend(sorted(outgoing.endpoints))
    match outgoing:
        case OutgoingReserve():
            op.reserve.endpoint = outgoing.endpoint
            put_seconds(op.reserve.ttl, outgoing.ttl_s)
            _put_time_left(op.reserve.options, outgoing.deadline, now)
            if outgoing.request is not None:
                _put_reservation(op.request, outgoing.request)
        case OutgoingLookUp():
            op.look_up.SetInParent()
            _put_reservation(op.request, outgoing.request)
        case OutgoingDispatch():
            op.dispatch.token = outgoing.token
            op.dispatch.endpoint = outgoing.endpoint
            op.dispatch.payload = joined(outgoing.payload)
            op.dispatch.options.MergeFromString(outgoing.options.wire)
            if (request := outgoing.options.request) is not None:
                put_identity(op.request, request)
            _put_time_left(op.dispatch.options, outgoing.deadline, now)
        case OutgoingRenew():
            op.renew.token = outgoing.token
            put_seconds(op.renew.ttl, outgoing.ttl_s)
        case OutgoingRelease():
            op.release.token = outgoing.token
            if outgoing.request is not None:
                _put_reservation(op.request, outgoing.request)


def _put_reservation(wire: replica_service_pb2.RequestIdentity, request: ReservationIdentity) -> None:
    wire.id, wire.digest, wire.caller, wire.attempt, wire.resend = request


def slot_answers_of(wire: replica_service_pb2.SlotResults) -> Iterator[OperationAnswer]:
    """Operation ids, and the outcome of each."""
    for result in wire.results:
        match result.WhichOneof("outcome"):
            case "slot":
                yield result.op_id, _slot(result.slot)
            case "released":
                yield (
                    result.op_id,
                    ReleasedSlot(ongoing=result.released.ongoing, max_ongoing=result.released.max_ongoing),
                )
            case "failure":
                yield result.op_id, from_wire(result.failure)
            case _:
                message = "the replica's answer is of a newer protocol"
                yield result.op_id, Failure(reason=Reason.INTERNAL, message=message)


def _slot(wire: slot_service_pb2.Slot) -> LeasedSlot:
    return LeasedSlot(
        token=wire.token,
        backend=wire.backend,
        replica_id=wire.replica_id,
        replica_address=wire.replica_address,
        ongoing=wire.ongoing,
        ttl_s=seconds_of(wire.ttl),
        expire_time_s=seconds_of(wire.expire_time),
    )


def _put_time_left(options: call_pb2.CallOptions, deadline: float, now: float) -> None:
    if deadline != inf:
        put_seconds(options.timeout, max(0.0, deadline - now))
