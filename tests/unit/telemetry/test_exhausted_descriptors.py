"""The HTTP server of pages in a process that may open no further descriptor."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator

import pytest

from slotmesh.telemetry.http_server import EXHAUSTED_PAUSE_S, HttpServer, make_server


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with make_server("127.0.0.1", 0, lambda _environ, _start: []) as made:
        yield made


def test_a_connection_that_cannot_be_accepted_is_tried_again_after_a_pause(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("slotmesh.telemetry.http_server.time.sleep", pauses.append)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_connection(("127.0.0.1", server.server_port)) as client:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
            for _ in range(3):
                with pytest.raises(OSError, match="Too many open files"):
                    server.get_request()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert pauses == [EXHAUSTED_PAUSE_S] * 3
        accepted, address = server.get_request()
        with accepted:
            assert address == client.getsockname()


def test_other_errors_of_a_connection_cause_no_pause(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("slotmesh.telemetry.http_server.time.sleep", pauses.append)
    server.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        server.get_request()  # the client has left the queue
    assert not pauses
