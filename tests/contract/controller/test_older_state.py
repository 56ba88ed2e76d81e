"""An older copy of a state file is started: nothing is reconciled until an operator decides, over real gRPC."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from controller_service.core.desired.revisions import ChangeOrigin
from controller_service.core.desired.state import ChangeSet
from controller_service.shell.changes.controls import StateKeeper
from controller_service.shell.mesh_state import Concern, Key
from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.errors import Reason
from slotmesh.internal.v1 import membership_service_pb2
from slotmesh.runtime.clock import MonotonicClock
from slotmesh.runtime.loop_slices import LoopSlices
from slotmesh.spec.model import Backend
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import info_service_pb2, mesh_pb2
from slotmesh.v1.info_service_pb2_grpc import InfoServiceStub
from tests.contract.controller.test_operators import refused
from tests.support.controllers import Controlled, as_if_killed, running_controller
from tests.support.fakes.members import FakeReplica, FakeRouter, epochs, owners
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

MESH = """
backends:
  v1: {handler: "app:Digits", num_replicas: 1}
endpoints:
  e: {traffic: {v1: 1.0}}
"""
NEWER = """
backends:
  v1: {handler: "app:Digits", num_replicas: 1, max_queued_calls: 77}
  v2: {handler: "app:Digits", num_replicas: 1}
endpoints:
  e: {traffic: {v1: 0.25, v2: 0.75}}
