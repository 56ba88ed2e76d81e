"""Partitions that move away from live owners, over real gRPC: revoked, given up, then announced."""

from __future__ import annotations

import pytest

from controller_service.shell.members.replica_links import PARTITIONS_AN_ORDER
from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from tests.support.controllers import Controlled, running_controller
from tests.support.fakes.members import FakeReplica, FakeRouter, epochs, owners, replica_routes
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
    return epochs(router.table, "digits")


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
        await router.wait_for(lambda table: owners(table, "digits") == {"a": HALF, "b": HALF}, "half each")
        moved = {number for number, (was, now) in enumerate(zip(before, epochs_of(router), strict=True)) if was != now}
        assert moved == a.told_to_give_up("digits").keys(), "no more moved than was given up"
        assert all(epochs_of(router)[number] == before[number] + 1 for number in moved)
        assert not b.revoked
        await a.cut()
        await b.cut()


async def test_orders_to_give_up_partitions_of_many_endpoints_travel_in_groups() -> None:
    names = [f"e{at}" for at in range(40)]
    endpoints = ", ".join(f"{name}: {{traffic: {{v1: 1.0}}}}" for name in names)
    async with running_controller() as mesh, FakeRouter(mesh.channel, "r") as router:
        await mesh.apply(f"{{backends: {{v1: {{handler: 'app:Digits'}}}}, endpoints: {{{endpoints}}}}}")
        a, b = FakeReplica(mesh.channel, "v1", "a"), FakeReplica(mesh.channel, "v1", "b")
        await ready(a)
        await router.wait_for(
            lambda table: all(owners(table, name) == {"a": PARTITIONS} for name in names), "a owns all", timeout=20
        )
        await ready(b)
        await router.wait_for(
            lambda table: all(owners(table, name) == {"a": HALF, "b": HALF} for name in names), "half each", timeout=20
        )
        sizes = [sum(len(each.partitions) for each in order.endpoints) for order in a.revoked]
        assert sum(sizes) == 40 * HALF
        assert max(sizes) <= PARTITIONS_AN_ORDER
        assert len(a.revoked) < len(names)
        assert all(len(a.told_to_give_up(name)) == HALF for name in names)
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


async def test_a_replica_that_served_an_earlier_controller_gives_up_all_before_anybody_owns_anything() -> None:
    async with running_controller() as mesh, FakeRouter(mesh.channel, "r") as router:
        await mesh.apply(MESH)
        elder, a = FakeReplica(mesh.channel, "v2", "elder"), FakeReplica(mesh.channel, "v1", "a")
        elder.has_served = elder.clings = True
        await ready(elder)
        await wait_until(lambda: elder.revoked, what="the elder is told")
        await ready(a)
        await router.wait_for(lambda table: any(route.replicas for route in table.backends), "a is known")
        before = len(router.tables)
        await mesh.apply(MESH.replace("endpoints:", "  v3: {handler: 'app:Digits'}\nendpoints:"))
        await router.wait_for(lambda _: len(router.tables) > before, "a later table")
        assert not owners(router.table, "digits")
        await elder.say_busy("digits", 3, 5)
        table = await router.wait_for(lambda table: owners(table, "digits"), "the first assignment")
        assert owners(table, "digits") == {"a": PARTITIONS - 2, "elder": 2}
        fence = elder.revoked[0].through_epoch
        first = epochs_of(router)
        assert all(epoch > fence for number, epoch in enumerate(first) if number not in {3, 5})
        await wait_until(lambda: elder.told_to_give_up("digits") == {3: first[3], 5: first[5]}, what="it is told")
        assert owners(router.table, "digits") == {"a": PARTITIONS - 2, "elder": 2}
        await elder.give_up()
        await router.wait_for(lambda table: owners(table, "digits") == {"a": PARTITIONS}, "a owns all")
        assert epochs_of(router)[3] > first[3] >= fence
        await elder.cut()
        await a.cut()


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
        await b.report("READY", max_ongoing=5)
        await router.wait_for(lambda table: replica_routes(table, "v1")["b"].max_ongoing == 5, "a later table")
        assert owners(router.table, "digits") == {"a": PARTITIONS}
        assert not mesh.controller.state.observed.handovers["digits"].emptied
        await a.cut()
        await b.cut()
