"""One connection of HTTP/1.1: uvicorn's protocol with bounds on what a client may take.

Purpose: headers have a size and a time, bodies a time, what is sent has to be read; a client that leaves takes its
request back, by cancelling the task that answers it.
Invariants: what a connection holds is bounded whatever its client does; a bound that is hit is answered, where there
can be an answer, counted, and closes this connection only. No timer a request: `overdue` is asked once in a while for
all.
Owner: the server that made it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from ingress_service.core.connection_bound import ConnectionBound
from ingress_service.core.counters import ConnectionCut, Counters
from ingress_service.core.problems import Problem
from slotmesh.errors import Reason

_SILENT: Final = logging.getLogger("ingress_service.silent")
"""What uvicorn would log: requests that are nonsense are counted, and what the app raises is logged by itself."""
_SILENT.setLevel(logging.CRITICAL + 1)
LINGER_S: Final = 2.0
"""A client that still sends when it is answered for good has so long to read the answer."""
PIPELINED: Final = 64
"""Requests that may wait on a connection behind the one that is answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What one connection may take, and how many there may be."""

    connections: ConnectionBound
    header_bytes: int
    header_s: float
    body_s: float
    send_s: float


_CUTS: Final = {
    ConnectionCut.CONNECTIONS: Problem(
        status=503, reason=Reason.QUOTA_EXCEEDED, detail="too many connections (--max-connections)", retry_delay_s=1.0
    ),
    ConnectionCut.HEADERS: Problem(
        status=431, reason=Reason.BAD_REQUEST, detail="request line and headers are too large"
    ),
    ConnectionCut.HEADER_TIME: Problem(
        status=408, reason=Reason.BAD_REQUEST, detail="the headers did not come in time"
    ),
    ConnectionCut.BODY_TIME: Problem(status=408, reason=Reason.BAD_REQUEST, detail="the body did not come in time"),
    ConnectionCut.NONSENSE: Problem(status=400, reason=Reason.BAD_REQUEST, detail="this is no HTTP/1.1 request"),
}


class CountedSocket(WebSocketsSansIOProtocol):
    """A connection that has become a WebSocket."""

    on_lost: Callable[[object], None] | None = None
    """Is given this protocol when the connection has ended."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost(self)


