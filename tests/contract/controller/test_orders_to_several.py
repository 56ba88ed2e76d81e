"""What a controller orders reaches each of several: replicas of a backend, routers, owners of two endpoints.

A mesh of three replicas and three routers; whoever is told first tells nothing of the others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.internal.v1 import membership_service_pb2 as wire
from tests.support.controllers import Controlled, running_controller
from tests.support.fakes.members import FakeReplica, FakeRouter, owners
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

MESH: Final = """
backends:
  v1: {handler: "app:Digits", num_replicas: 3, graceful_timeout: 10s}
  v2: {handler: "app:Digits", num_replicas: 3}
endpoints:
  digits: {traffic: {v1: 1.0}}
  faces: {traffic: {v1: 1.0}}
"""
ENDPOINTS: Final = ("digits", "faces")


@asynccontextmanager
async def three_of_each(mesh: Controlled) -> AsyncIterator[tuple[list[FakeReplica], list[FakeRouter]]]:
    """Each replica owns a third of both endpoints."""
    routers = [FakeRouter(mesh.channel, f"r{number}", f"127.0.0.1:{7_200 + number}") for number in range(3)]
    replicas = [FakeReplica(mesh.channel, "v1", f"a{number}") for number in range(3)]
    await mesh.apply(MESH)
    for member in (*routers, *replicas):
        await member.attach()
    for replica in replicas:
        await replica.report("READY")
    for router in routers:
        await router.wait_for(lambda it: all(len(owners(it, name)) == 3 for name in ENDPOINTS), "owners", timeout=30.0)
    try:
        yield replicas, routers
    finally:
        for member in (*routers, *replicas):
            await member.cut()


async def test_each_owner_gives_up_its_part_of_each_endpoint() -> None:
    async with running_controller() as mesh, three_of_each(mesh) as (replicas, routers):
        for replica in replicas:
            replica.clings = True
        newcomers = [FakeReplica(mesh.channel, "v1", f"b{number}") for number in range(2)]
        for newcomer in newcomers:
            await newcomer.attach()
            await newcomer.report("READY")
        for replica in replicas:
            for name in ENDPOINTS:
                told = replica.told_to_give_up
                await wait_until(lambda told=told, name=name: told(name), timeout=30.0, what=f"orders of {name}")  # type: ignore[misc]
        for replica in replicas:
            await replica.give_up()
        fair = {PARTITIONS // 5, PARTITIONS // 5 + 1}
        for router in routers:
            for name in ENDPOINTS:
                await router.wait_for(lambda it, name=name: {*owners(it, name).values()} <= fair, name, timeout=30.0)  # type: ignore[misc]
        for newcomer in newcomers:
            assert not newcomer.revoked
            await newcomer.cut()


async def test_each_replica_of_a_backend_gets_its_settings_and_those_of_others_do_not() -> None:
    async with running_controller() as mesh, three_of_each(mesh) as (replicas, _):
        other = FakeReplica(mesh.channel, "v2", "other")
        async with other:
            await wait_until(lambda: other.configurations, what="the settings of another backend")
            before = len(other.configurations)
            await mesh.apply(MESH.replace("10s", "20s"))
            for replica in replicas:
                settings = replica.configurations
                await wait_until(
                    lambda settings=settings: settings[-1].backend.graceful_timeout.seconds == 20,  # type: ignore[misc]
                    what=f"the settings of {replica.replica_id}",
                )
            assert len(other.configurations) == before


async def test_each_replica_hears_of_each_router() -> None:
    async with running_controller() as mesh, three_of_each(mesh) as (replicas, routers):
        addresses = sorted(router.address for router in routers)
        for left in range(3, 0, -1):
            for replica in replicas:
                told = replica.configurations
                await wait_until(
                    lambda told=told, left=left: sorted(told[-1].router_addresses) == addresses[3 - left :],  # type: ignore[misc]
                    what=f"{left} routers at {replica.replica_id}",
                )
            await sorted(routers, key=lambda it: it.address)[3 - left].say_goodbye()


async def test_each_router_gets_each_table() -> None:
    async with running_controller() as mesh, three_of_each(mesh) as (_, routers):
        for number in range(3):
            await mesh.apply(MESH + f"  e{number}: {{traffic: {{v2: 1.0}}}}\n")
            for router in routers:

                def has_it(table: wire.RoutingTable, name: str = f"e{number}") -> bool:
                    return name in {it.name for it in table.endpoints}

                await router.wait_for(has_it, f"e{number} at {router.router_id}")


async def test_each_member_is_told_of_the_end() -> None:
    async with running_controller() as mesh:
        async with three_of_each(mesh) as (replicas, routers):
            mesh.controller.replicas.close()
            mesh.controller.routers.close()
            for member in (*replicas, *routers):
                await wait_until(lambda member=member: member.is_ended, what="the end of a stream")  # type: ignore[misc]
                assert "the controller is stopping" in str(member.ended)
