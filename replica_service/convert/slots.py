"""Converts slot operations and the frames of direct streams between protobuf messages and the core's values.

Invariants: an invalid operation, slot or call fails alone, and the failure names the field. Operation ids share one
increasing sequence with run ids; one that does not increase ends the stream with `DuplicateCallId`. A token of another
replica or of an earlier incarnation fails with `ReplicaGone`; a slot that belongs to another identity or endpoint is
reported as unknown, like a made-up token. Secrets are in no `repr`. Equal call options are converted once.
Owner: the app (`Issuer`); the streams call the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from typing import NamedTuple

from google.protobuf import duration_pb2

from replica_service.convert.runs import MAX_KNOWN_BYTES, NO_OPTIONS, disorder, identity_from_wire, options_from_wire
from replica_service.core.call_metadata import ReplicaCallOptions, ReservedSlot
from replica_service.core.events import (
    AttachReceived,
    DispatchReceived,
    Fail,
    LookUpReceived,
    ReleaseReceived,
    RenewalReceived,
    ReportAttach,
    ReportDetached,
    RunsReceived,
)
from replica_service.core.failures import SLOT_UNKNOWN
from replica_service.core.runs import ReplicaRun, RouterPeer
from slotmesh.calls.call_options import CallRpc
from slotmesh.calls.request_ids import CallIdentity, ReservationIdentity
from slotmesh.calls.slot_tokens import format_token
from slotmesh.convert.call_options import options_failure, refused_option
from slotmesh.convert.slot_requests import oversized, put_seconds, reservation_failure, seconds_of, token_of, ttl_of
from slotmesh.errors import Executed, Failure, Reason, bad_field
from slotmesh.handlers.replica_context import OwnReplica
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.runtime.clock import Clock
from slotmesh.status import to_exception, to_wire
from slotmesh.v1 import call_pb2, direct_service_pb2, slot_service_pb2
from slotmesh.version import VERSION

_NO_SECRET = b""
"""Matches no slot."""
_DISPATCH_LOST = Failure(
    reason=Reason.REPLICA_LOST,
    executed=Executed.UNKNOWN,
    message=(
        "token: the replica has been restarted since it gave the slot: whether it executed an earlier request with "
        "this id is not known"
    ),
)


@dataclass(frozen=True, slots=True)
class Issuer:
    """Writes and checks the tokens of this incarnation's slots. `replica_id` and `incarnation` may be empty.

    Lease times are computed when a response is written.
    """

    clock: Clock
    replica_id: str = ""
    incarnation: str = ""
    backend: str = ""
    own: OwnReplica = field(default_factory=OwnReplica)
    """What handlers see of this replica."""
    address: Callable[[], str] = str
    """Returns the address that callers connect to; empty until it is known."""
    is_of_another: Callable[[bytes, str, Container[str] | None], bool] = lambda _secret, _identity, _endpoints: False
    """Whether the slot with this secret was reserved by an identity other than the given one, or for an endpoint
    outside the given set."""

    def to_wire(self, slot: ReservedSlot, ongoing: int) -> slot_service_pb2.Slot:
        """Returns the slot's message. `ongoing`: running calls and reservations, this one included."""
        ttl_s = slot.ttl_s(self.clock.now())
        wire = slot_service_pb2.Slot(
            token=format_token(self.replica_id, self.incarnation, slot.secret),
            backend=self.backend,
            replica_id=self.replica_id,
            replica_address=self.address(),
            ongoing=ongoing,
        )
        put_seconds(wire.ttl, ttl_s)
        put_seconds(wire.expire_time, self.clock.time_of_day() + ttl_s)
        return wire

    def secret_of(
        self, token: str, identity: str, endpoints: Container[str] | None, *, may_repeat: bool = False
    ) -> bytes | Failure:
        """Returns the secret in the token, or a failure if this caller cannot hold such a slot of this incarnation.

        `identity`: the caller's name; empty if callers are not identified.
        `endpoints`: those that the caller may call; None: all.
        `may_repeat`: an earlier incarnation may have executed a call in the slot for an earlier request.
        """
        parsed = token_of(token)
        if isinstance(parsed, Failure):
            return parsed
        if parsed.replica_key == (self.replica_id, self.incarnation):
            return SLOT_UNKNOWN if self.is_of_another(parsed.secret, identity, endpoints) else parsed.secret
        if may_repeat and parsed.replica_id == self.replica_id:
            return _DISPATCH_LOST
        return self._gone(parsed.replica_id)

    def secret_to_release(self, token: str, identity: str, endpoints: Container[str] | None) -> bytes | Failure:
        """Like `secret_of`, for a release: slots of earlier incarnations and unknown slots count as free already."""
        secret = self.secret_of(token, identity, endpoints)
        if not isinstance(secret, Failure):
            return secret
        is_past = secret.metadata.get("replica_id") == self.replica_id
        return _NO_SECRET if is_past or secret is SLOT_UNKNOWN else secret

    def _gone(self, replica_id: str) -> Failure:
        is_same = replica_id == self.replica_id
        what = "has been restarted since" if is_same else f"is not this one, which is {self.replica_id}"
        message = f"token: replica {replica_id}, which gave the slot, {what}"
        return Failure(reason=Reason.REPLICA_GONE, message=message, metadata={"replica_id": replica_id})


