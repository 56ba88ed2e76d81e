"""Payloads of calls that say in which span they were made.

Purpose: few calls have a trace context. It goes with the payload, from where the call is made to where its batch is
written, however often it is sent: so nothing else has a place for it, and calls without one pay nothing.
Owner: the `CallSpec` of a view that is `traced`, or that `inherits`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opentelemetry import trace

from slotmesh.v1 import router_service_pb2
from slotmesh.wire.trace_context import TraceContext, columns_of, is_tracestate

Encode = Callable[[tuple[Any, ...], Mapping[str, Any]], bytes]
TraceOf = Callable[[], TraceContext | None]
"""The trace of where it is called."""


class TracedPayload(bytes):
    """The payload of a call that was made in a span."""

    trace: TraceContext


def traced_encode(encode: Encode, trace_of: TraceOf) -> Encode:
    """Encodes arguments, and notes the trace of where that is done."""

    def encoded(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        (payload,) = traced_payloads([encode(args, kwargs)], trace_of)
        return payload

    return encoded


def traced_payloads(payloads: list[bytes], trace_of: TraceOf) -> list[bytes]:
    """The payloads of calls that are made now, with the trace that is known here; as they are where there is none."""
    context = trace_of()
    if context is None:
        return payloads
    traced = list(map(TracedPayload, payloads))
    for each in traced:
        each.trace = context
    return list[bytes](traced)


def current_trace() -> TraceContext | None:
    """The span that is current here; None where there is none."""
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return None
    tracestate = span.trace_state.to_header()
    traceparent = f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags & 0xFF:02x}"
    return TraceContext(traceparent, tracestate if is_tracestate(tracestate) else "")


def write_traces(batch: router_service_pb2.CallBatch, payloads: Sequence[bytes]) -> None:
    """Says in which spans the calls of a batch were made."""
    traces = [each.trace if isinstance(each, TracedPayload) else None for each in payloads]
    if any(traces):
        starts, traceparents, tracestates, requests = columns_of(traces)
        batch.trace_starts.extend(starts)
        batch.traceparents.extend(traceparents)
        batch.tracestates.extend(tracestates)
        batch.http_requests.extend(requests)


def request_bytes(payload: bytes) -> int:
    """What a frame has of the call beside its payload: its HTTP request."""
    return len(payload.trace.http) if isinstance(payload, TracedPayload) else 0


def trace_metadata(payload: bytes) -> tuple[tuple[str, str], ...] | None:
    """What an rpc of its own says in gRPC metadata; None where the call was made in no span."""
    if not isinstance(payload, TracedPayload):
        return None
    traceparent, tracestate, _ = payload.trace
    if not traceparent:
        return None
    said = (("traceparent", traceparent),)
    return (*said, ("tracestate", tracestate)) if tracestate else said
