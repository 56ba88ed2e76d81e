"""What of the gRPC metadata of unary rpcs handlers get to see: nothing but what an allow-list names.

The trace context is taken where the list names it, or the router makes spans; `x-request-id` always, if it is an id.

Invariants: what a call says of itself in its options goes before what its rpc says; both together are bounded as the
options are. Reserved names are on no list. A trace context that is none is passed over, as W3C Trace Context asks for.
Owner: the servicers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

import grpc

from slotmesh.v1 import call_pb2
from slotmesh.wire.request_ids import REQUEST_ID, is_request_id
from slotmesh.wire.trace_context import TraceContext, is_traceparent, is_tracestate

Context = grpc.aio.ServicerContext[Any, Any]
_TRACE: Final = frozenset({"traceparent", "tracestate"})


class HandedMetadata:
    """The allow-list."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Collection[str] = (), *, with_traces: bool = False) -> None:
        self._keys = frozenset(keys) | {REQUEST_ID} | (_TRACE if with_traces else frozenset())

    def take(self, context: Context, wire: call_pb2.CallOptions) -> TraceContext | None:
        """Adds what the rpc says to the options of its call; returns its trace context, if it has one."""
        return self.take_of(context.invocation_metadata() or (), wire)

    def take_of(self, said: Iterable[tuple[str, str | bytes]], wire: call_pb2.CallOptions) -> TraceContext | None:
        """The same, of metadata."""
        trace: dict[str, str] = {}
        keys = self._keys
        for key, value in said:
            if key not in keys or not isinstance(value, str):
                continue
            if key in _TRACE:
                trace[key] = value
            elif key not in wire.metadata and (key != REQUEST_ID or is_request_id(value)):
                wire.metadata[key] = value
        traceparent, tracestate = trace.get("traceparent", ""), trace.get("tracestate", "")
        if not is_traceparent(traceparent):
            return None
        return TraceContext(traceparent, tracestate if is_tracestate(tracestate) else "")
