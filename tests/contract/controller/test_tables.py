"""Routing tables of a real controller over real gRPC: partitions, revisions, rosters, departed replicas."""

from __future__ import annotations

import grpc
import pytest

from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from tests.contract.controller.digits_backend import DIGITS, evenly
from tests.support.controllers import eventually, running_controller
from tests.support.fakes.members import FakeReplica, FakeRouter, epochs, owners, replica_routes
from tests.support.tables import owners_of
from tests.support.wait import wait_until


async def refusal(member: FakeReplica) -> str:
    """The status that its stream ended with."""
    await wait_until(lambda: member.is_ended, what="the refusal")
    assert isinstance(member.ended, grpc.aio.AioRpcError)
    return member.ended.code().name


@pytest.mark.asyncio
async def test_the_first_assignment_waits_for_all_replicas_and_is_even() -> None:
    async with running_controller() as mesh:
        await mesh.apply(DIGITS % 3)
        async with (
            FakeReplica(mesh.channel, "v1", "a") as a,
            FakeReplica(mesh.channel, "v1", "b") as b,
            FakeReplica(mesh.channel, "v1", "c") as c,
            FakeRouter(mesh.channel, "r") as router,
        ):
            await a.report("READY")
            await b.report("READY")
            table = await router.wait_for(lambda table: len(replica_routes(table, "v1")) == 2, "a and b in the table")
            assert owners(table, "digits") in ({}, {"": PARTITIONS})
            await c.report("READY")
            table = await router.wait_for(lambda table: "" not in (owners(table, "digits") or {"": 1}), "owners")
            assert sorted(owners(table, "digits").values()) == [1365, 1365, 1366]
            lives = [owner.incarnation for owner in owners_of(table).owners]
            assert lives == [a.incarnation, b.incarnation, c.incarnation]
            assert len(set(epochs(table, "digits"))) == 1
            assert epochs(table, "digits")[0] > 0


@pytest.mark.asyncio
async def test_partitions_move_only_when_their_owner_is_known_to_be_gone() -> None:
    async with running_controller() as mesh:
        await mesh.apply(DIGITS % 2)
        async with (
            FakeReplica(mesh.channel, "v1", "a") as a,
            FakeReplica(mesh.channel, "v1", "b") as b,
            FakeRouter(mesh.channel, "r") as router,
        ):
            await a.report("READY")
            await b.report("READY")
            before = await router.wait_for(lambda table: owners(table, "digits") == evenly("a", "b"), "both own")

            # The stream breaks: nothing moves, and the replica stays listed.
            await a.cut()
            await b.report("READY", max_ongoing=5)
            table = await router.wait_for(
                lambda table: replica_routes(table, "v1")["b"].max_ongoing == 5, "a newer table"
            )
            assert owners(table, "digits") == evenly("a", "b")
            assert "a" in replica_routes(table, "v1")

            # It comes back, the same incarnation: nothing moves.
            await a.attach()
            a.clings = True
            await a.report("DRAINING")
            table = await router.wait_for(lambda table: replica_routes(table, "v1")["a"].draining, "a drains")
            assert owners(table, "digits") == evenly("a", "b")

            # It says that it ended: its partitions, and only those, have the next epoch and another owner.
            await a.report("STOPPED")
            after = await router.wait_for(lambda table: owners(table, "digits") == evenly("b"), "b owns all")
            assert "a" not in replica_routes(after, "v1")
            old = owners_of(before)
            pairs = zip(epochs(before, "digits"), epochs(after, "digits"), strict=True)
            for number, (was, now) in enumerate(pairs):
                moved = old.owners[old.partition_owners[number]].replica_id == "a"
                assert now == was + moved


@pytest.mark.asyncio
@pytest.mark.slow
async def test_a_new_incarnation_replaces_the_older_one_once_nobody_hears_of_that_any_more() -> None:
    async with running_controller(lease_s=2.0) as mesh:
        await mesh.apply(DIGITS % 1)
        async with (
            FakeReplica(mesh.channel, "v1", "a") as old,
            FakeReplica(mesh.channel, "v1", "a") as new,
            FakeRouter(mesh.channel, "r") as router,
        ):
            await old.report("READY")
            await router.wait_for(lambda table: owners(table, "digits") == evenly("a"), "a's partitions")
            await router.acknowledge("a")
            assert await refusal(new) == "INVALID_ARGUMENT"
            told = str(new.ended and new.ended.details())
            assert "hello.replica_id: another process with the id 'a' lives" in told
            assert "choose another --replica-id" in told

            # Silent to the controller, but not to the router.
            await old.cut()

            async def is_suspect() -> bool:
                await router.acknowledge("a")
                return bool((await mesh.replicas())["a"].state == mesh_pb2.REPLICA_STATE_SUSPECT)

            await eventually(is_suspect, what="a is suspect")
            await new.attach()
            assert await refusal(new) == "INVALID_ARGUMENT"
            assert owners_of(router.table).owners[0].incarnation == old.incarnation

            await router.acknowledge()
            await wait_until(lambda: not mesh.controller.state.observed.is_linked("a"), what="the report")
            await new.attach()
            await new.report("READY")
            table = await router.wait_for(
                lambda table: [it.incarnation for it in owners_of(table).owners] == [new.incarnation],
                "its partitions",
            )
            assert [it.incarnation for it in table.departed] == [old.incarnation]

            await old.attach()
            assert await refusal(old) == "FAILED_PRECONDITION"
            assert not new.is_ended