SlotOp = RunsReceived | DispatchReceived | RenewalReceived | ReleaseReceived | LookUpReceived | Fail | Failure
"""The event of a router's operation; of an invalid one its failure, as `Fail` if it is a call."""


class Granted(NamedTuple):
    """A slot was leased, or its lease prolonged."""

    slot: ReservedSlot
    ongoing: int
    """Running calls and reservations, this one included."""


class SlotReleased(NamedTuple):
    """A slot was released."""

    ongoing: int
    max_ongoing: int


SlotAnswer = Granted | SlotReleased | Failure


def slot_ops_of(
    frame: replica_service_pb2.SlotOps, link: RouterPeer, issuer: Issuer, now: float
) -> list[tuple[int, SlotOp]]:
    """The operations of a frame, in order, each with its id.

    Raises:
        DuplicateCallId: ids do not strictly increase.
    """
    ops: list[tuple[int, SlotOp]] = []
    last = link.last_run_id
    for wire in frame.ops:
        if wire.op_id <= last:
            raise to_exception(disorder("slots.ops.op_id", wire.op_id, last))
        last = wire.op_id
        ops.append((last, _op_of(wire, link, issuer, now)))
    link.last_run_id = last
    return ops


def reservation_run(
    link: RouterPeer, op_id: int, endpoint: str, ttl_s: float, now: float, deadline: float, identity: str = ""
) -> ReplicaRun:
    """Returns the run that represents a reservation in the scheduler. `identity`: the caller's name."""
    run = ReplicaRun(link, op_id, [b""], NO_OPTIONS, endpoint, now, deadline)
    run.lease_s = ttl_s
    run.identity = identity
    return run


def slot_call_options(wire: call_pb2.CallOptions) -> ReplicaCallOptions | Failure:
    """Returns the options of a call in a slot. The timeout is cleared first, so that equal options share one object."""
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
    """Returns the response to a release."""
    return slot_service_pb2.ReleaseSlotResponse(ongoing=answer.ongoing, max_ongoing=answer.max_ongoing)


def _op_of(wire: replica_service_pb2.SlotOp, link: RouterPeer, issuer: Issuer, now: float) -> SlotOp:
    op_id, endpoints = wire.op_id, frozenset(wire.endpoints) or None
    match wire.WhichOneof("op"):
        case "reserve":
            return _reserve_op(wire, link, now)
        case "dispatch":
            secret = issuer.secret_of(wire.dispatch.token, wire.identity, endpoints)
            return _dispatch_op(wire, link, secret, now)
        case "renew":
            secret = issuer.secret_of(wire.renew.token, wire.identity, endpoints)
            ttl_s = ttl_of(wire.renew)
            if isinstance(secret, Failure):
                return secret
            return ttl_s if isinstance(ttl_s, Failure) else RenewalReceived(link, op_id, secret, ttl_s)
        case "release":
            secret = issuer.secret_to_release(wire.release.token, wire.identity, endpoints)
            return secret if isinstance(secret, Failure) else ReleaseReceived(secret, _reservation_of(wire))
        case "look_up":
            reservation = _reservation_of(wire)
            if reservation is None:
                return bad_field("slots.ops.request", "is required")
            return LookUpReceived(link, op_id, reservation)
        case _:
            message = f"an operation on a slot that slotmesh {VERSION} does not know"
            return Failure(reason=Reason.NOT_IMPLEMENTED, message=message)


def _reserve_op(op: replica_service_pb2.SlotOp, link: RouterPeer, now: float) -> RunsReceived | Failure:
    wire = op.reserve
    ttl_s = ttl_of(wire)
    if failure := reservation_failure(wire):
        return failure
    if isinstance(ttl_s, Failure):
        return ttl_s
    run = reservation_run(link, op.op_id, wire.endpoint, ttl_s, now, _deadline(wire.options, now), op.identity)
    run.reservation = _reservation_of(op)
    return RunsReceived([run])


def _reservation_of(op: replica_service_pb2.SlotOp) -> ReservationIdentity | None:
    if not op.HasField("request"):
        return None
    wire = op.request
    return ReservationIdentity(wire.id, wire.digest, wire.caller, wire.attempt, wire.resend)


