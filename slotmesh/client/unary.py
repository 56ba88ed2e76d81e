"""Calls by an rpc of their own, over a router that is connected.

Invariant: a call is sent once, unless it has a request id, or the router has not executed it. A call with an id is sent
again with the same id: the mesh executes it once, and each repetition gets the outcome of the first.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import inf
from typing import Final

import grpc

from slotmesh.client.calls.call_spec import CallSpec, TracedPayload, rpc_timeout_s, trace_metadata
from slotmesh.client.routers import CLOSED, end_of_call, is_cancelled_here
from slotmesh.client.search import NEVER
from slotmesh.client.stream.call_stream import CallStream
from slotmesh.errors import Executed, Failure, Reason, SlotmeshError
from slotmesh.status import to_exception
from slotmesh.v1 import router_service_pb2, router_service_pb2_grpc

_CUT_OFF: Final = Failure(
    reason=Reason.CANCELLED, message="the mesh was closed before the call had ended", executed=Executed.UNKNOWN
)
_Response = router_service_pb2.CallResponse


class MethodRpc:
    """A call by an rpc of its own, to a router that is connected."""

    def __init__(self, spec: CallSpec, stream: CallStream) -> None:
        self._spec = spec
        self._stream = stream
        self.address = ""
        self._dialer = stream.dialer

    async def reach(self) -> router_service_pb2_grpc.RouterServiceStub | Failure:
        """The stub of a router that is connected."""
        choice = self._stream.own_rpcs
        failure = await choice.reach()
        self.address = choice.address
        return failure or self._stream.stub_of(self.address)

    def failure_of(self, error: grpc.RpcError) -> Failure:
        return end_of_call(error, self.address, self._dialer)

    def cut_off(self) -> Failure:
        return _CUT_OFF

    def ended(self, failure: Failure | None, *, cut_off: bool) -> None:
        """It holds nothing."""

    def error(self, failure: Failure) -> SlotmeshError:
        return to_exception(failure, endpoint=self._spec.endpoint, method=self._spec.method)


async def call_alone(stream: CallStream, spec: CallSpec, payload: bytes) -> _Response | Failure:
    """The response to one call by a unary rpc, or its failure. With a request id it is repeated within its timeout."""
    options, timeout_s, metadata = spec.options, spec.options.timeout_s, trace_metadata(payload)
    request = router_service_pb2.CallRequest(
        endpoint=spec.endpoint, options=spec.wire, payload=payload, request_id=options.request_id or ""
    )
    if options.http and isinstance(payload, TracedPayload):
        request.http_request, request.http_mark = payload.trace.http, options.http
    until = NEVER
    if options.request_id:
        now = asyncio.get_running_loop().time
        until = inf if timeout_s is None else now() + timeout_s

    def ask(address: str) -> grpc.aio.UnaryUnaryCall[router_service_pb2.CallRequest, _Response]:
        left_s = timeout_s
        if left_s is not None and options.request_id:
            left_s = max(until - now(), 0.0)
            request.options.timeout.FromNanoseconds(round(left_s * 1e9))
        return stream.stub_of(address).Call(request, timeout=rpc_timeout_s(left_s), metadata=metadata)

    try:
        return await stream.own_rpcs.send(ask, repeat_until=until)
    except asyncio.CancelledError:
        if is_cancelled_here():
            raise
        return replace(CLOSED, executed=Executed.UNKNOWN)
