"""Requests about routes of HTTP to a controller."""

from __future__ import annotations

from typing import Any

import grpc

from slotmesh.cli.connection import Peer
from slotmesh.spec.routes import Route
from slotmesh.spec.wire import route_from_wire
from slotmesh.v1 import route_service_pb2 as pb
from slotmesh.v1.route_service_pb2_grpc import RouteServiceStub


class RouteRequests:
    """Raises SlotmeshError where the controller refuses, CommandFailed where it cannot be reached."""

    def __init__(
        self, peer: Peer, channel: grpc.aio.Channel, *, timeout_s: float, metadata: tuple[tuple[str, str], ...]
    ) -> None:
        self._peer = peer
        self._stub: Any = RouteServiceStub(channel)
        self._timeout_s = timeout_s
        self._metadata = metadata

    async def list(self) -> tuple[Route, ...]:
        """All routes, by path."""
        with self._peer.telling():
            response = await self._stub.ListRoutes(pb.ListRoutesRequest(), timeout=self._timeout_s)
        return tuple(map(route_from_wire, response.routes))

    async def delete(self, path: str) -> int:
        """Returns the configuration's revision after that. Raises RouteNotFound."""
        request = pb.DeleteRouteRequest(path=path)
        with self._peer.telling():
            response = await self._stub.DeleteRoute(request, timeout=self._timeout_s, metadata=self._metadata)
        return int(response.revision)
