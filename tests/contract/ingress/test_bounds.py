"""Clients that take too much, or are too slow: bounded, counted, and nobody else hears of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from ingress_service.core.counters import ConnectionCut
from slotmesh.units import parse_host_port
from tests.contract.ingress.handlers import Kinds
from tests.support.http_client import HttpConnection, http_connection, request_bytes
from tests.support.ingresses import ServedMesh, served_mesh
from tests.support.wait import wait_until, within

LINES = {"accept": "application/x-ndjson"}
SETTINGS: dict[str, Any] = {
    "max_header_size": "2KiB",
    "header_timeout": "400ms",
    "body_timeout": "400ms",
    "send_timeout": "500ms",
    "keep_alive": "500ms",
    "max_connections": 8,
    "max_body_size": "64MiB",
    "max_held_size": "1MiB",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[ServedMesh]:
    async with served_mesh({"kinds": Kinds}, **SETTINGS) as mesh:
        yield mesh


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def is_served(served: ServedMesh) -> None:
    """Others are answered."""
    assert (await served.post("/kinds/add", [1])).json == 2


async def send_for_ever(connection: HttpConnection) -> None:
    async with asyncio.timeout(20):
        while True:
            await connection.send(b"x" * 65_536)


async def cut(served: ServedMesh, connection: HttpConnection, why: ConnectionCut, status: int) -> None:
    """The connection gets an answer and ends, and is counted."""
    answer = await connection.answer()
    assert (answer.status, answer.headers["connection"], answer.json["executed"]) == (status, "close", "no")
    assert await connection.ended()
    assert served.ingress.counters.cuts[why] > 0
    await is_served(served)


async def test_headers_that_come_drop_by_drop(served: ServedMesh) -> None:
    async with http_connection(served.address) as connection:
        await connection.send(b"POST /kinds/add HTTP/1.1\r\nhost: x\r\nx-a: ")
        await cut(served, connection, ConnectionCut.HEADER_TIME, 408)


async def test_a_connection_that_says_nothing(served: ServedMesh) -> None:
    async with http_connection(served.address) as connection:
        await cut(served, connection, ConnectionCut.HEADER_TIME, 408)


@pytest.mark.parametrize("whole", [True, False])
async def test_a_bomb_of_headers(served: ServedMesh, whole: bool) -> None:
    bomb = b"GET / HTTP/1.1\r\n" + b"x-a: b\r\n" * 1_000 + (b"\r\n" if whole else b"")
    async with http_connection(served.address) as connection:
        await connection.send(bomb)
        await cut(served, connection, ConnectionCut.HEADERS, 431)


async def test_a_path_without_end(served: ServedMesh) -> None:
    async with http_connection(served.address) as connection:
        await connection.send(b"GET /" + b"a" * 100_000)
        await cut(served, connection, ConnectionCut.HEADERS, 431)


async def test_a_body_that_does_not_come(served: ServedMesh) -> None:
    async with http_connection(served.address) as connection:
        await connection.send(b"POST /kinds/add HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n[")
        await cut(served, connection, ConnectionCut.BODY_TIME, 408)
    await wait_until(lambda: served.ingress.bodies.held == 0, what="the body to be let go of")


async def test_what_is_no_http(served: ServedMesh) -> None:
    async with http_connection(served.address) as connection:
        await connection.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
        await cut(served, connection, ConnectionCut.NONSENSE, 400)


async def test_bodies_of_all_requests_are_bounded(served: ServedMesh) -> None:
    answer = await served.ask("POST", "/kinds/echo", b"x" * (2 * 2**20), {"content-type": "application/octet-stream"})
    assert (answer.status, answer.json["reason"], answer.headers["retry-after"]) == (503, "QUOTA_EXCEEDED", "1")
    await wait_until(lambda: served.ingress.bodies.held == 0, what="the body to be let go of")
    await is_served(served)


@pytest.mark.parametrize("says", [True, False], ids=["with its length", "in chunks"])
async def test_a_body_that_is_too_large_is_not_read(says: bool) -> None:
    part, most = b"x" * 1_024, 16 * 1_024
    async with served_mesh({"kinds": Kinds}, max_body_size=f"{most}B") as served:
        async with http_connection(served.address) as connection:
            length = f"content-length: {most + 1}" if says else "transfer-encoding: chunked"
            kind = "content-type: application/octet-stream"
            await connection.send(f"POST /kinds/echo HTTP/1.1\r\nhost: x\r\n{kind}\r\n{length}\r\n\r\n".encode())
            if not says:
                for _ in range(most // len(part) + 1):
                    await connection.send(b"%x\r\n%b\r\n" % (len(part), part))
            answer = await connection.answer()
            assert (answer.status, answer.json["reason"]) == (413, "PAYLOAD_TOO_LARGE")
            assert await connection.ended()
        await is_served(served)
        assert served.ingress.bodies.held == 0


async def test_who_sends_on_gets_the_answer_and_an_end(served: ServedMesh) -> None:
    """The kernel would reset a connection that is closed before all that came was read."""
    async with http_connection(served.address) as connection:
        size = 65 * 2**20
        head = f"POST /kinds/echo HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n".encode()
        await connection.send(head + b"x" * (4 * 2**20))
        await asyncio.sleep(0)
        await connection.send(b"x" * (4 * 2**20))
        answer = await connection.answer()
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert await connection.ended()
        await is_served(served)
    await wait_until(lambda: not served.ingress.server.connections, what="connections to end")


@pytest.mark.parametrize("rest", [b"cde", b""], ids=["comes later", "never comes"])
@pytest.mark.parametrize("path", ["/nothing/at/all", "/v2", "/-/nothing"])
async def test_an_answer_before_all_of_the_request_has_come_ends_the_connection(
    served: ServedMesh, path: str, rest: bytes
) -> None:
    """Once, and soon: the client takes the next answer for that of its next request."""
    async with http_connection(served.address) as connection:
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\nab"
        await connection.send(head.encode())
        assert (await connection.answer()).status in {404, 405, 415}
        await connection.send(rest)
        assert await connection.ended()
    await wait_until(lambda: not served.ingress.server.connections, what="connections to end")


async def test_who_sends_on_for_ever_is_not_waited_for(served: ServedMesh) -> None:
    async with http_connection(served.address) as connection:
        await connection.send(b"\x16\x03\x01 is no HTTP\r\n\r\n")
        assert (await connection.answer()).status == 400
        with pytest.raises(ConnectionError):
            await send_for_ever(connection)
    await is_served(served)


async def test_a_client_that_reads_nothing_is_cut(served: ServedMesh) -> None:
    before = served.ingress.counters.cuts[ConnectionCut.READ_TIME]
    [kinds] = served.mesh.instances("kinds")
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(raw, parse_host_port(served.address))
        await loop.sock_sendall(raw, request_bytes("POST", "/kinds/flood", b"[100000]", LINES))
        await wait_until(
            lambda: served.ingress.counters.cuts[ConnectionCut.READ_TIME] > before, timeout=20, what="the cut"
        )
        await is_served(served)
    async with asyncio.timeout(10):
        await kinds.closed.wait()


async def test_more_connections_than_there_may_be(served: ServedMesh) -> None:
    await wait_until(lambda: not served.ingress.server.connections, what="connections of before to end")
    held = [http_connection(served.address) for _ in range(6)]  # the share of one address
    opened = [await it.__aenter__() for it in held]
    for connection in opened:
        assert (await connection.request("POST", "/kinds/add", b"[1]")).status == 200
    async with http_connection(served.address) as connection:
        answer = await connection.answer()
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert await connection.ended()
    assert (await opened[0].request("POST", "/kinds/add", b"[1]")).json == 2
    for each in held:
        await each.__aexit__(None, None, None)
    await wait_until(lambda: not served.ingress.server.connections, what="connections to end")
    await is_served(served)


async def test_requests_in_a_row_are_answered_in_order(served: ServedMesh) -> None:
    async with http_connection(served.address) as connection:
        await connection.send(b"".join(request_bytes("POST", "/kinds/add", b"[%d]" % n) for n in range(20)))
        assert [(await connection.answer()).json for _ in range(20)] == list(range(1, 21))
        assert (await connection.request("POST", "/kinds/add", b"[1]")).json == 2


async def test_more_requests_in_a_row_than_may_wait_end_the_connection(served: ServedMesh) -> None:
    [kinds] = served.mesh.instances("kinds")
    kinds.gate.clear()
    kinds.started.clear()
    async with http_connection(served.address) as connection:
        await connection.send(request_bytes("POST", "/kinds/wait") * 200)
        await within(kinds.started.wait(), "a call that has started")
        kinds.gate.set()
        assert [(await connection.answer()).json for _ in range(65)] == ["done"] * 65
        answer = await connection.answer()
        assert (answer.status, answer.json["executed"], await connection.ended()) == (400, "no", True)
    await is_served(served)


async def test_who_closes_its_half_has_left(served: ServedMesh) -> None:
    [kinds] = served.mesh.instances("kinds")
    kinds.gate.clear()
    kinds.started.clear()
    kinds.cancelled.clear()
    async with http_connection(served.address) as connection:
        await connection.send(request_bytes("POST", "/kinds/wait"))
        await within(kinds.started.wait(), "a call that has started")
        connection.writer.write_eof()
        assert await connection.ended()
    await wait_until(kinds.cancelled.is_set, what="the call to be taken back")
    await is_served(served)


async def test_an_idle_connection_ends_after_a_while(served: ServedMesh) -> None:
    async with http_connection(served.address) as connection:
        assert (await connection.request("POST", "/kinds/add", b"[1]")).status == 200
        assert await connection.ended()
