"""A TCP proxy that breaks what goes through it: silently, per direction; loudly; or by being slow.

Invariants: bytes are never lost, doubled or reordered, as in TCP. While a direction is stalled nothing of it passes,
not even the end of a connection, and new connections get nowhere: like a network that drops packets, whose senders try
again until it is whole. What is held is bounded; past that its sender is not read from.
Owner: the test, on its event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from enum import Enum
from socket import SO_LINGER, SOL_SOCKET
from struct import pack
from typing import Final, cast

from slotmesh.units import parse_host_port

HELD_BYTES: Final = 1024 * 1024
"""Most that is held of one direction of one connection: about what a kernel takes from a sender."""


class Direction(Enum):
    """Of bytes, as seen by who connects."""

    UP = "client to server"
    DOWN = "server to client"


BOTH: Final = frozenset(Direction)


class TcpProxy:
    """Listens on a free port of 127.0.0.1 and passes connections on to `target`."""

    def __init__(self, target: str = "") -> None:
        self.target = target
        """`HOST:PORT`; may be told, or changed, before somebody connects."""
        self.address = ""
        self.held_bytes = 0
        """Bytes that arrived while their direction was stalled, since the last stall."""
        self.refused = 0
        """Connections that were cut or turned away, since the last cut."""
        self._stalled: frozenset[Direction] = frozenset()
        self._delay_s = 0.0
        self._is_cut = False
        self._connections: set[_Connection] = set()
        self._whole = asyncio.Event()
        self._whole.set()

    @property
    def is_used(self) -> bool:
        """Whether somebody is connected."""
        return bool(self._connections)

    def stall(self, directions: frozenset[Direction] = BOTH) -> None:
        """From now on nothing passes in these directions, and nobody is told."""
        self._stalled = directions
        self.held_bytes = 0
        self._whole.clear()

    def cut(self) -> None:
        """Ends all connections with a reset, and turns new ones away."""
        self._is_cut = True
        self.refused = len(self._connections)
        for connection in [*self._connections]:
            connection.abort()

    def delay(self, seconds: float) -> None:
        """What arrives from now on passes that much later, each way."""
        self._delay_s = seconds

    def heal(self) -> None:
        """Everything passes again, and what was held goes first."""
        self._stalled, self._delay_s, self._is_cut = frozenset(), 0.0, False
        self._whole.set()
        for connection in [*self._connections]:
            connection.drain()

    @property
    def delay_s(self) -> float:
        """How much later everything passes, seconds."""
        return self._delay_s

    def stalls(self, direction: Direction) -> bool:
        """Whether nothing passes in this direction."""
        return direction in self._stalled

    async def wait_whole(self) -> None:
        """Waits until no direction is stalled."""
        await self._whole.wait()

    def accept(self) -> asyncio.Protocol:
        """The protocol of a new connection."""
        connection = _Connection(self)
        self._connections.add(connection)
        return connection.client

    def accepted(self, connection: _Connection) -> None:
        """Somebody has connected."""
        if self._is_cut:
            self.refused += 1
            connection.abort()
        else:
            connection.open()

    def ended(self, connection: _Connection) -> None:
        """Nothing is left of a connection."""
        self._connections.discard(connection)

    async def aclose(self) -> None:
        """Ends all connections."""
        for connection in [*self._connections]:
            await connection.aclose()


class _Connection:
    """A pair of sockets, and what is on its way between them."""

    def __init__(self, proxy: TcpProxy) -> None:
        self._proxy = proxy
        self.up = _Flow(proxy, Direction.UP, self.finished)
        self.down = _Flow(proxy, Direction.DOWN, self.finished)
        self.client = _Side(self, out=self.up, into=self.down)
        self.server = _Side(self, out=self.down, into=self.up)
        self._opening: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Connects to the target, as soon as anything passes."""
        self._opening = asyncio.get_running_loop().create_task(self._open(), name="tcp-proxy")

    def drain(self) -> None:
        self.up.drain()
        self.down.drain()

    def abort(self) -> None:
        """Resets both sockets."""
        for flow in (self.up, self.down):
            flow.forget()
        for side in (self.client, self.server):
            if side.transport is not None:
                # Without lingering it is a reset, not an orderly end.
                side.transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, pack("ii", 1, 0))
                side.transport.abort()
        if self._opening is not None:
            self._opening.cancel()

    async def aclose(self) -> None:
        self.abort()
        if self._opening is not None:
            await asyncio.wait([self._opening])

    def finished(self) -> None:
        """Nothing more will pass in one direction. When nothing passes in either, both sockets are closed."""
        if self.up.is_finished and self.down.is_finished:
            for side in (self.client, self.server):
                if side.transport is not None:
                    side.transport.close()

    def lost(self) -> None:
        """A socket is closed."""
        if self.client.transport is None and self.server.transport is None:
            self._proxy.ended(self)

    def opened(self, side: _Side) -> None:
        if side is self.client:
            self._proxy.accepted(self)

    async def _open(self) -> None:
        await self._proxy.wait_whole()
        host, port = parse_host_port(self._proxy.target)
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.server, host, port)
        except OSError:
            self.abort()


