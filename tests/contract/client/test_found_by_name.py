"""Clients that find routers by name, over real gRPC: calls are spread, and follow the list without a failure.

Routers of one name share a port, so each is at a loopback address of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import grpc
import pytest

import slotmesh
from slotmesh.client.mesh import Mesh
from slotmesh.codec import OCTET_STREAM
from slotmesh.discovery import resolved_names
from slotmesh.discovery.targets import DnsName
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.runtime.channels import CHANNEL_OPTIONS
from slotmesh.status import abort
from slotmesh.transport.name_lookups import LookupFailed
from slotmesh.transport.server_addresses import ServerAddresses
from slotmesh.v1 import router_service_pb2, router_service_pb2_grpc
from tests.support.fakes.name_server import NameServer
from tests.support.fakes.router import FakeRouter
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


class NamedRouter(FakeRouter):
    """It answers unary calls, too, and counts them."""

    def __init__(self, host: str, port: int = 0) -> None:
        super().__init__(port=port)
        self.host, self.unary = host, 0
        self.refuses_unary: Failure | None = None

    async def Call(self, request: router_service_pb2.CallRequest, context: Any) -> router_service_pb2.CallResponse:
        if self.refuses_unary is not None:
            await abort(context, self.refuses_unary)
        self.unary += 1
        return router_service_pb2.CallResponse(payload=request.payload)


class Records:
    """An injected lookup."""

    def __init__(self, *hosts: str) -> None:
        self.hosts: Sequence[str] | None = hosts
        self.lookups = 0

    async def __call__(self, name: DnsName) -> Sequence[str]:
        self.lookups += 1
        if self.hosts is None:
            raise LookupFailed("the name server is away")
        return self.hosts


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolved_names, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(resolved_names, "LAST_PAUSE_S", 0.05)
    monkeypatch.setattr(resolved_names, "REFRESH_S", 0.05)


@asynccontextmanager
async def three() -> AsyncIterator[list[NamedRouter]]:
    async with NamedRouter("127.0.0.2") as one:
        port = int(one.address.rpartition(":")[2])
        async with NamedRouter("127.0.0.3", port) as two, NamedRouter("127.0.0.4", port) as other:
            routers = [one, two, other]
            yield routers
            assert not [breach for each in routers for breach in each.breaches]


def client(routers: list[NamedRouter], records: Records, connect_timeout_s: float = 10.0) -> Mesh:
    port = routers[0].address.rpartition(":")[2]
    return Mesh(ServerAddresses(f"dns:///routers:{port}", lookup=records), connect_timeout_s, 5.0)


def echo(mesh: Mesh, name: str = "e") -> Any:
    return mesh.endpoint(name).options(content_type=OCTET_STREAM).echo


async def test_streams_are_spread_over_all_routers() -> None:
    records = Records("127.0.0.2", "127.0.0.3", "127.0.0.4")
    async with three() as routers, client(routers, records) as mesh:
        await asyncio.gather(*(echo(mesh, f"e{number}")(b"x") for number in range(6)))
        assert [it.opened for it in routers] == [2, 2, 2]


async def test_calls_by_rpcs_of_their_own_take_turns() -> None:
    records = Records("127.0.0.2", "127.0.0.3", "127.0.0.4")
    async with three() as routers, client(routers, records) as mesh:
        call = echo(mesh).unary
        await call(b"x")

        async def all_get_some() -> None:
            while not all(it.unary for it in routers):
                assert await call(b"x") == b"x"

        async with asyncio.timeout(20):
            await all_get_some()
        for each in routers:
            each.unary = 0
        for _ in range(30):
            await call(b"x")
        assert [it.unary for it in routers] == [10, 10, 10]


async def test_a_router_that_is_added_gets_its_share_and_one_that_is_removed_none() -> None:
    records = Records("127.0.0.2")
    async with three() as routers, client(routers, records) as mesh:
        call = echo(mesh).unary
        await call(b"x")
        assert [it.unary for it in routers] == [1, 0, 0]
        records.hosts = ["127.0.0.3", "127.0.0.4"]

        async def moved() -> None:
            while not (routers[1].unary and routers[2].unary):
                await call(b"x")

        async with asyncio.timeout(20):
            await moved()
        before = routers[0].unary
        for _ in range(10):
            await call(b"x")
        assert routers[0].unary == before
        await echo(mesh, "new")(b"x")
        assert routers[0].opened == 0


async def test_no_call_fails_while_the_list_changes_and_routers_leave() -> None:
    records = Records("127.0.0.2", "127.0.0.3")
    async with three() as routers, client(routers, records) as mesh:
        done, over = 0, asyncio.Event()

        async def load(number: int) -> None:
            nonlocal done
            while not over.is_set():
                await echo(mesh, f"e{number}")(b"x")
                await echo(mesh, f"e{number}").unary(b"x")
                done += 2

        loads = [asyncio.ensure_future(load(number)) for number in range(4)]

        async def some_more() -> None:
            until = done + 40
            await wait_until(lambda: done >= until or any(it.done() for it in loads))

        try:
            for number, hosts in enumerate((["127.0.0.3", "127.0.0.4"], ["127.0.0.4", "127.0.0.2"], ["127.0.0.2"])):
                await some_more()
                leaving = routers[number]
                records.hosts = hosts
                leaving.leaving = True
                leaving.go_away()
                await wait_until(lambda leaving=leaving: not leaving.streams, what="it was left")  # type: ignore[misc]
                await some_more()
                leaving.leaving = False
        finally:
            over.set()
            await asyncio.gather(*loads)


async def test_calls_go_on_while_the_name_server_is_away() -> None:
    records = Records("127.0.0.2", "127.0.0.3")
    async with three() as routers, client(routers, records) as mesh:
        await echo(mesh)(b"x")
        records.hosts, before = None, records.lookups
        await wait_until(lambda: records.lookups > before + 2)
        used = next(it for it in routers if it.opened)
        await used.stop()
        assert await echo(mesh)(b"x") == b"x"
        assert await echo(mesh, "another")(b"x") == b"x"
        assert await echo(mesh).unary(b"x") == b"x"


async def test_calls_wait_for_a_name_that_resolves_later_and_fail_with_the_reason() -> None:
    records = Records()
    async with three() as routers:
        async with client(routers, records) as mesh:
            calls = [echo(mesh)(b"x"), asyncio.ensure_future(echo(mesh).unary(b"x"))]
            await wait_until(lambda: records.lookups > 1)
            records.hosts = ["127.0.0.3"]
            assert await asyncio.gather(*calls) == [b"x", b"x"]
        records.hosts = None
        async with client(routers, records, 0.1) as mesh:
            for call in (echo(mesh)(b"x"), echo(mesh).unary(b"x"), mesh.endpoint("e").reserve().__aenter__()):
                with pytest.raises(slotmesh.RouterLost, match="does not resolve: the name server is away") as lost:
                    await call
                assert lost.value.executed is Executed.NO


async def test_a_client_without_asyncio_finds_routers_by_name() -> None:
    async with three() as routers, NameServer() as names:
        names.records["routers.mesh.svc"] = [it.host for it in routers]
        target = names.target("routers.mesh.svc", int(routers[0].address.rpartition(":")[2]))

        def use() -> None:
            with slotmesh.connect_sync(target) as mesh:
                assert target in repr(mesh)
                for number in range(3):
                    assert mesh.endpoint(f"e{number}").options(content_type=OCTET_STREAM).echo(b"x") == b"x"

        await asyncio.to_thread(use)
        assert [it.opened for it in routers] == [1, 1, 1]


async def test_a_single_call_that_a_router_refuses_as_it_ends_is_made_at_another_one() -> None:
    records = Records("127.0.0.2", "127.0.0.3")
    async with three() as routers, client(routers, records) as mesh:
        call = echo(mesh).unary
        ending = Failure(reason=Reason.DRAINING, message="the router stops")
        routers[0].refuses_unary = ending
        for _ in range(20):
            assert await call(b"x") == b"x"
        await wait_until(lambda: mesh._routers.is_connected(routers[0].address))
        assert await call(b"x") == b"x"
        assert routers[0].unary == 0
        routers[1].refuses_unary = replace(ending, executed=Executed.UNKNOWN)
        with pytest.raises(slotmesh.Draining):
            await asyncio.gather(*(call(b"x") for _ in range(20)))


async def test_a_single_call_leaves_a_router_of_a_list_that_is_away() -> None:
    async with three() as (gone, other, _), slotmesh.connect([gone.address, other.address]) as mesh:
        call = mesh.endpoint("e").options(content_type=OCTET_STREAM).echo.unary
        assert await call(b"x") == b"x"
        await gone.stop()
        await wait_until(lambda: not mesh._routers.is_connected(gone.address), what="the end of the connection")
        assert await call(b"x") == b"x"
        assert (gone.unary, other.unary) == (1, 1)


async def test_a_plain_channel_of_grpc_spreads_streams_and_calls_over_the_routers_of_a_name() -> None:
    """As docs/protocol.md states for clients in any language."""
    async with three() as routers, NameServer() as names:
        names.records["routers.mesh.svc"] = [it.host for it in routers]
        target = names.target("routers.mesh.svc", int(routers[0].address.rpartition(":")[2]))
        options = [*CHANNEL_OPTIONS, ("grpc.lb_policy_name", "round_robin"), ("grpc.enable_srv_queries", 0)]
        async with grpc.aio.insecure_channel(target, options) as channel:
            stub: Any = router_service_pb2_grpc.RouterServiceStub(channel)
            request = router_service_pb2.CallRequest(endpoint="e", payload=b"x")
            async with asyncio.timeout(20):
                while not all(it.unary for it in routers):  # each connection is made
                    await stub.Call(request)
            streams = [stub.StreamCalls() for _ in range(6)]
            for each in streams:
                await each.write(
                    router_service_pb2.StreamCallsRequest(open=router_service_pb2.OpenStream(endpoint="e"))
                )
                await each.read()
            assert [it.opened for it in routers] == [2, 2, 2]
            await routers[0].stop()
            async with asyncio.timeout(20):
                while True:  # the channel may not have seen the end yet
                    with suppress(grpc.RpcError):
                        await asyncio.gather(*(stub.Call(request) for _ in range(6)))
                        break
            for each in streams:
                each.cancel()
