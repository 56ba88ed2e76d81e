"""`ForgetReplica`: an operator's word that a replica has ended, over real gRPC."""

from __future__ import annotations

import logging
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from controller_service.core.desired.state import Desired
from controller_service.core.observed.transitions import fell_silent
from controller_service.core.partition_owners import Incarnation
from controller_service.store.protocol import MemoryStore, StoreWriteFailed
from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.errors import Reason
from slotmesh.internal.v1 import membership_service_pb2
from slotmesh.status import from_rpc_error
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from tests.contract.controller.test_launching import make_ready
from tests.contract.controller.test_operators import refused
from tests.support.controllers import Controlled, as_if_killed, running_controller
from tests.support.fakes.members import FakeReplica, FakeRouter, owners
from tests.support.shell import program
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

MESH = """
backends:
  v1: {handler: "app:Digits", num_replicas: 1}
endpoints:
  digits: {traffic: {v1: 1.0}}
"""


async def ready(mesh: Controlled, members: AsyncExitStack, replica_id: str) -> FakeReplica:
    replica = await members.enter_async_context(FakeReplica(mesh.channel, "v1", replica_id))
    await replica.report("READY")
    return replica


async def lose(mesh: Controlled, replica: FakeReplica) -> None:
    """The replica's connection breaks, and its lease runs out."""
    replica_id = replica.replica_id
    await wait_until(lambda: mesh.controller.state.observed.replica(replica_id), what="that it is attached")
    await replica.cut()
    mesh.controller.state.apply_to_replica(replica_id, lambda it, now: fell_silent(it, replica_id, now=now))
    shown = (await mesh.replicas())[replica_id]
    assert shown.state == mesh_pb2.REPLICA_STATE_SUSPECT


def is_attached(mesh: Controlled, owner: Incarnation) -> bool:
    known = mesh.controller.state.observed.incarnation(owner)
    return known is not None and known.suspect_since is None


def confirmed_or_ended(replica: FakeReplica, stamp: int) -> bool:
    return stamp in replica.acknowledged or replica.is_ended


async def unlinked(mesh: Controlled, router: FakeRouter) -> None:
    """The router reports that it has no link."""
    await router.acknowledge()
    await wait_until(lambda: mesh.controller.state.observed.routers[router.router_id].reported_at, what="its report")


def lists(replica_id: str, table: membership_service_pb2.RoutingTable) -> bool:
    return any(it.replica_id == replica_id for route in table.backends for it in route.replicas)


async def forget(mesh: Controlled, replica_id: str, incarnation: str = "") -> pb.ForgetReplicaResponse:
    request = pb.ForgetReplicaRequest(replica_id=replica_id, incarnation=incarnation)
    response: pb.ForgetReplicaResponse = await mesh.operator.ForgetReplica(request)
    return response


async def test_the_keys_of_a_silent_replica_go_on_elsewhere_once_it_is_forgotten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with AsyncExitStack() as members:
        mesh = await members.enter_async_context(running_controller(state=tmp_path / "state"))
        await mesh.apply(MESH)
        router = await members.enter_async_context(FakeRouter(mesh.channel, "r"))
        lost = await ready(mesh, members, "lost")
        await router.wait_for(lambda table: owners(table, "digits") == {"lost": PARTITIONS}, "it owns all")
        await lose(mesh, lost)
        other = await ready(mesh, members, "other")
        await router.wait_for(lambda table: any(len(it.replicas) == 2 for it in table.backends), "both are listed")
        await other.report("READY")
        assert owners(router.table, "digits") == {"lost": PARTITIONS}, "silence moves nothing"

        code, reason, error = await refused(forget(mesh, "lost"))
        assert (code, reason) == ("FAILED_PRECONDITION", Reason.REPLICA_CONNECTED)
        assert "router r has not reported its links yet" in str(error)
        await unlinked(mesh, router)
        response = await forget(mesh, "lost")
        assert [*response.incarnations] == [lost.incarnation]
        table = await router.wait_for(lambda it: owners(it, "digits") == {"other": PARTITIONS}, "its keys move")
        assert [it.replica_id for it in table.departed] == ["lost"]
        assert "object=replica/lost" in caplog.text, "it has an audit line"

        assert not (await forget(mesh, "lost")).incarnations, "a repeated request changes nothing"
        assert not (await forget(mesh, "lost", lost.incarnation)).incarnations
        # It was alive: it is refused, also by a controller that has only its store.
        await lost.attach()
        await wait_until(lambda: lost.ended is not None, what="it is refused")
        assert lost.ended is not None
        assert from_rpc_error(lost.ended).reason is Reason.REPLICA_GONE
        after = as_if_killed(tmp_path / "state")
        async with running_controller(state=after) as again:
            assert "lost" not in await again.replicas()
            await lost.move(again.channel)
            await wait_until(lambda: lost.ended is not None, what="it is refused there, too")
            assert from_rpc_error(lost.ended).reason is Reason.REPLICA_GONE


