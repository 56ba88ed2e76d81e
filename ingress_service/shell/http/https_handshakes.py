"""The TLS handshakes of HTTPS: connections are accepted in plain text, and TLS starts with their first bytes.

Purpose: the servers of event loops make handshakes themselves and report no failure. Here each failure arrives as an
exception, with the peer's address.
Invariants: a connection has `handshake_s` from its accept to the end of its handshake; connections in this state are
bounded as those of HTTP are. One that is closed before its first byte, as by a check of a load balancer, has begun no
handshake. The protocol of HTTP sees the events of a secured connection in their order, from `connection_made` on.
Owner: the server of HTTP.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

from ingress_service.core.peers import ConnectionBound
from ingress_service.shell.http.served_connections import Address, address_of
from slotmesh.telemetry.security_metrics import FailedHandshakes

_LEAST_S: Final = 0.001
"""Event loops refuse a time of 0 for a handshake."""


class HttpsHandshakes:
    """The connections of a listening socket whose handshakes have not ended."""

    def __init__(
        self,
        connect: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        failures: FailedHandshakes,
        bound: ConnectionBound,
        *,
        handshake_s: float,
    ) -> None:
        """`connect` makes the protocol of a secured connection."""
        self.connect = connect
        self.context = context
        self.bound = bound
        self.handshake_s = handshake_s
        self.under_way: set[_Handshake] = set()
        self._failures = failures

    def accept(self) -> asyncio.Protocol:
        """The protocol of a connection that was accepted."""
        return _Handshake(self)

    def failed(self, peer: Address, error: BaseException) -> None:
        """Counts and logs it."""
        host, port = peer or ("", 0)
        self._failures.failed(host, port, error)

    def stop(self) -> None:
        """Closes all connections whose handshakes have not ended."""
        for each in [*self.under_way]:
            each.stop()


class _Handshake(asyncio.Protocol):
    """One connection: waits for its first bytes, then starts TLS, then gives it the protocol of HTTP."""

    def __init__(self, shared: HttpsHandshakes) -> None:
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._peer: Address = None
        self._deadline = self._loop.time() + shared.handshake_s
        self._silence: asyncio.TimerHandle | None = None
        """Ends a connection that sends nothing."""
        self._securing: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._peer = address_of(transport, "peername")
        if not self._shared.bound.take(self._host):
            self._shared.failed(self._peer, OSError("there are too many handshakes at this time"))
            self._transport.abort()
            return
        self._shared.under_way.add(self)
        self._silence = self._loop.call_at(self._deadline, self._is_silent)

    def data_received(self, data: bytes) -> None:
        self._transport.pause_reading()
        self._cancel_silence()
        self._securing = self._loop.create_task(self._secure(), name="https handshake")
        self._securing.add_done_callback(lambda _: self._end())
        # Callbacks run in their order: these bytes arrive behind the `connection_made` that `start_tls` schedules, and
        # before anything that is read later.
        self._loop.call_soon(self._loop.call_soon, self._begin_with, data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - as asyncio has it
        if self._securing is None:
            self._end()

    def stop(self) -> None:
        if self._securing is not None:
            self._securing.cancel()
        self._transport.abort()

    @property
    def _host(self) -> str:
        return self._peer[0] if self._peer else ""

    def _is_silent(self) -> None:
        self._shared.failed(self._peer, TimeoutError(f"nothing arrived within {self._shared.handshake_s:g} s"))
        self._transport.abort()

    async def _secure(self) -> None:
        early = _EarlyEvents()
        try:
            secured = await self._loop.start_tls(
                self._transport,
                early,
                self._shared.context,
                server_side=True,
                ssl_handshake_timeout=max(_LEAST_S, self._deadline - self._loop.time()),
            )
        except OSError as error:  # ssl.SSLError is one
            self._shared.failed(self._peer, error)
            return
        if secured is not None:  # None: closed by `stop`
            early.give_to(self._shared.connect(), secured)

    def _begin_with(self, data: bytes) -> None:
        """Gives TLS the bytes that arrived before it."""
        tls: Any = self._transport.get_protocol()
        if tls is self:
            return  # stopped before TLS began
        while data:
            room = tls.get_buffer(len(data))
            part = data[: len(room)]
            room[: len(part)] = part
            tls.buffer_updated(len(part))
            data = data[len(part) :]

    def _end(self) -> None:
        self._cancel_silence()
        if self in self._shared.under_way:
            self._shared.under_way.discard(self)
            self._shared.bound.give(self._host)

    def _cancel_silence(self) -> None:
        if self._silence is not None:
            self._silence.cancel()


class _EarlyEvents(asyncio.Protocol):
    """Holds what a secured connection receives before `start_tls` returns its transport: an event or two."""

    def __init__(self) -> None:
        self._events: list[Callable[[asyncio.Protocol], Any]] = []

    def data_received(self, data: bytes) -> None:
        self._events.append(lambda protocol: protocol.data_received(data))

    def eof_received(self) -> None:
        self._events.append(lambda protocol: protocol.eof_received())

    def connection_lost(self, exc: Exception | None) -> None:
        self._events.append(lambda protocol: protocol.connection_lost(exc))

    def pause_writing(self) -> None:
        self._events.append(lambda protocol: protocol.pause_writing())

    def resume_writing(self) -> None:
        self._events.append(lambda protocol: protocol.resume_writing())

    def give_to(self, protocol: asyncio.Protocol, transport: asyncio.Transport) -> None:
        """`protocol` has the connection from now on."""
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        for event in self._events:
            event(protocol)
