"""Validates requests about slots, in the first server that a client's request reaches; times in messages as seconds.

Invariants: each error names its field; routers and replicas find the same errors, in the same words; a failure
contains at most the first characters of a token. Durations that are written are not negative.
Pure functions of messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slotmesh.calls.call_options import CallRpc
from slotmesh.calls.slot_tokens import DEFAULT_LEASE_S, MAX_LEASE_S, SlotToken, parse_token, redacted
from slotmesh.convert.call_options import refused_option
from slotmesh.errors import Failure, Reason, bad_field
from slotmesh.spec.rules import request_id_problem, show
from slotmesh.streams.limits import MAX_INLINE_BYTES
from slotmesh.v1 import direct_service_pb2, slot_service_pb2

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.timestamp_pb2 import Timestamp


_SECOND_NS: Final = 1_000_000_000


def put_seconds(wire: Duration | Timestamp, seconds: float) -> None:
    """Sets a time, rounded to the nanosecond. A faster `FromNanoseconds`, as a reservation has a dozen times."""
    wire.seconds, wire.nanos = divmod(round(seconds * 1e9), _SECOND_NS)


def seconds_of(wire: Duration | Timestamp) -> float:
    """The time in a message."""
    return (wire.seconds * _SECOND_NS + wire.nanos) / 1e9


MAX_EXCLUDED = 1024
"""To exclude more replicas, use a shard key or another backend."""
_MAX_LEASE_NS = int(MAX_LEASE_S * 1e9)


def reservation_failure(wire: slot_service_pb2.ReserveSlotRequest) -> Failure | None:
    """The failure of an invalid reservation; its `ttl` and the options of any call are checked elsewhere."""
    if not wire.endpoint:
        return bad_field("endpoint", "is required")
    if failure := refused_option(wire.options, CallRpc.RESERVE_SLOT):
        return failure
    if wire.request_id and (problem := request_id_problem(wire.request_id)):
        return bad_field("request_id", problem)
    if wire.attempt and (wire.attempt < 0 or not wire.request_id):
        problem = "must not be negative" if wire.attempt < 0 else "has no effect without request_id: set both"
        return bad_field("attempt", problem)
    if (count := len(wire.excluded_replica_ids)) > MAX_EXCLUDED:
        return bad_field("excluded_replica_ids", f"at most {MAX_EXCLUDED}, got {count}")
    if wire.replica_id and wire.replica_id in wire.excluded_replica_ids:
        return bad_field("excluded_replica_ids", f"replica {show(wire.replica_id)!r} is wanted and not wanted")
    return None


def oversized(size: int) -> Failure | None:
    """The failure of a payload of this size that does not fit into its message."""
    if size <= MAX_INLINE_BYTES:
        return None
    return Failure(
        reason=Reason.PAYLOAD_TOO_LARGE,
        message=f"the payload has {size} bytes; at most {MAX_INLINE_BYTES} bytes are allowed here",
        metadata={"actual": str(size), "limit": str(MAX_INLINE_BYTES)},
    )


def ttl_of(
    wire: slot_service_pb2.ReserveSlotRequest | slot_service_pb2.RenewSlotRequest | direct_service_pb2.AttachSlot,
) -> float | Failure:
    """The requested duration of the lease, in seconds."""
    if not wire.HasField("ttl"):
        return DEFAULT_LEASE_S
    ttl = wire.ttl
    if ttl.nanos < 0 or ttl.nanos >= 10**9 or not 0 < ttl.seconds * 10**9 + ttl.nanos <= _MAX_LEASE_NS:
        return bad_field(
            "ttl", f"must be more than 0, at most {MAX_LEASE_S:g} s; got {ttl.seconds} s and {ttl.nanos} ns"
        )
    return seconds_of(ttl)


def token_of(text: str) -> SlotToken | Failure:
    """The content of the token, or the failure of an invalid one."""
    if not text:
        return bad_field("token", "is required")
    token = parse_token(text)
    if token is None:
        message = f"token: {redacted(text)!r} is not a slot token: it was cut, changed or made up; reserve another"
        return Failure(reason=Reason.SLOT_UNKNOWN, message=message)
    return token