class _Side(asyncio.Protocol):
    """One socket of a connection."""

    def __init__(self, connection: _Connection, *, out: _Flow, into: _Flow) -> None:
        self.transport: asyncio.Transport | None = None
        self._connection = connection
        self._out, self._into = out, into

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._out.source = self._into.sink = self.transport
        self._connection.opened(self)
        self._into.drain()

    def data_received(self, data: bytes) -> None:
        self._out.feed(data)

    def eof_received(self) -> bool:
        self._out.end()
        return True  # the other direction goes on

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._into.forget()
        self._out.end()
        self._connection.lost()

    def pause_writing(self) -> None:
        self._into.pause()

    def resume_writing(self) -> None:
        self._into.resume()


class _Flow:
    """One direction of one connection."""

    def __init__(self, proxy: TcpProxy, direction: Direction, on_finished: Callable[[], object]) -> None:
        self.source: asyncio.Transport | None = None
        self.sink: asyncio.Transport | None = None
        self._proxy = proxy
        self._direction = direction
        self._held: deque[tuple[float, bytes]] = deque()
        self._held_bytes = 0
        self._paused = False
        self._ended = False
        self._on_finished = on_finished
        self.is_finished = False
        """The sink is closed, or was told that no more will come."""

    def feed(self, data: bytes) -> None:
        """Bytes arrived."""
        if self.is_finished:
            return
        if self._proxy.stalls(self._direction):
            self._proxy.held_bytes += len(data)
        self._held.append((asyncio.get_running_loop().time() + self._proxy.delay_s, data))
        self._held_bytes += len(data)
        self.drain()

    def end(self) -> None:
        """No more bytes will come; the sink hears of it after those that are held."""
        if not self._ended:
            self._ended = True
            self.drain()

    def forget(self) -> None:
        """The sink is closed: what comes goes nowhere."""
        self._held.clear()
        self._held_bytes = 0
        self._finish()

    def pause(self) -> None:
        self._paused = True
        self._regulate()

    def resume(self) -> None:
        self._paused = False
        self.drain()

    def drain(self) -> None:
        """Passes on what may pass."""
        if self.sink is not None and not self._proxy.stalls(self._direction):
            self._pass_on(self.sink)
        self._regulate()

    def _pass_on(self, sink: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        while self._held and not self._paused:
            due, data = self._held[0]
            if due > loop.time():
                loop.call_at(due, self.drain)
                break
            self._held.popleft()
            self._held_bytes -= len(data)
            sink.write(data)
        if self._ended and not self._held and not self.is_finished:
            sink.write_eof()
            self._finish()

    def _finish(self) -> None:
        if not self.is_finished:
            self.is_finished = True
            self._on_finished()

    def _regulate(self) -> None:
        """Reads from the source only while there is room."""
        if self.source is not None and not self.source.is_closing():
            if self._paused or self._held_bytes > HELD_BYTES:
                self.source.pause_reading()
            else:
                self.source.resume_reading()


@asynccontextmanager
async def tcp_proxy(target: str = "") -> AsyncIterator[TcpProxy]:
    """A proxy for as long as the block lasts."""
    proxy = TcpProxy(target)
    server = await asyncio.get_running_loop().create_server(proxy.accept, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    proxy.address = f"{host}:{port}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.aclose()
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await server.wait_closed()