"""


async def newer_members(mesh: Controlled) -> list[str]:
    info = await InfoServiceStub(mesh.channel).GetServerInfo(info_service_pb2.GetServerInfoRequest())
    return [*info.controller.newer_members]


class Original:
    """A mesh whose state file was copied before its configuration became `NEWER`."""

    def __init__(self, mesh: Controlled, router: FakeRouter, replicas: list[FakeReplica], older: Path) -> None:
        self.mesh = mesh
        self.router = router
        self.replicas = replicas
        self.older = older

    @staticmethod
    def keeper_of(copy: Controlled) -> StateKeeper:
        """One like that of the controller."""
        return StateKeeper(copy.controller.store, copy.controller.replicas.newer, MonotonicClock())

    @classmethod
    async def make(cls, members: AsyncExitStack, folder: Path) -> Original:
        mesh = await members.enter_async_context(running_controller(state=folder / "state"))
        await mesh.apply(MESH)
        older = as_if_killed(folder / "state")
        router = await members.enter_async_context(FakeRouter(mesh.channel, "r"))
        replicas = []
        for backend, replica_id in (("v1", "a"), ("v2", "b")):
            replica = await members.enter_async_context(FakeReplica(mesh.channel, backend, replica_id))
            await replica.report("READY")
            await wait_until(lambda it=replica: it.configurations, what="it is configured")  # type: ignore[misc]
            replicas.append(replica)
        changed = await mesh.apply(NEWER)
        table = await router.wait_for(
            lambda it: it.revision >= changed.revision and set(owners(it, "e")) == {"a", "b"} and settled(it),
            "both own",
        )
        await wait_until(lambda: replicas[1].configurations[-1].revision, what="it is configured anew")
        router.brings = table
        return cls(mesh, router, replicas, older)


def settled(table: membership_service_pb2.RoutingTable) -> bool:
    return owners(table, "e")["b"] == PARTITIONS * 3 // 4


async def test_a_copy_that_has_overtaken_the_revisions_of_routers_is_found_out(tmp_path: Path) -> None:
    async with AsyncExitStack() as members:
        original = await Original.make(members, tmp_path)
        await original.router.cut()
        before = len(original.router.tables)
        assert original.router.brings is not None
        held = original.router.brings.revision
        async with running_controller(state=original.older) as copy:
            assert not await newer_members(copy)
            while copy.controller.store.read().revision <= 2 * held:
                await copy.apply(
                    MESH.replace("num_replicas: 1", f"max_ongoing: {copy.controller.store.read().revision}")
                )
            await original.router.move(copy.channel)
            await wait_until(lambda: copy.controller.routers, what="the router is there")
            (line,) = await newer_members(copy)
            assert line == f"router/r holds revision {held}, which this state file never had"
            events = copy.operator.WatchEvents(pb.WatchEventsRequest(from_oldest=True, until_newest=True))
            kinds = [event.kind async for event in events]
            assert pb.EVENT_KIND_STATE_OUTDATED in kinds
            # What operators change is stored and changes nothing; a replica that attaches keeps its configuration.
            applied = await copy.apply(MESH)
            await original.replicas[0].cut()
            original.replicas[0].revoked.clear()
            await original.replicas[0].move(copy.channel)
            await wait_until(lambda: copy.controller.state.observed.replica("a"), what="the replica is there")
            configured = len(original.replicas[0].configurations)
            await original.replicas[0].report("READY")
            await copy.controller.loop._pass([Key(Concern.TABLE), Key(Concern.ENDPOINT, "e")], LoopSlices())
            assert copy.controller.replicas._links["a"]._configuration is None
            assert copy.controller.store.read().revision >= applied.revision
            announced = copy.controller.board.table
            assert announced is None or announced.revision < applied.revision
            assert len(original.router.tables) == before, "no table"
            assert len(original.replicas[0].configurations) == configured
            assert not original.replicas[0].revoked


async def test_a_file_from_before_a_later_generation_is_found_out(tmp_path: Path) -> None:
    """A state is imported or adopted, and later a backup from before that is put back."""
    async with AsyncExitStack() as members:
        original = await Original.make(members, tmp_path)
        router = original.router
        first = router.table.generation
        async with running_controller(state=tmp_path / "later") as later:
            await later.apply(NEWER)
            await router.move(later.channel)
            router.brings = await router.wait_for(
                lambda it: it.generation != first and first in {each.generation for each in it.covers} and it.endpoints,
                "a table that covers the first generation",
            )
            assert not await newer_members(later), "the later one is no older copy"
            await router.cut()
        before = len(router.tables)
        async with running_controller(state=original.older) as copy:
            await router.move(copy.channel)
            await wait_until(lambda: copy.controller.routers, what="the router is there")
            (line,) = await newer_members(copy)
            assert line == f"router/r holds revision {router.brings.revision}, of a later generation"
            assert copy.controller.replicas.newer.mesh is not None, "what `state adopt --from-members` would take"
            assert [*copy.controller.replicas.newer.mesh.endpoints] == ["e"]
            await copy.controller.loop._pass([Key(Concern.TABLE), Key(Concern.ENDPOINT, "e")], LoopSlices())
            assert len(router.tables) == before, "no table"


async def test_it_is_found_out_again_however_often_it_is_started(tmp_path: Path) -> None:
    async with AsyncExitStack() as members:
        original = await Original.make(members, tmp_path)
        for _ in range(2 * original.router.table.revision):
            async with running_controller(state=original.older):
                pass
        async with running_controller(state=original.older) as copy:
            assert copy.controller.store.read().revision > original.router.table.revision
            await original.router.move(copy.channel)
            await wait_until(lambda: copy.controller.routers, what="the router is there")
            assert await newer_members(copy)


async def by_router(original: Original, copy: Controlled) -> None:
    await original.router.move(copy.channel)


async def by_second_replica(original: Original, copy: Controlled) -> None:
    replica = original.replicas[1]
    last = replica.configurations[-1]
    replica.generation, replica.revision, replica.term_id = last.generation, last.revision, last.term_id
    assert last.revision
    await replica.move(copy.channel)


@pytest.mark.parametrize("attach", [by_router, by_second_replica])
async def test_any_kind_of_member_tells_it(
    tmp_path: Path, attach: Callable[[Original, Controlled], Awaitable[None]]
) -> None:
    async with AsyncExitStack() as members:
        original = await Original.make(members, tmp_path)
        async with running_controller(state=original.older) as copy:
            await attach(original, copy)
            await wait_until(lambda: copy.controller.replicas.newer, what="it is found out")
            assert len(await newer_members(copy)) == 1
            # That the member leaves proves nothing.
            await original.router.cut()
            await original.replicas[1].cut()
            assert await newer_members(copy)


async def test_the_newest_file_goes_on_after_each_kind_of_restart(tmp_path: Path) -> None:
    async with AsyncExitStack() as members:
        original = await Original.make(members, tmp_path)
        state = tmp_path / "state"
        for number in range(3):
            (folder := tmp_path / f"start-{number}").mkdir()
            for path in state.parent.glob("state*"):
                if path.is_file():
                    shutil.copy(path, folder)
            state = folder / "state"
            before = original.router.table
            async with running_controller(state=state) as again:
                for replica in original.replicas:
                    last = replica.configurations[-1]
                    replica.generation, replica.revision, replica.term_id = last.generation, last.revision, last.term_id
                    await replica.move(again.channel)
                await original.router.move(again.channel)
                table = await original.router.wait_for(
                    lambda it, last=before: it.revision > last.revision,  # type: ignore[misc]
                    "a table of this start",
                )
                original.router.brings = table
                assert not await newer_members(again)
                assert table.term_id != before.term_id
                assert [it.term_id for it in table.terms[-2:]] == [before.term_id, table.term_id]
                assert before.revision < table.terms[-1].first_revision <= table.revision
                assert epochs(table, "e") == epochs(before, "e")


async def adopt(mesh: Controlled, source: str) -> pb.AdoptStateResponse:
    request = pb.AdoptStateRequest(source=pb.StateSource.Value(f"STATE_SOURCE_{source}"))
    response: pb.AdoptStateResponse = await mesh.operator.AdoptState(request)
    return response


@pytest.mark.parametrize("source", ["MEMBERS", "STORE"])
async def test_an_operator_decides_what_counts_and_owners_and_epochs_go_on(tmp_path: Path, source: str) -> None:
    async with AsyncExitStack() as members:
        original = await Original.make(members, tmp_path)
        newest = original.router.table
        async with running_controller(state=original.older) as copy:
            code, reason, _ = await refused(adopt(copy, source))
            assert (code, reason) == ("INVALID_ARGUMENT", Reason.BAD_REQUEST), "no member is newer"
            await original.router.move(copy.channel)
            await wait_until(lambda: copy.controller.replicas.newer, what="it is found out")
            code, reason, _ = await refused(adopt(copy, "UNSPECIFIED"))
            assert (code, reason) == ("INVALID_ARGUMENT", Reason.BAD_REQUEST)
            if source == "MEMBERS":
                code, reason, error = await refused(adopt(copy, source))
                assert (code, reason) == ("INVALID_ARGUMENT", Reason.BAD_REQUEST)
                assert "backend/v2" in str(error)
                await copy.apply(MESH.replace("endpoints:", '  v2: {handler: "app:Digits"}\nendpoints:'))
            decided = await adopt(copy, source)
            assert decided.generation != newest.generation
            assert [*decided.changed] == (["backend/v1", "endpoint/e"] if source == "MEMBERS" else [])
            await wait_until(lambda: copy.controller.leadership.lost, what="it leads no more")
        async with running_controller(state=original.older) as again:
            assert again.controller.store.generation == decided.generation
            desired = again.controller.store.read()
            weights = {"MEMBERS": {"v1": 0.25, "v2": 0.75}, "STORE": {"v1": 1.0}}[source]
            traffic = desired.endpoints["e"].traffic
            assert traffic is not None
            assert dict(traffic.weights) == weights
            assert (desired.backends["v1"].max_queued_calls == 77) is (source == "MEMBERS")
            await original.router.move(again.channel)
            for replica in original.replicas:
                replica.has_served, replica.generation = True, newest.generation
                replica.newest_epoch = max(epochs(newest, "e"))
                await replica.move(again.channel)
                await replica.report("READY")
            expected = {"a", "b"} if source == "MEMBERS" else {"a"}
            table = await original.router.wait_for(
                lambda it: (
                    it.generation == decided.generation
                    and set(owners(it, "e")) == expected
                    and min(epochs(it, "e")) > max(epochs(newest, "e"))
                ),
                "the owners have what they own anew",
                timeout=20.0,
            )
            assert not await newer_members(again)
            assert newest.generation in {it.generation for it in table.covers}


async def test_what_was_acknowledged_before_a_state_is_adopted_is_part_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with AsyncExitStack() as members:
        original = await Original.make(members, tmp_path)
        async with running_controller(state=original.older) as copy:
            await original.router.move(copy.channel)
            await wait_until(lambda: copy.controller.replicas.newer, what="it is found out")
            store, adopt_now = copy.controller.store, original.keeper_of(copy).adopt
            change = ChangeSet(put_backends=(Backend(name="v9", handler="app:New"),))
            # Both are asked of the store before either is written.
            committed, adopted = await asyncio.gather(
                store.commit(change, expected_revision=store.read().revision),
                adopt_now(ChangeOrigin(who="op"), from_members=False),
            )
            assert "v9" in committed.backends
            assert caplog.text.count(f"object=state/{adopted[0]}") == 1
        async with running_controller(state=original.older) as again:
            assert again.controller.store.generation == adopted[0]
            assert "v9" in again.controller.store.read().backends


async def test_what_a_newer_state_has_launched_is_neither_ended_nor_replaced(tmp_path: Path) -> None:
    async with AsyncExitStack() as members:
        mesh = await members.enter_async_context(running_controller(launches=True, state=tmp_path / "state"))
        await mesh.apply(MESH)
        older = as_if_killed(tmp_path / "state")
        await mesh.apply(NEWER)
        await mesh.wait_for_launches(2)
        assert mesh.launcher is not None
        found: list[Any] = [*mesh.launcher.running.values()]
        assert all(it.order.version.revision for it in found)
        async with running_controller(launches=True, state=older, found=found) as copy:
            assert copy.launcher is not None
            last = max(found, key=lambda it: it.order.version.revision)
            assert f"replica/{last.replica_id}" in [line.partition(" ")[0] for line in await newer_members(copy)]
            await copy.apply('backends: {v3: {handler: "app:Other"}}')
            await copy.controller.loop._pass([Key(Concern.BACKEND, "v3"), Key(Concern.BACKEND, "v2")], LoopSlices())
            await copy.controller.loop.drain_all()
            assert not copy.launcher.stopped
            assert not copy.launcher.started
        assert not copy.launcher.stopped
        assert copy.launcher.is_left


async def test_status_shows_members_as_they_are(tmp_path: Path) -> None:
    async with AsyncExitStack() as members:
        original = await Original.make(members, tmp_path)
        async with running_controller(state=original.older) as copy:
            await original.router.move(copy.channel)
            await wait_until(lambda: copy.controller.replicas.newer, what="it is found out")
            snapshot = await copy.operator.ListRouters(pb.ListRoutersRequest())
            assert [it.router_id for it in snapshot.routers] == ["r"]
            await original.replicas[1].move(copy.channel)
            await original.replicas[1].report("READY")
            await wait_until(lambda: copy.controller.state.observed.replica("b"), what="it is there")
            assert (await copy.replicas())["b"].state in {
                mesh_pb2.REPLICA_STATE_STARTING,
                mesh_pb2.REPLICA_STATE_READY,
            }
