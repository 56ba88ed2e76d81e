"""One rpc of the in-memory gRPC, on the client's side: stands in for what grpc.aio has in Cython (`_AioCall`).

Purpose: all of grpc.aio that is written in Python runs as it is, on top of this: multicallables, calls, their errors.
Invariants: as grpc.aio's own; `tests/unit/simulation/mesh/test_rpc.py` runs the same expectations over both.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from simulation.mesh.cython import cygrpc
from simulation.mesh.network import SimulatedConnection
from simulation.mesh.rpc import FRAME_BYTES, Inbox, Metadata, SendingHalf
from simulation.mesh.server import ServerRpc

if TYPE_CHECKING:
    from simulation.mesh.channel import SimChannel

_CODE: Final = cygrpc.StatusCode


class SimCall:
    """Stands in for `cygrpc._AioCall`. Raises what that raises."""

    def __init__(self, channel: SimChannel, method: str, deadline: float | None, wait_for_ready: bool) -> None:
        self.wait_for_ready = wait_for_ready
        self.method = method
        self._channel = channel
        self._loop = channel.loop
        self._timeout_s = None if deadline is None else deadline - time.time()
        self._ends_at = None if self._timeout_s is None else self._loop.time() + self._timeout_s
        self._initial_metadata: Metadata | None = None
        self._status: Any = None
        self._is_cancelled_here = False
        self._callbacks: list[Callable[[], object]] = []
        self._status_waiters: list[asyncio.Future[None]] = []
        self._metadata_waiters: list[asyncio.Future[None]] = []
        self._on_start: asyncio.Future[None] | None = None
        self._connection: SimulatedConnection | None = None
        self._server: ServerRpc | None = None
        self._flow: SendingHalf | None = None
        self._inbox = Inbox(self._loop, self._read)
        self._metadata: Metadata = ()
        self._timer: Any = None
        self._trailers: tuple[int, str, Metadata] | None = None

    # -- as cygrpc has it ------------------------------------------------------------------------------------------

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        if self.done():
            callback()
        else:
            self._callbacks.append(callback)

    def time_remaining(self) -> float | None:
        return None if self._ends_at is None else max(0.0, self._ends_at - self._loop.time())

    def cancel(self, details: str) -> None:
        self._is_cancelled_here = True
        self._abandon()
        self._end(_CODE.cancelled, details)

    def done(self) -> bool:
        return self._status is not None

    def cancelled(self) -> bool:
        return self._status is not None and self._status.code() == _CODE.cancelled

    def is_ok(self) -> bool:
        return self._status is not None and self._status.code() == _CODE.ok

    def is_locally_cancelled(self) -> bool:
        return self._is_cancelled_here

    def set_internal_error(self, words: str) -> None:
        self._end(_CODE.internal, "Internal error from Core", words, again=True)

    async def status(self) -> Any:
        if self._status is None:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._status_waiters.append(waiter)
            await waiter
        return self._status

    async def initial_metadata(self) -> Metadata | None:
        if self._initial_metadata is None:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._metadata_waiters.append(waiter)
            await waiter
        return self._initial_metadata

    async def unary_unary(self, request: bytes, metadata: Metadata, _context: object = None) -> bytes | None:
        await self._start(metadata)
        if self._flow is not None and self._status is None:
            await self._flow.send(request)
            self._half_close()
        try:
            answer = await self._inbox.get()
            await self.status()
        except asyncio.CancelledError:
            # gRPC sets the status in the turn in which this goes on: one that has arrived is not known here.
            self._is_cancelled_here = True
            raise
        return answer if self.is_ok() else None

    async def initiate_unary_stream(self, request: bytes, metadata: Metadata, _context: object = None) -> None:
        await self._start(metadata)
        if self._flow is not None and self._status is None:
            await self._flow.send(request)
            self._half_close()
        await self.initial_metadata()

    async def initiate_stream_stream(
        self, metadata: Metadata, observer: Callable[[], None], _context: object = None
    ) -> None:
        await self._start(metadata)
        observer()
        await self.initial_metadata()

    async def send_serialized_message(self, message: bytes) -> None:
        if self._flow is None or not await self._flow.send(message):
            raise cygrpc.ExecuteBatchError("the rpc has ended")

    async def send_receive_close(self) -> None:
        self._half_close()
        await asyncio.sleep(0)

    async def receive_serialized_message(self) -> Any:
        message = await self._inbox.get()
        return cygrpc.EOF if message is None else message

    # -- on the connection -----------------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether its connection is still there."""
        return self._connection is None or self._connection.near.is_open

    def started(self, connection: SimulatedConnection) -> None:
        """There is a connection: the rpc begins."""
        if self._status is not None:
            return
        self._connection = connection
        server = self._server = ServerRpc(connection, self.method, self._metadata, self.time_remaining(), self)
        self._flow = SendingHalf(self._loop, connection.out, server.message)
        connection.out.send(2 * FRAME_BYTES, connection.accept, connection, server)
        if self._on_start is not None and not self._on_start.done():
            self._on_start.set_result(None)

    def fail(self, code: int, details: str) -> None:
        """The transport ends it, unless the server has: then what it has said is read."""
        if self._status is None and self._trailers is None:
            self._inbox.end(drop=True)
            self._end(code, details)

    def message(self, message: bytes) -> None:
        """The server says something."""
        if self._status is None:
            network, connection = self._channel.network, self._connection
            if connection is not None:
                network.on_message(connection.far.loop.name, self._loop.name, self.method, message)
            self._set_initial_metadata()
            self._inbox.put(message)

    def ended(self, code: int, details: str, trailing: Metadata) -> None:
        """The server has ended it: the status is known when all before it was read."""
        if self._status is not None or self._trailers is not None:
            return
        self._set_initial_metadata()
        self._trailers = code, details, trailing
        self._inbox.on_empty = lambda: self._end(code, details, trailing=trailing)
        self._inbox.end(drop=False)

    def was_read(self, count: int) -> None:
        """The server has read so much."""
        if self._flow is not None:
            self._flow.read(count)

    async def _start(self, metadata: Metadata) -> None:
        self._metadata = metadata
        if self._status is not None:
            return
        if self._timeout_s is not None:
            self._timer = self._loop.call_later(max(0.0, self._timeout_s), self._expire)
        self._on_start = self._loop.create_future()
        self._channel.begin(self)
        await self._on_start

    def _expire(self) -> None:
        if self._status is None:
            self._abandon()
            self.fail(_CODE.deadline_exceeded, "Deadline Exceeded")

    def _abandon(self) -> None:
        """The server is told that nobody wants it any more."""
        if self._connection is not None and self._server is not None and self._status is None:
            self._connection.out.send(FRAME_BYTES, self._server.cancelled_by_client)

    def _half_close(self) -> None:
        if self._connection is not None and self._server is not None and self._status is None:
            self._connection.out.send(FRAME_BYTES, self._server.half_closed)

    def _read(self, count: int) -> None:
        if self._connection is not None and self._server is not None:
            self._connection.out.send(FRAME_BYTES, self._server.was_read, count)

    def _set_initial_metadata(self) -> None:
        if self._initial_metadata is None:
            self._initial_metadata = ()
            for waiter in self._metadata_waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._metadata_waiters.clear()

    def _end(
        self, code: int, details: str, words: str | None = None, *, trailing: Metadata = (), again: bool = False
    ) -> None:
        if self._status is not None and not again:
            return
        self._status = cygrpc.AioRpcStatus(code, details, trailing, words)
        self._set_initial_metadata()
        if self._timer is not None:
            self._timer.cancel()
        self._channel.forget(self)
        if self._flow is not None:
            self._flow.fail()
        self._inbox.end(drop=True)
        if self._on_start is not None and not self._on_start.done():
            self._on_start.set_result(None)
        for waiter in self._status_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._status_waiters.clear()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
