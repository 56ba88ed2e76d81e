"""Leased slots at the replica, by frames of Execute and by its own SlotService: what holds at both doors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from slotmesh.calls.slot_tokens import parse_token
from slotmesh.codec import JSON
from slotmesh.errors import Executed
from tests.contract.replica.slots.slot_replica import all_free, handler_of, table_of, told_by
from tests.support.fakes.clock import FakeClock
from tests.support.replicas import RunningReplica
from tests.support.slot_doors import Door, Failed, FramesDoor, Slot
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

NO, YES = Executed.NO, Executed.YES


async def read_all(values: AsyncIterator[bytes]) -> list[bytes]:
    return [value async for value in values]


# -- the happy path ----------------------------------------------------------------------------------------------------


async def test_reserve_and_dispatch(replica: RunningReplica, door: Door, clock: FakeClock) -> None:
    slot = await door.reserve()
    assert (slot.backend, slot.replica_id, slot.replica_address) == ("Handler", "r-1", replica.address)
    assert (slot.ongoing, slot.ttl.ToNanoseconds()) == (1, 10 * 10**9)
    assert slot.expire_time.ToNanoseconds() / 1e9 == pytest.approx(clock.time_of_day() + 10)
    assert (table_of(replica).reserved, replica.engine.scheduler.in_use) == (1, 1)
    assert await door.dispatch(slot.token, b"hello") == b"hello"
    await all_free(replica)


@pytest.mark.parametrize(
    ("method", "payload", "content_type", "result"),
    [("thread", b"t", "", b"t"), ("upper", b"up", "", b"UP"), ("greet", b'["you"]', JSON, b'"hello, you"')],
)
async def test_each_kind_of_method_runs_in_a_slot(
    replica: RunningReplica, door: Door, method: str, payload: bytes, content_type: str, result: bytes
) -> None:
    slot = await door.reserve()
    assert await door.dispatch(slot.token, payload, method=method, content_type=content_type) == result
    await all_free(replica)


async def test_the_error_of_a_call_reaches_the_caller_and_frees_the_slot(replica: RunningReplica, door: Door) -> None:
    slot = await door.reserve()
    with pytest.raises(Failed, match="ValueError: no good") as caught:
        await door.dispatch(slot.token, b"no good", method="fail")
    assert caught.value.told == ("HANDLER_ERROR", YES)
    await all_free(replica)


async def test_a_method_that_is_not_there_uses_the_slot_up(replica: RunningReplica, door: Door) -> None:
    slot = await door.reserve()
    assert await told_by(door.dispatch(slot.token, method="nowhere")) == ("METHOD_NOT_FOUND", NO)
    assert await told_by(door.dispatch(slot.token)) == ("SLOT_USED", NO)
    await all_free(replica)


async def test_a_dispatch_is_taken_by_a_full_replica(replica: RunningReplica, door: Door) -> None:
    slot = await door.reserve()
    async with replica.router("router-2") as crowd:
        await crowd.send(crowd.run([b"a", b"b"], method="wait"))
        await wait_until(lambda: replica.engine.scheduler.waiting == 1)
        await crowd.send(crowd.run([b"c"]))
        await wait_until(lambda: crowd.refused)
        assert await door.dispatch(slot.token) == b"x"
        await wait_until(lambda: handler_of(replica).started == [b"a", b"b"], what="the freed permit is used")


async def test_a_dispatch_is_taken_where_there_are_fewer_permits_by_now(replica: RunningReplica, door: Door) -> None:
    slots = [await door.reserve() for _ in range(2)]
    replica.engine.configure(max_ongoing=1, prefetch=0)
    assert await asyncio.gather(*(door.dispatch(slot.token) for slot in slots)) == [b"x", b"x"]
    await all_free(replica)


# -- what is refused ---------------------------------------------------------------------------------------------------


async def test_a_reservation_names_its_endpoint(replica: RunningReplica, door: Door) -> None:
    assert await told_by(door.reserve(endpoint="")) == ("BAD_REQUEST", NO)
    assert replica.engine.scheduler.is_idle


async def test_reservations_wait_their_turn_and_no_more_than_the_replica_prefetches(
    replica: RunningReplica, door: Door
) -> None:
    first, second = await door.reserve(), await door.reserve()
    third = asyncio.ensure_future(door.reserve())
    await wait_until(lambda: replica.engine.scheduler.waiting == 1)
    assert await told_by(door.reserve()) == ("QUEUE_FULL", NO)
    await door.release(first.token)
    assert (await third).ongoing == 2
    for slot in (second, await third):
        await door.release(slot.token)
    await all_free(replica)


# -- values ------------------------------------------------------------------------------------------------------------


async def test_values_come_one_by_one(replica: RunningReplica, door: Door) -> None:
    slot = await door.reserve()
    assert await read_all(door.stream(slot.token, b"1000", method="count")) == [
        b"%d" % number for number in range(1000)
    ]
    await all_free(replica)


async def test_a_handler_that_yields_waits_for_its_reader(replica: RunningReplica, door: Door) -> None:
    slot = await door.reserve()
    values = door.stream(slot.token, b"10000", method="blocks")
    assert len(await anext(values)) == 65_536
    for _ in range(50):
        await door.release((await door.reserve()).token)
    assert handler_of(replica).yielded < 500, "a mebibyte, and what the transport holds"


async def test_a_reader_who_leaves_closes_the_handler(replica: RunningReplica, door: Door) -> None:
    slot = await door.reserve()
    reading = asyncio.ensure_future(read_all(door.stream(slot.token, b"10000", method="blocks")))
    handler = handler_of(replica)
    await wait_until(lambda: handler.yielded)
    reading.cancel()
    await wait_until(lambda: handler.closed)
    await all_free(replica)
    assert handler.yielded < 10_000


async def test_values_before_a_failure_and_the_failure_itself(replica: RunningReplica, door: Door) -> None:
    slot = await door.reserve()
    assert await told_by(anext(door.stream(slot.token, b"x", method="count"))) == ("HANDLER_ERROR", YES)
    slot = await door.reserve()
    assert await read_all(door.stream(slot.token, b"plain", method="echo")) == [b"plain"]
    await all_free(replica)


# -- what frames alone can do ------------------------------------------------------------------------------------------


async def test_routers_hear_of_the_load_with_each_slot(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        door = FramesDoor(stream)
        slots = [await door.reserve() for _ in range(2)]
        assert [*dict.fromkeys(each.others for each in stream.capacities)] == [0, 1, 2]
        async with replica.router("router-2") as other:
            assert other.capacities[0].others == 2
        await door.dispatch(slots[0].token)
        await wait_until(lambda: stream.capacities[-1].others == 1)
        await door.release(slots[1].token)
        assert stream.capacities[-1].others == 0
        kinds = [it for it in stream.frames if it in ("slots", "results")]
        assert kinds == ["slots", "slots", "results", "slots"]


async def test_operations_share_the_ids_of_runs(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        assert await stream.send_op() == 1
        await wait_until(lambda: stream.failures)
        assert stream.failures[1].reason == "NOT_IMPLEMENTED"
        await stream.send(stream.run([b"x"]))
        stream._next = 2
        await stream.send_op(release={"token": "x"})
        await wait_until(lambda: stream.ended)
        assert stream.error is not None
        assert "slots.ops.op_id: run ids strictly increase on a stream, got 2 after 2" in str(stream.error.details())


async def test_a_reservation_waits_for_its_router_to_be_heard(clock: FakeClock, replica: RunningReplica) -> None:
    async with replica.router() as stream:
        stream.echoes = False
        clock.advance(10)
        reserving = asyncio.ensure_future(FramesDoor(stream).reserve())
        await wait_until(lambda: any(link.parked for link in replica.engine._links))
        assert table_of(replica).granted == 0
        stream.echoes = True
        assert (await reserving).ongoing == 1, "an echo lets it start"


async def test_with_a_sign_of_life_a_router_hears_how_loaded_the_replica_is(replica: RunningReplica) -> None:
    """It would go on counting what others have had, and send elsewhere what then waits there behind leases."""
    async with replica.router("router-2") as other, replica.router() as stream:
        door = FramesDoor(other)
        slot = await door.reserve()
        await wait_until(lambda: stream.capacities[-1].others == 1)
        await door.release(slot.token)
        await wait_until(lambda: stream.capacities[-1].others == 0)
        assert set(stream.frames) == {"opened", "capacity", "heartbeat"}


async def test_a_slot_is_what_it_seems(replica: RunningReplica, door: Door) -> None:
    """Nothing but its token tells who may use it, and no two have the same."""
    slots: list[Slot] = []
    for _ in range(50):
        slots.append(await door.reserve())
        await door.release(slots[-1].token)
    assert len({slot.token for slot in slots}) == 50
    assert "secret" not in repr(parse_token(slots[0].token))
