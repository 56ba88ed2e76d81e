"""One WebSocket on the event loop, as an ASGI app has it; `websockets` knows the protocol.

Invariants: messages are read ahead within a bound, so that the client's end is seen while a call runs; from their first
byte they count among the bodies that are held; a client that leaves, by a close frame or without, cancels the task that
serves it, and what it has sent ahead is dropped. Frames are read only after the application has accepted the handshake.
No timer a connection: `overdue` is called once in a while.
Owner: the server; made by the connection of HTTP that has read the handshake.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from math import inf
from secrets import token_bytes
from typing import Any, Final
from urllib.parse import unquote

from websockets.exceptions import InvalidHeader, InvalidState
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from ingress_service.core.http1.heads import RequestHead
from ingress_service.core.problems import Problem, RequestRefusal
from ingress_service.shell.bodies import HeldBody
from ingress_service.shell.http.served_connections import Address, PauseReason, ServedConnection, ServedConnections
from slotmesh.errors import Reason

_SILENT: Final = logging.getLogger("ingress_service.silent")
"""What `websockets` would log of each connection."""
_SILENT.setLevel(logging.CRITICAL + 1)
PING_S: Final = 20.0
"""How often a client is asked whether it is there, and what it has for its answer."""
CLOSE_S: Final = 10.0
"""What a client has to answer a close frame."""
MESSAGE_BYTES: Final = 128
"""What a message takes of the bound besides its bytes."""
_DEFLATE: Final = ServerPerMessageDeflateFactory(
    server_max_window_bits=12, client_max_window_bits=12, compress_settings={"memLevel": 5}
)
_ASGI: Final = {"version": "3.0", "spec_version": "2.4"}


class SocketProtocol(ServedConnection):
    """Made for each WebSocket."""

    def __init__(self, shared: ServedConnections, addresses: tuple[Address, Address]) -> None:
        """`addresses`: of the client, and of this end."""
        super().__init__(shared)
        self._addresses = addresses
        self._conn = ServerProtocol(extensions=[_DEFLATE], max_size=shared.max_message_bytes, logger=_SILENT)
        self._response: Any = None
        """To the handshake: 101, or why there is no WebSocket."""
        self._task: asyncio.Task[None] | None = None
        self._early = b""
        """What has arrived before the handshake was accepted."""
        self._messages = deque[dict[str, Any]]()
        self._ahead_bytes = 0
        self._event = asyncio.Event()
        self._parts = bytearray()
        """Of the message that is being read."""
        self._is_text = False
        self._held: HeldBody | None = None
        """Counts what is here of messages that the application has not taken; None until it has accepted."""
        self._has_left = False
        self._closes_at = inf
        """When the connection is closed, whether the client has answered the close frame or not."""
        self._ping_at = inf
        self._pong_until = inf
        self._ping = b""

    def open(self, transport: asyncio.Transport, head: RequestHead, rest: bytes) -> None:
        """Takes over the connection. `rest`: what the client has sent behind the handshake."""
        self.transport = transport
        target = head.path + (b"?" + head.query if head.query else b"")
        lines = b"".join(b"%b: %b\r\n" % line for line in head.headers)
        self._conn.receive_data(b"GET %b HTTP/1.1\r\n%b\r\n" % (target, lines))
        scope = self._scope(head)
        request = next(iter(self._conn.events_received()), None)
        if not isinstance(request, Request):
            scope["refused"] = _refused(400, "this is not a WebSocket handshake")
        else:
            self._response = self._conn.accept(request)
            if self._response.status_code != 101:
                scope["refused"] = _malformed(self._response.status_code, self._conn.handshake_exc)
        self._messages.append({"type": "websocket.connect", "size": 0})
        self._task = self.begin_task(self._serve(scope))
        if rest:
            self.data_received(rest)

    def feed(self, data: bytes) -> None:
        if self._has_left:
            return
        if self._conn.state is State.CONNECTING:
            self._early += data
            if len(self._early) > self.shared.limits.ahead_bytes:
                self.pause(PauseReason.UNTAKEN)
            return
        self._conn.receive_data(data)
        for event in self._conn.events_received():
            if isinstance(event, Frame):
                self._take(event)
        self._write()
        self._count()
        if self._conn.parser_exc is not None:
            self.client_left()

    def client_left(self) -> None:
        if not self._has_left:
            self._has_left = True
            self._parts.clear()
            if self._held is not None:
                self._held.close()
            self._messages.clear()
            self._event.set()
            if self._task is not None:
                self._task.cancel()
            self.transport.close()

    def stop(self) -> None:
        if self._conn.state is State.OPEN:
            self._conn.send_close(CloseCode.SERVICE_RESTART)
            self._write()
        self.client_left()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.pause(PauseReason.UNSENT)  # or pings would be answered without bound

    def resume_writing(self) -> None:
        super().resume_writing()
        self.resume(PauseReason.UNSENT)

    def overdue(self, now: float) -> None:
        super().overdue(now)
        if self.transport.is_closing():
            return
        if now > self._closes_at:
            self.transport.close()
        elif self._conn.state is not State.OPEN:
            return
        elif self.is_paused:
            self._ping_at, self._pong_until = now + PING_S, inf  # its answers are not read
        elif now > self._pong_until:
            self._conn.fail(CloseCode.INTERNAL_ERROR, "keepalive ping timeout")
            self._write()
            self.client_left()
        elif now > self._ping_at:
            self._ping = token_bytes(4)
            self._conn.send_ping(self._ping)
            self._write()
            self._ping_at, self._pong_until = now + PING_S + PING_S, now + PING_S

    # -- the application ---------------------------------------------------------------------------------------------

    async def receive(self) -> dict[str, Any]:
        """The next message. A client that leaves is no message: the task is cancelled."""
        while not self._messages:
            self._event.clear()
            await self._event.wait()
        message = self._messages.popleft()
        self._ahead_bytes -= message["size"]
        self._count()
        if self._ahead_bytes <= self.shared.limits.ahead_bytes:
            self.resume(PauseReason.UNTAKEN)
        return message

    async def send(self, message: dict[str, Any]) -> None:
        """As ASGI has it. What is sent to a client that has left is dropped.

        `held` of an accept is the HeldBody that counts messages; without it they count nowhere.
        """
        await self.drain()
        if self._has_left:
            return
        kind = message["type"]
        if kind == "websocket.accept":
            self._held = message.get("held")
            self._accept(message.get("headers", ()))
        elif kind == "websocket.close" and self._conn.state is State.CONNECTING:
            self._refuse(message.get("problem") or _refused(403, "the WebSocket was not accepted"))
        elif kind == "websocket.close":
            self._close(message.get("code", CloseCode.NORMAL_CLOSURE))
        elif (text := message.get("text")) is not None:
            self._send(self._conn.send_text, text.encode())
        else:
            self._send(self._conn.send_binary, message["bytes"])

    async def _serve(self, scope: dict[str, Any]) -> None:
        try:
            await self.shared.app(scope, self.receive, self.send)
        finally:
            if not self._has_left and self._conn.state is State.CONNECTING:
                self._refuse(_refused(500, "the ingress failed; its log has it"))
            self._close(CloseCode.INTERNAL_ERROR)

    def _accept(self, lines: Iterable[tuple[bytes, bytes]]) -> None:
        del self._response.headers["Date"]
        if self.shared.date_line:
            self._response.headers["Date"] = self.shared.date_line.partition(b": ")[2].strip().decode("ascii")
        for name, value in lines:
            self._response.headers[name.decode("latin-1")] = value.decode("latin-1")
        self._conn.send_response(self._response)
        self._write()
        self._ping_at = self.loop.time() + PING_S
        early, self._early = self._early, b""
        self.resume(PauseReason.UNTAKEN)
        if early:
            self.data_received(early)

    def _refuse(self, problem: Problem) -> None:
        """The answer to the handshake: the connection ends with it."""
        self.write_problem(problem)
        self._has_left = True
        self.transport.close()

    def _send(self, send: Any, data: bytes) -> None:
        try:
            send(data)
        except InvalidState:
            return  # a close frame was sent or received
        self._write()

    def _close(self, code: int) -> None:
        """Sends a close frame, once."""
        if self._conn.state is State.OPEN and not self._has_left:
            self._conn.send_close(code)
            self._write()
            self._closes_at = self.loop.time() + CLOSE_S
            self.resume(PauseReason.UNTAKEN)

    # -- frames ------------------------------------------------------------------------------------------------------

    def _take(self, frame: Frame) -> None:
        if frame.opcode is Opcode.CLOSE:
            self._write()
            self.client_left()
        elif frame.opcode is Opcode.PONG:
            if bytes(frame.data) == self._ping:
                self._pong_until = inf
        elif frame.opcode is not Opcode.PING:
            if frame.opcode is not Opcode.CONT:
                self._is_text = frame.opcode is Opcode.TEXT
            self._parts += frame.data
            if frame.fin:
                self._end_message()

    def _end_message(self) -> None:
        data, self._parts = bytes(self._parts), bytearray()
        if self._conn.state is not State.OPEN or self._has_left:
            return
        message: dict[str, Any] = {"type": "websocket.receive", "size": MESSAGE_BYTES + len(data)}
        if not self._is_text:
            message["bytes"] = data
        else:
            try:
                message["text"] = data.decode()
            except UnicodeDecodeError:
                self._conn.fail(CloseCode.INVALID_DATA, "a text message is not UTF-8")
                self._write()
                self.client_left()
                return
        self._messages.append(message)
        self._event.set()
        self._ahead_bytes += message["size"]
        if self._ahead_bytes > self.shared.limits.ahead_bytes:
            self.pause(PauseReason.UNTAKEN)

    def _count(self) -> None:
        """Counts the messages that are here. Closes the socket, with 1013, if there is no room for them."""
        if self._held is None or self._has_left:
            return
        try:
            self._held.become(self._ahead_bytes + len(self._parts) + len(self._conn.reader.buffer))
        except RequestRefusal as error:
            self._conn.fail(CloseCode.TRY_AGAIN_LATER, error.problem.detail)
            self._write()
            self.client_left()

    def _write(self) -> None:
        data = b"".join(self._conn.data_to_send())
        if data:
            self.transport.write(data)

    def _scope(self, head: RequestHead) -> dict[str, Any]:
        path = head.path.decode("ascii")
        client, server = self._addresses
        return {
            "type": "websocket",
            "asgi": _ASGI,
            "http_version": head.version,
            "scheme": "wss" if self.shared.scheme == "https" else "ws",
            "path": unquote(path),
            "raw_path": head.path,
            "query_string": head.query,
            "root_path": "",
            "headers": head.headers,
            "client": client,
            "server": server,
            "subprotocols": [],
        }


def _refused(status: int, detail: str) -> Problem:
    return Problem(status=status, reason=Reason.BAD_REQUEST.value, detail=detail)


def _malformed(status: int, error: Exception | None) -> Problem:
    """Why a handshake is none. Where its version is the reason, the answer names the one that there is (RFC 6455)."""
    problem = _refused(status, str(error))
    if isinstance(error, InvalidHeader) and error.name == "Sec-WebSocket-Version":
        return replace(problem, headers={error.name: "13"})
    return problem