@pytest.mark.asyncio
async def test_routers_are_listed_with_what_they_acknowledge_until_they_say_goodbye() -> None:
    async with running_controller() as mesh:
        await mesh.apply(DIGITS % 1)
        async with (
            FakeReplica(mesh.channel, "v1", "a") as a,
            FakeRouter(mesh.channel, "r1", "127.0.0.1:7171") as r1,
            FakeRouter(mesh.channel, "r2", "127.0.0.1:7172") as r2,
        ):
            await a.report("READY")
            alternates = ["127.0.0.1:7171", "127.0.0.1:7172"]
            for router in (r1, r2):
                await router.wait_for(
                    lambda table: table.router_addresses == alternates and replica_routes(table, "v1"), "all members"
                )
            load = mesh_pb2.BackendLoad(
                backend="v1", queued=7, ongoing=3, slot_calls=2, shadow_copies=9, shadow_drops=4
            )
            load.sample_time.FromSeconds(1_700_000_000)
            await r1.acknowledge("a", loads=[load])
            await wait_until(
                lambda: mesh.controller.state.observed.routers["r1"].linked_replica_ids, what="the acknowledgement"
            )
            listed = await mesh.operator.ListRouters(pb.ListRoutersRequest())
            assert [it.router_id for it in listed.routers] == ["r1", "r2"]
            assert (listed.routers[0].generation, listed.routers[0].table_revision) == (
                listed.generation,
                listed.table_revision,
            )
            assert listed.routers[0].linked_replica_ids == ["a"]
            assert [list(it.loads) for it in listed.routers] == [[load], []]
            assert [it.version for it in listed.routers] == ["0.2.0", "0.2.0"]

            await r2.say_goodbye()
            await r1.wait_for(lambda table: table.router_addresses == alternates[:1], "r2 gone")


@pytest.mark.asyncio
async def test_revisions_grow_and_a_late_router_gets_only_the_newest_table() -> None:
    async with running_controller() as mesh, FakeRouter(mesh.channel, "r") as router:
        for count in range(5):
            applied = await mesh.apply(DIGITS % 1 + f"  later-{count}: \n")
            await router.wait_for(lambda table: table.revision >= applied.revision, "the change")  # noqa: B023
        revisions = [table.revision for table in router.tables]
        assert revisions == sorted(set(revisions))
        assert len({table.generation for table in router.tables}) == 1
        async with FakeRouter(mesh.channel, "late") as late:
            await late.wait_for(lambda table: len(table.endpoints) == 6, "all endpoints")
            assert len(late.tables) <= 2  # its own arrival is news as well


@pytest.mark.asyncio
async def test_tables_say_which_roster_they_name_and_who_has_departed() -> None:
    async with running_controller() as mesh, FakeRouter(mesh.channel, "r") as router:
        await mesh.apply(DIGITS % 1)
        async with FakeReplica(mesh.channel, "v1", "a") as a:
            await a.report("READY")
            listed = await router.wait_for(lambda table: replica_routes(table, "v1"), "a in the table")
            assert 0 < listed.roster_revision <= listed.revision
            assert not listed.departed
            await a.report("READY", max_ongoing=9)
            table = await router.wait_for(lambda table: table.revision > listed.revision, "a later table")
            assert table.roster_revision == listed.roster_revision, "the same incarnations"
            await a.report("STOPPED")
            table = await router.wait_for(lambda table: not replica_routes(table, "v1"), "a out of the table")
        (departed,) = table.departed
        assert (departed.replica_id, departed.incarnation) == ("a", a.incarnation)
        assert (departed.generation, departed.revision) == (table.generation, table.roster_revision)
        assert listed.roster_revision < table.roster_revision <= table.revision
        assert (table.departed_since, list(table.covers)) == (0, [])


@pytest.mark.asyncio
async def test_what_a_router_was_told_ends_a_replica() -> None:
    async with running_controller() as mesh, FakeRouter(mesh.channel, "r") as router:
        await mesh.apply(DIGITS % 2)
        async with FakeReplica(mesh.channel, "v1", "a") as a, FakeReplica(mesh.channel, "v1", "b") as b:
            await a.report("READY")
            await b.report("READY")
            await router.wait_for(lambda table: owners(table, "digits") == evenly("a", "b"), "both own")
            stranger = FakeReplica(mesh.channel, "v1", "b")  # another life of b
            await router.acknowledge("b", ended=[a, stranger])
            table = await router.wait_for(lambda table: owners(table, "digits") == evenly("b"), "b owns all")
            assert [it.incarnation for it in table.departed] == [a.incarnation]