async def test_of_several_silent_replicas_only_the_one_that_is_named_is_forgotten() -> None:
    async with AsyncExitStack() as members:
        mesh = await members.enter_async_context(running_controller())
        await mesh.apply(MESH)
        router = await members.enter_async_context(FakeRouter(mesh.channel, "r"))
        for replica_id in ("a", "b", "c"):
            replica = await ready(mesh, members, replica_id)
            await router.wait_for(partial(lists, replica_id), "it is listed")
            await lose(mesh, replica)
        await unlinked(mesh, router)
        await forget(mesh, "b")
        table = await router.wait_for(lambda it: it.departed, "a departure")
        assert [it.replica_id for it in table.departed] == ["b"]
        assert sorted(it.replica_id for route in table.backends for it in route.replicas) == ["a", "c"]


async def test_an_incarnation_that_counts_as_ended_takes_no_other_one_of_its_name_with_it() -> None:
    async with AsyncExitStack() as members:
        mesh = await members.enter_async_context(running_controller())
        await mesh.apply(MESH)
        replica = await ready(mesh, members, "a")
        await wait_until(lambda: is_attached(mesh, Incarnation("a", replica.incarnation)), what="that it is attached")
        for owner in (Incarnation("a", "earlier"), Incarnation("b", replica.incarnation)):
            mesh.controller.replicas.dismiss(owner)
        for stamp in range(1, 4):
            await replica.report("READY", stamp=stamp)
            await wait_until(partial(confirmed_or_ended, replica, stamp), what="that its report is confirmed")
            assert not replica.is_ended
        mesh.controller.replicas.dismiss(Incarnation("a", replica.incarnation))
        await wait_until(lambda: replica.is_ended, what="the end of the stream")
        assert replica.ended is not None
        assert from_rpc_error(replica.ended).reason is Reason.REPLICA_GONE


async def test_what_is_connected_is_not_forgotten() -> None:
    async with AsyncExitStack() as members:
        mesh = await members.enter_async_context(running_controller())
        await mesh.apply(MESH)
        other_router = await members.enter_async_context(FakeRouter(mesh.channel, "q", "127.0.0.1:7072"))
        router = await members.enter_async_context(FakeRouter(mesh.channel, "r"))
        replica = await ready(mesh, members, "a")
        await router.wait_for(lambda it: it.backends and it.backends[0].replicas, "it is listed")
        await replica.report("READY")
        code, reason, _ = await refused(forget(mesh, "a"))
        assert (code, reason) == ("FAILED_PRECONDITION", Reason.REPLICA_CONNECTED)

        await other_router.wait_for(lambda it: it.backends and it.backends[0].replicas, "it is listed")
        await other_router.acknowledge()
        await router.acknowledge("a")
        await wait_until(lambda: mesh.controller.state.observed.is_linked("a"), what="the link is reported")
        await lose(mesh, replica)
        code, reason, error = await refused(forget(mesh, "a"))
        assert (code, reason) == ("FAILED_PRECONDITION", Reason.REPLICA_CONNECTED)
        assert "router r " in str(error)
        await router.acknowledge()
        await wait_until(lambda: not mesh.controller.state.observed.is_linked("a"), what="the link is gone")
        assert [*(await forget(mesh, "a")).incarnations] == [replica.incarnation]


async def test_what_the_controller_has_started_is_killed_and_not_forgotten() -> None:
    async with AsyncExitStack() as members:
        mesh = await members.enter_async_context(running_controller(launches=True, lease_s=1.0))
        await mesh.apply(MESH)
        (replica_id,) = await mesh.wait_for_launches(1)
        (replica,) = await make_ready(mesh, members, replica_id)
        await wait_until(lambda: replica.configurations, what="it is attached")
        await lose(mesh, replica)
        code, reason, error = await refused(forget(mesh, replica_id))
        assert (code, reason) == ("FAILED_PRECONDITION", Reason.REPLICA_CONNECTED)
        assert "--dead-after" in str(error)


