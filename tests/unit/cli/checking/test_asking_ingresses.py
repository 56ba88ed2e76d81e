"""Whatever answers where an ingress should be: it is asked for a bounded time, and told in one line."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from slotmesh.cli.checking import asking_ingresses
from slotmesh.cli.checking.asking_ingresses import ask_ingresses
from slotmesh.cli.checking.findings import IngressUrl, ServerAnswer

pytestmark = pytest.mark.asyncio

WITHIN_S = 0.5
DRIPS_S = 6.0
HEAD = b"HTTP/1.1 200 OK\r\n"
TLS_RECORD = b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc"  # the beginning of a server's long hello


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking_ingresses, "ANSWER_WITHIN_S", WITHIN_S)


@contextmanager
def served(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Each connection is answered so, one after the other."""

    def serve() -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                connected, _ = listener.accept()
                with connected, suppress(OSError):
                    answer(connected)

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


async def asked(address: str, *, by_tls: bool = False) -> ServerAnswer:
    (answer,) = await ask_ingresses([IngressUrl(address, by_tls)])
    return answer


def dripping(first: bytes) -> Callable[[socket.socket], None]:
    """Says so much at once, and then a byte now and then, each well within the time, until the client is gone."""

    def answer(connected: socket.socket) -> None:
        connected.recv(10_000)
        connected.sendall(first)
        connected.settimeout(0.05)
        ends_at = time.monotonic() + DRIPS_S
        while time.monotonic() < ends_at:
            connected.sendall(b"x")
            with suppress(TimeoutError):
                if not connected.recv(10_000):
                    return

    return answer


@pytest.mark.parametrize(
    ("first", "by_tls"),
    [
        (HEAD + b"content-length: 100000\r\n\r\n", False),
        (HEAD + b"connection: close\r\n\r\n", False),
        (HEAD + b"x-long: ", False),
        (b"HTTP/1.1 ", False),
        (TLS_RECORD, True),
    ],
    ids=["body", "body without a length", "header", "status line", "TLS hello"],
)
async def test_a_byte_now_and_then_does_not_hold_it(first: bytes, by_tls: bool) -> None:
    with served(dripping(first)) as address:
        began = time.monotonic()
        answer = await asked(address, by_tls=by_tls)
        took_s = time.monotonic() - began
    assert answer.problem == f"no answer within {WITHIN_S:g} s"
    assert WITHIN_S * 0.9 <= took_s < DRIPS_S / 2


async def test_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert (await asked(f"127.0.0.1:{port}")).problem == "Connection refused"
    assert (await asked(f"localhost:{port}")).problem == "Connection refused"


async def test_a_server_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert (await asked(address)).problem == f"no answer within {WITHIN_S:g} s"
        assert (await asked(address, by_tls=True)).problem == f"no answer within {WITHIN_S:g} s"


async def test_more_than_is_read_is_no_ingress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking_ingresses, "_MAX_BYTES", 1_000)

    def answer(connected: socket.socket) -> None:
        while connected.recv(10_000):
            connected.sendall(HEAD + b"content-length: 1001\r\n\r\n" + b"x" * 1001)

    with served(answer) as address:
        assert (await asked(address)).problem == "what answers there is no ingress"


@pytest.mark.parametrize("closes", [False, True])
async def test_an_ingress_that_keeps_its_connection_or_closes_it(closes: bool) -> None:
    pages = iter((b"ready\n", b'{"version": "1.2.3", "follows_controller": true}'))

    def answer(connected: socket.socket) -> None:
        while connected.recv(10_000):
            page = next(pages)
            how = b"connection: close\r\n" if closes else b""
            connected.sendall(HEAD + how + b"content-length: %d\r\n\r\n" % len(page) + page)
            if closes:
                return

    with served(answer) as address:
        found = await asked(address)
    assert (found.problem, found.info.version) == ("", "1.2.3")
    assert found.ingress is not None
    assert (found.ingress.tells_routes, found.ingress.follows_controller, found.ingress.not_ready) == (True, True, "")


@pytest.mark.parametrize("is_whole", [True, False])
async def test_pages_in_chunks(is_whole: bool) -> None:
    pages = iter((b"5\r\nready\r\n0\r\n\r\n", b'b;x=1\r\n{"version":\r\n8\r\n"1.2.3"}\r\n0\r\na: b\r\n\r\n'))

    def answer(connected: socket.socket) -> None:
        while connected.recv(10_000):
            page = next(pages)
            connected.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n" + (page if is_whole else page[:-7]))
            if not is_whole:
                return

    with served(answer) as address:
        found = await asked(address)
    expected = ("", "1.2.3") if is_whole else ("what answers there is no ingress", "")
    assert (found.problem, found.info.version) == expected


@pytest.mark.parametrize("host", ["a" * 70, "a..b", ".a"])
@pytest.mark.parametrize("by_tls", [False, True])
async def test_what_is_no_name_of_a_host(host: str, by_tls: bool) -> None:
    assert (await asked(f"{host}:80", by_tls=by_tls)).problem == "that is no name of a host"
