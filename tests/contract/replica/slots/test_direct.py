"""What only the replica's own SlotService has to handle: deadlines, callers that leave, repeated request ids."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from slotmesh.errors import Executed, Reason
from slotmesh.runtime.channels import open_channel
from slotmesh.status import from_rpc_error
from slotmesh.v1 import slot_service_pb2_grpc
from tests.contract.replica.slots.slot_replica import HANDLER
from tests.support.fakes.clock import FakeClock
from tests.support.replicas import HANDLERS, RunningReplica, running_replica
from tests.support.slot_doors import DirectDoor, Failed, reserve_request
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def channel(replica: RunningReplica) -> AsyncIterator[grpc.aio.Channel]:
    async with open_channel(replica.address) as opened:
        yield opened


@pytest.fixture
def door(channel: grpc.aio.Channel) -> DirectDoor:
    return DirectDoor(channel)


async def failure_of(operation: Any) -> Failed:
    with pytest.raises(Failed) as caught:
        await operation
    return caught.value


# -- time --------------------------------------------------------------------------------------------------------------


async def test_a_reservation_waits_as_long_as_its_timeout_says(replica: RunningReplica, door: DirectDoor) -> None:
    slots = [await door.reserve() for _ in range(2)]
    failed = await failure_of(door.reserve(timeout_s=0.03))
    assert failed.told == ("NO_SLOT", Executed.NO)
    assert failed.failure.retry_delay_s
    assert (replica.engine.scheduler.waiting, replica.engine.scheduler.slots.granted) == (0, 2)
    full = asyncio.ensure_future(door.reserve())
    await wait_until(lambda: replica.engine.scheduler.waiting)
    failed = await failure_of(door.reserve())
    assert (failed.failure.reason, bool(failed.failure.retry_delay_s)) == (Reason.QUEUE_FULL, True)
    await door.release(slots[0].token)
    await full


async def test_the_deadline_of_the_rpc_ends_a_reservation(replica: RunningReplica, channel: grpc.aio.Channel) -> None:
    door = DirectDoor(channel)
    for _ in range(2):
        await door.reserve()
    stub: Any = slot_service_pb2_grpc.SlotServiceStub(channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ReserveSlot(reserve_request(), timeout=0.05)
    assert caught.value.code() in {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED}
    await wait_until(lambda: replica.engine.scheduler.waiting == 0)


async def test_a_deadline_ends_a_call_that_runs(replica: RunningReplica, door: DirectDoor) -> None:
    slots = [await door.reserve() for _ in range(2)]
    calls = [
        door.dispatch(slots[0].token, method="wait", timeout_s=0.03),
        anext(door.stream(slots[1].token, b"x", method="count_slowly", timeout_s=0.03)),
    ]
    for call in calls:
        assert (await failure_of(call)).told == ("DEADLINE_RUNNING", Executed.UNKNOWN)
    await wait_until(lambda: replica.engine.scheduler.is_idle)


# -- who asks twice ----------------------------------------------------------------------------------------------------


async def test_the_same_request_id_is_the_same_slot(replica: RunningReplica, door: DirectDoor) -> None:
    first = await door.reserve(request_id="a")
    again = await door.reserve(request_id="a")
    assert (again.token, again.ongoing) == (first.token, 1)
    assert (await door.reserve(request_id="b")).token != first.token
    await door.dispatch(first.token)
    assert (await door.reserve(request_id="a")).token != first.token, "that one was used"


async def test_a_request_id_is_forgotten_with_the_lease(
    replica: RunningReplica, door: DirectDoor, clock: FakeClock
) -> None:
    first = await door.reserve(request_id="a", ttl_s=1)
    clock.advance(0.999)
    again = await door.reserve(request_id="a", ttl_s=1)
    assert (again.token, again.ttl.ToMilliseconds()) == (first.token, 1)
    clock.advance(0.001)
    assert (await door.reserve(request_id="a", ttl_s=1)).token != first.token


async def test_a_request_id_means_one_thing(replica: RunningReplica, door: DirectDoor) -> None:
    await door.reserve(request_id="a")
    for other in ({"ttl_s": 11}, {"endpoint": "other"}):
        failed = await failure_of(door.reserve(request_id="a", **other))
        assert (failed.told[0], failed.failure.metadata["field"]) == ("BAD_REQUEST", "request_id")
    assert (await failure_of(door.reserve(request_id="x" * 1025))).told[0] == "BAD_REQUEST"
    assert replica.engine.scheduler.slots.granted == 1


async def test_those_who_share_a_request_id_wait_together(replica: RunningReplica, door: DirectDoor) -> None:
    held = [await door.reserve() for _ in range(2)]
    tasks = [asyncio.ensure_future(door.reserve(request_id="a", timeout_s=timeout_s)) for timeout_s in (9, 0.05, 9)]
    assert (await failure_of(tasks[1])).told[0] == "NO_SLOT"
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    assert replica.engine.scheduler.waiting == 1, "one still waits"
    await door.release(held[0].token)
    assert (await tasks[2]).token == (await door.reserve(request_id="a")).token
    assert replica.engine.scheduler.slots.granted == 3


# -- which replica -----------------------------------------------------------------------------------------------------


async def test_a_replica_gives_its_own_slots(replica: RunningReplica, door: DirectDoor) -> None:
    assert (await failure_of(door.reserve(replica_id="r-2"))).told == ("REPLICA_GONE", Executed.NO)
    assert (await failure_of(door.reserve(excluded_replica_ids=["r-1"]))).told == ("NO_SLOT", Executed.NO)
    assert (await door.reserve(replica_id="r-1", excluded_replica_ids=["r-2"])).replica_id == "r-1"


async def test_slots_name_the_address_that_routers_are_told() -> None:
    async with running_replica(HANDLER, advertise="replica.example:7072") as replica:
        async with open_channel(replica.address) as channel:
            slot = await DirectDoor(channel).reserve(ttl_s=0.05)
        assert slot.replica_address == "replica.example:7072" == replica.app.replica.report().address


async def test_a_replica_that_starts_has_no_slots(tmp_path: Any) -> None:
    """Its constructor has not returned yet."""
    async with running_replica(f"{HANDLERS}:Broken", until_ready=False) as replica:
        servicer = replica.app._slot_servicer
        with pytest.raises(Exception, match="the replica is starting") as caught:
            servicer._ready()
        assert caught.value.reason is Reason.BACKEND_UNAVAILABLE  # type: ignore[attr-defined]  # one of ours
        await asyncio.wait((replica.task,))
        assert replica.task.exception() is not None


# -- what clients send -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"method": "_private"}, "METHOD_NOT_FOUND"),
        ({"content_type": "text/html"}, "BAD_REQUEST"),
        ({"timeout_s": -1}, "BAD_REQUEST"),
        ({"metadata": {"Upper": "x"}}, "BAD_REQUEST"),
        ({"streaming": True}, "BAD_REQUEST"),
    ],
)
async def test_mistakes_in_options_leave_the_slot_as_it_is(
    replica: RunningReplica, door: DirectDoor, options: dict[str, Any], reason: str
) -> None:
    slot = await door.reserve()
    assert (await failure_of(door.dispatch(slot.token, **options))).told == (reason, Executed.NO)
    assert await door.dispatch(slot.token, metadata={"lower": "x"}) == b"x"


async def test_results_that_no_rpc_carries(replica: RunningReplica, door: DirectDoor) -> None:
    slot = await door.reserve()
    assert len(await door.dispatch(slot.token, b"%d" % (4 * 1024 * 1024), method="large")) == 4 * 1024 * 1024
    slot = await door.reserve()
    failed = await failure_of(door.dispatch(slot.token, b"%d" % (4 * 1024 * 1024 + 1), method="large"))
    assert failed.told == ("PAYLOAD_TOO_LARGE", Executed.YES)
    await wait_until(lambda: replica.engine.scheduler.is_idle)


async def test_a_failed_dispatch_says_which_status_and_shows_no_token(
    replica: RunningReplica, channel: grpc.aio.Channel
) -> None:
    slot = await DirectDoor(channel).reserve()
    door = DirectDoor(channel)
    await door.dispatch(slot.token)
    failed = await failure_of(door.dispatch(slot.token))
    error = failed.__cause__
    assert isinstance(error, grpc.aio.AioRpcError)
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert from_rpc_error(error).executed is Executed.NO
    assert slot.token[:8] not in repr(error)
