"""Floods by one address or caller: everybody else is answered, all the while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError

import slotmesh
from slotmesh.calls.fair_shares import FairBound
from tests.contract.ingress.test_security import bearer, echoed, secured
from tests.support.controllers import eventually
from tests.support.http_client import HttpAnswer, HttpConnection, http_connection, request_bytes
from tests.support.ingresses import ServedMesh, served_mesh
from tests.support.token_files import created
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

FLOODER, SECOND, BYSTANDER = "127.0.0.1", "127.0.0.2", "127.0.0.3"
MIB = 1024 * 1024
CALLS = 20
OCTETS = {"content-type": "application/octet-stream"}


@slotmesh.deployment(max_ongoing=4_000)
class Held:
    """Calls that do not end before the gate is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.running = 0

    async def hold(self, value: bytes = b"") -> bytes:
        self.running += 1
        await self.gate.wait()
        return value[:1]

    async def size(self, value: bytes, half: bool = False) -> int:
        await self.hold()
        return len(value) // (1 + half)

    async def echo(self, value: bytes) -> bytes:
        return value


@asynccontextmanager
async def held_mesh(**settings: Any) -> AsyncIterator[tuple[ServedMesh, Held]]:
    async with served_mesh({"held": Held}, **settings) as served:
        [held] = served.mesh.instances("held")
        assert isinstance(held, Held)
        try:
            yield served, held
        finally:
            held.gate.set()


def frame_head(size: int) -> bytes:
    """Of a binary message of a client with `size` bytes, masked with zeros."""
    return b"\x82\xff" + size.to_bytes(8, "big") + bytes(4)


async def asked(served: ServedMesh, host: str, **headers: str) -> HttpAnswer:
    """One small call from this address, on a connection of its own."""
    async with http_connection(served.address, local_addr=(host, 0)) as connection:
        return await connection.request("POST", "/held/echo", b"x", headers={**OCTETS, **headers})


async def all_are_answered(served: ServedMesh, host: str = BYSTANDER, **headers: str) -> None:
    """Calls of a bystander, one after another and together."""
    answers = [await asked(served, host, **headers) for _ in range(CALLS)]
    answers += await asyncio.gather(*(asked(served, host, **headers) for _ in range(CALLS)))
    assert {(it.status, it.body) for it in answers} == {(200, b"x")}


class Flood(AsyncExitStack):
    """Connections that stay open."""

    async def connection(self, served: ServedMesh, host: str) -> HttpConnection:
        return await self.enter_async_context(http_connection(served.address, local_addr=(host, 0)))

    async def unfinished(self, served: ServedMesh, host: str, size: int, **headers: str) -> HttpConnection:
        """A body that wants its last byte."""
        connection = await self.connection(served, host)
        head = request_bytes("POST", "/held/echo", headers={**OCTETS, **headers, "content-length": str(size)})
        await connection.send(head + b"x" * (size - 1))
        return connection

    async def calls(self, served: ServedMesh, host: str, count: int, body: bytes = b"") -> None:
        """Calls that are held."""
        for _ in range(count):
            await (await self.connection(served, host)).send(request_bytes("POST", "/held/hold", body, OCTETS))


# -- bodies ------------------------------------------------------------------------------------------------------------


async def test_unfinished_bodies_of_some_leave_room_for_small_ones_of_others() -> None:
    async with held_mesh(max_held_size="16MiB", max_body_size="4MiB") as (served, _), Flood() as flood:
        for host in (FLOODER, SECOND):
            for _ in range(8):
                await flood.unfinished(served, host, 3 * MIB)
        bound = served.ingress.bodies.bound
        await wait_until(lambda: bound.total > bound.most - 3 * MIB, what="the bodies fill what there is")
        await all_are_answered(served)
        assert bound.held.get(FLOODER, 0) <= bound.share
    await wait_until(lambda: bound.total == 0 and not bound.held, what="all bodies to be let go of")


async def test_one_body_may_be_larger_than_a_share_where_there_is_room() -> None:
    async with held_mesh(max_held_size="4MiB", max_body_size="4MiB") as (served, _):
        size = 13 * MIB // 4
        async with http_connection(served.address) as connection:
            answer = await connection.request("POST", "/held/echo", b"x" * size, headers=OCTETS)
            assert (answer.status, len(answer.body)) == (200, size)


