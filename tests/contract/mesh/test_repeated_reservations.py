"""Reservations that are repeated with their request id, over two routers and two replicas: one slot for each id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import duration_pb2

import slotmesh
import slotmesh.testing
from slotmesh.errors import Failure, Reason
from slotmesh.runtime.channels import open_channel
from slotmesh.status import from_rpc_error
from slotmesh.testing import RunningMesh
from slotmesh.v1 import call_pb2, slot_service_pb2, slot_service_pb2_grpc
from tests.support.wait import wait_until, within

pytestmark = pytest.mark.asyncio

Slot = slot_service_pb2.Slot
MINUTE = duration_pb2.Duration(seconds=60)


class Greeter:
    async def hello(self, name: str) -> str:
        return f"hello {name}"


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RunningMesh]:
    greeter = slotmesh.testing.Backend(Greeter, num_replicas=2, max_ongoing=2)
    async with slotmesh.testing.mesh({"greeter": greeter}, routers=2) as mesh:
        yield mesh


class Caller:
    """A client of one router, or of one replica."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: Any = slot_service_pb2_grpc.SlotServiceStub(channel)

    async def reserve(self, request_id: str = "1", attempt: int = 0, timeout_s: float = 5.0, **fields: Any) -> Slot:
        options = call_pb2.CallOptions()
        options.timeout.FromNanoseconds(round(timeout_s * 1e9))
        request = slot_service_pb2.ReserveSlotRequest(
            endpoint="greeter", request_id=request_id, attempt=attempt, options=options, **{"ttl": MINUTE, **fields}
        )
        return await self.send(request)

    async def send(self, request: slot_service_pb2.ReserveSlotRequest) -> Slot:
        response = await self._stub.ReserveSlot(request)
        return response.slot  # type: ignore[no-any-return]  # of a stub

    async def release(self, slot: Slot) -> int:
        response = await self._stub.ReleaseSlot(slot_service_pb2.ReleaseSlotRequest(token=slot.token))
        return response.ongoing  # type: ignore[no-any-return]  # of a stub

    async def use(self, slot: Slot) -> None:
        options = call_pb2.CallOptions(method="hello", content_type="application/json")
        await self._stub.Dispatch(
            slot_service_pb2.DispatchRequest(token=slot.token, options=options, payload=b'["you"]')
        )


@pytest_asyncio.fixture
async def routers(mesh: RunningMesh) -> AsyncIterator[list[Caller]]:
    async with open_channel(mesh.router_addresses[0]) as one, open_channel(mesh.router_addresses[1]) as other:
        yield [Caller(one), Caller(other)]


async def failure_of(call: Any) -> Failure:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return from_rpc_error(raised.value)


async def test_another_router_returns_the_slot_after_the_first_was_killed(
    mesh: RunningMesh, routers: list[Caller]
) -> None:
    first = await routers[0].reserve()
    await mesh.kill_router(mesh.router_addresses[0])
    again = await within(routers[1].reserve(attempt=1), "the slot")
    assert (again.token, again.replica_id, again.backend) == (first.token, first.replica_id, first.backend)
    assert 0 < again.ttl.ToNanoseconds() <= first.ttl.ToNanoseconds()
    assert (await routers[1].reserve(attempt=2)).token == first.token, "the router knows it now"
    for number in range(3):  # the other permits are free
        await routers[1].reserve(f"other-{number}")
    await routers[1].use(again)
    assert (await routers[1].reserve(attempt=3)).token != first.token, "a slot that was used is over"


async def test_a_living_router_does_not_keep_the_slot_from_the_other(routers: list[Caller]) -> None:
    first = await routers[0].reserve()
    assert (await routers[1].reserve(attempt=1)).token == first.token
    assert (await routers[0].reserve(attempt=2)).token == first.token


async def test_a_repetition_takes_a_slot_if_there_is_none(routers: list[Caller]) -> None:
    slot = await routers[1].reserve(attempt=1)
    assert (await routers[0].reserve(attempt=2)).token == slot.token
    await routers[0].release(slot)
    assert (await routers[0].reserve(attempt=3)).token != slot.token


async def test_a_repetition_that_does_not_wait_gets_its_slot_and_no_other(routers: list[Caller]) -> None:
    slot = await routers[0].reserve()
    assert (await routers[1].reserve(attempt=1, timeout_s=0.0)).token == slot.token
    failure = await failure_of(routers[1].reserve("2", attempt=1, timeout_s=0.0))
    assert failure.reason is Reason.NO_SLOT


