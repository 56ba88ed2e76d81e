"""The configuration in a routing table that a router holds, read part by part."""

from __future__ import annotations

from collections.abc import Iterator

from controller_service.core.state_adoption import MembersMesh
from slotmesh.spec.model import Backend, Endpoint
from slotmesh.spec.wire import backend_from_wire, endpoint_from_wire
from slotmesh.v1 import membership_service_pb2, mesh_pb2


class MeshAssembly:
    """Backends and endpoints, as far as parts of the table have arrived."""

    def __init__(self, revision: int) -> None:
        self._revision = revision
        self._backends: dict[str, Backend] = {}
        self._endpoints: dict[str, Endpoint] = {}

    def add(self, part: membership_service_pb2.RoutingTable) -> Iterator[None]:
        """Converts the next part, one element a step."""
        for backend in part.backends:
            if backend.HasField("backend"):  # controllers of older versions do not say
                self._backends[backend.name], _ = backend_from_wire(backend.backend)
            yield
        for route in part.endpoints:
            endpoint = mesh_pb2.Endpoint(name=route.name)
            for field in ("traffic", "grpc_services", "tenants"):
                if route.HasField(field):
                    getattr(endpoint, field).CopyFrom(getattr(route, field))
            self._endpoints[route.name] = endpoint_from_wire(endpoint)
            yield

    def finish(self) -> MembersMesh:
        """What the table has, when its last part was added."""
        return MembersMesh(revision=self._revision, backends=self._backends, endpoints=self._endpoints)
