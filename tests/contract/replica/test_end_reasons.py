"""Why members end, in their own words: what they report, and what the controller makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from replica_service.shell import replica as replica_shell
from router_service.app import serve
from router_service.config import RouterSettings
from slotmesh.cli.checking.losses import HANGS, is_at
from slotmesh.internal.v1 import membership_service_pb2 as wire
from slotmesh.runtime.exits import CannotStart
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from tests.contract.replica.test_membership import DRAINING, FAILED, STOPPED, Attachment, at, controller
from tests.support.controllers import Controlled, eventually, running_controller
from tests.support.fakes.controller import fake_controller
from tests.support.fakes.members import FakeReplica, FakeRouter
from tests.support.replicas import HANDLERS, RunningReplica
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

MESH = "backends: {v1: {handler: 'app:One'}}\nendpoints: {digits: {traffic: {v1: 1}}}"


# -- what a replica reports --------------------------------------------------------------------------------------------


async def by_signal(replica: RunningReplica, _: Attachment) -> None:
    replica.app.replica.stop_asked.ask("SIGTERM")


async def by_order(_: RunningReplica, attachment: Attachment) -> None:
    await attachment.drain("0 should run", term=0)


async def by_two(replica: RunningReplica, attachment: Attachment) -> None:
    replica.app.replica.stop_asked.ask("SIGTERM")
    replica.app.replica.stop_asked.ask("SIGINT")
    await attachment.drain("0 should run", term=0)


@pytest.mark.parametrize(
    ("end", "reason"),
    [(by_signal, "SIGTERM"), (by_order, "ordered by the controller: 0 should run"), (by_two, "SIGTERM")],
)
async def test_a_replica_reports_why_it_ends_while_it_drains_and_at_last(
    end: Callable[[RunningReplica, Attachment], Awaitable[None]], reason: str
) -> None:
    async with controller({}) as (fake, server), at(server) as replica:
        attachment = await fake.attached()
        assert {it.end_reason for it in attachment.reports} == {""}
        await end(replica, attachment)
        async with asyncio.timeout(10):
            assert await replica.task == 0
        assert attachment.reports[-1].state == STOPPED
        assert attachment.reports[-1].end_reason == reason
        assert {it.end_reason for it in attachment.reports if it.state in {DRAINING, STOPPED}} == {reason}


async def test_a_replica_whose_handler_cannot_be_constructed_reports_that_beside_the_traceback() -> None:
    async with controller({}) as (fake, server), at(server, handler=f"{HANDLERS}:Broken", until_ready=False) as replica:
        with pytest.raises(CannotStart):
            await replica.task
        last = fake.attachments[-1].reports[-1]
        assert last.state == FAILED
        assert last.end_reason.startswith("its handler could not be constructed: ")
        assert last.end_reason.endswith("no model here"), "the next replica in its place has this error in its reason"
        assert "no model here" in last.error


async def test_a_replica_that_nobody_replaces_reports_that_its_health_checks_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_shell, "REPLACED_WITHIN_S", 0.0)
    async with controller({}) as (fake, server), at(server) as replica:
        attachment = await fake.attached()
        replica.app.replica._got_sick()
        async with asyncio.timeout(10):
            await replica.task
        assert attachment.reports[-1].end_reason == "its health checks failed"


# -- what a router reports ---------------------------------------------------------------------------------------------


async def test_a_router_reports_why_it_ends_and_half_closes() -> None:
    async with fake_controller() as fake:
        settings = RouterSettings(port=0, metrics_port=-1, controller=fake.address, router_id="r")
        async with serve(settings, end_reason=lambda: "SIGTERM"):
            await wait_until(lambda: fake.reports_of.get("r"), what="a report")
            assert {it.end_reason for it in fake.reports} == {""}
        assert fake.reports[-1].end_reason == "SIGTERM"
        assert fake.goodbyes == 1


async def test_a_router_ends_without_its_controller(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_controller() as fake:
        address = fake.address
    async with asyncio.timeout(20):
        async with serve(RouterSettings(port=0, metrics_port=-1, controller=address), end_reason=lambda: "SIGTERM"):
            await wait_until(lambda: "controller link ended" in caplog.text, timeout=10, what="a failed attempt")


# -- what the controller shows -----------------------------------------------------------------------------------------


def said(state: str, reason: str, error: str = "") -> wire.AttachReplicaRequest:
    number = mesh_pb2.ReplicaState.Value(f"REPLICA_STATE_{state}")
    report = wire.ReplicaReport(state=number, address="127.0.0.1:4001", max_ongoing=4, error=error, end_reason=reason)
    return wire.AttachReplicaRequest(report=report)


async def event(mesh: Controlled, kind: pb.EventKind.ValueType, subject: str) -> str:
    """The message of the newest event of this kind, once there is one."""

    async def look() -> str:
        request = pb.WatchEventsRequest(from_oldest=True, until_newest=True, kinds=[kind], resource_prefix=subject)
        found = [it.message async for it in mesh.operator.WatchEvents(request)]
        return found[-1] if found else ""

    return await eventually(look, what=f"an event {kind} of {subject}")


async def test_the_controller_shows_the_reason_of_a_replica_in_its_list_and_in_events() -> None:
    async with running_controller() as mesh:
        await mesh.apply(MESH)
        async with FakeReplica(mesh.channel, "v1", "a") as a, FakeReplica(mesh.channel, "v1", "older") as older:
            await a.report("READY")
            await older.report("READY")
            await a.send(said("DRAINING", "SIGTERM\n\tby hand"))
            drains = await event(mesh, pb.EVENT_KIND_REPLICA_DRAINING, "replica/a")
            assert drains == "v1: at 127.0.0.1:4001; its own reason: SIGTERM by hand"
            assert (await mesh.replicas())["a"].end_reason == "SIGTERM by hand"
            await a.send(said("STOPPED", "x" * 1_000))
            await older.report("STOPPED")
            stops = await event(mesh, pb.EVENT_KIND_REPLICA_STOPPED, "replica/a")
            assert stops == f"v1: at 127.0.0.1:4001; its own reason: {'x' * 300}"
            silent = await event(mesh, pb.EVENT_KIND_REPLICA_STOPPED, "replica/older")
            assert "reason" not in silent


async def test_a_replica_that_drains_and_falls_silent_is_suspect_with_its_reason() -> None:
    async with running_controller(lease_s=1.0) as mesh:
        await mesh.apply(MESH)
        async with FakeReplica(mesh.channel, "v1", "a") as a:
            await a.send(said("DRAINING", "SIGTERM"))
            await event(mesh, pb.EVENT_KIND_REPLICA_DRAINING, "replica/a")
        why = await event(mesh, pb.EVENT_KIND_REPLICA_SUSPECT, "replica/a")
        # Its lease ends before its connection on a machine that is busy.
        assert why.replace(": its connection broke", "") == "v1: silent past its lease; its own reason: SIGTERM"


def router_report(reason: str) -> wire.AttachRouterRequest:
    return wire.AttachRouterRequest(report=wire.RouterReport(end_reason=reason))


@pytest.mark.parametrize("lease_s", [60.0, 1.0])
async def test_the_controller_shows_the_reason_of_a_router(lease_s: float) -> None:
    """One that half-closes has left at that moment; one whose connection breaks has when its lease is over."""
    is_orderly = lease_s > 10
    async with running_controller(lease_s=lease_s) as mesh, FakeRouter(mesh.channel, "r") as router:
        await router.send(router_report("SIGTERM"))

        async def is_shown() -> Any:
            (listed,) = (await mesh.operator.ListRouters(pb.ListRoutersRequest())).routers
            return listed.end_reason

        assert await eventually(is_shown, what="its reason") == "SIGTERM"
        await (router.say_goodbye() if is_orderly else router.cut())
        why = await event(mesh, pb.EVENT_KIND_ROUTER_DETACHED, "router/r")
        broke = "was silent past its lease: its connection broke, at 127.0.0.1:7071"
        seen = "said goodbye" if is_orderly else broke
        assert why == f"{seen}; its own reason: SIGTERM"


async def test_a_router_that_hangs_is_lost_with_its_address_and_process() -> None:
    async with running_controller(lease_s=1.0) as mesh:
        router = FakeRouter(mesh.channel, "r")
        router.pid = 4_711
        async with router:
            why = await event(mesh, pb.EVENT_KIND_ROUTER_DETACHED, "router/r")
    assert why == f"was silent past its lease: {HANGS}, at 127.0.0.1:7071, process 4711"
    assert is_at("127.0.0.1:7071", why)
    assert not is_at("127.0.0.1:707", why)
