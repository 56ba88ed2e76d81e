"""The values of a handler that yields, called in a slot.

Invariants: the call was made when the iterator was. However the iteration ends before the handler does, the call is
taken back; while nothing has come, the slot is given back, too: the call may not have reached its replica.
Owner: the application; one task at a time.
"""

from __future__ import annotations

import asyncio
import weakref
from contextlib import suppress
from typing import TypeVar, cast

import grpc

from slotmesh.client.calls.call_spec import CallSpec
from slotmesh.client.calls.unary_rpcs import rpc_timeout_s
from slotmesh.client.slots.lease import SlotLease
from slotmesh.client.slots.slot_rpcs import SlotRpcs
from slotmesh.client.values.value_stream import ValueStream
from slotmesh.errors import Failure, Reason
from slotmesh.status import from_rpc_error
from slotmesh.v1 import slot_service_pb2

ResultT = TypeVar("ResultT")

Request = slot_service_pb2.DispatchStreamingRequest
Response = slot_service_pb2.DispatchStreamingResponse
StreamingCall = grpc.aio.UnaryStreamCall[Request, Response]


class SlotValues(ValueStream[ResultT]):
    """Of the call in one slot."""

    __slots__ = ("_call", "_has_begun", "_is_over", "_lease", "_loop", "_opening")

    def __init__(self, spec: CallSpec, lease: SlotLease, request: Request) -> None:
        super().__init__(spec)
        self._lease = lease
        self._loop = asyncio.get_running_loop()
        self._opening: asyncio.Task[StreamingCall | Failure] = lease.client.start(
            _open(lease.client.rpcs, spec, request), name=f"slotmesh-client-dispatch-{spec.endpoint}"
        )
        self._call: StreamingCall | None = None
        self._has_begun = False
        """Whether a value has come."""
        self._is_over = False
        abandoned = weakref.ref(self)
        lease.call_runs(lambda: None if (values := abandoned()) is None else values._close())

    async def _take(self) -> bytes:
        if self._is_over:
            raise StopAsyncIteration
        try:
            outcome = await self._next()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            outcome = self._lease.client.rpcs.cut_off()  # not this task was cancelled, but the rpc
        if isinstance(outcome, bytes):
            self._has_begun = True
            return outcome
        if self._is_over:
            raise StopAsyncIteration
        self._is_over = True
        self._lease.call_ended(outcome)
        if outcome is None:
            raise StopAsyncIteration
        raise self._lease.error(outcome, self._spec.method)

    async def _next(self) -> bytes | Failure | None:
        """The next value, the failure, or None after the last one."""
        if self._call is None:
            opened = await self._opening
            if isinstance(opened, Failure):
                return opened
            self._call = opened
        try:
            response = await self._call.read()
        except grpc.RpcError as error:
            failure = from_rpc_error(error)
            is_lost = failure.reason is Reason.ROUTER_LOST
            return self._lease.client.rpcs.lost(failure.message) if is_lost else failure
        return cast("Response", response).payload if response is not grpc.aio.EOF else None

    def _give_up(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        with suppress(RuntimeError):  # the loop is closed, and everything with it
            self._loop.call_soon_threadsafe(_stop, self._lease, self._opening, self._has_begun)


async def _open(rpcs: SlotRpcs, spec: CallSpec, request: Request) -> StreamingCall | Failure:
    stub = await rpcs.stub()
    if isinstance(stub, Failure):
        return stub
    try:
        call: StreamingCall = stub.DispatchStreaming(request, timeout=rpc_timeout_s(spec.options.timeout_s))
    except grpc.RpcError as error:  # there is no token to be had
        return from_rpc_error(error)
    return call


def _stop(lease: SlotLease, opening: asyncio.Task[StreamingCall | Failure], has_begun: bool) -> None:
    """Takes the call back, wherever it is. Holds no reference to the iterator, which may be on its way out."""
    if not opening.done():
        opening.cancel()
    elif not opening.cancelled() and not isinstance(call := opening.result(), Failure):
        call.cancel()
    lease.call_ended(cut_off=not has_begun)
