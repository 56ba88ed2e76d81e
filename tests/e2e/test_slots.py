"""Leased slots between real processes: any router, the replica itself, drains, and clients that are killed."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import grpc
import pytest

from slotmesh.errors import Executed, Reason
from slotmesh.runtime.channels import open_channel
from slotmesh.status import from_rpc_error
from slotmesh.v1 import controller_service_pb2, controller_service_pb2_grpc
from tests.e2e.slot_mesh import (
    HANDLER,
    PERMITS,
    Client,
    Slot,
    assert_all_free,
    client_of,
    failure_of,
    total_of,
    until,
    until_idle,
)
from tests.e2e.slot_rivals import race
from tests.slots_soak.clients import Load
from tests.slots_soak.soak import soak
from tests.support.mesh import started_mesh
from tests.support.wait import wait_until


@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_a_slot_serves_at_any_router_and_at_its_replica_itself() -> None:
    async with (
        started_mesh(HANDLER, replicas=2, routers=2) as mesh,
        client_of(mesh.router_addresses[0]) as first,
        client_of(mesh.router_addresses[1]) as second,
    ):
        here, there = sorted(await mesh.replica_pids())
        slot, other = await first.reserve(replica_id=here), await first.reserve(excluded_replica_ids=[here])
        assert (slot.replica_id, other.replica_id) == (here, there)
        assert await second.call(slot, "second") == b'"second"'
        async with client_of(other.replica_address) as direct:
            assert (await failure_of(direct.call(slot, "astray"))).reason is Reason.REPLICA_GONE
            assert await direct.call(other, "direct") == b'"direct"'
            assert (await failure_of(first.call(other, "again"))).reason is Reason.SLOT_USED
            slot = await direct.reserve()
            assert slot.replica_id == there
            assert await second.call(slot, "back") == b'"back"'
        slot = await first.reserve(ttl_s=0.5)
        await until_idle(mesh, within_s=1.5)
        assert (await failure_of(second.call(slot, "late"))).reason is Reason.SLOT_EXPIRED
        await assert_all_free(mesh, first)


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_of_processes_that_dispatch_at_the_same_instant_one_wins() -> None:
    async with (
        started_mesh(HANDLER, replicas=1, routers=2) as mesh,
        client_of(mesh.router_address) as client,
    ):
        slots = await asyncio.gather(*(client.reserve(ttl_s=60) for _ in range(PERMITS)))
        rivals = [*mesh.router_addresses, slots[0].replica_address]
        heard = await race(rivals, "work", [slot.token for slot in slots])
        for outcomes in heard:
            (winner,) = {*outcomes} - {"SLOT_USED"}
            assert outcomes.count(winner) == 1
            assert winner == f'"{rivals[outcomes.index(winner)]}"', "whose call was executed hears of it"
        assert len(heard) == PERMITS
        total = await total_of(mesh)
        assert (total.dispatched, total.is_idle) == (PERMITS, True)
        await assert_all_free(mesh, client)


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_the_slots_of_a_replica_that_is_killed_are_gone() -> None:
    async with (
        started_mesh(HANDLER, replicas=2, routers=2) as mesh,
        client_of(mesh.router_addresses[0]) as first,
        client_of(mesh.router_addresses[1]) as second,
    ):
        doomed = min(await mesh.replica_pids())
        slots = [await first.reserve(replica_id=doomed) for _ in range(4)]
        running = asyncio.create_task(failure_of(first.call(slots.pop(), "cut off", 60.0)))
        await until(mesh, lambda total: total.dispatched == 1)
        # What it has not answered goes elsewhere, and nobody sees that.
        await mesh.kill_replica(doomed, signal.SIGSTOP)
        reserving = [asyncio.create_task(first.reserve(timeout_s=20)) for _ in range(PERMITS)]
        await wait_until(lambda: sum(task.done() for task in reserving) >= PERMITS // 4, what="the other one answers")
        await mesh.kill_replica(doomed)
        elsewhere = await asyncio.gather(*reserving)
        assert doomed not in {slot.replica_id for slot in elsewhere}

        failure = await running
        assert (failure.reason, failure.executed) == (Reason.REPLICA_LOST, Executed.UNKNOWN)
        for client in (first, second):
            await assert_gone(client, slots[0])
        await asyncio.gather(*map(first.release, elsewhere))
        await mesh.wait_for_replicas(2, without=doomed)
        for client in (first, second):
            await assert_gone(client, slots[1])
        await assert_all_free(mesh, first)


async def assert_gone(client: Client, slot: Slot) -> None:
    for operation in (client.call(slot, "late"), client.renew(slot)):
        failure = await failure_of(operation)
        assert (failure.reason, failure.executed) == (Reason.REPLICA_GONE, Executed.NO)
    assert (await client.release(slot)).max_ongoing == 0, "nothing is held"


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_a_replica_that_drains_honours_its_slots_and_gives_no_more() -> None:
    async with (
        started_mesh(HANDLER, replicas=2, routers=2) as mesh,
        client_of(mesh.router_addresses[0]) as first,
        client_of(mesh.router_addresses[1]) as second,
        open_channel(mesh.controller_address) as channel,
    ):
        controller: Any = controller_service_pb2_grpc.ControllerServiceStub(channel)
        leaving = min(await mesh.replica_pids())
        slots = await asyncio.gather(*(first.reserve(replica_id=leaving) for _ in range(5)))
        await controller.DrainReplica(controller_service_pb2.DrainReplicaRequest(replica_id=leaving))
        async with client_of(slots[0].replica_address) as direct:
            assert await refuses(direct) is Reason.DRAINING
            elsewhere = [await client.reserve() for client in (first, second, first, second)]
            assert leaving not in {slot.replica_id for slot in elsewhere}
            assert await first.call(slots[0], "first") == b'"first"'
            assert await second.call(slots[1], "second") == b'"second"'
            assert await direct.call(slots[2], "direct") == b'"direct"'
            assert (await first.release(slots[3])).ongoing == 1
            assert await second.call(slots[4], "last", 0.3) == b'"last"'
        # A replica that stops waits for the slots that it has given.
        await asyncio.gather(*map(first.release, elsewhere))
        await mesh.wait_for_replicas(2, without=leaving)
        assert (await failure_of(second.call(slots[4], "late"))).reason is Reason.REPLICA_GONE
        assert (await first.release(slots[4])).max_ongoing == 0


async def refuses(client: Client) -> Reason:
    """Waits until no slot is given any more; returns why."""
    while True:
        try:
            await client.release(await client.reserve())
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error).reason


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.timeout(180)
async def test_clients_that_are_killed_leave_nothing_behind() -> None:
    survived = await soak(Load(processes=5, clients_each=4, life_s=0.5), seconds=4.0, replicas=2)
    assert survived.killed >= 8
