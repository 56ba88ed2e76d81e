"""Calls that are repeated with their request id, over two routers and two replicas: one effect, equal answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import struct_pb2

import slotmesh
import slotmesh.testing
from slotmesh.codec import JSON
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.runtime.channels import open_channel
from slotmesh.status import from_rpc_error
from slotmesh.testing import RunningMesh
from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc, slot_service_pb2, slot_service_pb2_grpc
from tests.support.wait import wait_until, within

pytestmark = pytest.mark.asyncio


class Orders:
    """Records each execution, in all replicas."""

    placed: list[str]
    gate: asyncio.Event

    async def place(self, item: str) -> str:
        self.placed.append(item)
        return f"{item} {len(self.placed)}"

    async def place_slowly(self, item: str) -> str:
        self.placed.append(item)
        await self.gate.wait()
        return f"{item} {len(self.placed)}"

    async def reject(self, item: str) -> None:
        self.placed.append(item)
        raise ValueError(f"no {item}, {len(self.placed)}")

    async def each(self, item: str) -> AsyncIterator[str]:
        self.placed.append(item)
        for number in range(3):
            yield f"{item} {number} {len(self.placed)}"

    async def facts(self) -> list[Any]:
        call = slotmesh.context()
        return [call.ordering_key, call.partition, call.idempotency_key]


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


class Router:
    """The rpcs of one router, or the slots of one replica."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._calls: Any = router_service_pb2_grpc.RouterServiceStub(channel)
        self._slots: Any = slot_service_pb2_grpc.SlotServiceStub(channel)

    def call(
        self, method: str, arguments: str, request_id: str = "1", **options: Any
    ) -> grpc.aio.UnaryUnaryCall[Any, Any]:
        request = router_service_pb2.CallRequest(endpoint="orders", request_id=request_id, payload=arguments.encode())
        request.options.MergeFrom(call_pb2.CallOptions(method=method, content_type=JSON, **options))
        return self._calls.Call(request)  # type: ignore[no-any-return]  # of a stub

    async def values(self, method: str, arguments: str, request_id: str = "1") -> list[Any]:
        request = router_service_pb2.CallStreamingRequest(
            endpoint="orders",
            request_id=request_id,
            options=call_pb2.CallOptions(method=method, content_type=JSON),
            payload=arguments.encode(),
        )
        return [value async for value in self._calls.CallStreaming(request)]

    async def reserve(self, replica_id: str = "") -> slot_service_pb2.Slot:
        request = slot_service_pb2.ReserveSlotRequest(endpoint="orders", replica_id=replica_id)
        return (await self._slots.ReserveSlot(request)).slot  # type: ignore[no-any-return]  # of a stub

    async def dispatch(self, token: str, arguments: str = '["tea"]', **fields: Any) -> Any:
        request = slot_service_pb2.DispatchRequest(token=token, payload=arguments.encode(), **fields)
        request.options.MergeFrom(call_pb2.CallOptions(method="place", content_type=JSON))
        return await self._slots.Dispatch(request)

    async def dispatched_values(self, token: str) -> list[Any]:
        request = slot_service_pb2.DispatchStreamingRequest(token=token, payload=b'["tea"]', request_id="1")
        request.options.MergeFrom(call_pb2.CallOptions(method="each", content_type=JSON))
        return [value async for value in self._slots.DispatchStreaming(request)]


@pytest_asyncio.fixture
async def routers(mesh: RunningMesh) -> AsyncIterator[list[Router]]:
    async with open_channel(mesh.router_addresses[0]) as one, open_channel(mesh.router_addresses[1]) as other:
        yield [Router(one), Router(other)]


async def failure_of(call: Any) -> Failure:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return from_rpc_error(raised.value)


async def test_a_repetition_at_another_router_gets_the_first_answer(routers: list[Router], placed: list[str]) -> None:
    for request_id in map(str, range(8)):
        first, second = [await router.call("place", f'["{request_id}"]', request_id) for router in routers]
        assert first == second
    assert placed == [str(number) for number in range(8)]
    await routers[0].call("place", '["0"]', "")
    await routers[0].call("place", '["0"]', "")
    assert len(placed) == 10, "calls without an id are independent"


async def test_a_repetition_waits_for_the_call_that_runs(routers: list[Router], placed: list[str]) -> None:
    calls = [router.call("place_slowly", '["tea"]') for router in (*routers, *routers)]
    await wait_until(lambda: placed)
    Orders.gate.set()
    answers = [await within(call, "the outcome") for call in calls]
    assert answers == [answers[0]] * 4
    assert placed == ["tea"]


async def test_a_partition_that_moves_takes_no_outcome_with_it(placed: list[str]) -> None:
    async with (
        slotmesh.testing.mesh({"orders": Orders}, routers=2) as mesh,
        open_channel(mesh.router_addresses[0]) as one,
        open_channel(mesh.router_addresses[1]) as other,
    ):
        ids = [str(number) for number in range(16)]
        first = [await Router(one).call("place", f'["{each}"]', each) for each in ids]
        await mesh.apply({"orders": slotmesh.testing.Backend(Orders, num_replicas=2)})
        executed = len(placed)
        async with asyncio.timeout(20):
            for number in count(100):
                answer = await Router(one).call("facts", "[]", str(number))
                if answer.replica_id != first[0].replica_id:
                    break
        for router in (Router(other), Router(one)):
            assert [await router.call("place", f'["{each}"]', each) for each in ids] == first
        assert len(placed) == executed
        await Router(other).call("place", '["new"]', "new")
        assert placed[-1] == "new", "a call that no earlier owner remembers is executed"


