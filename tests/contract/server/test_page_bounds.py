"""The pages of a service have bounds: so many connections at once, and so long each, whatever they send."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from slotmesh.telemetry import http_server
from slotmesh.telemetry.http_server import Deadline
from slotmesh.telemetry.setup import MetricsServer, setup_metrics
from slotmesh.units import parse_host_port
from tests.support.certificates import Authority
from tests.support.wait import wait_until

MOST = 3
BEFORE_READS_END_S = 15
"""Less than one read may take, which ends a connection as well."""
Connect = Callable[[], socket.socket]


@pytest.fixture(params=["plain", "tls"])
def pages(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[MetricsServer, Connect]]:
    """With room for few connections, which have a fifth of a second each where the test wants that."""
    monkeypatch.setattr(http_server, "MAX_REQUESTS", MOST)
    tls = Authority(tmp_path).source("router") if request.param == "tls" else None
    server = setup_metrics("slotmesh-router", port=0, tls=tls)
    address = parse_host_port(str(server.address))
    connected: list[socket.socket] = []

    def connect() -> socket.socket:
        connected.append(socket.create_connection(address, timeout=BEFORE_READS_END_S))
        return connected[-1]

    yield server, connect
    server.shutdown()
    for each in connected:
        each.close()


def health(server: MetricsServer) -> int:
    """0: the connection was closed."""
    connection = HTTPConnection(*parse_host_port(str(server.address)), timeout=30)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status
    except (OSError, HTTPException):
        return 0
    finally:
        connection.close()


def is_closed(connection: socket.socket) -> bool:
    """Waits until the other end has closed it, with a bound."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_connections_beyond_the_bound_are_closed(pages: tuple[MetricsServer, Connect]) -> None:
    _, connect = pages
    held = [connect() for _ in range(MOST)]
    for each in held:
        each.send(b"\x16")
    assert is_closed(connect())
    for each in held:
        each.settimeout(0)
        with pytest.raises(BlockingIOError):
            each.recv(1)


@pytest.mark.asyncio
async def test_who_leaves_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_REQUESTS", MOST)
    server = setup_metrics("slotmesh-router", port=0)
    held = [socket.create_connection(parse_host_port(str(server.address)), timeout=30) for _ in range(MOST)]
    assert health(server) == 0
    held.pop().close()
    await wait_until(lambda: health(server) == 200)
    for each in held:
        each.close()
    server.shutdown()


def test_a_request_that_does_not_come_ends_its_connection(
    pages: tuple[MetricsServer, Connect], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, connect = pages
    monkeypatch.setattr(http_server, "REQUEST_S", 0.2)
    connection = connect()
    connection.send(b"\x16")
    assert is_closed(connection)


def test_a_byte_now_and_then_puts_nothing_off() -> None:
    until = time.monotonic() + BEFORE_READS_END_S
    ours, theirs = socket.socketpair()
    with ours, theirs, closing(Deadline(ours, 0.1)), suppress(BrokenPipeError):
        while time.monotonic() < until:
            theirs.send(b"x")
            ours.recv(1)
        pytest.fail("the connection has no end")


def test_the_answer_has_a_time_of_its_own_and_no_timer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    given, ended = list[float](), threading.Event()
    move, close = Deadline.move, Deadline.close

    def note_and_move(self: Deadline, seconds: float) -> None:
        given.append(seconds)
        move(self, seconds)

    def close_and_note(self: Deadline) -> None:
        close(self)
        assert self._timer is not None
        self._timer.join(30)
        if not self._timer.is_alive():
            ended.set()

    monkeypatch.setattr(Deadline, "move", note_and_move)
    monkeypatch.setattr(Deadline, "close", close_and_note)
    server = setup_metrics("slotmesh-router", port=0)
    assert health(server) == 200
    assert given == [http_server.REQUEST_S, http_server.ANSWER_S]
    assert ended.wait(BEFORE_READS_END_S)
    server.shutdown()
