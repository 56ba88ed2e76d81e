"""The services of users' own protos that this router answers: those of the routing table in force.

Purpose: which endpoint has which service, of which kind each rpc is, and what reflection tells of them.
Invariants: it follows the table: what is not in there any more is not found here. A table that changes nothing of them
costs a look at its endpoints, when the next rpc asks. Descriptors that are not sound are left out, with a warning.
Owner: the servicer of own rpcs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from google.protobuf.descriptor import FileDescriptor

from router_service.core.routing.table import RoutingTable
from slotmesh.runtime.descriptors import Descriptors
from slotmesh.spec.descriptor_sets import BadDescriptors, OwnRpc, files_of, rpcs_of
from slotmesh.spec.model import GrpcServices
from slotmesh.telemetry.log import get_logger

_log = get_logger(__name__)


class _Declared:
    """What the descriptors of one endpoint declare."""

    def __init__(self, services: GrpcServices) -> None:
        """Raises BadDescriptors."""
        self.services = services
        self.rpcs: Mapping[str, Mapping[str, OwnRpc]] = rpcs_of(services)
        self.files: Sequence[FileDescriptor] = files_of(services)
        self.descriptors: Descriptors | None = None
        """Made when reflection asks for the first time."""


class OwnServices:
    """By service and by rpc."""

    def __init__(self, table: Callable[[], RoutingTable]) -> None:
        """`table` is the one in force."""
        self._in_force = table
        self._table: RoutingTable | None = None
        self._declared: dict[str, _Declared] = {}
        """By endpoint."""
        self._endpoints: dict[str, dict[str, OwnRpc]] = {}
        """By rpc, as `package.Service/Method`: the endpoints that have it."""
        self._services: tuple[str, ...] = ()

    def endpoints_of(self, path: str) -> Mapping[str, OwnRpc]:
        """The endpoints that have this rpc, and of which kind it is there. Empty: none has."""
        self._follow()
        return self._endpoints.get(path, _NONE)

    def has_service(self, name: str) -> bool:
        """Whether any endpoint has the service."""
        return name in self.names

    @property
    def names(self) -> Sequence[str]:
        """Full names of all services, sorted."""
        self._follow()
        return self._services

    @property
    def descriptors(self) -> Sequence[Descriptors]:
        """What reflection tells of them, endpoint by endpoint: these need not agree."""
        self._follow()
        found = []
        for declared in self._declared.values():
            if declared.descriptors is None:
                declared.descriptors = Descriptors(declared.files)
            found.append(declared.descriptors)
        return found

    def _follow(self) -> None:
        """Brings all in line with the table in force."""
        table = self._in_force()
        if table is self._table:
            return
        self._table = table
        wanted = {
            name: route.grpc_services for name, route in table.endpoints.items() if route.grpc_services is not None
        }
        if wanted == {name: it.services for name, it in self._declared.items()}:
            return
        declared: dict[str, _Declared] = {}
        for name in sorted(wanted):
            services, before = wanted[name], self._declared.get(name)
            try:
                same = before is not None and before.services == services
                declared[name] = before if same and before is not None else _Declared(services)
            except BadDescriptors as bad:
                _log.warning("services of an endpoint are not answered", endpoint=name, reason=str(bad))
        self._declared = declared
        self._endpoints = {}
        for name, each in declared.items():
            for service, rpcs in each.rpcs.items():
                for method, rpc in rpcs.items():
                    self._endpoints.setdefault(f"{service}/{method}", {})[name] = rpc
        self._services = tuple(sorted({service for each in declared.values() for service in each.rpcs}))


_NONE: Mapping[str, OwnRpc] = {}
