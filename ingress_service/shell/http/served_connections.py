"""What connections of HTTP and WebSockets have in common: what they share, pauses, and clients that read nothing.

Invariants: each turn of the event loop takes a few milliseconds, however much has arrived; while reading is paused, the
socket is asked whether its client has left; what is sent has to be read.
Owner: the server, which asks each connection a few times a second whether it is overdue.
"""

from __future__ import annotations

import asyncio
import select
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from http import HTTPStatus
from typing import Any, Final, cast

from ingress_service.core.counters import NO_ROUTE, ConnectionCut, Counters
from ingress_service.core.http1.heads import ConnectionLimits
from ingress_service.core.peers import ConnectionBound
from ingress_service.core.problems import Problem
from ingress_service.core.requests import HEADER, given_id
from ingress_service.shell.request_log import FailedRequests, new_request_id

HttpApp = Callable[[Any, Any, Any], Awaitable[None]]
Address = tuple[str, int] | None
_PHRASES: Final = {it.value: it.phrase.encode() for it in HTTPStatus}
STATUS_LINES: Final = {it: b"HTTP/1.1 %d %b\r\n" % (it, _PHRASES.get(it, b"")) for it in range(100, 600)}
STEP_BYTES: Final = 4 * 1024
"""What is read before the time is looked at: small frames and chunks take some microseconds each."""
TURN_S: Final = 0.005
"""What one turn of the event loop may take."""
_HUNG_UP: Final[int] = getattr(select, "POLLRDHUP", 0)
"""Linux: the client has closed its side, seen without reading. 0: it is seen with the next read."""


class PauseReason(Enum):
    """Why nothing is read of a client for now."""

    UNFED = "what has arrived was not read yet"
    UNTAKEN = "the application has not taken what was read"
    UNSENT = "the client does not read its answers"


class ServedConnections:
    """What all connections of a server share."""

    def __init__(
        self,
        app: HttpApp,
        limits: ConnectionLimits,
        bound: ConnectionBound,
        counters: Counters,
        failures: FailedRequests,
        *,
        max_message_bytes: int,
        scheme: str,
    ) -> None:
        """`max_message_bytes`: of one message of a WebSocket. `scheme`: `http` or `https`."""
        self.app = app
        self.limits = limits
        self._bound = bound
        self.counters = counters
        self._failures = failures
        self.max_message_bytes = max_message_bytes
        self.scheme = scheme
        self.open: dict[ServedConnection, str] = {}
        """And the address that each counts for."""
        self.tasks: set[asyncio.Task[None]] = set()
        self.date_line = b""
        """Of each answer; changed once a second."""

    def enter(self, connection: ServedConnection, host: str) -> bool:
        """Whether there may be one more from this address."""
        if not self._bound.take(host):
            return False
        self.open[connection] = host
        return True

    def noted(self, problem: Problem, headers: Iterable[tuple[bytes, bytes]]) -> Problem:
        """Logs that a request with these headers (names in lower case) fails so, outside of the app.

        Returns the problem with its ids: that of the request is its own X-Request-ID, or a new one.
        """
        if problem.log_ref and problem.request_id:
            return problem
        given = next((value for name, value in headers if name == HEADER), b"")
        request_id = problem.request_id or given_id(given) or new_request_id()
        return self._failures.noted(problem, NO_ROUTE, request_id=request_id)

    def replace(self, connection: ServedConnection, by: ServedConnection) -> None:
        """It has another protocol from now on."""
        if (host := self.open.pop(connection, None)) is not None:
            self.open[by] = host

    def forget(self, connection: ServedConnection) -> None:
        """It has ended."""
        if (host := self.open.pop(connection, None)) is not None:
            self._bound.give(host)


