"""A controller without state, and what members bring from the one before it: owners, and replicas that have ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest

from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.internal.v1 import membership_service_pb2 as pb
from slotmesh.internal.v1.membership_service_pb2_grpc import MembershipServiceStub
from slotmesh.runtime.process_identity import own_process
from slotmesh.units import parse_host_port
from tests.support.controllers import Controlled, eventually, running_controller, violations
from tests.support.fakes.members import FakeReplica, FakeRouter, epochs, owners, replica_routes
from tests.support.replicas import running_replica
from tests.support.tables import one_part, owners_of
from tests.support.tcp_proxy import tcp_proxy
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

MESH = """
backends:
  v1: {handler: "app:Digits", num_replicas: 2}
endpoints:
  digits: {traffic: {v1: 1.0}}
"""
HALF = PARTITIONS // 2


def brought(*replicas: FakeReplica, epoch: int = 7, **fields: Any) -> pb.RoutingTable:
    """A table of generation `f`: these replicas own the partitions of `digits` in turn."""
    return pb.RoutingTable(
        generation="f",
        revision=30,
        roster_revision=fields.pop("roster_revision", 20),
        endpoints=[
            pb.EndpointRoute(
                name="digits",
                assignment=1,
            )
        ],
        assignments=[
            pb.PartitionAssignment(
                owners=[pb.PartitionOwner(replica_id=it.replica_id, incarnation=it.incarnation) for it in replicas],
                partition_owners=[number % len(replicas) for number in range(PARTITIONS)],
                owner_epochs=[0] * PARTITIONS,
                base_epoch=epoch,
            )
        ],
        backends=[
            pb.BackendRoute(
                name="v1",
                replicas=[
                    pb.ReplicaRoute(
                        replica_id=it.replica_id, incarnation=it.incarnation, address=it.address, process=it.process
                    )
                    for it in replicas
                ],
            )
        ],
        **fields,
    )


@asynccontextmanager
async def router_with(mesh: Controlled, table: pb.RoutingTable, router_id: str = "r") -> AsyncIterator[FakeRouter]:
    router = FakeRouter(mesh.channel, router_id)
    router.brings = table
    async with router:
        yield router


def covered(table: pb.RoutingTable) -> list[tuple[str, int]]:
    return [(it.generation, it.revision) for it in table.covers]


async def test_owners_that_are_cut_off_stay_owners_and_the_table_covers_theirs() -> None:
    async with running_controller() as mesh:
        await mesh.apply(MESH)
        a, b, c = (FakeReplica(mesh.channel, "v1", name) for name in "abc")
        departed = pb.DepartedReplica(replica_id="x", incarnation="0" * 32, generation="f", revision=9)
        brings = brought(a, b, departed=[departed], departed_since=3)
        async with router_with(mesh, brings) as router, c:
            await c.report("READY")
            table = await router.wait_for(lambda table: covered(table) == [("f", 20)], "the older table is covered")
            assert table.covers[0].departed_since == 3
            assert list(table.departed) == [departed]
            table = await router.wait_for(lambda table: "c" in replica_routes(table, "v1"), "c is listed")
            assert replica_routes(table, "v1").keys() == {"a", "b", "c"}
            assert owners(table, "digits") == {"a": HALF, "b": HALF}
            assert {*epochs(table, "digits")} == {7}

            # One of them ends, as a router was told: its partitions are given anew, above all older epochs.
            await router.acknowledge(ended=[a])
            table = await router.wait_for(
                lambda table: owners(table, "digits") == {"b": HALF, "c": HALF}, "c owns half"
            )
            assert all(epoch == 7 or epoch > 10**12 for epoch in epochs(table, "digits"))
            assert [it.replica_id for it in table.departed] == ["x", "a"]

            # The other one attaches, is fenced, and goes on.
            b.has_served, b.generation, b.newest_epoch, b.clings = True, "f", 7, True
            async with b:
                await b.report("READY")
                await wait_until(lambda: b.revoked, what="b is fenced")
                assert b.revoked[0].through_epoch > 10**12
                assert owners(router.table, "digits") == {"b": HALF, "c": HALF}
                assert 7 in epochs(router.table, "digits")
                await b.give_up()
                table = await router.wait_for(lambda table: 7 not in epochs(table, "digits"), "b has its own anew")
                assert owners(table, "digits") == {"b": HALF, "c": HALF}


async def test_a_controller_that_was_told_nothing_yet_takes_nothing_over() -> None:
    async with running_controller() as mesh:
        a = FakeReplica(mesh.channel, "v1", "a")
        a.has_served, a.generation = True, "f"
        async with router_with(mesh, brought(a)) as router, a:
            await a.report("READY")
            await router.wait_for(lambda table: replica_routes(table, "v1"), "a table")
            assert not covered(router.table), "routers do not take it"
            assert not a.revoked
            await mesh.apply(MESH)
            await router.wait_for(lambda table: covered(table) == [("f", 20)], "a table that covers theirs")
            await wait_until(lambda: a.revoked, what="a is fenced")


async def test_epochs_that_members_bring_are_overtaken_whatever_the_clock_says() -> None:
    ahead = 2**60
    async with running_controller() as mesh:
        await mesh.apply(MESH)
        a, b = FakeReplica(mesh.channel, "v1", "a"), FakeReplica(mesh.channel, "v1", "b")
        a.has_served, a.generation, a.newest_epoch = True, "f", ahead + 5
        async with router_with(mesh, brought(a, b, epoch=ahead)) as router, a, b:
            await a.report("READY")
            await b.report("READY")
            table = await router.wait_for(
                lambda table: (
                    owners(table, "digits") == {"a": HALF, "b": HALF} and min(epochs(table, "digits")) > ahead
                ),
                "all is given anew",
            )
            assert {*epochs(table, "digits")} == {ahead + 6}
            assert max(order.through_epoch for order in a.revoked) == ahead + 5
            # Named as an owner, b has to give up what it was given, although it says that it is new.
            assert max(order.through_epoch for order in b.revoked) >= ahead


async def test_a_replica_that_served_waits_for_the_table_that_names_owners() -> None:
    async with running_controller() as mesh:
        await mesh.apply(MESH.replace("num_replicas: 2", "num_replicas: 1"))
        a, b = FakeReplica(mesh.channel, "v1", "a"), FakeReplica(mesh.channel, "v1", "b")
        a.has_served, a.generation = True, "f"
        async with FakeRouter(mesh.channel, "new", "127.0.0.1:1") as new, a:
            await a.report("READY")
            await wait_until(lambda: a.revoked, what="a is fenced")
            await a.report("READY", max_ongoing=9)
            await new.wait_for(lambda table: _max_ongoing(table, "a") == 9, "a later table")
            assert not owners(new.table, "digits")
            async with router_with(mesh, brought(b)) as old:
                await old.wait_for(lambda table: covered(table) == [("f", 20)], "the older table is covered")
                table = await new.wait_for(lambda table: owners(table, "digits"), "owners")
                assert owners(table, "digits") == {"b": PARTITIONS}


def _max_ongoing(table: pb.RoutingTable, replica_id: str) -> int | None:
    """None where the table does not name the replica."""
    route = replica_routes(table, "v1").get(replica_id)
    return None if route is None else route.max_ongoing


async def test_a_replica_of_which_the_process_has_ended_loses_its_partitions() -> None:
    async with running_controller() as mesh:
        await mesh.apply(MESH)
        alive, dead, c = (FakeReplica(mesh.channel, "v1", name) for name in ("alive", "dead", "c"))
        alive.process = own_process()
        place, _, started_at = alive.process.rpartition(":")
        dead.process = f"{place}:{int(started_at) - 1}"
        async with router_with(mesh, brought(alive, dead)) as router, c:
            await c.report("READY")
            table = await router.wait_for(lambda table: owners(table, "digits") == {"alive": HALF, "c": HALF}, "c owns")
            assert [it.replica_id for it in table.departed] == ["dead"]
            assert replica_routes(table, "v1")["alive"].process == alive.process


async def test_a_successor_of_one_whose_process_has_ended_need_not_wait() -> None:
    async with running_controller() as mesh, FakeRouter(mesh.channel, "r") as router:
        await mesh.apply(MESH.replace("num_replicas: 2", "num_replicas: 1"))
        old, new = FakeReplica(mesh.channel, "v1", "a"), FakeReplica(mesh.channel, "v1", "a")
        place, _, started_at = own_process().rpartition(":")
        old.process = f"{place}:{int(started_at) - 1}"
        async with old:
            await old.report("READY")
            await router.wait_for(lambda table: owners(table, "digits") == {"a": PARTITIONS}, "it owns all")
            await router.acknowledge("a")
        async with new:
            await new.report("READY")
            table = await router.wait_for(
                lambda table: [it.incarnation for it in owners_of(table).owners] == [new.incarnation], "the new one"
            )
            assert [it.incarnation for it in table.departed] == [old.incarnation]


async def test_an_older_life_that_a_router_still_reaches_keeps_its_partitions() -> None:
    async with running_controller(lease_s=1.0) as mesh, FakeRouter(mesh.channel, "new", "127.0.0.1:1") as new:
        await mesh.apply(MESH)
        older, younger = FakeReplica(mesh.channel, "v1", "a"), FakeReplica(mesh.channel, "v1", "a")
        async with younger:
            await younger.report("READY")
            await new.wait_for(lambda table: replica_routes(table, "v1"), "the younger one is listed")
            brings = brought(older)
            async with router_with(mesh, brings) as router:

                async def is_taken_over() -> bool:
                    # Members that are heard, as long as it takes.
                    await router.acknowledge("a", table=brings)
                    await younger.report("READY")
                    return bool(router.tables) and covered(router.table) == [("f", 20)]

                await eventually(is_taken_over, what="the older table is covered")
                lives = {it.incarnation for route in router.table.backends for it in route.replicas}
                assert lives == {older.incarnation, younger.incarnation}
                await router.acknowledge(ended=[older])
                table = await router.wait_for(lambda table: len(table.departed) == 1, "the older one has ended")
                assert table.departed[0].incarnation == older.incarnation


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (lambda table: table.assignments[0].partition_owners.pop(), "table_part.table.assignments[0].partition_owners"),
        (lambda table: table.assignments[0].owner_epochs.pop(), "table_part.table.assignments[0].owner_epochs"),
        (lambda table: table.assignments[0].owners.pop(), "table_part.table.assignments[0].partition_owners"),
        (
            lambda table: setattr(table.assignments[0], "base_epoch", 2**62),
            "table_part.table.assignments[0].owner_epochs",
        ),
        (lambda table: setattr(table, "generation", ""), "table_part.table.generation"),
        (lambda table: table.covers.add(revision=1), "table_part.table.covers[0].generation"),
        (
            lambda table: setattr(table.backends[0].replicas[0], "replica_id", "a b"),
            "table_part.table.backends[0].replicas[0].replica_id",
        ),
        (
            lambda table: setattr(table.backends[0].replicas[0], "address", "nowhere"),
            "table_part.table.backends[0].replicas[0].address",
        ),
    ],
)
async def test_a_table_that_makes_no_sense_is_refused_with_its_field(spoil: Any, field: str) -> None:
    async with running_controller() as mesh:
        table = brought(FakeReplica(mesh.channel, "v1", "a"))
        spoil(table)
        call = MembershipServiceStub(mesh.channel).AttachRouter()
        await call.write(pb.AttachRouterRequest(table_part=one_part(table)))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call.read()
        assert list(violations(error.value)) == [field]


async def test_two_owners_never_run_a_key_when_one_is_cut_off_from_the_next_controller() -> None:
    """Real replicas: the calls of a key that its owner has, cut off, start nowhere else until it is back and fenced."""
    async with AsyncExitStack() as replicas, AsyncExitStack() as first, tcp_proxy() as proxy:
        mesh = await first.enter_async_context(running_controller())
        address = mesh.controller.address
        proxy.target = address
        cut_off = await replicas.enter_async_context(
            running_replica(controller=proxy.address, backend="v1", replica_id="a", until_ready=False)
        )
        async with FakeRouter(mesh.channel, "r") as router:
            await mesh.apply(MESH.replace("num_replicas: 2", "num_replicas: 1"))
            before = await router.wait_for(lambda table: owners(table, "digits") == {"a": PARTITIONS}, "a owns all")
        stream = await replicas.enter_async_context(cut_off.router())
        epoch = epochs(before, "digits")[9]
        await stream.send(stream.run([b"x"], method="wait", key="k", partition=9, epoch=epoch, endpoint="digits"))
        await wait_until(lambda: cut_off.engine.scheduler.in_use == 1, what="the call runs")
        proxy.cut()
        await first.aclose()
        async with running_controller(port=parse_host_port(address)[1]) as mesh:
            await replicas.enter_async_context(
                running_replica(controller=address, backend="v1", replica_id="b", until_ready=False)
            )
            await mesh.apply(MESH)
            async with router_with(mesh, before) as router:
                table = await router.wait_for(
                    lambda table: replica_routes(table, "v1").keys() == {"a", "b"} and table.covers, "both are listed"
                )
                assert owners(table, "digits") == {"a": PARTITIONS}
                assert {*epochs(table, "digits")} == {*epochs(before, "digits")}
                # It is back: what it runs stays there, what it did not begin is given anew, in shares.
                proxy.heal()
                table = await router.wait_for(
                    lambda table: (
                        owners(table, "digits") == {"a": HALF + 1, "b": HALF - 1}
                        or owners(table, "digits") == {"a": HALF, "b": HALF}
                    ),
                    "shares",
                )
                await stream.send(stream.run([b"y"], method="wait", key="k", partition=9, epoch=epoch))
                await wait_until(lambda: 2 in stream.refused, what="the refusal of an older epoch")
                cut_off.handler.gate.set()
                await stream.wait_answers(2)
