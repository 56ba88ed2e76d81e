"""Ingresses whose controller has an older copy of its state file: they keep their routes, and show that they do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ingress_service.shell.route_watch import RouteWatch
from slotmesh.runtime.channels import PLAIN_TEXT
from slotmesh.server.server import GrpcServer
from slotmesh.transport.server_addresses import ServerAddresses
from slotmesh.v1 import http_route_service_pb2 as pb
from slotmesh.v1 import http_route_service_pb2_grpc, mesh_pb2
from tests.contract.controller.test_older_state import Original
from tests.support.controllers import running_controller
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


class ScriptedRoutes(http_route_service_pb2_grpc.HttpRouteServiceServicer):
    """Streams what the test puts into `states`."""

    def __init__(self) -> None:
        self.states = asyncio.Queue[pb.WatchHttpRoutesResponse]()

    def put(self, revision: int, path: str, **fields: Any) -> None:
        route = mesh_pb2.HttpRoute(name=path, endpoint="e")
        fields.setdefault("generation", "g")
        self.states.put_nowait(pb.WatchHttpRoutesResponse(routes=[route], revision=revision, **fields))

    async def WatchHttpRoutes(self, request: Any, context: Any) -> None:  # type: ignore[override]  # it writes
        while True:
            await context.write(await self.states.get())


class Watched:
    """A watch and the routes that it has followed, newest last."""

    def __init__(self, address: str) -> None:
        self.followed: list[list[str]] = []
        servers = ServerAddresses(address)
        self.watch = RouteWatch(servers, PLAIN_TEXT, lambda routes: self.followed.append([it.path for it in routes]))


@asynccontextmanager
async def watched() -> AsyncIterator[tuple[ScriptedRoutes, Watched]]:
    routes = ScriptedRoutes()
    server = GrpcServer("controller", port=0)
    server.add(http_route_service_pb2_grpc.add_HttpRouteServiceServicer_to_server, routes)
    await server.start()
    ingress = Watched(server.address)
    running = asyncio.ensure_future(ingress.watch.run())
    try:
        yield routes, ingress
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await server.stop()


async def test_routes_are_kept_while_the_controller_is_on_hold_and_followed_again_later() -> None:
    async with watched() as (routes, ingress):
        routes.put(5, "/new")
        await wait_until(lambda: ingress.followed, what="the first routes")
        assert (ingress.watch.is_held, ingress.watch.problem) == (False, "")
        # Also where what an operator has changed there counts higher.
        routes.put(9, "/old", on_hold=True)
        await wait_until(lambda: ingress.watch.is_held, what="they are held")
        assert "older copy" in ingress.watch.problem
        assert (ingress.followed, ingress.watch.revision) == ([["/new"]], 5)
        routes.put(1, "/adopted", generation="next")
        await wait_until(lambda: len(ingress.followed) > 1, what="they are followed again")
        assert (ingress.followed[-1], ingress.watch.revision) == (["/adopted"], 1)
        assert (ingress.watch.is_held, ingress.watch.problem) == (False, "")


async def test_older_routes_of_the_same_generation_are_shown_as_a_problem() -> None:
    async with watched() as (routes, ingress):
        routes.put(5, "/new")
        routes.put(4, "/old")
        await wait_until(lambda: ingress.watch.is_held, what="they are held")
        assert "older copy" in ingress.watch.problem
        assert ingress.followed == [["/new"]]


async def test_an_ingress_without_routes_takes_those_of_the_older_copy() -> None:
    async with watched() as (routes, ingress):
        routes.put(4, "/old", on_hold=True)
        await wait_until(lambda: ingress.followed, what="some routes are better than none")
        assert ingress.watch.has_routes.is_set()
        assert ingress.watch.is_held


async def test_the_controller_reports_that_it_is_on_hold_as_soon_as_it_is(tmp_path: Path) -> None:
    async with AsyncExitStack() as members:
        original = await Original.make(members, tmp_path)
        async with running_controller(state=original.older) as older:
            stub: Any = http_route_service_pb2_grpc.HttpRouteServiceStub(older.channel)
            call = stub.WatchHttpRoutes(pb.WatchHttpRoutesRequest())
            async with asyncio.timeout(30):
                assert not (await call.read()).on_hold
                await original.router.move(older.channel)
                state = await call.read()
                assert state.on_hold, "before any change of its configuration"
                again = stub.WatchHttpRoutes(pb.WatchHttpRoutesRequest())
                assert (await again.read()).on_hold
                again.cancel()
            call.cancel()
