"""Calls that have not ended: the request for them, and the list of them."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from router_service.core.tapping.open_calls import OpenCall, OpenCallsFilter, OpenCallsScan, OpenCallState
from slotmesh.errors import Failure, bad_field
from slotmesh.spec.wire import duration_to_wire
from slotmesh.v1 import tap_service_pb2 as pb

CALLS: Final = 100
MAX_CALLS: Final = 1_000


class KeyTags:
    """What stands for ordering keys where these are not shown."""

    def __init__(self, salt: bytes) -> None:
        """`salt`: random, so that a tag cannot be compared with those of guessed keys."""
        self._salt = salt

    def of(self, ordering_key: str) -> str:
        """8 hexadecimal digits."""
        return blake2b(ordering_key.encode(), key=self._salt, digest_size=4).hexdigest()


def open_calls_filter_of(request: pb.ListCallsRequest, *, allows_keys: bool) -> OpenCallsFilter | Failure:
    """Which calls are requested, or why the request is refused."""
    known = {state.value for state in OpenCallState}
    if unknown := [state for state in request.states if state not in known]:
        return bad_field("states", f"has a state that this router does not know: {unknown[0]}")
    if not 0 <= request.limit <= MAX_CALLS:
        return bad_field("limit", f"must be 1 to {MAX_CALLS}, is {request.limit}")
    if request.show_keys and not allows_keys:
        return bad_field(
            "show_keys", "this router does not show ordering keys; start it with --tap-payloads to allow it"
        )
    if request.HasField("ordering_key") and not request.ordering_key:
        return bad_field("ordering_key", "is empty; leave it unset for calls with any key or none")
    return OpenCallsFilter(
        endpoint=request.endpoint,
        states=frozenset(map(OpenCallState, request.states)) or frozenset(OpenCallState),
        tenant=request.tenant if request.HasField("tenant") else None,
        ordering_key=request.ordering_key or None,
        limit=request.limit or CALLS,
    )


def open_calls_to_wire(
    scan: OpenCallsScan, calls: Iterable[OpenCall], tags: KeyTags, *, shows_keys: bool
) -> pb.ListCallsResponse:
    """The response. Ordering keys are in it only with `shows_keys`."""
    return pb.ListCallsResponse(
        calls=[_call(call, tags, shows_keys) for call in calls],
        waiting=scan.waiting,
        at_replicas=scan.at_replicas,
        is_partial=scan.is_partial,
    )


def _call(call: OpenCall, tags: KeyTags, shows_keys: bool) -> pb.OpenCall:
    key = call.ordering_key
    return pb.OpenCall(
        state=pb.OpenCallState.ValueType(call.state.value),
        endpoint=call.endpoint,
        method=call.method,
        age=duration_to_wire(call.age_s),
        backend=call.backend,
        replica_id=call.replica_id,
        sent_age=None if call.sent_age_s is None else duration_to_wire(call.sent_age_s),
        tenant=call.tenant,
        partition=call.partition if key else None,
        key_tag=tags.of(key) if key else "",
        ordering_key=key if key and shows_keys else None,
        request_bytes=call.request_bytes,
        attempt=call.attempt,
        is_shadow=call.is_shadow,
        waits_for=call.waits_for,
    )
