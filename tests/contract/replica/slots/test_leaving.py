"""Leased slots at the replica, at both doors, when callers leave and when the replica drains."""

from __future__ import annotations

import asyncio

import pytest

from slotmesh.errors import Executed
from tests.contract.replica.slots.slot_replica import all_free, handler_of, table_of, told_by
from tests.support.replicas import RunningReplica
from tests.support.slot_doors import Door, FramesDoor, OpenDoor, by_frames, directly
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

NO = Executed.NO


# -- callers that leave ------------------------------------------------------------------------------------------------


async def test_a_caller_who_leaves_takes_back_what_waits(replica: RunningReplica, door: Door) -> None:
    slots = [await door.reserve() for _ in range(2)]
    waiting = asyncio.ensure_future(door.reserve())
    await wait_until(lambda: replica.engine.scheduler.waiting == 1)
    waiting.cancel()
    await wait_until(lambda: replica.engine.scheduler.waiting == 0)
    for slot in slots:
        await door.release(slot.token)
    await all_free(replica)
    assert table_of(replica).granted == 2


async def test_a_caller_who_leaves_cancels_what_runs(replica: RunningReplica, door: Door) -> None:
    slot = await door.reserve()
    dispatching = asyncio.ensure_future(door.dispatch(slot.token, method="wait"))
    await wait_until(lambda: handler_of(replica).started)
    dispatching.cancel()
    await all_free(replica)
    assert await told_by(door.dispatch(slot.token)) == ("SLOT_USED", NO)


async def test_slots_outlive_the_link_over_which_they_were_reserved(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        slots = [await FramesDoor(stream).reserve() for _ in range(2)]
        waiting = asyncio.ensure_future(FramesDoor(stream).reserve())
        await wait_until(lambda: replica.engine.scheduler.waiting == 1)
        waiting.cancel()
    await wait_until(lambda: replica.engine.scheduler.waiting == 0)
    async with by_frames(replica) as frames, directly(replica) as direct:
        assert await frames.dispatch(slots[0].token) == b"x"
        assert await direct.dispatch(slots[1].token) == b"x"
    await all_free(replica)


async def test_a_call_past_its_deadline_does_not_start(replica: RunningReplica, door: Door) -> None:
    slot = await door.reserve()
    assert await told_by(door.dispatch(slot.token, timeout_s=0)) == ("DEADLINE_IN_QUEUE", NO)
    assert await told_by(door.dispatch(slot.token)) == ("SLOT_USED", NO)
    await all_free(replica)


# -- drain -------------------------------------------------------------------------------------------------------------


async def test_a_drain_honours_the_slots_that_were_given(live: RunningReplica, open_door: OpenDoor) -> None:
    async with live.router("watching") as router, open_door(live) as door:
        used, back = await door.reserve(), await door.reserve()
        waiting = asyncio.ensure_future(door.reserve())
        await wait_until(lambda: live.engine.scheduler.waiting == 1)
        live.app.replica.stop_asked.set()
        assert await told_by(waiting) == ("DRAINING", NO)
        assert await told_by(door.reserve()) == ("DRAINING", NO)
        await wait_until(lambda: router.capacities[-1].draining)
        assert (await door.renew(used.token)).ongoing == 2
        assert not router.is_dismissed, "routers may still bring calls for slots"
        async with live.router("late") as late:
            assert late.capacities[0].draining
            assert await FramesDoor(late).dispatch(used.token) == b"x"
            assert not late.is_dismissed
            assert await door.release(back.token) == (0, 2)
            await wait_until(lambda: router.is_dismissed and late.is_dismissed)
    assert await live.task == 0


async def test_a_drain_does_not_wait_longer_than_the_leases(live: RunningReplica, open_door: OpenDoor) -> None:
    async with live.router() as router, open_door(live) as door:
        await door.reserve(ttl_s=0.05)
        live.app.replica.stop_asked.set()
        await wait_until(lambda: router.is_dismissed)
        assert table_of(live).expired == 1
    assert await live.task == 0


async def test_a_drain_waits_for_the_calls_in_slots(live: RunningReplica, open_door: OpenDoor) -> None:
    async with live.router("watching") as router, open_door(live) as door:
        slot = await door.reserve()
        live.app.replica.stop_asked.set()
        await wait_until(lambda: router.capacities[-1].draining)
        dispatching = asyncio.ensure_future(door.dispatch(slot.token, method="wait"))
        await wait_until(lambda: live.engine.scheduler.slots.reserved == 0)
        assert not router.is_dismissed
        handler_of(live).gate.set()
        assert await dispatching == b"x"
    assert await live.task == 0


async def test_slots_that_outlive_the_grace_are_lost(replica: RunningReplica, door: Door) -> None:
    assert (await door.reserve()).token
    assert await replica.stop() == 1
