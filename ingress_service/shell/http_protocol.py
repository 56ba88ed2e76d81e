"""One connection of HTTP/1.1 on the event loop: bytes go to the machine, and what that returns is carried out.

Purpose: `core/connection/machine.py` decides; here are the transport, the tasks that answer requests, and pauses.
Invariants: the task of a request is cancelled when its client leaves; a body is read no faster than it is taken. No
timer a request: `overdue` is called once in a while for all connections.
Owner: the server that made it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from ingress_service.core.connection.commands import (
    AnswerProblem,
    CancelRequest,
    CloseConnection,
    Command,
    Linger,
    OpenSocket,
    StartRequest,
    WakeRequest,
)
from ingress_service.core.connection.machine import ConnectionMachine
from ingress_service.shell.request_exchange import RequestExchange
from ingress_service.shell.served_connections import (
    Address,
    PauseReason,
    ServedConnection,
    ServedConnections,
    address_of,
)
from ingress_service.shell.socket_protocol import SocketProtocol

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
