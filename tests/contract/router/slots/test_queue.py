"""Reservations that wait for room: back pressure, and the load that is reported to the controller."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from router_service.app import serve
from router_service.config import RouterSettings
from slotmesh.calls.slot_tokens import format_token
from slotmesh.errors import Executed, Reason
from slotmesh.v1 import (
    call_pb2,
)
from tests.contract.router.slots.slot_caller import SHORT, SlotCaller, call, client_of, failure_of, one_replica, queued
from tests.support.fakes.controller import fake_controller
from tests.support.fakes.replica import Response, hold
from tests.support.router_bench import RouterBench
from tests.support.wait import wait_until


class TestBackPressure:
    @pytest.mark.asyncio
    async def test_reservations_wait_for_room_and_give_up_at_their_deadline(
        self, mesh: RouterBench, client: SlotCaller
    ) -> None:
        replica = await one_replica(mesh, slots=1)
        replica.answer = hold
        running = asyncio.ensure_future(mesh.stub.Call(call()))
        await wait_until(lambda: replica.held)
        failure = await failure_of(client.reserve(options=call_pb2.CallOptions(timeout=SHORT)))
        assert (failure.reason, failure.executed) == (Reason.NO_SLOT, Executed.NO)
        assert failure.retry_delay_s is not None
        reserving = asyncio.ensure_future(client.slot())
        await queued(mesh, 1)
        assert replica.slots.kinds == []
        await replica.answer_held()
        assert (await reserving).replica_id == "r0"
        await running

    @pytest.mark.asyncio
    async def test_a_slot_holds_its_permit_until_it_is_free_again(self, mesh: RouterBench, client: SlotCaller) -> None:
        replica = await one_replica(mesh, slots=1)
        slot = await client.slot()
        calling = asyncio.ensure_future(mesh.stub.Call(call(b"waits")))
        await queued(mesh, 1)
        assert replica.runs == []
        await client.release(slot)
        assert (await calling).payload == b"waits"

    @pytest.mark.asyncio
    async def test_a_full_queue_refuses(self, mesh: RouterBench, client: SlotCaller) -> None:
        await one_replica(mesh, slots=1, max_queued_calls=2)
        slot = await client.slot()
        waiting = [asyncio.ensure_future(client.slot()) for _ in range(2)]
        await queued(mesh, 2)
        failure = await failure_of(client.reserve())
        assert (failure.reason, failure.executed) == (Reason.QUEUE_FULL, Executed.NO)
        assert failure.retry_delay_s is not None
        await client.release(slot)
        (first,), (second,) = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await client.release(first.result())
        assert (await second).token != first.result().token

    @pytest.mark.asyncio
    async def test_without_a_replica_or_an_endpoint(self, mesh: RouterBench, client: SlotCaller) -> None:
        await mesh.linked()
        failure = await failure_of(client.reserve(options=call_pb2.CallOptions(timeout=SHORT)))
        assert (failure.reason, failure.executed) == (Reason.NO_SLOT, Executed.NO)
        failure = await failure_of(client.reserve("nowhere"))
        assert (failure.reason, failure.executed) == (Reason.ENDPOINT_NOT_FOUND, Executed.NO)
        reserving = asyncio.ensure_future(client.slot())
        await queued(mesh, 1)
        await mesh.linked(mesh.replicas[1])
        assert (await reserving).replica_id == "r1"

    @pytest.mark.asyncio
    async def test_without_a_table_nothing_is_known_to_be_gone(self) -> None:
        """A router that was started a moment ago: another one, or this one later, serves the token."""
        token = format_token("r0", "life", secrets.token_bytes(16))
        async with (
            fake_controller() as controller,
            serve(RouterSettings(port=0, metrics_port=-1, controller=controller.address)) as server,
            client_of(server.address) as client,
        ):
            wanted = client.reserve(replica_id="r0")
            for rpc in (client.reserve(), wanted, client.dispatch(token), client.renew(token), client.release(token)):
                failure = await failure_of(rpc)
                assert (failure.reason, failure.executed) == (Reason.BACKEND_UNAVAILABLE, Executed.NO)
                assert failure.retry_delay_s


class TestWanted:
    @pytest.mark.asyncio
    async def test_a_wanted_replica_and_those_that_are_not(self, mesh: RouterBench, client: SlotCaller) -> None:
        for wanted in ("r0", "r1", "r1", "r0", "r0"):
            assert (await client.slot(replica_id=wanted)).replica_id == wanted
            assert (await client.slot(excluded_replica_ids=[wanted, "r9"])).replica_id != wanted
        failure = await failure_of(client.reserve(replica_id="r9"))
        assert (failure.reason, failure.executed) == (Reason.REPLICA_GONE, Executed.NO)
        everybody = client.reserve(excluded_replica_ids=["r0", "r1"], options=call_pb2.CallOptions(timeout=SHORT))
        assert (await failure_of(everybody)).reason is Reason.NO_SLOT
        failure = await failure_of(client.reserve(replica_id="r0", excluded_replica_ids=["r0"]))
        assert (failure.reason, failure.metadata["field"]) == (Reason.BAD_REQUEST, "excluded_replica_ids")

    @pytest.mark.asyncio
    async def test_a_replica_that_drains_grants_no_more_wanted_or_not(
        self, mesh: RouterBench, client: SlotCaller
    ) -> None:
        first, second = mesh.replicas
        slots = [await client.slot(replica_id="r0") for _ in range(2)]
        first.capacity.draining = True
        await first.say(Response(capacity=first.capacity))
        honoured = await client.dispatch(slots[0], b"honoured")  # its answer follows the announcement on the link
        assert honoured.payload == b"honoured"
        wanted = client.reserve(replica_id="r0", options=call_pb2.CallOptions(timeout=SHORT))
        assert (await failure_of(wanted)).reason is Reason.NO_SLOT
        assert {(await client.slot()).replica_id for _ in range(4)} == {"r1"}
        await client.release(slots[1])
        assert first.slots.kinds == ["reserve", "reserve", "dispatch", "release"]
        assert second.slots.kinds == ["reserve"] * 4

    @pytest.mark.asyncio
    async def test_one_that_waits_for_a_replica_holds_up_nobody(self, mesh: RouterBench, client: SlotCaller) -> None:
        first, second = mesh.replicas
        first.capacity.max_ongoing = second.capacity.max_ongoing = 1
        await mesh.linked()
        await mesh.linked(first, second)
        slot = await client.slot(replica_id="r0")
        waiting = asyncio.ensure_future(client.slot(replica_id="r0"))
        await queued(mesh, 1)
        assert (await mesh.stub.Call(call())).replica_id == "r1"
        assert (await client.slot()).replica_id == "r1"
        await client.release(slot)
        assert (await waiting).replica_id == "r0"