def dispatch_of(run: ReplicaRun, secret: bytes, identity: CallIdentity | None) -> DispatchReceived:
    """Returns the event of a call in a slot. `identity`: None if its caller does not repeat it."""
    if identity is not None:
        run.request = identity._replace(slot=secret)
    return DispatchReceived(run, secret)


def _dispatch_op(
    op: replica_service_pb2.SlotOp, link: RouterPeer, secret: bytes | Failure, now: float
) -> DispatchReceived | Fail:
    wire, op_id = op.dispatch, op.op_id
    deadline = _deadline(wire.options, now)  # first: `slot_call_options` clears the timeout
    options = oversized(len(wire.payload)) or slot_call_options(wire.options)
    if isinstance(options, Failure):
        return Fail(ReplicaRun(link, op_id, [b""], NO_OPTIONS, wire.endpoint, now), 0, 1, options)
    run = ReplicaRun(link, op_id, [wire.payload], options, wire.endpoint, now, deadline)
    if isinstance(secret, Failure):
        return Fail(run, 0, 1, secret)
    return dispatch_of(run, secret, identity_from_wire(op.request) if op.HasField("request") else None)


def _deadline(options: call_pb2.CallOptions, now: float) -> float:
    return now + seconds_of(options.timeout) if options.HasField("timeout") else inf


def attachment_of(
    wire: direct_service_pb2.AttachSlot,
    link: RouterPeer,
    issuer: Issuer,
    identity: str,
    endpoints: Container[str] | None,
) -> AttachReceived | Failure:
    """Returns the event for a slot that a client attaches to its direct stream, or the failure if it is invalid.

    `identity`: the client's name. `endpoints`: those it may call; None: all.
    """
    secret = issuer.secret_of(wire.token, identity, endpoints)
    ttl_s = ttl_of(wire)
    if isinstance(secret, Failure):
        return secret
    if isinstance(ttl_s, Failure):
        return ttl_s
    return AttachReceived(link, wire.slot_id, secret, wire.endpoint, ttl_s)


def slot_call_of(wire: direct_service_pb2.SlotCall, link: RouterPeer, now: float) -> tuple[ReplicaRun, Failure | None]:
    """Returns a direct call and, if it is invalid, its failure.

    Raises:
        DuplicateCallId: call ids do not strictly increase.
    """
    call_id = wire.call_id
    if call_id <= link.last_run_id:
        raise to_exception(disorder("call.call_id", call_id, link.last_run_id))
    link.last_run_id = call_id
    stated, payload, deadline = wire.options, wire.payload, inf
    if stated.HasField("timeout"):
        if (failure := _timeout_failure(stated.timeout)) is not None:
            return ReplicaRun(link, call_id, [b""], NO_OPTIONS, "", now), failure
        deadline = now + stated.timeout.ToNanoseconds() / 1e9
        stated.ClearField("timeout")
    raw = stated.SerializeToString()
    options = _known_options(raw) if len(raw) <= MAX_KNOWN_BYTES else _options(raw)
    if isinstance(options, Failure):
        return ReplicaRun(link, call_id, [b""], NO_OPTIONS, "", now), options
    run = ReplicaRun(link, call_id, [payload], options, "", now, deadline)
    return run, oversized(len(payload))


def slot_failure(call_id: int, failure: Failure) -> direct_service_pb2.AttachResponse:
    """Returns the message that reports a failed call."""
    response = direct_service_pb2.AttachResponse()
    response.failed.call_id = call_id
    response.failed.failure.CopyFrom(to_wire(failure))
    return response


def slot_change_to_wire(change: ReportAttach | ReportDetached) -> direct_service_pb2.AttachResponse:
    """Returns the message that confirms or rejects an attached slot, or reports a slot as detached from the stream."""
    response = direct_service_pb2.AttachResponse()
    message = response.attached if isinstance(change, ReportAttach) else response.detached
    message.slot_id = change.number
    if change.failure is not None:
        message.failure.CopyFrom(to_wire(change.failure))
    return response


@lru_cache(maxsize=1024)
def _known_options(raw: bytes) -> ReplicaCallOptions | Failure:
    return _options(raw)


def _options(raw: bytes) -> ReplicaCallOptions | Failure:
    wire = call_pb2.CallOptions.FromString(raw)
    return refused_option(wire, CallRpc.ATTACH) or options_failure(wire) or options_from_wire(raw)


def _timeout_failure(timeout: duration_pb2.Duration) -> Failure | None:
    if timeout.seconds >= 0 and 0 <= timeout.nanos < 10**9:
        return None
    return options_failure(call_pb2.CallOptions(timeout=timeout))
