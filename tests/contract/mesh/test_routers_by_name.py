"""Real routers of one name are replaced under load by streams, rpcs, slots, and an ingress: no call fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

import slotmesh
import slotmesh.testing
from ingress_service.app import serve as serve_http
from ingress_service.config import IngressSettings
from router_service.app import serve
from router_service.config import RouterSettings
from slotmesh.client.mesh import Mesh
from slotmesh.discovery import resolved_names
from slotmesh.discovery.targets import DnsName
from slotmesh.transport.server_addresses import ServerAddresses
from tests.support.fakes.name_server import NameServer
from tests.support.http_client import http
from tests.support.wait import wait_until

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

HOSTS = ("127.0.0.2", "127.0.0.3")


class Greeter:
    async def hello(self, name: str) -> str:
        await asyncio.sleep(0.001)
        return name


class Records:
    """An injected lookup."""

    hosts: Sequence[str] = ()

    async def __call__(self, name: DnsName) -> Sequence[str]:
        return self.hosts


class Load:
    """Calls of each kind, with short pauses."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self.done: Counter[str] = Counter()
        self.over = False
        calls = {"stream": self._stream, "unary": self._unary, "slot": self._slot}
        self.tasks = [asyncio.ensure_future(self._run(*each)) for each in calls.items() for _ in range(4)]

    async def _run(self, kind: str, call: Any) -> None:
        while not self.over:
            assert await call() == "x"
            self.done[kind] += 1
            await asyncio.sleep(0.005)

    async def _stream(self) -> str:
        return str(await self._mesh.endpoint("Greeter").hello("x"))

    async def _unary(self) -> str:
        return str(await self._mesh.endpoint("Greeter").hello.unary("x"))

    async def _slot(self) -> str:
        async with self._mesh.endpoint("Greeter").reserve():
            await asyncio.sleep(0)
        return "x"

    async def goes_on(self) -> None:
        """Returns after some more calls of each kind, and raises the failure of one."""
        least = {kind: self.done[kind] + 30 for kind in ("stream", "unary", "slot")}
        ended = [task for task in self.tasks if task.done()]
        await wait_until(lambda: ended or any(it.done() for it in self.tasks) or self.done > Counter(least))
        for task in self.tasks:
            if task.done():
                task.result()


@asynccontextmanager
async def router(controller: str, host: str, port: int) -> AsyncIterator[int]:
    settings: dict[str, Any] = {"host": host, "port": port, "metrics_port": -1, "controller": controller}
    async with serve(RouterSettings(**settings)) as server:
        await wait_until(lambda: server.serving)
        yield int(server.address.rpartition(":")[2])


async def test_no_call_fails_while_each_router_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolved_names, "REFRESH_S", 0.5)
    records = Records()
    records.hosts = HOSTS
    async with slotmesh.testing.mesh({"Greeter": Greeter}) as of, AsyncExitStack() as stack:
        running = [AsyncExitStack() for _ in HOSTS]
        for each in running:
            stack.push_async_callback(each.aclose)
        port = await running[0].enter_async_context(router(of.controller_address, HOSTS[0], 0))
        await running[1].enter_async_context(router(of.controller_address, HOSTS[1], port))
        servers = ServerAddresses(f"dns:///routers:{port}", lookup=records)
        mesh = await stack.enter_async_context(Mesh(servers, 10.0, 5.0))
        load = Load(mesh)
        try:
            for number in (0, 1, 0, 1):
                await load.goes_on()
                records.hosts = [HOSTS[1 - number]]
                await running[number].aclose()
                await load.goes_on()
                await running[number].enter_async_context(router(of.controller_address, HOSTS[number], port))
                records.hosts = HOSTS
            await load.goes_on()
        finally:
            load.over = True
            await asyncio.gather(*load.tasks)


async def test_an_ingress_spreads_requests_and_answers_all_while_a_router_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resolved_names, "REFRESH_S", 0.5)
    endpoints = [f"Greeter{number}" for number in range(4)]
    async with (
        NameServer() as names,
        slotmesh.testing.mesh(dict.fromkeys(endpoints, Greeter)) as of,
        AsyncExitStack() as stack,
    ):
        going = AsyncExitStack()
        stack.push_async_callback(going.aclose)
        port = await going.enter_async_context(router(of.controller_address, HOSTS[0], 0))
        await stack.enter_async_context(router(of.controller_address, HOSTS[1], port))
        names.records = {"routers.mesh.svc": list(HOSTS), "controllers.mesh.svc": ["127.0.0.1"]}
        settings: dict[str, Any] = {"port": 0, "metrics_port": -1}
        settings["routers"] = names.target("routers.mesh.svc", port)
        settings["controller"] = names.target("controllers.mesh.svc", int(of.controller_address.rpartition(":")[2]))
        ingress = await stack.enter_async_context(serve_http(IngressSettings(**settings)))
        await wait_until(ingress.routes.has_routes.is_set)

        async def post(endpoint: str) -> None:
            answer = await http(ingress.address, "POST", f"/{endpoint}/hello", ["x"])
            assert (answer.status, answer.json) == (200, "x"), answer

        def used() -> list[str]:
            calls = [ingress.callers.own.endpoint(each) for each in endpoints]
            return [it.stream._connection.address for each in calls if each is not None for it in each.streams]

        await asyncio.gather(*map(post, endpoints))
        assert Counter(it.rpartition(":")[0] for it in used()) == dict.fromkeys(HOSTS, 2)
        names.records["routers.mesh.svc"] = [HOSTS[1]]
        leaving = asyncio.ensure_future(going.aclose())
        while not leaving.done():
            await asyncio.gather(*map(post, endpoints))
        await leaving
        await asyncio.gather(*map(post, endpoints))
        assert {it.rpartition(":")[0] for it in used()} == {HOSTS[1]}
