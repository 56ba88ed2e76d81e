"""Reservations that are made again under their request id."""

from __future__ import annotations

import asyncio

import pytest

from slotmesh.errors import Reason
from tests.contract.router.slots.slot_caller import SECOND, SHORT, SlotCaller, failure_of, one_replica
from tests.support.fakes.replica import cancelled
from tests.support.fakes.slots import held
from tests.support.router_bench import RouterBench
from tests.support.wait import wait_until


class TestRequestIds:
    @pytest.mark.asyncio
    async def test_the_same_id_returns_the_same_slot_while_its_lease_lives(
        self, mesh: RouterBench, client: SlotCaller
    ) -> None:
        replica = await one_replica(mesh)
        slot = await client.slot(request_id="once")
        again = await client.slot(request_id="once")
        assert again.token == slot.token
        assert 0 < again.ttl.ToNanoseconds() <= slot.ttl.ToNanoseconds()
        assert (await client.slot(request_id="another")).token != slot.token
        assert replica.slots.kinds == ["reserve", "reserve"]
        await client.dispatch(slot)
        assert (await client.slot(request_id="once")).token != slot.token, "the first one is used up"

    @pytest.mark.asyncio
    async def test_those_who_ask_at_the_same_time_share_one_reservation(
        self, mesh: RouterBench, client: SlotCaller
    ) -> None:
        replica = await one_replica(mesh)
        replica.slots.reserve = held
        asking = [asyncio.ensure_future(client.slot(request_id="once")) for _ in range(5)]
        await wait_until(lambda: replica.slots.held)
        asking.append(asyncio.ensure_future(client.slot(request_id="once")))
        await replica.say(replica.slots.granted(replica.slots.held[0]))
        slots = await asyncio.gather(*asking)
        assert len({slot.token for slot in slots}) == 1
        assert replica.slots.kinds == ["reserve"]

    @pytest.mark.asyncio
    async def test_one_of_two_may_leave_and_the_last_one_ends_it(self, mesh: RouterBench, client: SlotCaller) -> None:
        replica = await one_replica(mesh)
        replica.slots.reserve = held
        first, second = client.reserve(request_id="once"), client.reserve(request_id="once")
        await wait_until(lambda: replica.slots.held)
        (op,) = replica.slots.held
        # A round trip later the second one has come as well, and has joined the first.
        await failure_of(client.reserve(endpoint="nowhere"))
        first.cancel()
        await failure_of(client.reserve(endpoint="nowhere"))
        assert cancelled(replica) == []
        await replica.say(replica.slots.granted(op))
        assert (await second).slot.token in replica.slots.slots

        third, fourth = client.reserve(request_id="twice"), client.reserve(request_id="twice")
        await wait_until(lambda: len(replica.slots.held) == 2)
        await failure_of(client.reserve(endpoint="nowhere"))
        third.cancel()
        fourth.cancel()
        op = replica.slots.held[1]
        await wait_until(lambda: cancelled(replica) == [op.op_id], what="the replica is told")

    @pytest.mark.asyncio
    async def test_an_id_means_one_thing(self, mesh: RouterBench, client: SlotCaller) -> None:
        await one_replica(mesh)
        slot = await client.slot(request_id="once", ttl=SECOND)
        for other in ({}, {"ttl": SHORT}, {"ttl": SECOND, "replica_id": "r0"}):
            failure = await failure_of(client.reserve(request_id="once", **other))
            assert failure.reason is Reason.BAD_REQUEST
            assert "request_id" in failure.message
        failure = await failure_of(client.reserve("other", request_id="once", ttl=SECOND))
        assert (failure.reason, failure.metadata["field"]) == (Reason.BAD_REQUEST, "request_id")
        assert (await client.slot(request_id="once", ttl=SECOND)).token == slot.token
        await client.release(slot)
        assert (await client.slot(request_id="once")).token != slot.token
