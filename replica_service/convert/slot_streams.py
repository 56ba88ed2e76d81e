"""Frames of direct streams: what a client hands over or sends, and what it is told. One call a frame.

Invariants: what is wrong with a slot or a call fails it, and names its field; call ids that do not increase end the
stream. Equal options are looked at once.
"""

from __future__ import annotations

from collections.abc import Container
from functools import lru_cache
from math import inf

from google.protobuf import duration_pb2

from replica_service.convert.issuer import Issuer
from replica_service.convert.options import MAX_KNOWN_BYTES, NO_OPTIONS, bad_request, options_from_wire
from replica_service.convert.runs import disorder
from replica_service.core.call_options import ReplicaCallOptions
from replica_service.core.calls import ReplicaRun, RouterPeer
from replica_service.core.events import AttachCame
from slotmesh.call_options.rules import option_mistake
from slotmesh.errors import Failure
from slotmesh.slots.requests import dispatch_mistake, oversized, ttl_of
from slotmesh.status import to_exception, to_wire
from slotmesh.v1 import call_pb2, direct_service_pb2, slot_service_pb2
from slotmesh.wire.limits import MAX_INLINE_BYTES


def attachment_of(
    wire: direct_service_pb2.AttachSlot,
    link: RouterPeer,
    issuer: Issuer,
    identity: str,
    endpoints: Container[str] | None,
) -> AttachCame | Failure:
    """What a client hands over, or why it cannot. `identity`: its name. `endpoints`: those it may call; None: all."""
    secret = issuer.secret_of(wire.token, identity, endpoints)
    ttl_s = ttl_of(wire)
    if isinstance(secret, Failure):
        return secret
    if isinstance(ttl_s, Failure):
        return ttl_s
    return AttachCame(link, wire.slot_id, secret, wire.endpoint, ttl_s)


def slot_call_of(wire: direct_service_pb2.SlotCall, link: RouterPeer, now: float) -> tuple[ReplicaRun, Failure | None]:
    """A call, and why it fails as it is, if it does.

    Raises:
        DuplicateCallId: call ids do not strictly increase.
    """
    call_id = wire.call_id
    if call_id <= link.last_run_id:
        raise to_exception(disorder("call.call_id", call_id, link.last_run_id))
    link.last_run_id = call_id
    stated, payload, deadline = wire.options, wire.payload, inf
    if stated.HasField("timeout"):
        if (failure := _timeout_mistake(stated.timeout)) is not None:
            return ReplicaRun(link, call_id, [b""], NO_OPTIONS, "", now), failure
        deadline = now + stated.timeout.ToNanoseconds() / 1e9
        stated.ClearField("timeout")
    raw = stated.SerializeToString()
    options = _known_options(raw) if len(raw) <= MAX_KNOWN_BYTES else _options(raw)
    if isinstance(options, Failure):
        return ReplicaRun(link, call_id, [b""], NO_OPTIONS, "", now), options
    run = ReplicaRun(link, call_id, [payload], options, "", now, deadline)
    return run, oversized(len(payload)) if len(payload) > MAX_INLINE_BYTES else None


def slot_failure(call_id: int, failure: Failure) -> direct_service_pb2.AttachResponse:
    """What the client is told of a call that failed."""
    response = direct_service_pb2.AttachResponse()
    response.failed.call_id = call_id
    response.failed.failure.CopyFrom(to_wire(failure))
    return response


def attached_to_wire(number: int, failure: Failure | None) -> direct_service_pb2.AttachResponse:
    """What the client is told of a slot that it handed over."""
    response = direct_service_pb2.AttachResponse()
    response.attached.slot_id = number
    if failure is not None:
        response.attached.failure.CopyFrom(to_wire(failure))
    return response


def detached_to_wire(number: int, failure: Failure | None) -> direct_service_pb2.AttachResponse:
    """What the client is told of a slot that its stream holds no longer."""
    response = direct_service_pb2.AttachResponse()
    response.detached.slot_id = number
    if failure is not None:
        response.detached.failure.CopyFrom(to_wire(failure))
    return response


@lru_cache(maxsize=1024)
def _known_options(raw: bytes) -> ReplicaCallOptions | Failure:
    return _options(raw)


def _options(raw: bytes) -> ReplicaCallOptions | Failure:
    wire = call_pb2.CallOptions.FromString(raw)
    if wire.streaming:
        return bad_request("options.streaming", "a direct stream brings one result a call: call through a router")
    mistake = dispatch_mistake(slot_service_pb2.DispatchRequest(options=wire), streaming=False)
    return mistake or option_mistake(wire) or options_from_wire(raw)


def _timeout_mistake(timeout: duration_pb2.Duration) -> Failure | None:
    if timeout.seconds >= 0 and 0 <= timeout.nanos < 10**9:
        return None
    return option_mistake(call_pb2.CallOptions(timeout=timeout))
