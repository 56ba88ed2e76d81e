"""One connected StreamCalls stream: frames of calls down, outcomes up.

Purpose: keeps the window, gives ids, correlates answers. One write in flight; what gathers meanwhile is the next frame.
Invariants: unanswered calls and bytes stay within the router's newest window (one call alone is always allowed); a call
that was taken back counts until its outcome is there, which nobody hears. When `run` returns, every call that was sent
and not answered is still pending: `lose` gives them their outcome.
Owner: the endpoint's `CallStream`.
"""

from __future__ import annotations

import asyncio

import grpc

from slotmesh.client.outbox import Outbox
from slotmesh.client.outcomes import deliver, fail
from slotmesh.client.pending import PendingCalls
from slotmesh.client.recall import RecallWatch
from slotmesh.client.spec import CallSpec
from slotmesh.errors import Failure
from slotmesh.runtime.pump import StreamPump
from slotmesh.status import from_wire
from slotmesh.v1 import call_pb2, router_service_pb2

Request = router_service_pb2.StreamCallsRequest
Response = router_service_pb2.StreamCallsResponse
StreamCall = grpc.aio.StreamStreamCall[Request, Response]

_TRANSPORT = (grpc.RpcError, grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError)


class RouterLink:
    """The client's side of one stream, after `opened`."""

    def __init__(self, call: StreamCall, outbox: Outbox, default_spec: CallSpec | None, next_id: int) -> None:
        """`default_spec`: the one whose options the stream was opened with."""
        self._call = call
        self._outbox = outbox
        self._default_spec = default_spec
        self._pending = PendingCalls(next_id)
        self._window_calls = 1_024
        self._window_bytes = 4 * 1024 * 1024
        self._pump: StreamPump[Request] = StreamPump(call.write, self._next_frame)
        self._recalls = RecallWatch(self._pending, self._pump.wake)
        self._leaving = False
        self._closing = False
        self.answered = 0
        """Calls that got their outcome over this link."""

    @property
    def next_id(self) -> int:
        """Where the next link's ids start."""
        return self._pending.next_id

    @property
    def idle(self) -> bool:
        """Whether nothing is unanswered, and nothing waits."""
        return not self._pending.calls and not self._outbox

    def wake(self) -> None:
        """Calls wait in the outbox."""
        self._pump.wake()

    def finish(self) -> None:
        """Half-closes once the outbox is empty; `run` returns when all was answered."""
        self._closing = True
        self._recalls.look_now()
        self._half_close_if_empty()

    async def run(self) -> None:
        """Moves frames until the stream ends. Raises what ended it, unless that is an orderly end."""
        reader = asyncio.create_task(self._read(), name="slotmesh-client-read")
        writer = asyncio.create_task(self._write(), name="slotmesh-client-write")
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            if not reader.done():
                error = writer.exception()
                if error is not None and not isinstance(error, _TRANSPORT):
                    raise error
            await reader  # half-closed, then answers still come; or the transport broke, then this one knows why
        finally:
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)
            self._recalls.stop()
            self._call.cancel()

    def lose(self, failure: Failure) -> None:
        """Every call that was sent and not answered fails."""
        told = False
        for part, at, _, count in self._pending.drain():
            fail(part, at, count, failure, told=told)
            part.spec.queue.settled(count)
            told = True

    def accept(self, response: Response) -> None:
        """A frame from the router."""
        match response.WhichOneof("frame"):
            case "results":
                self._accept_results(response.results)
            case "rejected":
                rejected = response.rejected
                ids = rejected.call_ids[:] or list(
                    range(rejected.first_call_id, rejected.first_call_id + rejected.count)
                )
                self._fail(ids, from_wire(rejected.failure))
            case "opened":
                self._set_window(response.opened.window)
            case "window":
                self._set_window(response.window)
            case "go_away":
                self._leaving = True
                self._recalls.look_now()
                self._pump.close()
            case _:
                return  # clients ignore frames they do not know
        if self._outbox:
            self._pump.wake()

    # -- in --------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        read, accept = self._call.read, self.accept
        while isinstance(response := await read(), Response):
            accept(response)

    def _accept_results(self, frame: call_pb2.ResultFrame) -> None:
        pending = self._pending
        before = pending.calls
        for batch in frame.batches:
            if batch.partial:
                continue  # the call goes on
            ids, payloads, content_type = batch.call_ids[:], batch.payloads[:], batch.content_type
            if len(ids) != len(payloads):
                raise ValueError(f"a batch of {len(ids)} ids with {len(payloads)} payloads")
            for part, at, start, count in pending.settle(ids):
                deliver(part, at, payloads[start : start + count], content_type)
                part.spec.queue.settled(count)
        for errors in frame.errors:
            self._fail(errors.call_ids[:], from_wire(errors.failure))
        self.answered += before - pending.calls

    def _fail(self, ids: list[int], failure: Failure) -> None:
        told = False
        for part, at, _, count in self._pending.settle(ids):
            fail(part, at, count, failure, told=told)
            part.spec.queue.settled(count)
            told = True

    def _set_window(self, window: router_service_pb2.Window) -> None:
        self._window_calls = max(window.calls, 1)
        self._window_bytes = max(window.bytes, 1)

    # -- out -------------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        await self._pump.run()
        await self._call.done_writing()

    def _next_frame(self) -> Request | None:
        if recalled := self._recalls.take_frame():
            return Request(cancel=recalled)
        if not self._outbox or self._leaving:
            return None
        pending = self._pending
        parts = self._outbox.take(
            self._window_calls - pending.calls, self._window_bytes - pending.nbytes, alone=not pending.calls
        )
        if not parts:
            return None
        request = Request()
        batches = request.calls.batches
        for part, payloads in parts:
            pending.add(part)
            spec = part.spec
            if spec is self._default_spec:
                batches.add(first_call_id=part.first_id, payloads=payloads)
            else:
                batches.add(first_call_id=part.first_id, payloads=payloads, options=spec.wire)
        self._recalls.start()
        self._half_close_if_empty()
        return request

    def _half_close_if_empty(self) -> None:
        if self._closing and not self._outbox:
            self._pump.close()
