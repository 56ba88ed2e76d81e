"""Partitions that move away from live owners, over real gRPC: told, given up, then announced."""

from __future__ import annotations

import pytest

from slotmesh.partitions import PARTITIONS
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from tests.fakes.members import FakeReplica, FakeRouter, owners
from tests.support.controllers import Controlled, running_controller
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

MESH = """
backends:
  v1: {handler: "app:Digits"}
  v2: {handler: "app:Digits"}
endpoints:
  digits: {traffic: {v1: 1.0}}
"""
HALF = PARTITIONS // 2


async def ready(replica: FakeReplica) -> FakeReplica:
    await replica.attach()
    await replica.report("READY")
    return replica


async def weigh(mesh: Controlled, **weights: float) -> None:
    policy = mesh_pb2.TrafficPolicy(weights=weights)
    await mesh.operator.SetTraffic(pb.SetTrafficRequest(endpoint="digits", traffic=policy))


def epochs_of(router: FakeRouter) -> list[int]:
    return list(router.table.endpoints[0].owner_epochs)


async def test_a_replica_that_joins_gets_its_share_when_the_owner_has_given_it_up() -> None:
    async with running_controller() as mesh, FakeRouter(mesh.channel, "r") as router:
        await mesh.apply(MESH)
        a, b = FakeReplica(mesh.channel, "v1", "a"), FakeReplica(mesh.channel, "v1", "b")
        await ready(a)
        await router.wait_for(lambda table: owners(table, "digits") == {"a": PARTITIONS}, "a owns all")
        before = epochs_of(router)
        a.clings = True
        await ready(b)
        await wait_until(lambda: len(a.told_to_give_up("digits")) == HALF, what="a is told to give up half")
        assert all(before[number] == epoch for number, epoch in a.told_to_give_up("digits").items())
        assert owners(router.table, "digits") == {"a": PARTITIONS}, "nothing moves before it was given up"
        await a.give_up()
        table = await router.wait_for(lambda table: owners(table, "digits") == {"a": HALF, "b": HALF}, "half each")
        moved = {number for number, (was, now) in enumerate(zip(before, epochs_of(router), strict=True)) if was != now}
        assert moved == a.told_to_give_up("digits").keys(), "no more moved than was given up"
        assert all(table.endpoints[0].owner_epochs[number] == before[number] + 1 for number in moved)
        assert not b.revoked
        await a.cut()
        await b.cut()


async def test_an_owner_that_was_away_is_told_again() -> None:
    async with running_controller() as mesh, FakeRouter(mesh.channel, "r") as router:
        await mesh.apply(MESH)
        a, b = FakeReplica(mesh.channel, "v1", "a"), FakeReplica(mesh.channel, "v1", "b")
        await ready(a)
        await router.wait_for(lambda table: owners(table, "digits") == {"a": PARTITIONS}, "a owns all")
        a.clings = True
        await ready(b)
        await wait_until(lambda: len(a.told_to_give_up("digits")) == HALF, what="a is told")
        await a.cut()
        a.revoked.clear()
        a.clings = False
        await ready(a)
        await router.wait_for(lambda table: owners(table, "digits") == {"a": HALF, "b": HALF}, "half each")
        await a.cut()
        await b.cut()


async def test_a_replica_that_drains_gives_up_all_before_it_has_ended() -> None:
    async with running_controller() as mesh, FakeRouter(mesh.channel, "r") as router:
        await mesh.apply(MESH)
        a, b = FakeReplica(mesh.channel, "v1", "a"), FakeReplica(mesh.channel, "v1", "b")
        await ready(a)
        await ready(b)
        await router.wait_for(lambda table: owners(table, "digits") == {"a": HALF, "b": HALF}, "half each")
        await mesh.operator.DrainReplica(pb.DrainReplicaRequest(replica_id="a"))
        await router.wait_for(lambda table: owners(table, "digits") == {"b": PARTITIONS}, "b owns all")
        assert a.drains
        assert not a.is_ended
        await a.cut()
        await b.cut()


async def test_an_owner_that_ends_in_the_middle_hands_over_by_that() -> None:
    async with running_controller() as mesh, FakeRouter(mesh.channel, "r") as router:
        await mesh.apply(MESH)
        a, b = FakeReplica(mesh.channel, "v1", "a"), FakeReplica(mesh.channel, "v1", "b")
        await ready(a)
        await router.wait_for(lambda table: owners(table, "digits") == {"a": PARTITIONS}, "a owns all")
        a.clings = True
        await ready(b)
        await wait_until(lambda: a.revoked, what="a is told")
        await a.report("STOPPED")
        await router.wait_for(lambda table: owners(table, "digits") == {"b": PARTITIONS}, "b owns all")
        await a.cut()
        await b.cut()


async def test_weights_move_the_share_that_they_must_and_0_moves_all() -> None:
    async with running_controller() as mesh, FakeRouter(mesh.channel, "r") as router:
        await mesh.apply(MESH)
        a, b = FakeReplica(mesh.channel, "v1", "a"), FakeReplica(mesh.channel, "v2", "b")
        await ready(a)
        await ready(b)
        await router.wait_for(lambda table: owners(table, "digits") == {"a": PARTITIONS}, "a owns all")
        await weigh(mesh, v1=0.75, v2=0.25)
        quarter = PARTITIONS // 4
        await router.wait_for(
            lambda table: owners(table, "digits") == {"a": PARTITIONS - quarter, "b": quarter}, "b owns a quarter"
        )
        assert len(a.told_to_give_up("digits")) == quarter
        await weigh(mesh, v2=1.0)
        await router.wait_for(lambda table: owners(table, "digits") == {"b": PARTITIONS}, "b owns all")
        assert not b.revoked
        await a.cut()
        await b.cut()


async def test_what_somebody_else_says_to_have_given_up_moves_nothing() -> None:
    async with running_controller() as mesh, FakeRouter(mesh.channel, "r") as router:
        await mesh.apply(MESH)
        a, b = FakeReplica(mesh.channel, "v1", "a"), FakeReplica(mesh.channel, "v1", "b")
        await ready(a)
        await router.wait_for(lambda table: owners(table, "digits") == {"a": PARTITIONS}, "a owns all")
        a.clings = True
        await ready(b)
        await wait_until(lambda: len(a.told_to_give_up("digits")) == HALF, what="a is told")
        b.revoked = a.revoked
        await b.give_up()
        await mesh.apply(MESH.replace("endpoints:", "  v3: {handler: 'app:Digits'}\nendpoints:"))
        await router.wait_for(lambda table: len(table.backends) == 3, "a later table")
        assert owners(router.table, "digits") == {"a": PARTITIONS}
        await a.cut()
        await b.cut()
