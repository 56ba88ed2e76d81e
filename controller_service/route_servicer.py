"""`RouteService`: the routes of HTTP, for ingresses that follow them and for operators.

Invariants: who may call some endpoints only is told of the routes to these; a stream says all routes at once, and again
whenever one has changed, the newest to who reads slowly.
Owner: the composition root mounts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import grpc

from controller_service.convert.changes import terms_from_wire
from controller_service.convert.origins import origin_of
from controller_service.convert.replies import reply_of
from controller_service.shell.configurator import Configurator
from controller_service.shell.repeated_requests import answers_once
from controller_service.store.protocol import Store
from slotmesh.security.limits import known_endpoints
from slotmesh.spec.routes import Route
from slotmesh.spec.wire import route_to_wire
from slotmesh.v1 import mesh_pb2, route_service_pb2_grpc
from slotmesh.v1 import route_service_pb2 as pb

Context = grpc.aio.ServicerContext[Any, Any]


@answers_once(pb.DESCRIPTOR.services_by_name["RouteService"])
class RouteServicer(route_service_pb2_grpc.RouteServiceServicer):
    """What ingresses and operators call."""

    def __init__(self, configurator: Configurator, store: Store) -> None:
        self._configurator = configurator
        self._store = store

    async def ListRoutes(self, request: pb.ListRoutesRequest, context: Context) -> pb.ListRoutesResponse:
        desired = self._store.read()
        return pb.ListRoutesResponse(routes=_told(desired.routes), revision=desired.configured_at)

    async def DeleteRoute(self, request: pb.DeleteRouteRequest, context: Context) -> pb.DeleteRouteResponse:
        outcome = await self._configurator.delete_route(request.path, terms_from_wire(request, origin_of(context)))
        return reply_of(pb.DeleteRouteResponse, outcome.revision, outcome.plan)

    async def WatchRoutes(  # type: ignore[override]  # it writes instead of yielding
        self, request: pb.WatchRoutesRequest, context: Context
    ) -> None:
        desired = self._store.read()
        told = desired.routes
        await context.write(self._state(desired.routes, desired.configured_at))
        async with aclosing(self._store.watch(after_revision=desired.revision)) as revisions:
            async for desired in revisions:
                if desired.routes is not told and desired.routes != told:
                    told = desired.routes
                    await context.write(self._state(desired.routes, desired.configured_at))

    def _state(self, routes: Mapping[str, Route], revision: int) -> pb.WatchRoutesResponse:
        return pb.WatchRoutesResponse(routes=_told(routes), revision=revision, generation=self._store.generation)


def _told(routes: Mapping[str, Route]) -> list[mesh_pb2.Route]:
    """Those that the caller may know of, by path."""
    known = known_endpoints()
    return [route_to_wire(routes[path]) for path in sorted(routes) if known is None or routes[path].endpoint in known]