async def test_the_command_forgets_each_that_it_names_and_stops_at_one_that_is_connected() -> None:
    async with AsyncExitStack() as members:
        mesh = await members.enter_async_context(running_controller())
        await mesh.apply(MESH)
        router = await members.enter_async_context(FakeRouter(mesh.channel, "r"))
        replicas = {it: await ready(mesh, members, it) for it in ("lost", "gone", "here")}
        for replica_id in replicas:
            await router.wait_for(partial(lists, replica_id), "it is listed")
        for replica_id in ("lost", "gone"):
            await lose(mesh, replicas[replica_id])
        await unlinked(mesh, router)

        async def run(*arguments: str) -> tuple[int, str, str]:
            command = [sys.executable, "-m", "slotmesh.cli", "forget", f"--controller={mesh.controller.address}"]
            said = await program(*command, *arguments)
            return said.status, said.out, said.err

        assert await run("replica/lost") == (0, "forgotten replica/lost\n", "")
        assert await run("lost", "--output=name") == (
            *(0, "replica/lost\n"),
            "slotmesh: replica/lost counted as ended before\n",
        )
        code, out, err = await run("gone", "here", "lost")
        assert (code, out) == (1, "")
        assert "REPLICA_CONNECTED" in err
        assert "replica/here was not forgotten; forgotten before: replica/gone" in err
        code, _, err = await run("replica/gome")
        assert code == 1
        assert "there is no replica/gome" in err


async def test_a_controller_that_has_just_started_forgets_nothing_that_may_still_attach(tmp_path: Path) -> None:
    async with AsyncExitStack() as members:
        mesh = await members.enter_async_context(running_controller(state=tmp_path / "state"))
        await mesh.apply(MESH)
        replica = await ready(mesh, members, "alive")
        await wait_until(lambda: mesh.controller.store.read().roster.members, what="the store lists it")
        async with running_controller(state=as_if_killed(tmp_path / "state")) as again:
            for incarnation in ("", replica.incarnation):
                code, reason, error = await refused(forget(again, "alive", incarnation))
                assert (code, reason) == ("FAILED_PRECONDITION", Reason.REPLICA_CONNECTED)
                assert "it may still attach" in str(error)
            await replica.move(again.channel)
            await replica.report("READY")
            owner = Incarnation("alive", replica.incarnation)
            await wait_until(lambda: is_attached(again, owner), what="it is attached")
            assert replica.ended is None


async def test_an_order_that_cannot_be_stored_is_not_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncExitStack() as members:
        mesh = await members.enter_async_context(running_controller())
        await mesh.apply(MESH)
        replica = await ready(mesh, members, "a")
        store = mesh.controller.store
        await wait_until(lambda: store.read().roster.members, what="the store lists it")
        await lose(mesh, replica)
        with monkeypatch.context() as full:

            async def refuse(*_: object, **__: object) -> Desired:
                raise StoreWriteFailed("the disk is full", is_unwritten=True)

            full.setattr(MemoryStore, "commit", refuse)
            for order in (forget(mesh, "a"), mesh.operator.DrainReplica(pb.DrainReplicaRequest(replica_id="a"))):
                code, reason, _ = await refused(order)
                assert (code, reason) == ("UNAVAILABLE", Reason.STORE_UNAVAILABLE)
        known = mesh.controller.state.observed.replica("a")
        assert known is not None
        assert not known.gone
        assert not known.is_drain_requested
        assert [*(await forget(mesh, "a")).incarnations] == [replica.incarnation]
        await wait_until(lambda: not store.read().roster.members, what="the store does not list it")


@pytest.mark.parametrize("incarnation", ["", "0" * 32])
async def test_a_replica_that_was_never_there_is_not_found(incarnation: str) -> None:
    async with AsyncExitStack() as members:
        mesh = await members.enter_async_context(running_controller())
        await mesh.apply(MESH)
        await ready(mesh, members, "a")
        name = "nobody" if not incarnation else "a"
        code, reason, _ = await refused(forget(mesh, name, incarnation))
        assert (code, reason) == ("NOT_FOUND", Reason.REPLICA_NOT_FOUND)
