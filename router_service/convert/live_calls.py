"""Taps, and calls that have not ended: the requests for them, and the calls that are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from math import isfinite
from typing import Final

from google.protobuf import timestamp_pb2

from router_service.core.features.taps import SeenCall, TapWish
from router_service.core.routing.open_calls import OpenCall, OpenCallsFilter, OpenCallsScan, OpenCallState
from slotmesh.convert.specification import duration_to_wire
from slotmesh.errors import Failure, bad_field
from slotmesh.v1 import call_pb2
from slotmesh.v1 import tap_service_pb2 as pb

CALLS_PER_S = 1_000
MAX_CALLS_PER_S = 10_000
PAYLOAD_BYTES = 4_096
MAX_PAYLOAD_BYTES = 65_536


def tap_wish_of(request: pb.TapCallsRequest, *, allows_payloads: bool) -> TapWish | Failure:
    """The requested tap, or the failure if it is refused."""
    share = request.sample_rate
    if not request.endpoint:
        return bad_field("endpoint", "is required")
    if not (isfinite(share) and 0 <= share <= 1):
        return bad_field("sample_rate", f"must be above 0, and 1 at most, is {share}")
    if not 0 <= request.max_calls_per_s <= MAX_CALLS_PER_S:
        return bad_field("max_calls_per_s", f"must be 1 to {MAX_CALLS_PER_S}, is {request.max_calls_per_s}")
    if not 0 <= request.max_payload_bytes <= MAX_PAYLOAD_BYTES:
        return bad_field("max_payload_bytes", f"must be 1 to {MAX_PAYLOAD_BYTES}, is {request.max_payload_bytes}")
    if request.with_payloads and not allows_payloads:
        return bad_field("with_payloads", "this router does not show payloads; who may, starts it with --tap-payloads")
    return TapWish(
        endpoint=request.endpoint,
        method=request.method,
        tenant=request.tenant if request.HasField("tenant") else None,
        share=share or 1.0,
        calls_per_s=request.max_calls_per_s or CALLS_PER_S,
        payload_bytes=(request.max_payload_bytes or PAYLOAD_BYTES) if request.with_payloads else 0,
    )


def seen_to_wire(calls: Iterable[SeenCall], dropped: int, time_of_day: Callable[[float], float]) -> pb.TapCallsResponse:
    """`time_of_day` makes seconds since 1970 of monotonic ones."""
    return pb.TapCallsResponse(calls=[_seen_call(call, time_of_day(call.ended_at)) for call in calls], dropped=dropped)


def _seen_call(call: SeenCall, ended_at: float) -> pb.TappedCall:
    end_time = timestamp_pb2.Timestamp()
    end_time.FromMicroseconds(round(ended_at * 1e6))
    return pb.TappedCall(
        end_time=end_time,
        method=call.method,
        backend=call.backend,
        replica_id=call.replica_id,
        request_bytes=call.request_bytes,
        response_bytes=call.response_bytes,
        queue_time=duration_to_wire(max(0.0, call.queue_s)),
        run_time=None if call.run_s is None else duration_to_wire(max(0.0, call.run_s)),
        outcome=pb.TAPPED_OUTCOME_COMPLETED if call.reason is None else pb.TAPPED_OUTCOME_FAILED,
        reason="" if call.reason is None else call.reason.value,
        executed=call_pb2.Executed.ValueType(call.executed.value),
        attempt=call.attempt,
        ordered=call.is_ordered,
        tenant=call.tenant,
        payload=call.payload,
        result=call.result,
        content_type=call.content_type,
    )


CALLS: Final = 100
MAX_CALLS: Final = 1_000


class KeyTags:
    """Tags that stand for ordering keys if these are not shown."""

    def __init__(self, salt: bytes) -> None:
        """`salt`: random, so that a tag cannot be compared with those of guessed keys."""
        self._salt = salt

    def of(self, ordering_key: str) -> str:
        """8 hexadecimal digits."""
        return blake2b(ordering_key.encode(), key=self._salt, digest_size=4).hexdigest()


def open_calls_filter_of(request: pb.ListCallsRequest, *, allows_keys: bool) -> OpenCallsFilter | Failure:
    """The requested calls, or the failure if the request is refused."""
    known = {state.value for state in OpenCallState}
    if unknown := [state for state in request.states if state not in known]:
        return bad_field("states", f"has a state that this router does not know: {unknown[0]}")
    if not 0 <= request.limit <= MAX_CALLS:
        return bad_field("limit", f"must be 1 to {MAX_CALLS}, is {request.limit}")
    if request.with_ordering_keys and not allows_keys:
        return bad_field(
            "with_ordering_keys", "this router does not show ordering keys; start it with --tap-payloads to allow it"
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
    """The response. It contains ordering keys only with `shows_keys`."""
    return pb.ListCallsResponse(
        calls=[_open_call(call, tags, shows_keys) for call in calls],
        waiting=scan.waiting,
        at_replicas=scan.at_replicas,
        partial=scan.is_partial,
    )


def _open_call(call: OpenCall, tags: KeyTags, shows_keys: bool) -> pb.OpenCall:
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
        shadow=call.is_shadow,
        waits_for=call.waits_for,
    )