class GuardedProtocol(HttpToolsProtocol):
    """Made for each connection."""

    def __init__(
        self, config: Config, server_state: ServerState, limits: ConnectionLimits, counters: Counters, open_: set[Any]
    ) -> None:
        """`open_` has all connections, those that have become WebSockets included."""
        super().__init__(config=config, server_state=server_state, app_state={})
        self.access_log = False
        self.logger = _SILENT
        self._limits = limits
        self._counters = counters
        self._open = open_
        self._host = ""
        self._due = inf
        """When what is awaited of the client has to be there (loop time)."""
        self._awaits: ConnectionCut | None = ConnectionCut.HEADER_TIME
        """None: the next request, which need not come."""
        self._header_bytes = 0
        self._is_cut = False
        """Nothing more is read of the client."""
        self._lingers_until = inf
        """When the connection of a client that still sends is closed all the same (loop time)."""
        self._unread = 0
        """What was unsent when it was looked at last, bytes; and since when it has not become less."""
        self._unread_since = inf
        self._running: asyncio.Task[None] | None = None
        self._running_cycle: RequestResponseCycle | None = None

    # -- the connection ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._host = self.client[0] if self.client else ""
        if not self._limits.connections.take(self._host):
            self._cut(ConnectionCut.CONNECTIONS)
            return
        self._open.add(self)
        self._due = self.loop.time() + self._limits.header_s

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget(self)
        if self._running_cycle is not None and not self._running_cycle.response_complete:
            self._running_cycle.disconnected = True
        self.pipeline.clear()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        if self._running is not None:
            self._running.cancel()

    def data_received(self, data: bytes) -> None:
        if self._is_cut:
            return
        super().data_received(data)

    def overdue(self, now: float) -> None:
        """Looks whether the client has kept its times. `now` is the loop's."""
        if now > self._due and not self._is_cut:
            if self._awaits is None:
                self._due = inf
                self.transport.close()
            else:
                self._cut(self._awaits)
        if now > self._lingers_until:
            self.transport.close()
        unread = self.transport.get_write_buffer_size()
        if not unread or unread < self._unread or self._unread == 0:
            self._unread_since = now
        self._unread = unread
        if unread and now - self._unread_since > self._limits.send_s:
            self._counters.cuts[ConnectionCut.READ_TIME] += 1
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - as uvicorn has it
        if not self._is_cut:
            self._cut(ConnectionCut.NONSENSE)

    def handle_websocket_upgrade(self) -> None:
        self._due = inf
        before = self.transport.get_protocol()
        super().handle_websocket_upgrade()
        after = self.transport.get_protocol()
        if after is not before and isinstance(after, CountedSocket) and self in self._open:
            self._open.discard(self)
            self._open.add(after)
            after.on_lost = self._forget

    def on_response_complete(self) -> None:
        """As uvicorn's, without a timer for each request."""
        if self.transport.is_closing() or self._is_cut:
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif not self.cycle.more_body:
            self._awaits, self._due = None, self.loop.time() + self.timeout_keep_alive

    def respond(self, status: int, lines: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """The whole answer to the running request, in one write. False: it has to be sent by the usual way."""
        cycle = self._running_cycle
        if cycle is None or cycle.response_started or cycle.disconnected or self.flow.write_paused:
            return False
        if cycle.more_body:
            cycle.keep_alive = False  # what is still to come of the request would be read for nothing
        content = [STATUS_LINE[status]]
        for name, value in (*self.server_state.default_headers, *lines):
            if name == b"connection":
                cycle.keep_alive = False
            else:
                content += (name, b": ", value, b"\r\n")
        if not cycle.keep_alive:
            content.append(b"connection: close\r\n")
        content.append(b"\r\n")
        if cycle.scope["method"] != "HEAD":
            content.append(body)
        self.transport.write(b"".join(content))
        cycle.response_started = cycle.response_complete = True
        if not cycle.keep_alive:
            self._end(still_sends=cycle.more_body or bool(self.pipeline))
        self.on_response_complete()
        return True

    def _forget(self, protocol: object) -> None:
        """The connection has ended, which had this protocol."""
        if protocol in self._open:
            self._open.discard(protocol)
            self._limits.connections.give(self._host)

    def _end(self, *, still_sends: bool) -> None:
        """Closes the connection, of which the answer was written.

        A socket that is closed with bytes unread resets the connection, and the client may lose the answer: who still
        sends is told that no more comes, and is read for a while, for nothing. Source: RFC 9112, section 9.6.
        """
        if not still_sends:
            self.transport.close()
            return
        self._is_cut = True
        self._due = inf
        self._lingers_until = self.loop.time() + LINGER_S
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _cut(self, why: ConnectionCut) -> None:
        """Closes the connection, with an answer where none has begun."""
        self._is_cut = True
        self._due = inf
        self._counters.cuts[why] += 1
        if (cycle := self._running_cycle) is not None:
            if cycle.response_complete and cycle.more_body:
                self.transport.close()  # it has its answer, and its client sends no more
                return
            if cycle.response_started and not cycle.response_complete:
                self.transport.abort()
                return
            cycle.disconnected = True
        problem = _CUTS[why]
        body = json.dumps(problem.document()).encode()
        head = [*problem.header_lines(), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        lines = b"".join(b"%b: %b\r\n" % line for line in head)
        self.transport.write(b"%b%b\r\n%b" % (STATUS_LINE[problem.status], lines, body))
        # Those that are too many would be more for as long as they linger.
        self._end(still_sends=why is not ConnectionCut.CONNECTIONS)
        if self._running is not None:
            self._running.cancel()

    # -- what the parser finds -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._awaits, self._due = ConnectionCut.HEADER_TIME, self.loop.time() + self._limits.header_s

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_cut:
            return
        if len(self.pipeline) >= PIPELINED:
            self._cut(ConnectionCut.NONSENSE)
            return
        self._awaits, self._due = ConnectionCut.BODY_TIME, self.loop.time() + self._limits.body_s
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_cut:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._due = inf
        if self._is_cut:
            return
        super().on_message_complete()
        if (cycle := self._running_cycle) is not None and cycle.response_complete and cycle is self.cycle:
            # It was answered before all of it had come: the next one is awaited only now.
            cycle.more_body = False
            self._awaits, self._due = None, self.loop.time() + self.timeout_keep_alive

    def _count(self, nbytes: int) -> None:
        self._header_bytes += nbytes
        if self._header_bytes > self._limits.header_bytes and not self._is_cut:
            self._cut(ConnectionCut.HEADERS)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.scope["respond"] = self.respond  # type: ignore[typeddict-unknown-key]  # ours
        task = self._running = self.loop.create_task(cycle.run_asgi(app))
        self._running_cycle = cycle
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
