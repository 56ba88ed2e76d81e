"""Requests about routes of HTTP to a controller."""

from __future__ import annotations

from slotmesh.cli.changing import ControllerConnection
from slotmesh.spec.routes import Route
from slotmesh.spec.wire import route_from_wire
from slotmesh.v1 import route_service_pb2 as pb
from slotmesh.v1.route_service_pb2_grpc import RouteServiceStub


class RouteRequests:
    """Raises SlotmeshError where the controller refuses, CommandFailed where it cannot be reached."""

    def __init__(
        self, connection: ControllerConnection, *, timeout_s: float, metadata: tuple[tuple[str, str], ...]
    ) -> None:
        self._connection = connection
        self._stub = connection.stub(RouteServiceStub)
        self._timeout_s = timeout_s
        self._metadata = metadata

    async def list(self) -> tuple[Route, ...]:
        """All routes, by path."""
        with self._connection.peer.telling():
            response = await self._stub.ListRoutes(pb.ListRoutesRequest(), timeout=self._timeout_s)
        return tuple(map(route_from_wire, response.routes))

    async def delete(self, path: str) -> int:
        """Returns the configuration's revision after that. Raises RouteNotFound."""
        request = pb.DeleteRouteRequest(path=path)
        with self._connection.peer.telling():
            response = await self._stub.DeleteRoute(request, timeout=self._timeout_s, metadata=self._metadata)
        return int(response.revision)
