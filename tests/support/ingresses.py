"""A real ingress in front of a real mesh, all on the event loop of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ingress_service.app import Ingress, serve
from ingress_service.config import IngressSettings
from slotmesh.convert.specification import route_to_wire
from slotmesh.runtime.channels import open_channel
from slotmesh.spec.routes import Route
from slotmesh.testing import RunningMesh
from slotmesh.testing import mesh as running_mesh
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from slotmesh.v1.controller_service_pb2_grpc import ControllerServiceStub
from tests.support.http_client import HttpAnswer, http
from tests.support.wait import wait_until


@dataclass(frozen=True, slots=True)
class ServedMesh:
    """A mesh and its ingress."""

    mesh: RunningMesh
    ingress: Ingress

    @property
    def address(self) -> str:
        return self.ingress.address

    async def ask(
        self, method: str, path: str, body: Any = b"", headers: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        return await http(self.address, method, path, body, headers)

    async def post(self, path: str, body: Any = (), **headers: str) -> HttpAnswer:
        return await self.ask("POST", path, body, {name.replace("_", "-"): text for name, text in headers.items()})

    async def set_routes(self, *routes: Route) -> None:
        """Applies them, and waits until the ingress has them."""
        wire = map(route_to_wire, routes)
        channel = open_channel(self.mesh.controller_address)
        try:
            request = pb.ApplyMeshRequest(mesh=mesh_pb2.Mesh(routes=wire))
            response = await ControllerServiceStub(channel).ApplyMesh(request)
        finally:
            await channel.close()
        await wait_until(lambda: self.ingress.routes.revision >= response.revision, timeout=20.0, what="the routes")


@asynccontextmanager
async def served_mesh(
    backends: Mapping[str, Any],
    *routes: Route,
    traffic: Mapping[str, Mapping[str, float]] | None = None,
    routers: int = 1,
    **settings: Any,
) -> AsyncIterator[ServedMesh]:
    """Each backend is an endpoint of its name, unless `traffic` says otherwise."""
    async with running_mesh(backends, traffic=traffic, routers=routers) as mesh:
        given = {"port": 0, "metrics_port": -1, **settings}
        ingress_settings = IngressSettings(
            routers=",".join(mesh.router_addresses), controller=mesh.controller_address, **given
        )
        async with serve(ingress_settings) as ingress:
            served = ServedMesh(mesh, ingress)
            await wait_until(ingress.routes.has_routes.is_set, timeout=20.0, what="the first routes")
            if routes:
                await served.set_routes(*routes)
            yield served
