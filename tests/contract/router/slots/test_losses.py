"""Leased slots through the router when replicas and links to them are lost."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

import pytest

from slotmesh.calls.slot_tokens import format_token
from slotmesh.errors import Executed, Reason
from tests.contract.router.slots.slot_caller import SECOND, SlotCaller, call, failure_of, one_replica
from tests.support.fakes.replica import FakeReplica, Response, hold, results
from tests.support.fakes.slots import failed, held, refused
from tests.support.router_bench import RouterBench
from tests.support.wait import wait_until


async def one_link(replica: FakeReplica, links: int) -> None:
    await wait_until(lambda: len(replica.contexts) == links, what="the router has connected again")


class TestLosses:
    @pytest.mark.asyncio
    @pytest.mark.parametrize("reason", [Reason.QUEUE_FULL, Reason.DRAINING, Reason.BACKEND_UNAVAILABLE])
    @pytest.mark.parametrize("refusal", [refused, failed], ids=["as runs are", "as operations are"])
    async def test_a_reservation_that_is_refused_is_accepted_elsewhere(
        self, mesh: RouterBench, client: SlotCaller, reason: Reason, refusal: Callable[..., Response]
    ) -> None:
        first, second = mesh.replicas
        first.slots.reserve = held
        await mesh.linked(first)
        reserving = asyncio.ensure_future(client.slot())
        await wait_until(lambda: first.slots.held, what="the reservation has come")
        await mesh.linked(first, second)
        await first.say(refusal(first.slots.held[0], reason))
        slot = await reserving
        assert slot.replica_id == "r1"
        assert (await client.dispatch(slot, b"x")).payload == b"x"
        assert first.slots.kinds == ["reserve"]

    @pytest.mark.asyncio
    async def test_a_reservation_whose_replica_is_lost_is_accepted_elsewhere(
        self, mesh: RouterBench, client: SlotCaller
    ) -> None:
        first, second = mesh.replicas
        first.slots.reserve = held
        await mesh.linked(first)
        reserving = asyncio.ensure_future(client.slot())
        await wait_until(lambda: first.slots.held, what="the reservation has come")
        await mesh.linked(first, second)
        first.set_serving(False)
        first.break_link()
        assert (await reserving).replica_id == "r1"

    @pytest.mark.asyncio
    async def test_the_slots_of_a_replica_that_left_are_gone(self, mesh: RouterBench, client: SlotCaller) -> None:
        first, second = mesh.replicas
        await mesh.linked(first)
        slot = await client.slot()
        await mesh.linked(second)
        await assert_gone(client, slot.token)
        assert first.slots.kinds == ["reserve"]

    @pytest.mark.asyncio
    async def test_of_lives_and_replicas_that_the_table_does_not_name_nothing_is_said(
        self, mesh: RouterBench, client: SlotCaller
    ) -> None:
        """The router's table may be older than the slot."""
        await one_replica(mesh)
        await assert_unproven(client, format_token("r0", "another life", secrets.token_bytes(16)), Reason.STALE_TABLE)
        await assert_unproven(client, format_token("r99", "life", secrets.token_bytes(16)), Reason.STALE_TABLE)

    @pytest.mark.asyncio
    async def test_what_is_no_token_reaches_no_replica_and_a_forged_one_is_unknown_there(
        self, mesh: RouterBench, client: SlotCaller
    ) -> None:
        replica = await one_replica(mesh)
        slot = await client.slot()
        flipped = slot.token[:-3] + ("A" if slot.token[-3] != "A" else "B") + slot.token[-2:]
        for text in ("well-guessed", slot.token[:-1], slot.token[1:], slot.token + "A", flipped, slot.token * 100):
            for rpc in (client.dispatch, client.renew, client.release):
                failure = await failure_of(rpc(text))
                assert (failure.reason, failure.executed) == (Reason.SLOT_UNKNOWN, Executed.NO)
                assert "not a slot token" in failure.message
                assert text[:8] not in failure.message
        failure = await failure_of(client.dispatch(""))
        assert (failure.reason, failure.metadata["field"]) == (Reason.BAD_REQUEST, "token")
        assert replica.slots.kinds == ["reserve"]
        forged = format_token("r0", "life", secrets.token_bytes(16))
        assert (await failure_of(client.dispatch(forged))).reason is Reason.SLOT_UNKNOWN
        assert (await failure_of(client.renew(forged))).reason is Reason.SLOT_UNKNOWN
        await client.release(forged)
        assert replica.slots.kinds[1:] == ["dispatch", "renew", "release"]
        assert replica.slots.reserved == 1

    @pytest.mark.asyncio
    async def test_a_dispatched_call_whose_replica_is_lost_is_not_executed_again(
        self, mesh: RouterBench, client: SlotCaller
    ) -> None:
        replica = await one_replica(mesh)
        replica.answer = hold
        pending = asyncio.ensure_future(failure_of(client.dispatch(await client.slot())))
        await wait_until(lambda: replica.held)
        replica.break_link()
        failure = await pending
        assert (failure.reason, failure.executed) == (Reason.REPLICA_LOST, Executed.UNKNOWN)
        await one_link(replica, links=len(replica.contexts) + 1)
        replica.answer = lambda run: results(run, list(run.payloads))
        await mesh.stub.Call(call())
        assert replica.slots.kinds == ["reserve", "dispatch"]

    @pytest.mark.asyncio
    async def test_a_slot_outlives_the_link_and_what_follows_waits_for_the_next_one(
        self, mesh: RouterBench, client: SlotCaller
    ) -> None:
        replica = await one_replica(mesh)
        slots = [await client.slot() for _ in range(3)]
        replica.set_serving(False)
        replica.break_link()
        await wait_until(lambda: not mesh.controller.reports[-1].linked, what="the link is lost")
        waiting = [client.dispatch(slots[0], b"late"), client.renew(slots[1], SECOND), client.release(slots[2])]
        # A round trip later the three have come.
        await failure_of(client.reserve(endpoint="nowhere"))
        replica.set_serving(True)
        dispatched, renewed, released = [await each for each in waiting]
        assert dispatched.payload == b"late"
        assert renewed.slot.token == slots[1].token
        assert released.max_ongoing == 8
        assert replica.slots.reserved == 1

    @pytest.mark.asyncio
    async def test_nothing_is_sent_over_a_link_before_the_replica_has_introduced_itself(
        self, mesh: RouterBench, client: SlotCaller
    ) -> None:
        replica = await one_replica(mesh)
        slot = await client.slot()
        replica.greets = False
        links = len(replica.contexts)
        replica.break_link()
        await one_link(replica, links + 1)
        dispatched = asyncio.ensure_future(client.dispatch(slot, b"late"))
        await failure_of(client.reserve(endpoint="nowhere"))
        assert replica.slots.kinds == ["reserve"]
        replica.greets = True
        replica.break_link()
        assert (await dispatched).payload == b"late"
        assert replica.slots.kinds == ["reserve", "dispatch"]

    @pytest.mark.asyncio
    async def test_what_waits_for_a_link_that_does_not_come_back_ends_in_time(
        self, mesh: RouterBench, client: SlotCaller
    ) -> None:
        replica = await one_replica(mesh)
        slot = await client.slot()
        replica.set_serving(False)
        replica.break_link()
        await wait_until(lambda: not mesh.controller.reports[-1].linked, what="the link is lost")
        async with asyncio.timeout(60):
            await assert_unproven(client, slot.token, Reason.BACKEND_UNAVAILABLE)
        assert replica.slots.kinds == ["reserve"]


async def assert_gone(client: SlotCaller, token: str) -> None:
    """Nothing can be done with the slot, and nothing of it is held."""
    dispatch, renew, released = await asyncio.gather(
        failure_of(client.dispatch(token)), failure_of(client.renew(token)), client.release(token)
    )
    assert (dispatch.reason, dispatch.executed) == (Reason.REPLICA_GONE, Executed.NO)
    assert renew.reason is Reason.REPLICA_GONE
    repeated = await failure_of(client.dispatch(token, request_id="pay-1"))
    assert (repeated.reason, repeated.executed) == (Reason.REPLICA_LOST, Executed.UNKNOWN), (
        "an earlier one may have run"
    )
    assert (released.ongoing, released.max_ongoing) == (0, 0)


async def assert_unproven(client: SlotCaller, token: str, reason: Reason) -> None:
    """The slot may live, so nobody says that it does not. Nothing was sent."""
    operations = (client.dispatch(token), client.renew(token), client.release(token))
    for failure in await asyncio.gather(*map(failure_of, operations)):
        assert (failure.reason, failure.executed, failure.retry_delay_s) == (reason, Executed.NO, 1.0)