async def test_a_router_that_ends_takes_no_outcome_with_it(
    mesh: RunningMesh, routers: list[Router], placed: list[str]
) -> None:
    lost = routers[0].call("place_slowly", '["tea"]')
    await wait_until(lambda: placed)
    await mesh.kill_router(mesh.router_addresses[0])
    await failure_of(lost)
    again = routers[1].call("place_slowly", '["tea"]')
    Orders.gate.set()
    assert (await within(again, "the outcome")).payload == b'"tea 1"'
    assert placed == ["tea"]


async def test_a_caller_that_leaves_ends_no_call_that_has_started(routers: list[Router], placed: list[str]) -> None:
    left = routers[0].call("place_slowly", '["tea"]')
    await wait_until(lambda: placed)
    left.cancel()
    again = routers[0].call("place_slowly", '["tea"]')
    Orders.gate.set()
    assert (await within(again, "the outcome")).payload == b'"tea 1"'
    assert placed == ["tea"]


async def test_a_failure_is_repeated(routers: list[Router], placed: list[str]) -> None:
    first, second = [await failure_of(router.call("reject", '["tea"]')) for router in routers]
    assert first == second
    assert first.executed is Executed.YES
    assert placed == ["tea"]


@pytest.mark.parametrize(
    ("method", "arguments", "options"),
    [
        ("place", '["milk"]', {}),
        ("place_slowly", '["tea"]', {}),
        ("place", '["tea"]', {"content_type": "application/msgpack"}),
    ],
)
async def test_an_id_of_another_call_is_refused(
    routers: list[Router], placed: list[str], method: str, arguments: str, options: dict[str, Any]
) -> None:
    await routers[0].call("place", '["tea"]')
    content_type = options.pop("content_type", JSON)
    request = router_service_pb2.CallRequest(endpoint="orders", request_id="1", payload=arguments.encode())
    request.options.MergeFrom(call_pb2.CallOptions(method=method, content_type=content_type))
    failure = await failure_of(routers[1]._calls.Call(request))
    assert (failure.reason, failure.executed) == (Reason.BAD_REQUEST, Executed.NO)
    assert failure.metadata["field"] == "request_id"
    assert placed == ["tea"]


async def test_values_are_repeated(routers: list[Router], placed: list[str]) -> None:
    first, second = [await router.values("each", '["tea"]') for router in routers]
    assert [value.payload for value in first] == [b'"tea 0 1"', b'"tea 1 1"', b'"tea 2 1"']
    assert first == second
    assert placed == ["tea"]


async def test_a_call_in_a_slot_is_repeated_at_any_server(routers: list[Router], placed: list[str]) -> None:
    slot = await routers[0].reserve()
    async with open_channel(slot.replica_address) as channel:
        servers = [*routers, Router(channel), *routers]
        answers = [await server.dispatch(slot.token, request_id="1") for server in servers]
        assert answers == [answers[0]] * 5
        assert placed == ["tea"]
        for server in servers:
            failure = await failure_of(server.dispatch(slot.token, '["milk"]', request_id="1"))
            assert (failure.reason, failure.metadata["field"]) == (Reason.BAD_REQUEST, "request_id")
            for fields in ({}, {"request_id": "2"}):
                assert (await failure_of(server.dispatch(slot.token, **fields))).reason is Reason.SLOT_USED
        slot = await routers[0].reserve(slot.replica_id)
        values = [await server.dispatched_values(slot.token) for server in servers]
        assert [[value.payload for value in each] for each in values] == [
            [b'"tea 0 2"', b'"tea 1 2"', b'"tea 2 2"']
        ] * 5


async def test_the_id_orders_nothing_and_names_the_call_for_its_handler(routers: list[Router]) -> None:
    facts = [(await router.call("facts", "[]", "x")).payload for router in routers]
    other = (await routers[0].call("facts", "[]", "y")).payload
    assert facts[0] == facts[1] != other
    assert facts[0].startswith(b'["",null,"')
    keyed = [(await router.call("facts", "[]", "z", ordering_key="k")).payload for router in routers]
    assert keyed[0] == keyed[1]
    assert keyed[0].startswith(b'["k",')


@pytest.mark.parametrize("request_id", ["é", "a b", "x" * 129, "a\n"])
async def test_an_invalid_id_is_refused(routers: list[Router], request_id: str) -> None:
    failure = await failure_of(routers[0].call("place", '["tea"]', request_id))
    assert (failure.reason, failure.metadata["field"]) == (Reason.BAD_REQUEST, "request_id")


async def test_a_shard_key_has_no_effect_and_is_refused(routers: list[Router]) -> None:
    failure = await failure_of(routers[0].call("place", '["tea"]', shard_key="k"))
    assert (failure.reason, failure.metadata["field"]) == (Reason.BAD_REQUEST, "options.shard_key")


async def test_bounds_of_arguments_are_checked_before_the_id(mesh: RunningMesh) -> None:
    many = struct_pb2.ListValue(values=[struct_pb2.Value(null_value=struct_pb2.NULL_VALUE)] * 60_000)
    request = router_service_pb2.CallRequest(
        endpoint="orders", request_id="not an id", arguments=struct_pb2.Value(list_value=many)
    )
    request.options.method = "place"
    async with open_channel(mesh.router_addresses[0]) as channel:
        calls: Any = router_service_pb2_grpc.RouterServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match=r"arguments\.list_value\.values: "):
            await calls.Call(request)
