"""The server's side of the in-memory gRPC: stands in for `cygrpc.AioServer` and the context that it gives to handlers.

Invariants: a handler whose client has gone is cancelled, once; reading gives EOF then, and writing fails. Stopping
refuses new connections and new rpcs at once, lets what runs go on for its grace, then cancels it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc

from simulation.mesh.cython import cygrpc
from simulation.mesh.loop import NodeLoop
from simulation.mesh.network import Listener, Network, SimulatedConnection
from simulation.mesh.rpc import FRAME_BYTES, Inbox, Metadata, SendingHalf

if TYPE_CHECKING:
    from simulation.mesh.client_rpc import SimCall

_CODE: Final = cygrpc.StatusCode


class _Details:
    """What a generic handler is asked with."""

    def __init__(self, method: str, metadata: Metadata) -> None:
        self.method = method
        self.invocation_metadata = metadata


class SimServer:
    """Stands in for `cygrpc.AioServer`."""

    def __init__(self, network: Network, loop: NodeLoop) -> None:
        self.loop = loop
        self.network = network
        self.is_stopped = False
        self._handlers: list[Any] = []
        self._address = ""
        self._connections: dict[SimulatedConnection, dict[ServerRpc, None]] = {}
        self._is_stopping = False
        self._stopped: asyncio.Future[None] | None = None
        self._idle = asyncio.Event()

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, handlers: Mapping[str, Any]) -> None:
        """They are among the generic ones, too."""

    def add_insecure_port(self, address: bytes) -> int:
        if address.startswith(b"unix-abstract:"):
            return 1  # the nodes of a simulation are machines of their own
        host, _, port = address.decode().rpartition(":")
        number = int(port)
        while not number or f"{host}:{number}" in self.network.listeners:
            if int(port):
                raise RuntimeError(f"Failed to bind to address {address.decode()}")
            number = number + 1 if number else 40_001
        self._address = f"{host}:{number}"
        return number

    async def start(self) -> None:
        self.network.listeners[self._address] = Listener(self.loop, self._accept)

    def is_running(self) -> bool:
        return False  # collected, it need not be stopped

    async def shutdown(self, grace: float | None) -> None:
        if self.is_stopped or self.loop.is_dead:
            return
        if not self._is_stopping:
            self._is_stopping = True
            listener = self.network.listeners.get(self._address)
            if listener is not None and listener.loop is self.loop:
                del self.network.listeners[self._address]
            for connection in self._connections:
                connection.back.send(FRAME_BYTES, _go_away, connection)
        if grace:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wait_idle(), grace)
        for connection, rpcs in list(self._connections.items()):
            if rpcs:
                connection.close(connection.far, "Cancelling all calls")
            for rpc in list(rpcs):
                rpc.cancelled_by_client()
        await self._wait_idle()
        self.is_stopped = True
        for connection in list(self._connections):
            connection.close(connection.far, "Socket closed")
        self._connections.clear()

    async def _wait_idle(self) -> None:
        while any(self._connections.values()):
            self._idle.clear()
            await self._idle.wait()

    def _accept(self, connection: SimulatedConnection) -> None:
        self._connections[connection] = {}
        connection.accept = self._begin
        connection.far.on_end = lambda _why: self._lost(connection)

    def _lost(self, connection: SimulatedConnection) -> None:
        for rpc in list(self._connections.pop(connection, ())):
            rpc.cancelled_by_client()
        self._idle.set()

    def _begin(self, connection: SimulatedConnection, rpc: ServerRpc) -> None:
        rpcs = self._connections.get(connection)
        if rpcs is None or not connection.far.is_open:
            return
        if self._is_stopping:
            connection.back.send(FRAME_BYTES, rpc.client.fail, _CODE.unavailable, "Server shutting down")
            return
        details = _Details(rpc.method, rpc.metadata)
        handler = next((found for each in self._handlers if (found := each.service(details)) is not None), None)
        if handler is None:
            rpc.attach(self)
            rpc.finish(_CODE.unimplemented, "Method not found!", ())
            return
        rpcs[rpc] = None
        rpc.attach(self)
        rpc.run(handler, lambda: self._ended(connection, rpc))

    def _ended(self, connection: SimulatedConnection, rpc: ServerRpc) -> None:
        rpcs = self._connections.get(connection)
        if rpcs is not None:
            rpcs.pop(rpc, None)
        self._idle.set()


def _go_away(connection: SimulatedConnection) -> None:
    connection.goes_away(connection)


class ServerRpc:
    """One rpc, at its server. Made by the client's side, and carried there by its first frame."""

    def __init__(
        self,
        connection: SimulatedConnection,
        method: str,
        metadata: Metadata,
        time_left_s: float | None,
        client: SimCall,
    ) -> None:
        self.method = method
        self.metadata = metadata
        self.client = client
        self.client_is_gone = False
        self.status_sent = False
        self.time_left_s = time_left_s
        self.connection = connection
        self.loop = connection.far.loop
        self.server: SimServer | None = None
        self.ends_at: float | None = None
        self._early: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._timer: Any = None
        self.callbacks: list[Callable[[], object]] = []

    # -- from the client, in the server's process ------------------------------------------------------------------

    def message(self, message: bytes) -> None:
        if self.server is not None and not self.client_is_gone:
            self.connection.network.on_message(self.connection.near.loop.name, self.loop.name, self.method, message)
            self.inbox.put(message)

    def half_closed(self) -> None:
        if self.server is not None:
            self.inbox.end(drop=False)

    def was_read(self, count: int) -> None:
        if self.server is not None:
            self.flow.read(count)

    def cancelled_by_client(self) -> None:
        """Nobody wants the rpc any more, or the connection is gone."""
        if self.server is None or self.client_is_gone:
            return
        self.client_is_gone = True
        self.flow.fail()
        self.inbox.end(drop=True)
        for callback in self.callbacks:
            callback()
        if self._task is not None and not self._task.done():
            # What reads sees the end first, or is cancelled first: both happen.
            if self.connection.network.timeline.chance(self._name).random() < 0.5:
                self._task.cancel()
            else:
                self.loop.call_soon(self._task.cancel)

    # -- at the server ---------------------------------------------------------------------------------------------

    def attach(self, server: SimServer) -> None:
        """The first frame has arrived."""
        self.server = server
        self.flow = SendingHalf(self.loop, self.connection.back, self.client.message)
        self.inbox = Inbox(self.loop, self._read)
        self._name = f"rpc {server.network.timeline.steps}"
        if self.time_left_s is not None:
            self.ends_at = self.loop.time() + self.time_left_s
            self._timer = self.loop.call_later(self.time_left_s, self.cancelled_by_client)

    def run(self, handler: Any, on_end: Callable[[], None]) -> None:
        """Starts the handler."""
        self._task = self.loop.create_task(self._serve(handler), name=f"rpc {self.method}")
        self._task.add_done_callback(lambda _task: on_end())

    def finish(self, code: int, details: str, trailing: Metadata) -> None:
        """The end of the rpc, as the client is to hear it."""
        if self.status_sent:
            return
        self.status_sent = True
        if self._timer is not None:
            self._timer.cancel()
        if not self.client_is_gone:
            self.connection.back.send(FRAME_BYTES, self.client.ended, code, details, trailing)
        self.flow.fail()

    def _read(self, count: int) -> None:
        if not self.client_is_gone:
            self.connection.back.send(FRAME_BYTES, self.client.was_read, count)

    async def _serve(self, handler: Any) -> None:
        context = SimContext(self, handler.request_deserializer, handler.response_serializer)
        try:
            await self._answer(handler, context)
        except cygrpc.AbortError:
            return
        except asyncio.CancelledError:
            return  # as grpc.aio: nobody hears of it, also where the client has not asked for it
        except cygrpc.BaseError as error:
            if not self.client_is_gone:
                self.loop.call_exception_handler({"message": f"rpc {self.method}", "exception": error})
        except Exception as error:  # noqa: BLE001 - what grpc.aio logs
            self.loop.call_exception_handler({"message": f"rpc {self.method}", "exception": error})
            self.finish(_CODE.unknown, f"Unexpected {type(error)}: {error}", ())
        self.finish(*context.status, context.trailing)

    async def _answer(self, handler: Any, context: SimContext) -> None:
        request: Any = context
        if not handler.request_streaming:
            raw = await self.inbox.get()
            if raw is None:
                return
            request = raw if handler.request_deserializer is None else handler.request_deserializer(raw)
        behavior = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        if not handler.response_streaming:
            await context.write(await behavior(request, context))
        elif inspect.isasyncgenfunction(behavior):
            async for response in behavior(request, context):
                await context.write(response)
        else:
            await behavior(request, context)


