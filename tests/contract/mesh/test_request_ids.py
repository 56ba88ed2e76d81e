"""Calls of the Python clients with a request id: repeated over another router, executed once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import pytest
import pytest_asyncio

import slotmesh
import slotmesh.testing
from slotmesh.client.endpoint import Endpoint
from slotmesh.errors import Executed
from slotmesh.testing import RunningMesh
from tests.support.shell import slotmesh as slotmesh_command
from tests.support.wait import wait_until, within

pytestmark = pytest.mark.asyncio


class Orders:
    """Records each execution, in all replicas."""

    placed: list[str]
    gate: asyncio.Event

    async def place(self, item: str) -> str:
        self.placed.append(item)
        await self.gate.wait()
        return f"{item} {len(self.placed)}"

    async def ids(self) -> list[str]:
        call = slotmesh.context()
        return [call.own_request_id, call.request_id]

    async def each(self, item: str) -> AsyncIterator[str]:
        self.placed.append(item)
        for number in range(3):
            yield f"{item} {number}"


@pytest.fixture(autouse=True)
def placed() -> list[str]:
    """What was executed, in order."""
    Orders.placed, Orders.gate = [], asyncio.Event()
    return Orders.placed


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RunningMesh]:
    orders = slotmesh.testing.Backend(Orders, num_replicas=2)
    async with slotmesh.testing.mesh({"orders": orders}, routers=2) as mesh:
        yield mesh


def _has(placed: list[str], count: int) -> bool:
    return len(placed) == count


async def test_a_call_whose_router_dies_is_repeated_and_executed_once(mesh: RunningMesh, placed: list[str]) -> None:
    first, _ = mesh.router_addresses
    async with slotmesh.connect(mesh.router_addresses) as client:
        place = client.endpoint("orders").place
        for number, timeout in enumerate((None, 30.0)):
            call = asyncio.ensure_future(place.options(request_id=f"id-{number}", timeout=timeout).unary("tea"))
            await wait_until(partial(_has, placed, number + 1))
            if not number:
                await mesh.kill_router(first)
            Orders.gate.set()
            assert await within(call, "the outcome") == f"tea {number + 1}"
    assert placed == ["tea", "tea"]


@asynccontextmanager
async def stopping_router() -> AsyncIterator[str]:
    """Ends each call as gRPC does what arrives in the moment in which a server stops."""

    async def cancelled(_request: bytes, context: Any) -> None:
        await context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")

    methods: dict[str, Any] = {"Call": grpc.unary_unary_rpc_method_handler(cancelled)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("slotmesh.v1.RouterService", methods)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def test_a_call_that_a_stopping_router_cancels_is_repeated(mesh: RunningMesh, placed: list[str]) -> None:
    Orders.gate.set()
    async with stopping_router() as stopping, slotmesh.connect([stopping, *mesh.router_addresses]) as client:
        orders = client.endpoint("orders")
        with pytest.raises(slotmesh.RouterLost, match=r"UNAVAILABLE.*the router ended the rpc") as raised:
            await orders.place.unary("milk")
        assert raised.value.executed is Executed.UNKNOWN
        assert await orders.options(request_id="1").place.unary("tea") == "tea 1"
    assert placed == ["tea"]


async def test_a_thread_repeats_its_call_too(mesh: RunningMesh, placed: list[str]) -> None:
    def order() -> Any:
        with slotmesh.connect_sync(mesh.router_addresses) as client:
            return client.endpoint("orders").options(request_id="1").place.unary("tea")

    call = asyncio.ensure_future(asyncio.to_thread(order))
    await wait_until(lambda: placed)
    await mesh.kill_router(mesh.router_addresses[0])
    Orders.gate.set()
    assert await within(call, "the outcome") == "tea 1"


async def test_a_call_without_an_id_is_sent_once(mesh: RunningMesh, placed: list[str]) -> None:
    async with slotmesh.connect(mesh.router_addresses) as client:
        call = asyncio.ensure_future(client.endpoint("orders").place.unary("tea"))
        await wait_until(lambda: placed)
        await mesh.kill_router(mesh.router_addresses[0])
        with pytest.raises(slotmesh.RouterLost) as raised:
            await within(call, "the failure")
    assert raised.value.executed is Executed.UNKNOWN
    Orders.gate.set()
    assert placed == ["tea"]


@pytest.mark.parametrize(("timeout", "connect_timeout"), [(None, 0.2), (1.0, 60.0)], ids=["no router", "no time"])
async def test_that_no_router_answers_the_repetition_is_no_proof(
    mesh: RunningMesh, placed: list[str], timeout: float | None, connect_timeout: float
) -> None:
    first, second = mesh.router_addresses
    async with slotmesh.connect([first], connect_timeout=connect_timeout) as client:
        call = asyncio.ensure_future(
            client.endpoint("orders").place.options(request_id="1", timeout=timeout).unary("a")
        )
        await wait_until(lambda: placed)
        await mesh.kill_router(second)
        await mesh.kill_router(first)
        with pytest.raises(slotmesh.RouterLost) as raised:
            await within(call, "the failure")
    assert raised.value.executed is Executed.UNKNOWN
    Orders.gate.set()


async def test_another_client_gets_the_outcome_and_another_call_does_not(mesh: RunningMesh, placed: list[str]) -> None:
    Orders.gate.set()
    for number, address in enumerate(mesh.router_addresses):
        async with slotmesh.connect(address) as client:
            orders = client.endpoint("orders").options(request_id="1")
            assert await orders.place.unary("tea") == "tea 1"
            with pytest.raises(slotmesh.BadRequest, match="id of another call") as raised:
                await orders.place.unary("milk")
            assert raised.value.metadata["field"] == "request_id"
            values = client.endpoint("orders").options(request_id="2").each.unary_stream("cup")
            assert [value async for value in values] == ["cup 0", "cup 1", "cup 2"], number
    assert placed == ["tea", "cup"]


MAKERS: list[Callable[[Endpoint], Awaitable[Any] | AsyncIterator[Any]]] = [
    lambda orders: orders.place("tea"),
    lambda orders: orders.place.send("tea"),
    lambda orders: orders.place.map(["tea"]),
    lambda orders: orders.each.stream("tea"),
    lambda orders: orders.broadcast.place("tea"),
]


@pytest.mark.parametrize("make", MAKERS, ids=["call", "send", "map", "stream", "broadcast"])
async def test_calls_by_a_stream_have_no_request_id(
    mesh: RunningMesh, placed: list[str], make: Callable[[Endpoint], Any]
) -> None:
    async with slotmesh.connect(mesh.router_addresses[0]) as client:
        with pytest.raises(slotmesh.BadRequest, match=r"METHOD\.unary"):
            await make(client.endpoint("orders").options(request_id="1"))
    assert not placed


async def test_the_command_line_states_an_id(mesh: RunningMesh, placed: list[str]) -> None:
    Orders.gate.set()
    for flags, results in (((), '"tea 1"\n'), (("--stream",), '"tea 0"\n"tea 1"\n"tea 2"\n')):
        for address in mesh.router_addresses:
            method = "each" if flags else "place"
            said = await slotmesh_command(
                "call", "orders", method, '["tea"]', "--request-id", f"id-{method}", "--address", address, *flags
            )
            assert (said.status, said.out) == (0, results), said.err
    assert placed == ["tea", "tea"]


async def test_a_handler_gets_the_id_of_its_call_and_of_the_request() -> None:
    orders = slotmesh.testing.Backend(Orders)
    async with slotmesh.testing.mesh({"orders": orders}) as mesh:
        endpoint = mesh.endpoint("orders")
        traced = endpoint.options(metadata={"x-request-id": "log-1"})
        assert await endpoint.ids.unary() == ["", ""]
        assert await traced.ids.unary() == ["", "log-1"]
        assert await traced.options(request_id="7").ids.unary() == ["7", "7"]
        assert await endpoint.options(request_id="8").ordered("ada").ids.unary() == ["8", "8"]
        lane = endpoint.ordered("ada").options(request_id="9")
        assert (await lane.ids.unary(), "'ada'" in repr(lane)) == (["9", "9"], True)
        assert await endpoint.options(request_id=None).ids.unary() == ["", ""]


async def test_slots_have_a_call_of_their_own(mesh: RunningMesh, placed: list[str]) -> None:
    Orders.gate.set()
    async with slotmesh.connect(mesh.router_addresses[0]) as client:
        for _ in range(2):
            async with client.endpoint("orders").options(request_id="1").reserve() as slot:
                await slot.place("tea")
    assert placed == ["tea", "tea"]
