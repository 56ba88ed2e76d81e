"""Routers and replicas of several controllers: they follow the one that leads, and obey no older term."""

from __future__ import annotations

import asyncio

import pytest

from router_service.app import serve
from router_service.config import RouterSettings
from slotmesh.errors import Failure, Reason
from tests.contract.replica.test_membership import at, controller
from tests.support.fakes.controller import FakeController, fake_controller, table
from tests.support.replicas import running_replica
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


def not_leader(leader: str) -> Failure:
    return Failure(reason=Reason.NOT_LEADER, message="stands by", metadata={"leader": leader})


def routing(*controllers: FakeController) -> RouterSettings:
    return RouterSettings(port=0, metrics_port=-1, controller=",".join(it.address for it in controllers))


async def in_force(controller: FakeController, revision: int) -> None:
    """The router says that it has this table."""
    await wait_until(lambda: controller.reports and controller.reports[-1].revision == revision, what="the table")


async def test_a_router_goes_where_a_standby_refers_it_to() -> None:
    async with fake_controller() as standby, fake_controller() as leader:
        standby.refusal = not_leader(leader.address)
        leader.term = 3
        leader.push(table(1, {}))
        async with serve(routing(standby)):
            await in_force(leader, 1)
            assert not standby.hellos


async def test_a_router_goes_to_those_that_the_leader_has_told_it_of() -> None:
    async with fake_controller() as next_one:
        async with fake_controller() as leader:
            leader.term, leader.controllers = 1, [next_one.address]
            leader.push(table(1, {}))
            router = serve(routing(leader))
            await router.__aenter__()
            await in_force(leader, 1)
        try:
            next_one.term = 2
            next_one.push(table(2, {}))
            await in_force(next_one, 2)
        finally:
            await router.__aexit__(None, None, None)


async def test_a_router_obeys_no_older_term() -> None:
    async with fake_controller() as deposed, fake_controller() as leader:
        leader.term = 2
        leader.push(table(1, {}))
        async with serve(routing(leader, deposed)):
            await in_force(leader, 1)
            deposed.term = 1
            deposed.push(table(9, {}))
            leader.refusal = not_leader("")
            leader.cut()
            await wait_until(lambda: len(deposed.hellos) >= 2, timeout=20, what="it was there, and looks elsewhere")
            assert not [report for report in deposed.reports if report.revision == 9]
            leader.refusal = None
            leader.push(table(2, {}))
            await in_force(leader, 2)


async def test_a_replica_goes_where_a_standby_refers_it_to() -> None:
    async with controller({}) as (standby, first), controller({"generation": "g"}) as (leader, second):
        standby.refusal = not_leader(second.address)
        leader.term = 2
        async with at(first):
            attachment = await leader.attached()
            assert attachment.hello is not None
            assert not any(it.reports for it in standby.attachments)


async def test_a_replica_obeys_no_older_term() -> None:
    async with controller({"generation": "g"}) as (leader, first), controller({"generation": "g"}) as (deposed, second):
        leader.term, deposed.term = 2, 1
        async with running_replica(controller=f"{first.address},{second.address}", backend="b") as replica:
            attachment = await leader.attached()
            await attachment.drain("the first leader has lost its place", term=1)
            await wait_until(lambda: len(deposed.attachments) >= 1, timeout=20, what="it looks elsewhere")
            await wait_until(
                lambda: len(leader.attachments) >= 2, timeout=20, what="it obeys neither of them, and goes on"
            )
            assert not replica.app.replica.stop_asked.is_set()
            await leader.attachments[-1].drain("the leader says so", term=2)
            async with asyncio.timeout(20):
                await replica.task
