"""Bytes given to the ingress's protocol in memory, what it ran and answered, and what h11 makes of them.

The protocol and its machine are the real ones; the transport is a list, and the application records what it is given.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import h11

from ingress_service.core.counters import Counters
from ingress_service.core.http1.heads import ConnectionLimits
from ingress_service.core.peers import ConnectionBound, PeerAddresses
from ingress_service.shell.http.connection import HttpProtocol
from ingress_service.shell.http.served_connections import ServedConnections
from ingress_service.shell.request_log import FailedRequests

LIMITS: Final = ConnectionLimits(
    header_bytes=8192,
    header_s=10.0,
    body_s=10.0,
    send_s=10.0,
    keep_alive_s=10.0,
    ahead_requests=64,
    ahead_bytes=64 * 1024,
)
ANSWER: Final = b"ran"


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """A request as it was understood."""

    method: str
    target: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    is_socket: bool = False


class ListTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: Any) -> None:
        super().__init__()
        self._loop = loop
        self.protocol = protocol
        self.written = bytearray()
        self.is_paused = False
        self.has_ended = False
        """The server's side was closed."""
        self._is_closing = False

    def write(self, data: Any) -> None:
        assert not self._is_closing or not data, "nothing is written to a connection that is closing"
        assert not self.has_ended, "nothing is written behind the end"
        self.written += data

    def write_eof(self) -> None:
        self.has_ended = True

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self.protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self._is_closing

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def get_write_buffer_size(self) -> int:
        return 0


class RecordedConnection:
    """One connection in memory. The application answers as soon as it may: `gate`, and `early` before the body."""

    def __init__(self, *, early: bool = False, limits: ConnectionLimits = LIMITS) -> None:
        self.started: list[tuple[str, str]] = []
        """Method and target of all requests that were given to the application."""
        self.ran: list[SeenRequest] = []
        """Those with their body, as a handler would run them."""
        self.messages: list[str | bytes] = []
        """Of a WebSocket."""
        self.cancelled = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_early = early
        self.counters = Counters()
        self.shared = ServedConnections(
            self._app,
            limits,
            ConnectionBound(10, PeerAddresses()),
            self.counters,
            FailedRequests(),
            max_message_bytes=65_536,
            scheme="http",
        )
        protocol = HttpProtocol(self.shared)
        self.transport = ListTransport(asyncio.get_running_loop(), protocol)
        protocol.connection_made(self.transport)

    @property
    def protocol(self) -> Any:
        return self.transport.protocol

    async def feed(self, *parts: bytes) -> None:
        for part in parts:
            if part and not self.transport.is_closing():
                self.protocol.data_received(part)
            await self.settle()

    async def leave(self) -> None:
        """The client closes its side."""
        if not self.transport.is_closing():
            self.protocol.eof_received()
        await self.settle()

    async def settle(self) -> None:
        """Until nothing more happens by itself."""
        quiet = 0
        while quiet < 3:
            before = (len(self.transport.written), len(self.started), len(self.ran), len(self.shared.tasks))
            await asyncio.sleep(0)
            after = (len(self.transport.written), len(self.started), len(self.ran), len(self.shared.tasks))
            quiet = quiet + 1 if before == after else 0

    async def until_ran(self, count: int) -> None:
        """What is large is read in several turns of the loop."""
        for _ in range(10_000):
            if len(self.ran) >= count or self.counters.cuts:
                break
            await asyncio.sleep(0)
        await self.settle()

    async def end(self) -> None:
        self.transport.close()
        await self.settle()
        assert not self.shared.tasks, "a task outlives its connection"
        assert not self.shared.open

    @property
    def answers(self) -> list[tuple[int, bytes]]:
        """Status and body of each whole answer, but for 100."""
        return parse_answers(bytes(self.transport.written))

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        query = scope["query_string"]
        target = (scope["raw_path"] + (b"?" + query if query else b"")).decode()
        is_socket = scope["type"] == "websocket"
        if (problem := scope.get("refused")) is not None:  # as `Sockets` does
            await send({"type": "websocket.close", "code": 1008, "problem": problem})
            return
        method = "GET" if is_socket else scope["method"]
        self.started.append((method, target))
        try:
            if is_socket:
                await self._talk(SeenRequest(method, target, tuple(scope["headers"]), b"", True), receive, send)
                return
            body = b""
            while not self.is_early:
                message = await receive()
                if message["type"] != "http.request":
                    return
                body += message["body"]
                if not message["more_body"]:
                    self.ran.append(SeenRequest(method, target, tuple(scope["headers"]), body))
                    break
            await self.gate.wait()
            lines = [(b"content-length", b"%d" % len(ANSWER))]
            assert scope["respond"](200, lines, ANSWER)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def _talk(self, handshake: SeenRequest, receive: Any, send: Any) -> None:
        await receive()
        self.ran.append(handshake)
        await send({"type": "websocket.accept"})
        while True:
            message = await receive()
            self.messages.append(message["text"] if "text" in message else message["bytes"])
            await self.gate.wait()