class ServedConnection(asyncio.Protocol):
    """A connection that is HTTP, or has become a WebSocket."""

    def __init__(self, shared: ServedConnections) -> None:
        self.shared = shared
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.is_writable = True
        self._drained = asyncio.Event()
        self._unfed = deque[bytes]()
        """Arrived, and left for the next turns of the event loop."""
        self._pauses: set[PauseReason] = set()
        self._unsent = 0
        """Bytes that were unsent at the last look."""
        self._unsent_since = 0.0
        """Since when that has not become less (loop time)."""

    @abstractmethod
    def feed(self, data: bytes) -> None:
        """Reads what has arrived."""

    @abstractmethod
    def client_left(self) -> None:
        """The client has closed the connection, or its side of it."""

    @abstractmethod
    def stop(self) -> None:
        """The server takes no more requests."""

    def feeds_whole(self) -> bool:
        """Whether what arrives next is not looked at byte by byte, however long it is."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - as asyncio has it
        self.shared.forget(self)
        self._unfed.clear()
        self.client_left()
        self.is_writable = True
        self._drained.set()

    def eof_received(self) -> None:
        self._unfed.clear()
        self.client_left()

    def data_received(self, data: bytes) -> None:
        if self._unfed:
            self._unfed.append(data)
        elif len(data) > STEP_BYTES and not self.feeds_whole():
            self._unfed.append(data)
            self._feed_some()
        else:
            self.feed(data)

    def pause_writing(self) -> None:
        self.is_writable = False
        self._drained.clear()

    def resume_writing(self) -> None:
        self.is_writable = True
        self._drained.set()

    def overdue(self, now: float) -> None:
        """Looks whether the client reads, and is there. `now` is the loop's."""
        if self._pauses and self._has_hung_up():
            self.eof_received()
        unsent = self.transport.get_write_buffer_size()
        if not unsent or unsent < self._unsent or self._unsent == 0:
            self._unsent_since = now
        self._unsent = unsent
        if unsent and now - self._unsent_since > self.shared.limits.send_s:
            self.shared.counters.cuts[ConnectionCut.READ_TIME] += 1
            self.transport.abort()

    def write_problem(self, problem: Problem, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """The last answer of the connection, to a request with these headers, as far as they were read."""
        problem = self.shared.noted(problem, headers)
        body = problem.body()
        own = [*problem.header_lines(), (HEADER, problem.request_id.encode())]
        lines = b"".join(b"%b: %b\r\n" % line for line in own)
        head = b"%b%b%bcontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (STATUS_LINES[problem.status], self.shared.date_line, lines, len(body)) + body)

    async def drain(self) -> None:
        """Waits until the client has read enough of what was sent, or is gone."""
        while not self.is_writable:
            await self._drained.wait()

    def pause(self, why: PauseReason) -> None:
        if not self._pauses:
            self.transport.pause_reading()
        self._pauses.add(why)

    def resume(self, why: PauseReason) -> None:
        if why in self._pauses:
            self._pauses.discard(why)
            if not self._pauses:
                self.transport.resume_reading()

    @property
    def is_paused(self) -> bool:
        return bool(self._pauses)

    def begin_task(self, work: Any) -> asyncio.Task[None]:
        """A task that the server waits for when it stops."""
        task: asyncio.Task[None] = self.loop.create_task(work)
        self.shared.tasks.add(task)
        task.add_done_callback(self.shared.tasks.discard)
        return task

    def _feed_some(self) -> None:
        """One turn."""
        until = self.loop.time() + TURN_S
        while self._unfed:
            data = self._unfed.popleft()
            if len(data) > STEP_BYTES and not self.feeds_whole():
                self._unfed.appendleft(data[STEP_BYTES:])
                data = data[:STEP_BYTES]
            self.feed(data)
            if self.loop.time() > until:
                break
        if self._unfed:
            self.pause(PauseReason.UNFED)
            self.loop.call_soon(self._feed_some)
        else:
            self.resume(PauseReason.UNFED)

    def _has_hung_up(self) -> bool:
        socket = self.transport.get_extra_info("socket")
        if not _HUNG_UP or socket is None or self.transport.is_closing():
            return False
        poll = select.poll()
        poll.register(socket.fileno(), _HUNG_UP)
        return bool(poll.poll(0))


def address_of(transport: asyncio.BaseTransport, which: str) -> Address:
    """`which`: `peername` or `sockname`. None: it is not of a network."""
    found = transport.get_extra_info(which)
    return (str(found[0]), int(found[1])) if isinstance(found, tuple) and len(found) >= 2 else None