class SimContext:
    """Stands in for `cygrpc._ServicerContext`: what handlers of slotmesh use of it."""

    def __init__(self, rpc: ServerRpc, parse: Callable[[bytes], Any] | None, serialise: Callable[[Any], bytes] | None):
        self._rpc = rpc
        self._parse = parse
        self._serialise = serialise
        self._abort: Exception | None = None
        self.status: tuple[int, str] = (_CODE.ok, "")
        self.trailing: Metadata = ()

    async def read(self) -> Any:
        self._check()
        raw = await self._rpc.inbox.get()
        self._check()
        if raw is None:
            return grpc.aio.EOF
        return raw if self._parse is None else self._parse(raw)

    async def write(self, message: Any) -> None:
        self._check()
        raw = message if self._serialise is None else self._serialise(message)
        if not await self._rpc.flow.send(raw):
            raise cygrpc.ExecuteBatchError("Failed grpc_call_start_batch: the rpc has ended")

    async def send_initial_metadata(self, _metadata: Metadata) -> None:
        self._check()
        self._rpc.connection.back.send(FRAME_BYTES, self._rpc.client._set_initial_metadata)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        if self._abort is not None:
            raise cygrpc.UsageError("Abort already called!")
        self._abort = cygrpc.AbortError("Locally aborted.")
        self._rpc.finish(code.value[0], details, tuple(trailing_metadata))
        raise self._abort

    async def abort_with_status(self, status: Any) -> NoReturn:
        await self.abort(status.code, status.details, status.trailing_metadata)

    def set_code(self, code: grpc.StatusCode) -> None:
        self.status = code.value[0], self.status[1]

    def code(self) -> int:
        return self.status[0]

    def set_details(self, details: str) -> None:
        self.status = self.status[0], details

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        self.trailing = tuple(metadata)

    def invocation_metadata(self) -> Metadata:
        return self._rpc.metadata

    def peer(self) -> str:
        return f"ipv4:{self._rpc.connection.near.loop.name}"

    def time_remaining(self) -> float | None:
        ends_at = self._rpc.ends_at
        return None if ends_at is None else max(0.0, ends_at - self._rpc.loop.time())

    def cancelled(self) -> bool:
        return self._rpc.client_is_gone and not self._rpc.status_sent

    def done(self) -> bool:
        return self._rpc.status_sent

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._rpc.callbacks.append(lambda: callback(self))

    def _check(self) -> None:
        if self._abort is not None:
            raise self._abort
        if self._rpc.status_sent:
            raise cygrpc.UsageError("RPC already finished.")
        if self._rpc.server is not None and self._rpc.server.is_stopped:
            raise cygrpc.UsageError("Server already stopped.")
