"""Requests that meet on one connection: upgrades, trailers, errors behind a running request, clients that leave."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from slotmesh.units import parse_host_port
from tests.contract.ingress.handlers import Kinds
from tests.support.http_client import http_connection, request_bytes
from tests.support.ingresses import ServedMesh, served_mesh
from tests.support.shell import program
from tests.support.wait import wait_until, within

LEFT_S = 10.0
"""Long after a client has left, for a call that should not begin: it is awaited by its absence only once."""
UPGRADE = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABkAAQAoAAAAAIAAAAA"}
SMUGGLED = request_bytes("POST", "/kinds/add", b"[41]")
WAIT = request_bytes("POST", "/kinds/wait")
ADD = request_bytes("POST", "/kinds/add", b"[1]")
HANDSHAKE = request_bytes(
    "GET",
    "/kinds/count",
    headers={
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        "sec-websocket-version": "13",
    },
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[ServedMesh]:
    async with served_mesh({"kinds": Kinds}, header_timeout="400ms", body_timeout="400ms", keep_alive="5s") as mesh:
        yield mesh


@pytest.fixture
def kinds(served: ServedMesh) -> Kinds:
    [handler] = served.mesh.instances("kinds")
    assert isinstance(handler, Kinds)
    handler.__init__()  # type: ignore[misc]  # as new for each test
    return handler


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("upgrade", ["h2c", "h2c, websocket", "TLS/1.0", "websocket"])
@pytest.mark.parametrize("parts", [1, 2], ids=["in one packet", "the body in its own"])
async def test_an_upgrade_that_there_is_not_is_ignored(
    served: ServedMesh, kinds: Kinds, upgrade: str, parts: int
) -> None:
    """The body is the body, and what looks like a request in it is not run."""
    headers = {**UPGRADE, "upgrade": upgrade, "content-type": "application/octet-stream"}
    data = request_bytes("POST", "/kinds/echo", SMUGGLED, headers)
    async with http_connection(served.address) as connection:
        await connection.send(data[: -len(SMUGGLED)] if parts == 2 else data)
        if parts == 2:
            await asyncio.sleep(0)
            assert (await served.post("/kinds/slow_add", [1])).json == 2, "the head has been read"
            await connection.send(SMUGGLED)
        assert (await connection.answer()).body == SMUGGLED
        await connection.send(ADD)
        assert (await connection.answer()).json == 2
    assert kinds.calls == 1


@pytest.mark.parametrize("size", [70_000, 120_000, 250_000])
@pytest.mark.parametrize("parts", [1, 2], ids=["in one packet", "the body in its own"])
async def test_a_body_that_nobody_reads_stops_no_request_behind_it(
    served: ServedMesh, kinds: Kinds, size: int, parts: int
) -> None:
    """A refusal may be written before its body is read: the connection is closed then, or goes on."""
    data = request_bytes("POST", "/no/such/path/at/all", b"x" * size)
    async with http_connection(served.address) as connection:
        for part in [data] if parts == 1 else [data[:-size], data[-size:]]:
            await connection.send(part)
        answer = await connection.answer()
        assert answer.status == 404
        if "connection" not in answer.headers:
            await connection.send(ADD)
            assert (await connection.answer()).json == 2


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
async def test_curl_that_asks_for_http2(served: ServedMesh, kinds: Kinds) -> None:
    curl = ("curl", "-sS", "--http2", "--max-time", "20", f"http://{served.address}/kinds/add", "--json", "[41]")
    answer = await program(*curl)
    assert (answer.out, kinds.calls) == ("42", 1)


@pytest.mark.parametrize(
    ("behind", "status"),
    [
        (b"\x00garbage\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: x\n\n", 400),
        (WAIT[:-2], 408),
        (ADD[:-1], 408),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", 400),
        (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n", 431),
    ],
    ids=["garbage", "LF", "half a head", "half a body", "two lengths", "a long head"],
)
async def test_what_is_wrong_behind_a_running_request_waits_for_its_answer(
    served: ServedMesh, kinds: Kinds, behind: bytes, status: int
) -> None:
    counted = served.ingress.counters.cuts.total()
    async with http_connection(served.address) as connection:
        await connection.send(WAIT + ADD + behind)
        await within(kinds.started.wait(), "a call that has started")
        await wait_until(lambda: served.ingress.counters.cuts.total() > counted, what="the error is seen")
        assert not kinds.cancelled.is_set()
        kinds.gate.set()
        assert [(await connection.answer()).json for _ in range(2)] == ["done", 2]
        error = await connection.answer()
        assert (error.status, error.headers["connection"], error.json["executed"]) == (status, "close", "no")
        assert await connection.ended()
    assert kinds.calls == 1


@pytest.mark.parametrize("how", ["closes", "resets"])
@pytest.mark.parametrize("behind", [1, 3, 60])
async def test_who_leaves_with_requests_in_a_row_takes_them_all_back(
    served: ServedMesh, kinds: Kinds, behind: int, how: str
) -> None:
    async with http_connection(served.address) as connection:
        await connection.send(WAIT + ADD * behind)
        await within(kinds.started.wait(), "a call that has started")
        if how == "resets":
            connection.writer.transport.abort()
    async with asyncio.timeout(LEFT_S):
        await kinds.cancelled.wait()
    await wait_until(lambda: served.ingress.counters.in_flight == 0, what="the end of the request")
    await wait_until(lambda: not served.ingress.server.connections, what="the end of the connection")
    assert (await served.post("/kinds/slow_add", [1])).json == 2
    assert kinds.calls == 0


@pytest.mark.parametrize("how", ["closes", "resets", "says goodbye"])
@pytest.mark.parametrize("behind", [1, 3, 400, 3_000])
async def test_who_leaves_a_websocket_with_messages_ahead_takes_them_all_back(
    served: ServedMesh, kinds: Kinds, behind: int, how: str
) -> None:
    if (behind, how) == (3_000, "says goodbye"):
        pytest.skip("more than the bound: the close frame is behind what is not read")
    async with connect(f"ws://{served.address}/kinds/drip", close_timeout=0.1, compression=None) as socket:
        await socket.send("[]")
        assert json.loads(await socket.recv()) == {"value": "first"}
        for _ in range(behind):
            await socket.send("[false]")
        if how != "says goodbye":
            socket.transport.abort() if how == "resets" else socket.transport.close()
    async with asyncio.timeout(LEFT_S):
        await kinds.closed.wait()
    kinds.started.clear()
    await wait_until(lambda: not served.ingress.server.connections, what="the end of the connection")
    await wait_until(lambda: served.ingress.counters.in_flight == 0, what="the end of the socket")
    assert (await served.post("/kinds/slow_add", [1])).json == 2
    assert not kinds.started.is_set(), "the next one never began"


async def test_messages_ahead_of_a_websocket_all_run(served: ServedMesh, kinds: Kinds) -> None:
    async with connect(f"ws://{served.address}/kinds/add") as socket:
        for number in range(2_000):
            await socket.send(f"[{number}]")
        seen = [json.loads(await socket.recv()) for _ in range(4_000)]
        assert [it["value"] for it in seen if "value" in it] == [*range(1, 2_001)]


async def test_trailers_are_no_headers(served: ServedMesh, kinds: Kinds) -> None:
    head = b"POST /kinds/context HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
    trailers = b"x-slotmesh-ordering-key: k\r\nx-slotmesh-meta-a: b\r\nauthorization: Basic eDp5\r\n\r\n"
    async with http_connection(served.address) as connection:
        await connection.send(head + b"\r\n2\r\n[]\r\n0\r\n" + trailers)
        assert (await connection.answer()).json == {"metadata": {}, "ordering_key": ""}
        await connection.send(head + b"x-slotmesh-ordering-key: h\r\n\r\n2\r\n[]\r\n0\r\n" + trailers)
        assert (await connection.answer()).json == {"metadata": {}, "ordering_key": "h"}


async def test_an_upgrade_behind_a_running_request_waits(served: ServedMesh, kinds: Kinds) -> None:
    async with http_connection(served.address) as connection:
        await connection.send(WAIT + HANDSHAKE)
        await within(kinds.started.wait(), "a call that has started")
        assert (await served.post("/kinds/slow_add", [1])).json == 2
        kinds.gate.set()
        assert (await connection.answer()).json == "done"
        assert (await connection.head())[0] == 101


async def test_a_websocket_that_is_refused_says_why(served: ServedMesh) -> None:
    for change, status in (
        ((b"/kinds/count", b"/-/nothing"), 404),
        ((b"host: test", b"host: test\r\norigin: https://evil.example"), 403),
        ((b"version: 13", b"version: 12"), 400),
        ((b"host: test", b"host: test\r\nx-slotmesh-nothing: a"), 400),
    ):
        async with http_connection(served.address) as connection:
            await connection.send(HANDSHAKE.replace(*change) + ADD)
            answer = await connection.answer()
            assert (answer.status, answer.json["executed"]) == (status, "no")
            assert await connection.ended()


async def test_a_websocket_and_a_stop() -> None:
    async with served_mesh({"kinds": Kinds}) as served, connect(f"ws://{served.address}/kinds/drip") as socket:
        await socket.send("[]")
        assert json.loads(await socket.recv()) == {"value": "first"}
        await served.ingress.server.stop(5)
        await socket.wait_closed()
        assert socket.close_code == 1012


async def test_bytes_of_a_handshake_that_come_early_are_messages(served: ServedMesh, kinds: Kinds) -> None:
    host, port = parse_host_port(served.address)
    reader, writer = await asyncio.open_connection(host, port)
    frame = b"\x81\x83\x00\x00\x00\x00[2]"
    writer.write(HANDSHAKE + frame)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 ")
    expected = b'{"value":0}{"value":1}{"end":true}'
    seen = b""
    async with asyncio.timeout(20):
        while seen != expected:
            _, size = await reader.readexactly(2)
            seen += await reader.readexactly(size)
    writer.close()
