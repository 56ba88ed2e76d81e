"""Members find controllers by a name of DNS, over real gRPC: its addresses change, and the name server is away.

Servers of one name share a port, so each is at a loopback address of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from ingress_service.shell.route_watch import RouteWatch
from router_service.app import serve
from router_service.config import RouterSettings
from slotmesh.discovery import resolved_names
from slotmesh.errors import Failure, Reason
from slotmesh.runtime.channels import PLAIN_TEXT
from slotmesh.transport.server_addresses import ServerAddresses
from tests.contract.replica.test_membership import controller
from tests.support.fakes.controller import FakeController, fake_controller, table
from tests.support.fakes.name_server import NameServer
from tests.support.replicas import running_replica
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

NAME = "controllers.mesh.svc"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolved_names, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(resolved_names, "LAST_PAUSE_S", 0.1)


@asynccontextmanager
async def two_at_one_port() -> AsyncIterator[tuple[FakeController, FakeController, int]]:
    async with fake_controller("127.0.0.2") as one:
        port = int(one.address.rpartition(":")[2])
        async with fake_controller("127.0.0.3", port) as two:
            yield one, two, port


def routing(target: str) -> RouterSettings:
    return RouterSettings(port=0, metrics_port=-1, controller=target)


async def in_force(of: FakeController, revision: int) -> None:
    await wait_until(lambda: of.reports and of.reports[-1].revision == revision, what="the table")


async def test_a_leader_at_an_address_that_dns_lists_only_later_is_followed() -> None:
    async with NameServer() as names, two_at_one_port() as (one, two, port):
        names.records[NAME] = ["127.0.0.2"]
        one.term = 1
        one.push(table(1, {}))
        async with serve(routing(names.target(NAME, port))):
            await in_force(one, 1)
            one.refusal = Failure(reason=Reason.NOT_LEADER, message="stands by")
            one.cut()
            two.term = 2
            two.push(table(2, {}))
            names.records[NAME] = ["127.0.0.3"]
            await in_force(two, 2)


async def test_a_controller_that_dies_is_followed_to_its_new_address() -> None:
    async with NameServer() as names, AsyncExitStack() as stack:
        async with fake_controller("127.0.0.2") as before:
            port = int(before.address.rpartition(":")[2])
            names.records[NAME] = ["127.0.0.2"]
            before.push(table(1, {}))
            await stack.enter_async_context(serve(routing(names.target(NAME, port))))
            await in_force(before, 1)
        names.records[NAME] = ["127.0.0.3"]
        after = await stack.enter_async_context(fake_controller("127.0.0.3", port))
        after.term = 2
        after.push(table(2, {}))
        await in_force(after, 2)


async def test_all_addresses_of_the_name_are_candidates() -> None:
    async with NameServer() as names, two_at_one_port() as (one, two, port):
        names.records[NAME] = ["127.0.0.2", "127.0.0.4", "127.0.0.3"]
        one.refusal = Failure(reason=Reason.NOT_LEADER, message="stands by")
        two.push(table(1, {}))
        async with serve(routing(names.target(NAME, port))):
            await in_force(two, 1)


async def test_a_router_starts_before_dns_knows_the_name() -> None:
    async with NameServer() as names, fake_controller("127.0.0.2") as one:
        one.push(table(1, {}))
        async with serve(routing(names.target(NAME, int(one.address.rpartition(":")[2])))):
            await wait_until(lambda: names.queries[NAME] > 2)
            names.records[NAME] = ["127.0.0.2"]
            await in_force(one, 1)


async def test_the_last_known_addresses_serve_while_the_name_server_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolved_names, "REFRESH_S", 0.02)
    async with NameServer() as names, two_at_one_port() as (one, two, port):
        names.records[NAME] = ["127.0.0.2", "127.0.0.3"]
        one.push(table(1, {}))
        two.refusal = Failure(reason=Reason.NOT_LEADER, message="stands by")
        async with serve(routing(names.target(NAME, port))):
            await in_force(one, 1)
            names.records.clear()
            before = names.queries[NAME]
            await wait_until(lambda: names.queries[NAME] > before + 2)
            assert len(one.hellos) == 1, "the stream is not touched"
            one.refusal, two.refusal = two.refusal, None
            two.term = 2
            two.push(table(2, {}))
            one.cut()
            await in_force(two, 2)


async def test_a_replica_finds_its_controller_by_name() -> None:
    async with NameServer() as names, controller({"generation": "g"}) as (leader, server):
        target = names.target(NAME, int(server.address.rpartition(":")[2]))
        async with running_replica(controller=target, backend="b", until_ready=False):
            await wait_until(lambda: names.queries[NAME] > 1)
            names.records[NAME] = ["127.0.0.1"]
            assert (await leader.attached()).hello is not None


async def test_an_ingress_says_why_it_has_no_controller() -> None:
    async with NameServer() as names:
        watch = RouteWatch(ServerAddresses(names.target(NAME, 70)), PLAIN_TEXT, lambda _: None)
        running = asyncio.ensure_future(watch.run())
        try:
            await wait_until(lambda: "does not resolve" in watch.problem)
            assert names.target(NAME, 70) in watch.problem
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