@pytest.mark.parametrize(
    ("path", "content_type", "body", "payload"),
    [
        ("size", "application/octet-stream", b"x" * 30_000, 40_012),
        ("size?half=true", "application/octet-stream", b"x" * 30_000, 40_024),
        ("hold", "application/octet-stream", b"x" * 30_000, 30_000),
        ("hold", "application/json", b'["%b"]' % (b"eHh4" * 1_000), 4_004),
        ("size?half=true", "application/json", b'{"value":"%b"}' % (b"eHh4" * 1_000), 4_024),
    ],
)
async def test_what_is_made_of_a_body_is_held_in_place_of_it(
    path: str, content_type: str, body: bytes, payload: int
) -> None:
    async with held_mesh(max_held_size="1MiB") as (served, held), Flood() as flood:
        bodies = served.ingress.bodies
        request = request_bytes("POST", f"/held/{path}", body, {"content-type": content_type})
        await (await flood.connection(served, FLOODER)).send(request)
        await wait_until(lambda: held.running == 1, what="the call runs")
        assert bodies.held == payload
        held.gate.set()
        await wait_until(lambda: not bodies.held, what="the payload to be let go of")


async def test_a_body_is_refused_where_there_is_no_room_for_what_it_becomes() -> None:
    async with held_mesh(max_held_size="2MiB") as (served, held):
        held.gate.set()
        for path, size, status in (("size", MIB, 503), ("hold", MIB, 200), ("size", MIB // 2, 200)):
            answer = await served.ask("POST", f"/held/{path}", b"x" * size, OCTETS)
            assert answer.status == status, path
        assert held.running == 2
        assert not served.ingress.bodies.held


async def test_a_body_whose_payload_would_be_too_large_is_refused_before_that_is_made() -> None:
    async with held_mesh(max_held_size="9MiB") as (served, held):
        headers = {**OCTETS, "idempotency-key": "k"}
        async with http_connection(served.address) as connection:
            answer = await connection.request("POST", "/held/size", b"x" * (4 * MIB), headers=headers)
        assert (answer.status, answer.json["reason"]) == (413, "PAYLOAD_TOO_LARGE")
        assert not held.running


async def test_messages_of_sockets_count_as_bodies() -> None:
    async with held_mesh(max_held_size="1MiB") as (served, _):
        async with connect(f"ws://{served.address}/held/echo") as socket:
            await socket.send('["' + "x" * MIB + '"]')
            with pytest.raises(ConnectionClosedError, match=r"1013.*--max-held-size"):
                await socket.recv()
        bound = served.ingress.bodies.bound
        await wait_until(lambda: not bound.held, what="the message to be let go of")


async def is_refused(socket: ClientConnection, bound: FairBound[Any]) -> bool:
    """Whether the socket is closed, with 3 MiB of a message; or else these are counted."""
    counted = bound.total + 3 * MIB
    socket.transport.write(frame_head(4 * MIB - 1) + bytes(3 * MIB))
    await wait_until(lambda: bound.total >= counted or socket.close_code is not None, what="it is counted, or closed")
    return socket.close_code == 1013


async def test_unfinished_messages_of_sockets_count_and_leave_room_for_others() -> None:
    async with held_mesh(max_held_size="16MiB", max_body_size="4MiB") as (served, _), AsyncExitStack() as stack:
        bound = served.ingress.bodies.bound
        refused = 0
        for _ in range(8):
            socket = await stack.enter_async_context(
                connect(f"ws://{served.address}/held/echo", compression=None, local_addr=(FLOODER, 0))
            )
            stack.callback(socket.transport.abort)
            refused += await is_refused(socket, bound)
        assert refused
        assert bound.held[FLOODER] <= bound.share
        await all_are_answered(served)
    await wait_until(lambda: bound.total == 0 and not bound.held, what="all messages to be let go of")


async def test_messages_that_wait_behind_a_call_count() -> None:
    async with held_mesh(max_held_size="1MiB") as (served, held):
        async with connect(f"ws://{served.address}/held/hold") as socket:
            await socket.send("[]")
            await wait_until(lambda: held.running == 1, what="the call runs")
            await socket.send('["' + "€" * 1_000 + '"]')
            await wait_until(lambda: served.ingress.bodies.held >= 3_000, what="the message is counted")
            held.gate.set()
        await wait_until(lambda: not served.ingress.bodies.held, what="all messages to be let go of")


# -- streams -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [FLOODER, BYSTANDER], ids=["of the same address", "of another address"])
async def test_large_calls_that_run_long_delay_no_small_ones(host: str) -> None:
    async with held_mesh() as (served, held), Flood() as flood:
        await flood.calls(served, FLOODER, 4, b"x" * (5 * MIB))
        await wait_until(lambda: held.running >= 1, what="a large call runs")
        await all_are_answered(served, host)
        assert not held.gate.is_set()


async def test_a_window_full_of_calls_of_one_address_delays_none_of_another() -> None:
    async with held_mesh() as (served, held), Flood() as flood:
        await flood.calls(served, FLOODER, 80, b"x" * 250_000)
        await wait_until(lambda: held.running >= 60, what="the flood runs")
        await all_are_answered(served)
        assert not held.gate.is_set()


# -- connections and requests ------------------------------------------------------------------------------------------


async def test_connections_of_one_address_leave_some_for_others() -> None:
    async with held_mesh(max_connections=200) as (served, _), Flood() as flood:
        for _ in range(200):
            await flood.connection(served, FLOODER)
        await wait_until(lambda: len(served.ingress.server.connections) == 150, what="its share is taken")
        await all_are_answered(served)


async def test_connections_that_became_websockets_are_given_back() -> None:
    async with held_mesh(max_connections=8) as (served, _):
        for _ in range(3):
            async with AsyncExitStack() as stack:
                for _ in range(6):
                    await stack.enter_async_context(connect(f"ws://{served.address}/held/echo"))
                assert len(served.ingress.server.connections) == 6
            await wait_until(lambda: not served.ingress.server.connections, what="the sockets have ended")


async def test_requests_of_one_address_leave_some_for_others() -> None:
    async with held_mesh(max_requests=200) as (served, held), Flood() as flood:
        await flood.calls(served, FLOODER, 200)
        await wait_until(lambda: held.running == 150, what="its share is taken")
        await all_are_answered(served)
        assert (await asked(served, FLOODER)).json["reason"] == "QUOTA_EXCEEDED"


@pytest.mark.parametrize(
    ("header", "form"),
    [("x-forwarded-for", "{}"), ("x-forwarded-for", "192.0.2.9, {}, 127.0.0.1:99"), ("forwarded", 'for="{}";proto=x')],
)
async def test_behind_a_trusted_proxy_addresses_are_those_of_its_clients(header: str, form: str) -> None:
    settings = {"http_trusted_proxies": "127.0.0.0/8, ::1", "http_forwarded_header": header}
    async with held_mesh(max_requests=200, **settings) as (served, held), Flood() as flood:
        for _ in range(200):
            connection = await flood.connection(served, FLOODER)
            said = {**OCTETS, header: form.format("10.0.0.1")}
            await connection.send(request_bytes("POST", "/held/hold", b"", said))
        await wait_until(lambda: held.running == 150, what="its share is taken")
        await all_are_answered(served, FLOODER, **{header: form.format("10.0.0.2")})
        refused = await asked(served, FLOODER, **{header: form.format("10.0.0.1")})
        assert refused.json["reason"] == "QUOTA_EXCEEDED"


async def test_what_a_client_says_of_itself_gives_it_no_share_of_another() -> None:
    async with held_mesh(max_requests=200) as (served, held), Flood() as flood:
        await flood.calls(served, FLOODER, 200)
        await wait_until(lambda: held.running == 150, what="its share is taken")
        said = {"x-forwarded-for": "10.0.0.2"}
        assert (await asked(served, FLOODER, **said)).json["reason"] == "QUOTA_EXCEEDED"


# -- tokens ------------------------------------------------------------------------------------------------------------


async def test_made_up_tokens_take_no_place_of_a_good_one(tmp_path: Path) -> None:
    """All of one address, and with bodies that never come."""
    tokens = tmp_path / "tokens.json"
    async with secured(tmp_path, max_callers=2) as (_, ingress), Flood() as flood:
        good = created(tokens, "client/alice", endpoints={"words"})

        async def known() -> bool:
            return (await echoed(ingress, bearer(good))).status == 200

        await eventually(known, what="the routers know the token")
        other = created(tokens, "client/bob", endpoints={"words"})

        async def made_up(number: int) -> HttpConnection:
            connection = await flood.enter_async_context(http_connection(ingress.address))
            headers = {**bearer(f"smt_made_up_{number}"), "content-length": "9"}
            await connection.send(request_bytes("POST", "/words/echo", headers=headers))
            return connection

        connections = [await made_up(number) for number in range(64)]
        for _ in range(CALLS):
            assert (await echoed(ingress, bearer(good))).body == b"x"
        for connection in connections:
            answer = await connection.answer()
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert len(ingress.callers) == 1

        async def other_is_known() -> bool:
            return (await echoed(ingress, bearer(other))).status == 200

        await eventually(other_is_known, what="a token that is new finds a place")
        assert len(ingress.callers) == 2
