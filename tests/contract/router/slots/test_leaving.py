"""Leased slots through the router when callers leave before they have an answer."""

from __future__ import annotations

import asyncio

import pytest

from slotmesh.errors import Reason
from tests.contract.router.slots.slot_caller import SlotCaller, call, failure_of, one_replica, queued
from tests.support.fakes.replica import cancelled, hold
from tests.support.fakes.slots import failed, held, refused
from tests.support.router_bench import RouterBench
from tests.support.wait import wait_until


class TestLeaving:
    @pytest.mark.asyncio
    async def test_one_that_leaves_while_it_waits_in_the_queue_leaves_no_trace(
        self, mesh: RouterBench, client: SlotCaller
    ) -> None:
        replica = await one_replica(mesh, slots=1)
        replica.answer = hold
        running = asyncio.ensure_future(mesh.stub.Call(call()))
        await wait_until(lambda: replica.held)
        reserving = client.reserve()
        await queued(mesh, 1)
        reserving.cancel()
        await queued(mesh, 0)
        await replica.answer_held()
        await running
        assert (await client.slot()).replica_id == "r0"
        assert replica.slots.kinds == ["reserve"]

    @pytest.mark.asyncio
    async def test_one_that_leaves_while_the_replica_has_it_is_taken_back(
        self, mesh: RouterBench, client: SlotCaller
    ) -> None:
        replica = await one_replica(mesh)
        replica.slots.reserve = held
        reserving = client.reserve()
        await wait_until(lambda: replica.slots.held)
        (op,) = replica.slots.held
        reserving.cancel()
        await wait_until(lambda: cancelled(replica) == [op.op_id], what="the replica is told")
        await replica.say(failed(op, Reason.CANCELLED))
        replica.slots.reserve = replica.slots.granted
        await client.slot()
        assert replica.slots.kinds == ["reserve", "reserve"], "nothing was granted, so nothing is released"

    @pytest.mark.asyncio
    async def test_one_that_leaves_is_offered_to_nobody_else(self, mesh: RouterBench, client: SlotCaller) -> None:
        """Its replica refuses it after that."""
        first, second = mesh.replicas
        first.slots.reserve = held
        await mesh.linked(first)
        reserving = client.reserve()
        await wait_until(lambda: first.slots.held)
        (op,) = first.slots.held
        await mesh.linked(first, second)
        reserving.cancel()
        await wait_until(lambda: cancelled(first) == [op.op_id], what="the replica is told")
        await first.say(refused(op, Reason.DRAINING))
        await client.slot(replica_id="r1")
        assert (first.slots.kinds, second.slots.kinds) == (["reserve"], ["reserve"])

    @pytest.mark.asyncio
    async def test_what_waits_for_a_link_is_not_sent_when_its_caller_has_left(
        self, mesh: RouterBench, client: SlotCaller
    ) -> None:
        replica = await one_replica(mesh)
        slot = await client.slot()
        replica.set_serving(False)
        replica.break_link()
        await wait_until(lambda: not mesh.controller.reports[-1].linked, what="the link is lost")
        waiting = [client.dispatch(slot), client.renew(slot), client.release(slot)]
        await failure_of(client.reserve(endpoint="nowhere"))  # a round trip later they have come
        for each in waiting:
            each.cancel()
        await failure_of(client.reserve(endpoint="nowhere"))
        replica.set_serving(True)
        assert (await client.dispatch(slot, b"mine")).payload == b"mine", "it is still there"
        assert replica.slots.kinds == ["reserve", "dispatch"]

    @pytest.mark.asyncio
    async def test_a_slot_that_is_granted_to_one_who_has_left_is_released_at_once(
        self, mesh: RouterBench, client: SlotCaller
    ) -> None:
        replica = await one_replica(mesh)
        replica.slots.reserve = held
        reserving = client.reserve()
        await wait_until(lambda: replica.slots.held)
        (op,) = replica.slots.held
        reserving.cancel()
        await wait_until(lambda: cancelled(replica) == [op.op_id], what="the replica is told")
        await replica.say(replica.slots.granted(op))
        assert replica.slots.reserved == 1
        await wait_until(lambda: replica.slots.kinds == ["reserve", "release"], what="the slot is released")
        assert replica.slots.reserved == 0

    @pytest.mark.asyncio
    async def test_one_that_leaves_its_call_cancels_it(self, mesh: RouterBench, client: SlotCaller) -> None:
        replica = await one_replica(mesh)
        replica.answer = hold
        dispatched = client.dispatch(await client.slot())
        await wait_until(lambda: replica.held)
        dispatched.cancel()
        op = replica.slots.ops[-1]
        await wait_until(lambda: cancelled(replica) == [op.op_id], what="the replica is told")
        assert replica.slots.kinds == ["reserve", "dispatch"]

    @pytest.mark.asyncio
    async def test_release_is_idempotent(self, mesh: RouterBench, client: SlotCaller) -> None:
        replica = await one_replica(mesh)
        slot, other = await client.slot(), await client.slot()
        for _ in range(3):
            released = await client.release(slot)
            assert (released.ongoing, released.max_ongoing) == (1, 8)
        failure = await failure_of(client.renew(slot))
        assert failure.reason is Reason.SLOT_USED, "as the replica of the tests says it"
        await client.dispatch(other)
        await client.release(other)
        assert replica.slots.slots[other.token].state == "done"
