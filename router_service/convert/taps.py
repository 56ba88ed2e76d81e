"""Taps: what is asked for, and the calls that are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isfinite

from google.protobuf import timestamp_pb2

from router_service.core.tapping.tap import SeenCall, TapWish
from slotmesh.errors import Failure, bad_field
from slotmesh.spec.wire import duration_to_wire
from slotmesh.v1 import call_pb2
from slotmesh.v1 import tap_service_pb2 as pb

CALLS_PER_S = 1_000
MAX_CALLS_PER_S = 10_000
PAYLOAD_BYTES = 4_096
MAX_PAYLOAD_BYTES = 65_536


def tap_wish_of(request: pb.TapCallsRequest, *, allows_payloads: bool) -> TapWish | Failure:
    """What is asked for, or why it is refused."""
    share = request.sample_rate
    if not request.endpoint:
        return bad_field("endpoint", "is required")
    if not (isfinite(share) and 0 <= share <= 1):
        return bad_field("sample_rate", f"must be above 0, and 1 at most, is {share}")
    if not 0 <= request.max_calls_per_second <= MAX_CALLS_PER_S:
        return bad_field("max_calls_per_second", f"must be 1 to {MAX_CALLS_PER_S}, is {request.max_calls_per_second}")
    if not 0 <= request.max_payload_bytes <= MAX_PAYLOAD_BYTES:
        return bad_field("max_payload_bytes", f"must be 1 to {MAX_PAYLOAD_BYTES}, is {request.max_payload_bytes}")
    if request.payloads and not allows_payloads:
        return bad_field("payloads", "this router does not show payloads; who may, starts it with --tap-payloads")
    return TapWish(
        endpoint=request.endpoint,
        method=request.method,
        tenant=request.tenant if request.HasField("tenant") else None,
        share=share or 1.0,
        calls_per_s=request.max_calls_per_second or CALLS_PER_S,
        payload_bytes=(request.max_payload_bytes or PAYLOAD_BYTES) if request.payloads else 0,
    )


def seen_to_wire(calls: Iterable[SeenCall], dropped: int, time_of_day: Callable[[float], float]) -> pb.TapCallsResponse:
    """`time_of_day` makes seconds since 1970 of monotonic ones."""
    return pb.TapCallsResponse(calls=[_call(call, time_of_day(call.ended_at)) for call in calls], dropped=dropped)


def _call(call: SeenCall, ended_at: float) -> pb.TappedCall:
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