async def test_a_waiting_reservation_does_not_get_a_second_slot(routers: list[Caller]) -> None:
    """The first router still waits for a slot, in the name of a caller that has gone to the other router."""
    held = [await routers[0].reserve(f"held-{number}") for number in range(4)]
    waiting = asyncio.ensure_future(routers[0].reserve(timeout_s=60.0))
    newer = asyncio.ensure_future(routers[1].reserve(attempt=1, timeout_s=60.0))
    failure = await failure_of(routers[0].reserve("no-room", timeout_s=0.1))
    assert failure.reason is Reason.NO_SLOT
    for slot in held:
        await routers[0].release(slot)
    token = (await within(newer, "the slot")).token
    failure = await failure_of(within(waiting, "the failure"))
    assert failure.reason is Reason.CANCELLED
    assert "a newer attempt" in failure.message
    assert (await routers[0].reserve(attempt=2)).token == token
    others = [await routers[1].reserve(f"other-{number}") for number in range(3)]
    assert token not in {each.token for each in others}


async def test_the_replica_of_the_slot_returns_it_itself(mesh: RunningMesh, routers: list[Caller]) -> None:
    slot = await routers[0].reserve()
    async with open_channel(slot.replica_address) as channel:
        assert (await Caller(channel).reserve()).token == slot.token
        direct = await Caller(channel).reserve("direct")
    assert (await routers[1].reserve("direct", attempt=1)).token == direct.token
    assert len(mesh.router_addresses) == 2


async def test_a_draining_replica_names_the_slot_that_it_holds(mesh: RunningMesh, routers: list[Caller]) -> None:
    slot = await routers[0].reserve()
    draining = asyncio.ensure_future(mesh.drain_replica(slot.replica_id))
    again = await within(routers[1].reserve(attempt=1), "the slot")
    assert again.token == slot.token
    await routers[1].use(again)
    await within(draining, "its end")


async def test_a_slot_dies_with_its_replica(mesh: RunningMesh, routers: list[Caller]) -> None:
    slot = await routers[0].reserve()
    await mesh.kill_replica(slot.replica_id)
    again = await within(routers[1].reserve(attempt=1), "another slot")
    assert again.token != slot.token


BAD: list[dict[str, Any]] = [
    {"ttl": duration_pb2.Duration(seconds=30)},
    {"excluded_replica_ids": ["nowhere"]},
]


@pytest.mark.parametrize("other", BAD, ids=["ttl", "excluded"])
async def test_an_id_stands_for_one_reservation(routers: list[Caller], other: dict[str, Any]) -> None:
    slot = await routers[0].reserve()
    for number in (0, 1):
        failure = await failure_of(routers[number].reserve(attempt=1, **other))
        assert (failure.reason, failure.metadata["field"]) == (Reason.BAD_REQUEST, "request_id")
        assert "another reservation" in failure.message or "must have the same" in failure.message
    assert (await routers[1].reserve(attempt=2)).token == slot.token


@pytest.mark.parametrize(
    ("request_id", "attempt", "what"), [("", 1, "has no effect without request_id"), ("1", -1, "not be negative")]
)
async def test_an_invalid_attempt_is_refused(routers: list[Caller], request_id: str, attempt: int, what: str) -> None:
    failure = await failure_of(routers[0].reserve(request_id, attempt))
    assert (failure.reason, failure.metadata["field"]) == (Reason.BAD_REQUEST, "attempt")
    assert what in failure.message


@asynccontextmanager
async def losing_router(routers: list[Caller], attempts: list[int]) -> AsyncIterator[str]:
    """Passes reservations on to the first router and loses the answers of two, and then to the other one."""

    async def reserve(message: bytes, context: Any) -> bytes:
        request = slot_service_pb2.ReserveSlotRequest.FromString(message)
        attempts.append(request.attempt)
        slot = await routers[len(attempts) > 2].send(request)
        if len(attempts) < 3:
            await context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")
        return slot_service_pb2.ReserveSlotResponse(slot=slot).SerializeToString()

    methods: dict[str, Any] = {"ReserveSlot": grpc.unary_unary_rpc_method_handler(reserve)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("slotmesh.v1.SlotService", methods)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def test_the_python_client_counts_its_attempts_until_it_has_an_answer(routers: list[Caller]) -> None:
    attempts: list[int] = []
    async with losing_router(routers, attempts) as address, slotmesh.connect([address]) as client:
        async with client.endpoint("greeter").reserve(timeout=20, ttl=30) as slot:
            assert attempts == [0, 1, 2]
            others = [await routers[0].reserve(f"other-{number}") for number in range(3)]
            assert slot.token not in {each.token for each in others}, "of four permits, one id has one"


async def test_the_python_client_continues_at_another_router(mesh: RunningMesh, routers: list[Caller]) -> None:
    held = [await routers[1].reserve(f"held-{number}") for number in range(4)]
    async with slotmesh.connect(mesh.router_addresses) as client:
        entering = asyncio.ensure_future(client.endpoint("greeter").reserve(timeout=30).__aenter__())
        await wait_until(lambda: not entering.done())
        await mesh.kill_router(mesh.router_addresses[0])
        await routers[1].release(held.pop())
        slot = await within(entering, "the slot")
        assert slot.token not in {each.token for each in held}
        assert await slot.hello("you") == "hello you"
