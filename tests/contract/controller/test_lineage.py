"""A controller that is killed, and starts again with its store, goes on as if it had never been away."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from controller_service.core.observed import replica_groups
from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.internal.v1 import membership_service_pb2
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from tests.support.controllers import Controlled, as_if_killed, eventually, running_controller
from tests.support.fakes.members import FakeReplica, FakeRouter, epochs, owners, replica_routes
from tests.support.wait import wait_until

MESH = """
backends:
  v1: {handler: "app:Digits", num_replicas: 2, user_config: {k: 1.0}}
  v2: {handler: "app:Digits", num_replicas: 0}
endpoints:
  e: {traffic: {v1: 1.0}}
"""


async def ready(mesh: Controlled, stack: AsyncExitStack, *replica_ids: str) -> list[FakeReplica]:
    replicas = []
    for replica_id in replica_ids:
        replica = await stack.enter_async_context(FakeReplica(mesh.channel, "v1", replica_id))
        await replica.report("READY")
        replicas.append(replica)
    return replicas


def both_own(table: membership_service_pb2.RoutingTable) -> bool:
    return set(owners(table, "e")) == {"a", "b"} and min(owners(table, "e").values()) > 0


def content(table: membership_service_pb2.RoutingTable) -> bytes:
    """All but revision and terms of the table, which each start takes, and routers and ranks, which are not stored."""
    copy = membership_service_pb2.RoutingTable()
    copy.CopyFrom(table)
    copy.revision = 0
    copy.ClearField("term_id")
    copy.ClearField("terms")
    del copy.router_addresses[:]
    for replica in (each for backend in copy.backends for each in backend.replicas):
        replica.ClearField("rank")
    return copy.SerializeToString(deterministic=True)


@pytest.mark.asyncio
async def test_owners_epochs_roster_and_policy_are_what_they_were_and_nobody_is_asked_for_anything(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as members, AsyncExitStack() as first:
        mesh = await first.enter_async_context(running_controller(state=tmp_path / "state"))
        await mesh.apply(MESH)
        replicas = await ready(mesh, members, "a", "b")
        router = await members.enter_async_context(FakeRouter(mesh.channel, "r"))
        traffic = mesh_pb2.TrafficPolicy(weights={"v1": 0.75, "v2": 0.25})
        changed = await mesh.operator.SetTraffic(pb.SetTrafficRequest(endpoint="e", traffic=traffic))
        before = await router.wait_for(lambda it: both_own(it) and it.revision >= changed.revision, "both own")
        state = as_if_killed(tmp_path / "state")

        async with running_controller(state=state) as mesh:
            await router.move(mesh.channel)
            alone = await router.wait_for(lambda it: it.revision > before.revision, "a table of the new start")
            assert content(alone) == content(before)
            shown = await mesh.replicas()
            assert {mesh_pb2.ReplicaState.Name(it.state) for it in shown.values()} == {"REPLICA_STATE_SUSPECT"}

            for replica in replicas:
                replica.has_served, replica.generation = True, before.generation
                replica.newest_epoch = max(epochs(before, "e"))
                await replica.move(mesh.channel)
                await replica.report("READY")
            await eventually(lambda: all_ready(mesh), what="both are heard")
            again = await mesh.operator.SetTraffic(
                pb.SetTrafficRequest(endpoint="e", traffic=mesh_pb2.TrafficPolicy(weights={"v1": 1.0}))
            )
            table = await router.wait_for(lambda it: it.revision >= again.revision, "the next policy")
            assert (owners(table, "e"), epochs(table, "e")) == (owners(before, "e"), epochs(before, "e"))
            assert table.roster_revision == before.roster_revision
            assert not any(replica.revoked for replica in replicas)


async def all_ready(mesh: Controlled) -> bool:
    return all(it.state == mesh_pb2.REPLICA_STATE_READY for it in (await mesh.replicas()).values())


@pytest.mark.asyncio
async def test_an_older_copy_of_the_file_is_told_by_the_tables_of_routers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as members:
        async with running_controller(state=tmp_path / "state") as mesh:
            await mesh.apply(MESH)
            older = as_if_killed(tmp_path / "state")
            router = await members.enter_async_context(FakeRouter(mesh.channel, "r"))
            for number in range(5):
                changed = await mesh.apply(MESH.replace("k: 1.0", f"k: {number}"))
            router.brings = await router.wait_for(lambda it: it.revision >= changed.revision, "the newest table")
            await router.cut()
        for state, is_told in ((tmp_path / "state", False), (older, True)):
            caplog.clear()
            async with running_controller(state=state) as mesh:
                await router.move(mesh.channel)
                await wait_until(lambda: mesh.controller.routers, what="the router is there")
                assert ("nothing is reconciled" in caplog.text) is is_told


@pytest.mark.asyncio
async def test_departures_stay_listed_and_hand_overs_go_on(tmp_path: Path) -> None:
    async with AsyncExitStack() as members, AsyncExitStack() as first:
        mesh = await first.enter_async_context(running_controller(state=tmp_path / "state"))
        await mesh.apply(MESH)
        router = await members.enter_async_context(FakeRouter(mesh.channel, "r"))
        a, b, gone = await ready(mesh, members, "a", "b", "gone")
        await router.wait_for(lambda it: len(owners(it, "e")) == 3, "three own")
        await gone.report("STOPPED")
        table = await router.wait_for(both_own, "two own")
        departed = [(it.replica_id, it.revision) for it in table.departed]
        assert [replica_id for replica_id, _ in departed] == ["gone"]
        a.clings = True
        await a.report("DRAINING")
        owned = owners(table, "e")["a"]
        await wait_until(lambda: len(a.told_to_give_up("e")) == owned, what="all orders to give up")
        told = a.told_to_give_up("e")
        state = as_if_killed(tmp_path / "state")

        async with running_controller(state=state) as mesh:
            a.revoked.clear()
            for member in (router, a, b):
                await member.move(mesh.channel)
            await b.report("READY")
            await a.report("DRAINING")
            await wait_until(lambda: a.told_to_give_up("e") == told, what="the same order")
            assert owners(router.table, "e")["a"] == len(told)
            await a.give_up()
            table = await router.wait_for(lambda it: owners(it, "e") == {"b": PARTITIONS}, "the hand-over")
            assert [(it.replica_id, it.revision) for it in table.departed] == departed


@pytest.mark.asyncio
async def test_what_was_launched_is_not_launched_again_while_it_may_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as members, AsyncExitStack() as first:
        mesh = await first.enter_async_context(running_controller(state=tmp_path / "state", launches=True))
        await mesh.apply(MESH)
        router = await members.enter_async_context(FakeRouter(mesh.channel, "r"))
        ids = await mesh.wait_for_launches(2)
        one, other = await ready(mesh, members, *ids)
        before = await router.wait_for(lambda it: set(owners(it, "e")) == set(ids), "both own")
        state = as_if_killed(tmp_path / "state")

        monkeypatch.setattr(replica_groups, "RETURN_WITHIN_S", 3_600.0)
        async with running_controller(state=state, launches=True) as mesh:
            await router.move(mesh.channel)
            await one.move(mesh.channel)
            await one.report("READY")
            await router.wait_for(lambda it: it.revision > before.revision, "a table")
            assert set(replica_routes(router.table, "v1")) == set(ids)
            changed = MESH.replace("num_replicas: 2", "num_replicas: 3")
            await mesh.apply(changed)
            (third,) = await mesh.wait_for_launches(1)
            # The other one does not come: it is replaced, and stays listed.
            monkeypatch.setattr(replica_groups, "RETURN_WITHIN_S", 0.0)
            await mesh.apply(changed.replace("num_replicas: 3", "num_replicas: 3, max_queue_time: 1s"))
            (_, new) = await mesh.wait_for_launches(2)
            assert len({third, new, *ids}) == 4
            assert set(replica_routes(router.table, "v1")) == set(ids)
            assert (owners(router.table, "e"), epochs(router.table, "e")) == (owners(before, "e"), epochs(before, "e"))
            assert other.replica_id in await mesh.replicas()


@pytest.mark.asyncio
async def test_a_changed_template_replaces_what_an_earlier_run_has_launched(tmp_path: Path) -> None:
    async with AsyncExitStack() as members, AsyncExitStack() as first:
        mesh = await first.enter_async_context(running_controller(state=tmp_path / "state", launches=True))
        await mesh.apply(MESH)
        ids = await mesh.wait_for_launches(2)
        launched = await ready(mesh, members, *ids)
        await eventually(lambda: all_ready(mesh), what="both are ready")
        await wait_until(lambda: len(mesh.controller.store.read().roster.members) == 2, what="the roster")
        state = as_if_killed(tmp_path / "state")

        async with running_controller(state=state, launches=True) as mesh:
            for replica in launched:
                await replica.move(mesh.channel)
                await replica.report("READY")
            await eventually(lambda: all_ready(mesh), what="both are heard")
            await mesh.apply(MESH.replace('"app:Digits"', '"app:Better", max_surge: 2', 1))
            new = await mesh.wait_for_launches(2)
            assert not any(replica.drains for replica in launched)
            await ready(mesh, members, *new)
            await wait_until(lambda: all(replica.drains for replica in launched), what="the old ones drain")


@pytest.mark.asyncio
async def test_somebody_elses_replicas_count_for_nothing_after_a_restart_either(tmp_path: Path) -> None:
    async with AsyncExitStack() as members, AsyncExitStack() as first:
        mesh = await first.enter_async_context(running_controller(state=tmp_path / "state", launches=True))
        await mesh.apply(MESH.replace("num_replicas: 2", "num_replicas: 0"))
        (extra,) = await ready(mesh, members, "extra")
        await wait_until(lambda: mesh.controller.store.read().roster.members, what="the roster")
        state = as_if_killed(tmp_path / "state")

        async with running_controller(state=state, launches=True) as mesh:
            await extra.move(mesh.channel)
            await extra.report("READY")
            await eventually(lambda: all_ready(mesh), what="it is heard")
            await mesh.apply(MESH.replace("num_replicas: 2", "num_replicas: 1"))
            await mesh.wait_for_launches(1)
            assert not extra.drains
