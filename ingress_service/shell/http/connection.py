"""One connection of HTTP/1.1 on the event loop, and each request and its answer as an ASGI app has them.

Purpose: `core/http1/machine.py` decides; here are the transport, the tasks that answer requests, and pauses.
Invariants: nothing is written once the client has left, or after the end of the answer; an answer is whole, or the
connection ends without its end. `respond` writes a whole answer in one piece, which is how most are. The task of a
request is cancelled when its client leaves; a body is read no faster than it is taken. There is no timer for each
request: `overdue` is called once in a while for all connections.
Owner: the server that made the connection.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, cast
from urllib.parse import unquote

from ingress_service.core.http1.commands import (
    AnswerProblem,
    CancelRequest,
    CloseConnection,
    Command,
    Linger,
    OpenSocket,
    QueuedRequest,
    StartRequest,
    WakeRequest,
)
from ingress_service.core.http1.machine import ConnectionMachine
from ingress_service.core.problems import INTERNAL
from ingress_service.core.requests import HEADER
from ingress_service.shell.http.served_connections import (
    STATUS_LINES,
    Address,
    HttpApp,
    PauseReason,
    ServedConnection,
    ServedConnections,
    address_of,
)
from ingress_service.shell.http.websocket import SocketProtocol
from slotmesh.logs import get_logger

HeaderPairs = list[tuple[bytes, bytes]]
_ILLEGAL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
PIECE_BYTES: Final = 128 * 1024
"""A larger body is written in pieces, with turns of the event loop between: by TLS each write encrypts all of it."""
_WITHOUT_BODY: Final = frozenset({204, 304})
_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}

_log = get_logger(__name__)


class RequestExchange:
    """Of one request."""

    __slots__ = (
        "_connection",
        "_done",
        "_event",
        "_has_begun",
        "_has_continued",
        "_has_left",
        "_is_chunked",
        "_is_last",
        "_is_over",
        "_is_taken",
        "_machine",
        "_request",
        "_to_send",
        "scope",
    )

    def __init__(
        self,
        connection: ServedConnection,
        machine: ConnectionMachine,
        request: QueuedRequest,
        done: Callable[[list[Command]], None],
        addresses: tuple[Address, Address],
    ) -> None:
        """`done`: carries out what follows from an answer. `addresses`: of the client, and of this end."""
        self._connection = connection
        self._machine = machine
        self._request = request
        self._done = done
        self._event: asyncio.Event | None = None
        self._has_begun = False
        """The head of the answer was written."""
        self._is_over = False
        """All of it was."""
        self._has_left = False
        self._has_continued = False
        """The client was asked for its body."""
        self._is_taken = False
        """The application has all of the body."""
        self._is_last = False
        self._is_chunked = False
        self._to_send: int | None = None
        """Bytes of the answer's body that are still to come; None: no length was given."""
        self.scope = self._scope(addresses)

    async def run(self, app: HttpApp) -> None:
        """Lets the application answer."""
        try:
            await app(self.scope, self.receive, self.send)
        except Exception:  # noqa: BLE001 - the outermost frame of a request: logged
            _log.exception("a request failed by a defect")
        finally:
            self._finish()

    def wake(self) -> None:
        """More of the body has arrived, or the client has left."""
        if self._event is not None:
            self._event.set()

    def leave(self) -> None:
        """The client has left, or the connection has answered in place of the application."""
        self._has_left = True
        self.wake()

    async def receive(self) -> dict[str, Any]:
        """The next part of the body; `http.disconnect` after it, once the exchange is over."""
        request = self._request
        if request.head.expects_continue and not (
            self._has_continued or request.is_whole or request.body_bytes or self._has_begun
        ):
            self._has_continued = True
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self._has_left or self._is_over) and (
            self._is_taken or not (request.is_whole or request.body_bytes)
        ):
            self._event = self._event or asyncio.Event()
            await self._event.wait()
            self._event.clear()
        if self._has_left or self._is_over:
            return {"type": "http.disconnect"}
        body = request.take_body()
        self._is_taken = request.is_whole
        self._connection.resume(PauseReason.UNTAKEN)
        return {"type": "http.request", "body": body, "more_body": not self._is_taken}

    def respond(self, status: int, lines: HeaderPairs, body: bytes) -> bool:
        """The whole answer, in one write. False: it has to be sent by the usual way."""
        connection = self._connection
        if self._has_begun or self._has_left or not connection.is_writable or len(body) > PIECE_BYTES:
            return False
        head = self._head(status, lines)
        connection.transport.write(head + body if self._request.head.method != "HEAD" else head)
        self._has_begun = True
        self._end(self._machine.answer_whole(connection.loop.time(), is_last=self._is_last))
        return True

    async def send(self, message: dict[str, Any]) -> None:
        """As ASGI has it."""
        await self._connection.drain()
        if self._has_left:
            return
        if not self._has_begun:
            self._begin(message["status"], list(message.get("headers", ())))
        elif self._is_over:
            raise RuntimeError("the answer is complete: nothing can be sent behind it")
        else:
            body, is_last = message.get("body", b""), not message.get("more_body", False)
            at = 0
            while len(body) - at > PIECE_BYTES:
                self._send_part(body[at : at + PIECE_BYTES], is_last=False)
                at += PIECE_BYTES
                await asyncio.sleep(0)
                await self._connection.drain()
                if self._has_left:
                    return
            self._send_part(body[at:] if at else body, is_last=is_last)

    def _begin(self, status: int, lines: HeaderPairs) -> None:
        names = {name.lower(): value for name, value in lines}
        has_body = self._request.head.method != "HEAD" and status not in _WITHOUT_BODY
        if b"content-length" in names:
            self._to_send = int(names[b"content-length"]) if has_body else 0
        elif not has_body:
            self._to_send = 0
        elif self._request.head.version == "1.1":
            self._is_chunked = True
            lines.append((b"transfer-encoding", b"chunked"))
        self._connection.transport.write(self._head(status, lines))
        self._has_begun = True
        self._machine.begin_answer(is_last=self._is_last)

    def _send_part(self, body: bytes, *, is_last: bool) -> None:
        if self._request.head.method == "HEAD":
            body = b""
        if self._to_send is not None:
            self._to_send -= len(body)
            if self._to_send < 0 or (is_last and self._to_send):
                raise RuntimeError("the body of the answer is not as long as its Content-Length")
        if self._is_chunked:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body += b"0\r\n\r\n" if is_last else b""
        if body:
            self._connection.transport.write(body)
        if is_last:
            self._end(self._machine.end_answer(self._connection.loop.time()))

    def _end(self, commands: list[Command]) -> None:
        """All of the answer is written."""
        self._is_over = True
        self.wake()
        self._connection.resume(PauseReason.UNTAKEN)  # of a body that the application has left unread
        self._done(commands)

    def _head(self, status: int, lines: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Status line and headers. Decides whether the answer is the last one."""
        self._is_last = not self._machine.keeps_alive
        content: list[bytes] = []
        for name, value in lines:
            if name.lower() == b"connection":
                self._is_last = self._is_last or b"close" in value.lower()
            else:
                content.append(b"%b: %b" % (name, value))
        if _ILLEGAL.search(b"".join(content)):
            raise ValueError("a header of the answer contains a line break, or another control character")
        if self._is_last:
            content.append(b"connection: close")
        content.append(b"\r\n")
        return STATUS_LINES[status] + self._connection.shared.date_line + b"\r\n".join(content)

    def _finish(self) -> None:
        """The application has ended."""
        if self._is_over or self._has_left:
            return
        if not self._has_begun:
            problem = self._connection.shared.noted(INTERNAL, self._request.head.headers)
            body = problem.body()
            own = [(HEADER, problem.request_id.encode()), (b"content-length", b"%d" % len(body))]
            self._connection.is_writable = True
            self.respond(problem.status, [*problem.header_lines(), *own, (b"connection", b"close")], body)
        else:
            self._is_over = True
            self._done(self._machine.break_off())

    def _scope(self, addresses: tuple[Address, Address]) -> dict[str, Any]:
        head = self._request.head
        path = head.path.decode("ascii")
        client, server = addresses
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": head.version,
            "method": head.method,
            "scheme": self._connection.shared.scheme,
            "path": unquote(path) if "%" in path else path,
            "raw_path": head.path,
            "query_string": head.query,
            "root_path": "",
            "headers": head.headers,
            "client": client,
            "server": server,
            "respond": self.respond,
        }


UNTAKEN_BYTES: Final = 64 * 1024
"""Of a body that the application has not taken yet: no more is read until it has."""


class HttpProtocol(ServedConnection):
    """Made for each connection."""

    def __init__(self, shared: ServedConnections) -> None:
        super().__init__(shared)
        self._machine = ConnectionMachine(shared.limits, shared.counters, self.loop.time())
        self._addresses: tuple[Address, Address] = (None, None)
        self._exchange: RequestExchange | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._addresses = address_of(transport, "peername"), address_of(transport, "sockname")
        peer, _ = self._addresses
        if not self.shared.enter(self, peer[0] if peer else ""):
            self._run(self._machine.refuse_connection())

    def feeds_whole(self) -> bool:
        return self._machine.reads_by_length

    def feed(self, data: bytes) -> None:
        self._run(self._machine.receive(data, self.loop.time()))
        request = self._machine.current
        if request is not None and request.body_bytes > UNTAKEN_BYTES:
            self.pause(PauseReason.UNTAKEN)

    def client_left(self) -> None:
        self._run(self._machine.end_of_input())

    def overdue(self, now: float) -> None:
        self._run(self._machine.overdue(now))
        super().overdue(now)

    def stop(self) -> None:
        self._run(self._machine.stop(self.loop.time()))

    # -- commands ----------------------------------------------------------------------------------------------------

    def _run(self, commands: list[Command]) -> None:
        for command in commands:
            _RUNNERS[type(command)](self, command)

    def _start(self, command: StartRequest) -> None:
        self._exchange = RequestExchange(self, self._machine, command.request, self._run, self._addresses)
        self._task = self.begin_task(self._exchange.run(self.shared.app))

    def _wake(self, _command: WakeRequest) -> None:
        if self._exchange is not None:
            self._exchange.wake()

    def _cancel(self, _command: CancelRequest) -> None:
        if self._exchange is not None and self._task is not None:
            self._exchange.leave()
            self._task.cancel()

    def _answer(self, command: AnswerProblem) -> None:
        self.write_problem(command.problem, command.headers)

    def _open(self, command: OpenSocket) -> None:
        socket = SocketProtocol(self.shared, self._addresses)
        self.shared.replace(self, socket)
        self.transport.set_protocol(socket)
        socket.open(self.transport, command.head, command.rest)

    def _linger(self, _command: Linger) -> None:
        self.resume(PauseReason.UNTAKEN)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _close(self, _command: CloseConnection) -> None:
        self.transport.close()


_RUNNERS: Final[dict[type[Any], Callable[[HttpProtocol, Any], None]]] = {
    StartRequest: HttpProtocol._start,
    WakeRequest: HttpProtocol._wake,
    CancelRequest: HttpProtocol._cancel,
    AnswerProblem: HttpProtocol._answer,
    OpenSocket: HttpProtocol._open,
    Linger: HttpProtocol._linger,
    CloseConnection: HttpProtocol._close,
}
