"""A controller that ends and one that takes its place, with real replicas that outlive both: no key has two owners."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.units import parse_host_port
from tests.support.controllers import running_controller
from tests.support.fakes.members import FakeRouter, epochs, owners
from tests.support.replicas import running_replica
from tests.support.tables import owners_of
from tests.support.wait import wait_until

MESH = """
backends:
  v1: {num_replicas: 2}
endpoints:
  e: {traffic: {v1: 1.0}}
"""
NUMBER = 9
"""A partition."""


@pytest.mark.asyncio
async def test_a_call_that_outlives_its_controller_keeps_its_partition_until_it_has_ended() -> None:
    async with AsyncExitStack() as replicas, AsyncExitStack() as first:
        mesh = await first.enter_async_context(running_controller())
        address = mesh.controller.address
        running = {}
        for name in "ab":
            member = running_replica(controller=address, backend="v1", replica_id=name, until_ready=False)
            running[name] = await replicas.enter_async_context(member)
        async with FakeRouter(mesh.channel, "r") as router:
            await mesh.apply(MESH)
            table = await router.wait_for(lambda table: len(owners(table, "e")) == 2, "both own")
        route = owners_of(table)
        owner = running[route.owners[route.partition_owners[NUMBER]].replica_id]
        epoch = epochs(table, "e")[NUMBER]
        stream = await replicas.enter_async_context(owner.router())
        await stream.send(stream.run([b"x"], method="wait", key="k", partition=NUMBER, epoch=epoch))
        await wait_until(lambda: owner.engine.scheduler.in_use == 1, what="the call runs")

        await first.aclose()
        # It does not name the backend that has the call: whoever comes is asked.
        async with (
            running_controller(port=parse_host_port(address)[1]) as mesh,
            FakeRouter(mesh.channel, "r") as router,
        ):
            spare = running_replica(controller=address, backend="v2", replica_id="c", until_ready=False)
            await replicas.enter_async_context(spare)
            await wait_until(lambda: len(mesh.controller.replicas) == 3, what="all attach", timeout=20.0)
            await mesh.apply(MESH.replace("v1: {num_replicas: 2}", "v2: {num_replicas: 1}").replace("v1:", "v2:"))
            # A new controller first gives members of before some seconds to attach.
            table = await router.wait_for(lambda table: "c" in owners(table, "e"), "the first assignment")
            held = epochs(table, "e")
            assert owners(table, "e") == {"c": PARTITIONS - 1, owner.app.identity.replica_id: 1}
            assert all(held[NUMBER] < epoch for number, epoch in enumerate(held) if number != NUMBER)

            # A router that has not heard yet starts nothing there.
            await stream.send(stream.run([b"y"], method="wait", key="k", partition=NUMBER, epoch=epoch))
            await wait_until(lambda: 2 in stream.refused, what="the refusal")
            assert stream.refused[2].reason == "STALE_TABLE"

            owner.handler.gate.set()
            table = await router.wait_for(lambda table: owners(table, "e") == {"c": PARTITIONS}, "the hand-over")
            assert epochs(table, "e")[NUMBER] > held[NUMBER]
            assert stream.results[1] == b"x"