def parse_answers(data: bytes) -> list[tuple[int, bytes]]:
    """Status and body of each answer. Raises AssertionError where they are no whole answers."""
    found: list[tuple[int, bytes]] = []
    while data:
        head, end, data = data.partition(b"\r\n\r\n")
        assert end, f"an answer is cut off: {head!r}"
        status = int(head.split(b" ", 2)[1])
        if status == 101:
            found.append((status, b""))
            break
        if status == 100:
            continue
        names = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        size = int(names[b"content-length"])
        found.append((status, data[:size]))
        data = data[size:]
    return found


def check_answers(connection: RecordedConnection) -> None:
    """Each request that ran has its own answer, in order; at most one error is behind them, and says what it is."""
    answers = connection.answers
    finished = len([it for it in connection.ran if not it.is_socket])
    assert [status for status, _ in answers[:finished]] == [200] * finished, (answers, connection.ran)
    behind = answers[finished:]
    assert len(behind) <= 1, behind
    for status, body in behind:
        if status == 101:
            assert connection.ran[-1].is_socket
        elif status != 403:
            assert json.loads(body)["executed"] == "no", body


def seen_by_h11(data: bytes) -> tuple[list[SeenRequest], list[tuple[str, str]]]:
    """Whole requests, and method and target of all heads. Nothing behind a WebSocket handshake is a request.

    One difference is taken out: h11 refuses an empty line before a request, of which the ingress ignores one, as RFC
    9112, section 2.2, recommends. It is left out of what h11 is given.
    """
    model = _model_of(data)
    whole: list[SeenRequest] = []
    heads: list[tuple[str, str]] = []
    request, body = None, b""
    try:
        while True:
            event = model.next_event()
            if isinstance(event, h11.Request):
                request, body = event, b""
                heads.append((event.method.decode(), _path_of(event.target)))
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage) and request is not None:
                is_socket = _is_handshake(request, body)
                whole.append(SeenRequest(*heads[-1], tuple(request.headers), body, is_socket))
                if is_socket:
                    return whole, heads
                model.send(h11.Response(status_code=200, headers=[(b"content-length", b"0")]))
                model.send(h11.EndOfMessage())
                model.start_next_cycle()
                if not (rest := model.trailing_data[0]):
                    return whole, heads
                model = _model_of(rest)
            else:
                return whole, heads
    except (h11.RemoteProtocolError, h11.LocalProtocolError):
        return whole, heads


def _model_of(data: bytes) -> h11.Connection:
    model = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    if data := data.removeprefix(b"\r\n"):
        model.receive_data(data)
    return model


def plain(requests: Iterable[SeenRequest]) -> list[SeenRequest]:
    """Comparable: h11 writes values of Transfer-Encoding in lower case, and no Content-Length twice."""
    return [
        SeenRequest(
            it.method,
            it.target,
            tuple((name, value.lower() if name == b"transfer-encoding" else value) for name, value in it.headers),
            it.body,
            it.is_socket,
        )
        for it in requests
    ]


def _path_of(target: bytes) -> str:
    text = target.decode()
    if text.lower().startswith(("http://", "https://")):
        slash = text.find("/", text.index("//") + 2)
        question = text.find("?")
        if slash < 0 or 0 <= question < slash:
            return "/" + ("" if question < 0 else text[question:])
        return text[slash:]
    return text


def _is_handshake(request: h11.Request, body: bytes) -> bool:
    headers = dict(request.headers)
    tokens = [
        it.strip().lower() for name, value in request.headers if name == b"connection" for it in value.split(b",")
    ]
    return (
        request.method == b"GET"
        and request.http_version == b"1.1"
        and not body
        and b"upgrade" in tokens
        and headers.get(b"upgrade", b"").lower() == b"websocket"
    )
