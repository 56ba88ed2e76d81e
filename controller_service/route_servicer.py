"""`RouteService`: the routes of HTTP, for ingresses that follow them and for operators.

Invariants: a caller gets the routes to endpoints that it may call; a stream sends all routes in one message, and again
whenever one has changed, the newest ones to a slow reader. It also reports that the state file is an older copy, once
that is found.
Owner: the composition root mounts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import grpc

from controller_service.convert.changes import origin_of, reply_of, terms_from_wire
from controller_service.core.desired.state import Desired
from controller_service.shell.changes.configurator import Configurator
from controller_service.shell.changes.requests import answers_once
from controller_service.shell.leadership import NewerMembers
from controller_service.store.protocol import Store
from slotmesh.convert.specification import route_to_wire
from slotmesh.security.rpc_roles import known_endpoints
from slotmesh.spec.routes import Route
from slotmesh.v1 import mesh_pb2, route_service_pb2_grpc
from slotmesh.v1 import route_service_pb2 as pb

Context = grpc.aio.ServicerContext[Any, Any]


@answers_once(pb.DESCRIPTOR.services_by_name["RouteService"])
class RouteServicer(route_service_pb2_grpc.RouteServiceServicer):
    """What ingresses and operators call."""

    def __init__(self, configurator: Configurator, store: Store, newer: NewerMembers) -> None:
        self._configurator = configurator
        self._store = store
        self._newer = newer

    async def ListRoutes(self, request: pb.ListRoutesRequest, context: Context) -> pb.ListRoutesResponse:
        desired = self._store.read()
        return pb.ListRoutesResponse(routes=_visible(desired.routes), revision=desired.configured_at)

    async def DeleteRoute(self, request: pb.DeleteRouteRequest, context: Context) -> pb.DeleteRouteResponse:
        outcome = await self._configurator.delete_route(request.path, terms_from_wire(request, origin_of(context)))
        return reply_of(pb.DeleteRouteResponse, outcome.revision, outcome.plan)

    async def WatchRoutes(  # type: ignore[override]  # it writes instead of yielding
        self, request: pb.WatchRoutesRequest, context: Context
    ) -> None:
        await self._newer.settled.wait()  # routes of an older copy are sent to no ingress that has newer ones
        desired = self._store.read()
        sent, was_on_hold = desired.routes, bool(self._newer)
        await context.write(self._state(desired))
        async with aclosing(self._store.watch(after_revision=desired.revision)) as revisions:
            async for _ in _woken(revisions, self._newer.begun):
                desired, is_on_hold = self._store.read(), bool(self._newer)
                if is_on_hold != was_on_hold or (desired.routes is not sent and desired.routes != sent):
                    sent, was_on_hold = desired.routes, is_on_hold
                    await context.write(self._state(desired))

    def _state(self, desired: Desired) -> pb.WatchRoutesResponse:
        return pb.WatchRoutesResponse(
            routes=_visible(desired.routes),
            revision=desired.configured_at,
            generation=self._store.generation,
            is_on_hold=bool(self._newer),
        )


async def _woken(revisions: AsyncGenerator[Desired, None], event: asyncio.Event) -> AsyncGenerator[None, None]:
    """Yields at each revision, and once when the event has happened; ends with the revisions."""

    async def changed() -> bool:
        return await anext(revisions, None) is not None

    happened = asyncio.ensure_future(event.wait())
    change = asyncio.ensure_future(changed())
    waiting: set[asyncio.Future[Any]] = {happened, change}
    try:
        while True:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if change in done:
                if not change.result():
                    return
                change = asyncio.ensure_future(changed())
                waiting.add(change)
            yield
    finally:
        for task in (happened, change):
            task.cancel()
        await asyncio.gather(happened, change, return_exceptions=True)


def _visible(routes: Mapping[str, Route]) -> list[mesh_pb2.Route]:
    """The routes that the caller may see, by path."""
    known = known_endpoints()
    return [route_to_wire(routes[path]) for path in sorted(routes) if known is None or routes[path].endpoint in known]
