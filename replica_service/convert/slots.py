"""Operations on slots: what a frame or an rpc asks for, and the answers that frames carry.

Invariants: what is wrong with an operation fails that operation; ids that do not increase are a `DuplicateCallId` of
the stream, like those of runs, with which they share one sequence. Secrets are in no `repr`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from replica_service.convert.issuer import Issuer
from replica_service.convert.options import NO_OPTIONS, options_from_wire
from replica_service.convert.runs import disorder
from replica_service.core.call_options import ReplicaCallOptions
from replica_service.core.calls import ReplicaRun, RouterPeer
from replica_service.core.slots.slot_table import ReservedSlot
from slotmesh.errors import Failure, Reason
from slotmesh.slots.requests import dispatch_mistake, reservation_mistake, ttl_of
from slotmesh.status import to_exception, to_wire
from slotmesh.v1 import call_pb2, replica_service_pb2, slot_service_pb2
from slotmesh.version import VERSION
from slotmesh.wire_time import seconds_of


class ReserveOp(NamedTuple):
    """Lease a slot."""

    run: ReplicaRun


@dataclass(frozen=True, slots=True)
class DispatchOp:
    """Run a call in a slot."""

    run: ReplicaRun
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class RenewOp:
    """Prolong a lease."""

    op_id: int
    secret: bytes = field(repr=False)
    ttl_s: float


@dataclass(frozen=True, slots=True)
class ReleaseOp:
    """Give a slot back."""

    op_id: int
    secret: bytes = field(repr=False)


class RejectedDispatch(NamedTuple):
    """A call that fails as it is."""

    run: ReplicaRun
    failure: Failure


class RejectedOp(NamedTuple):
    """Any other operation that fails as it is."""

    op_id: int
    failure: Failure


SlotOp = ReserveOp | DispatchOp | RenewOp | ReleaseOp | RejectedDispatch | RejectedOp


class Granted(NamedTuple):
    """A slot was given, or its lease prolonged."""

    slot: ReservedSlot
    ongoing: int
    """Running calls and reservations, this one included."""


class SlotReleased(NamedTuple):
    """A slot is held no more."""

    ongoing: int
    max_ongoing: int


SlotAnswer = Granted | SlotReleased | Failure


def slot_ops_of(frame: replica_service_pb2.SlotOps, link: RouterPeer, issuer: Issuer, now: float) -> list[SlotOp]:
    """The operations of a frame, in order.

    Raises:
        DuplicateCallId: ids do not strictly increase.
    """
    ops: list[SlotOp] = []
    last = link.last_run_id
    for wire in frame.ops:
        if wire.op_id <= last:
            raise to_exception(disorder("slots.ops.op_id", wire.op_id, last))
        last = wire.op_id
        ops.append(_op_of(wire, link, issuer, now))
    link.last_run_id = last
    return ops


def reservation_run(
    link: RouterPeer, op_id: int, endpoint: str, ttl_s: float, now: float, deadline: float, identity: str = ""
) -> ReplicaRun:
    """A reservation, as the scheduler takes it. `identity`: the name of who asks."""
    run = ReplicaRun(link, op_id, [b""], NO_OPTIONS, endpoint, now, deadline)
    run.lease_s = ttl_s
    run.identity = identity
    return run


def slot_call_options(wire: call_pb2.CallOptions) -> ReplicaCallOptions | Failure:
    """Options of a call in a slot. They are looked up by what calls share, and no two have the same time left."""
    if wire.HasField("timeout"):
        wire.ClearField("timeout")
    return options_from_wire(wire.SerializeToString())


def add_answers(frame: replica_service_pb2.SlotResults, answers: Iterable[tuple[int, SlotAnswer]], to: Issuer) -> None:
    """Adds answers, by operation id, to a frame."""
    for op_id, answer in answers:
        result = frame.results.add(op_id=op_id)
        match answer:
            case Granted():
                result.slot.CopyFrom(to.to_wire(answer.slot, answer.ongoing))
            case SlotReleased():
                result.released.CopyFrom(released_to_wire(answer))
            case failure:
                result.failure.CopyFrom(to_wire(failure))


def released_to_wire(answer: SlotReleased) -> slot_service_pb2.ReleaseSlotResponse:
    """What whoever gives a slot back is told."""
    return slot_service_pb2.ReleaseSlotResponse(ongoing=answer.ongoing, max_ongoing=answer.max_ongoing)


def _op_of(wire: replica_service_pb2.SlotOp, link: RouterPeer, issuer: Issuer, now: float) -> SlotOp:
    op_id, endpoints = wire.op_id, frozenset(wire.endpoints) or None
    match wire.WhichOneof("op"):
        case "reserve":
            return _reserve_op(wire.reserve, link, op_id, wire.identity, now)
        case "dispatch":
            secret = issuer.secret_of(wire.dispatch.token, wire.identity, endpoints)
            return _dispatch_op(wire.dispatch, link, op_id, secret, now)
        case "renew":
            secret = issuer.secret_of(wire.renew.token, wire.identity, endpoints)
            ttl_s = ttl_of(wire.renew)
            if isinstance(secret, Failure):
                return RejectedOp(op_id, secret)
            return RejectedOp(op_id, ttl_s) if isinstance(ttl_s, Failure) else RenewOp(op_id, secret, ttl_s)
        case "release":
            secret = issuer.secret_to_release(wire.release.token, wire.identity, endpoints)
            return RejectedOp(op_id, secret) if isinstance(secret, Failure) else ReleaseOp(op_id, secret)
        case _:
            message = f"an operation on a slot that slotmesh {VERSION} does not know"
            return RejectedOp(op_id, Failure(reason=Reason.NOT_IMPLEMENTED, message=message))


def _reserve_op(
    wire: slot_service_pb2.ReserveSlotRequest, link: RouterPeer, op_id: int, identity: str, now: float
) -> SlotOp:
    ttl_s = ttl_of(wire)
    if failure := reservation_mistake(wire):
        return RejectedOp(op_id, failure)
    if isinstance(ttl_s, Failure):
        return RejectedOp(op_id, ttl_s)
    deadline = _deadline(wire.options, now)
    return ReserveOp(reservation_run(link, op_id, wire.endpoint, ttl_s, now, deadline, identity))


def _dispatch_op(
    wire: slot_service_pb2.DispatchRequest, link: RouterPeer, op_id: int, secret: bytes | Failure, now: float
) -> SlotOp:
    deadline = _deadline(wire.options, now)
    options = dispatch_mistake(wire, streaming=True) or slot_call_options(wire.options)
    if isinstance(options, Failure):
        return RejectedDispatch(ReplicaRun(link, op_id, [b""], NO_OPTIONS, wire.endpoint, now), options)
    run = ReplicaRun(link, op_id, [wire.payload], options, wire.endpoint, now, deadline)
    return RejectedDispatch(run, secret) if isinstance(secret, Failure) else DispatchOp(run, secret)


def _deadline(options: call_pb2.CallOptions, now: float) -> float:
    return now + seconds_of(options.timeout) if options.HasField("timeout") else inf
