"""Values of handlers that yield: events, lines and WebSockets; and clients that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from slotmesh.spec.routes import Route
from tests.contract.ingress.handlers import Kinds
from tests.support.http_client import http_connection, request_bytes
from tests.support.ingresses import ServedMesh, served_mesh
from tests.support.wait import wait_until, within

EVENTS = {"accept": "text/event-stream"}
LINES = {"accept": "application/x-ndjson"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[ServedMesh]:
    routes = (Route(path="/add/{a}", endpoint="kinds", method="add", methods=("GET",)),)
    async with served_mesh({"kinds": Kinds}, *routes) as mesh:
        yield mesh


@pytest.fixture
def kinds(served: ServedMesh) -> Kinds:
    [handler] = served.mesh.instances("kinds")
    assert isinstance(handler, Kinds)
    handler.__init__()  # type: ignore[misc]  # as new for each test
    return handler


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("method", ["count", "count_in_threads"])
async def test_values_are_events_or_lines(served: ServedMesh, method: str) -> None:
    events = await served.ask("POST", f"/kinds/{method}", [3], EVENTS)
    assert events.headers["content-type"] == "text/event-stream"
    assert events.body == b"data: 0\n\ndata: 1\n\ndata: 2\n\nevent: end\ndata: \n\n"
    lines = await served.ask("POST", f"/kinds/{method}", [3], LINES)
    assert (lines.headers["content-type"], lines.body) == ("application/x-ndjson", b"0\n1\n2\n")
    none = await served.ask("POST", f"/kinds/{method}", [0], LINES)
    assert (none.status, none.body) == (200, b"")


async def test_a_method_that_returns_gives_one_value(served: ServedMesh) -> None:
    assert (await served.ask("POST", "/kinds/add", [1], LINES)).body == b"2\n"


async def test_a_failure_before_the_first_value_is_an_answer_like_others(served: ServedMesh) -> None:
    answer = await served.ask("POST", "/kinds/fail_at_once", b"", EVENTS)
    assert (answer.status, answer.json["executed"]) == (404, "yes")


async def test_a_failure_after_it_is_told_by_the_stream(served: ServedMesh, kinds: Kinds) -> None:
    kinds.gate.set()
    events = await served.ask("POST", "/kinds/drip", {"fails": True}, EVENTS)
    first, failure = events.body.removesuffix(b"\n\n").split(b"\n\n")
    assert (first, failure.split(b"\n")[0]) == (b'data: "first"', b"event: error")
    assert json.loads(failure.split(b"data: ")[1])["reason"] == "HANDLER_ERROR"
    lines = await served.ask("POST", "/kinds/drip", {"fails": True}, LINES)
    assert not lines.is_whole
    assert json.loads(lines.body.splitlines()[1])["slotmesh_problem"]["reason"] == "HANDLER_ERROR"


async def test_a_value_is_there_before_the_next_one(served: ServedMesh, kinds: Kinds) -> None:
    async with http_connection(served.address) as connection:
        await connection.send(request_bytes("POST", "/kinds/drip", b"", LINES))
        assert (await connection.head())[0] == 200
        chunks = connection.chunks()
        assert await anext(chunks) == b'"first"\n'
        kinds.gate.set()
        assert await anext(chunks) == b'"last"\n'


@pytest.mark.parametrize("accept", [EVENTS, LINES])
async def test_who_leaves_a_stream_closes_its_handler(served: ServedMesh, kinds: Kinds, accept: dict[str, str]) -> None:
    async with http_connection(served.address) as connection:
        await connection.send(request_bytes("POST", "/kinds/drip", b"", accept))
        await connection.head()
    async with asyncio.timeout(10):
        await kinds.closed.wait()
    await wait_until(lambda: served.ingress.counters.in_flight == 0, what="the end of the request")


async def test_who_leaves_cancels_the_call(served: ServedMesh, kinds: Kinds) -> None:
    before = served.ingress.counters.left["_default"]
    async with http_connection(served.address) as connection:
        await connection.send(request_bytes("POST", "/kinds/wait"))
        await within(kinds.started.wait(), "a call that has started")
    async with asyncio.timeout(10):
        await kinds.cancelled.wait()
    await wait_until(lambda: served.ingress.counters.left["_default"] == before + 1, what="the count")


async def test_a_slow_reader_holds_its_handler_back_and_nobody_else(served: ServedMesh, kinds: Kinds) -> None:
    async with http_connection(served.address) as connection:
        await connection.send(request_bytes("POST", "/kinds/flood", b"[100000]", LINES))
        await connection.head()
        seen = -1
        while kinds.calls != seen:  # until it makes no more
            seen = kinds.calls
            for _ in range(3):
                assert (await served.post("/kinds/slow_add", [1])).json == 2
        assert kinds.calls < 2_000
    async with asyncio.timeout(10):
        await kinds.closed.wait()


async def test_each_message_of_a_websocket_is_a_call(served: ServedMesh) -> None:
    async with connect(f"ws://{served.address}/kinds/count") as socket:
        await socket.send("[2]")
        assert [json.loads(await socket.recv()) for _ in range(3)] == [{"value": 0}, {"value": 1}, {"end": True}]
        await socket.send(msgspec.msgpack.encode({"to": 1}))
        told = [msgspec.msgpack.decode(await socket.recv(decode=False)) for _ in range(2)]
        assert told == [{"value": 0}, {"end": True}]
        await socket.send('["x"]')
        assert json.loads(await socket.recv())["problem"]["reason"] == "BAD_ARGUMENTS"
        for _ in range(20):  # ahead of the answers
            await socket.send("[0]")
        assert [json.loads(await socket.recv()) for _ in range(20)] == [{"end": True}] * 20
    async with connect(f"ws://{served.address}/add/3?b=4") as socket:
        await socket.send("")
        assert json.loads(await socket.recv()) == {"value": 7}


async def test_who_closes_a_websocket_takes_its_call_back(served: ServedMesh, kinds: Kinds) -> None:
    async with connect(f"ws://{served.address}/kinds/drip") as socket:
        await socket.send("[]")
        assert json.loads(await socket.recv()) == {"value": "first"}
    async with asyncio.timeout(10):
        await kinds.closed.wait()


async def test_websockets_of_nothing_and_of_other_pages_are_refused(served: ServedMesh) -> None:
    for path, origin in (("/-/healthz", None), ("/kinds/count", "https://evil.example")):
        with pytest.raises((InvalidStatus, ConnectionClosed)):
            async with connect(f"ws://{served.address}{path}", origin=origin) as socket:  # type: ignore[arg-type]
                await socket.recv()
