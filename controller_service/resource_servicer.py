"""The rpcs of `ControllerService` about resources: Get, List, Apply and Delete; lists of members; the snapshot.

Invariants: as in `servicer`, no decision is made here. Callers that may call some endpoints only see the HTTP routes to
these.
Owner: `servicer`.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any, TypeVar

import grpc
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from controller_service.convert.changes import ChangeRequest, origin_of, reply_of, terms_from_wire
from controller_service.convert.masks import paths_of, with_fields
from controller_service.convert.operators import shift_to_wire
from controller_service.convert.pages import fill_page
from controller_service.convert.replicas import TIME_BOUNDS, page_of_replicas
from controller_service.convert.routers import router_to_wire
from controller_service.convert.statuses import KnownLoads, KnownMesh, backend_with_status, snapshot_to_wire
from controller_service.core.desired.handler_code import as_written
from controller_service.core.desired.planning import ChangeTerms
from controller_service.core.desired.revisions import etag_of
from controller_service.core.desired.state import Desired
from controller_service.core.observed.replica_groups import differing_settings, outdated_among
from controller_service.shell.changes.configurator import Configurator, PlannedChange
from controller_service.shell.changes.requests import (
    BACKEND,
    ENDPOINT,
    ROUTE,
    known_backend,
    known_endpoint,
    known_route,
    no_such,
)
from controller_service.shell.loops.shifter import Shifter
from controller_service.shell.members.tables import TableBoard
from controller_service.shell.mesh_state import MeshState
from controller_service.store.protocol import Store
from slotmesh.convert.specification import (
    backend_from_wire,
    backend_to_wire,
    endpoint_from_wire,
    endpoint_to_wire,
    route_from_wire,
    route_to_wire,
)
from slotmesh.security.rpc_roles import known_endpoints
from slotmesh.spec.model import Backend, Endpoint, InvalidSpec, SpecViolation
from slotmesh.spec.routes import Route, route_subject
from slotmesh.status import to_exception
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2

Context = grpc.aio.ServicerContext[Any, Any]
RequestT = TypeVar("RequestT", bound=ChangeRequest)
ReplyT = TypeVar("ReplyT", bound=Message)


def changes(
    reply: type[ReplyT],
) -> Callable[
    [Callable[[Any, RequestT, ChangeTerms], Awaitable[PlannedChange]]],
    Callable[[Any, RequestT, Context], Coroutine[Any, Any, ReplyT]],
]:
    """An rpc that changes the configuration, on the terms in its request: it is answered with what the change is."""

    def rpc_of(
        change: Callable[[Any, RequestT, ChangeTerms], Awaitable[PlannedChange]],
    ) -> Callable[[Any, RequestT, Context], Coroutine[Any, Any, ReplyT]]:
        @functools.wraps(change)
        async def rpc(self: Any, request: RequestT, context: Context) -> ReplyT:
            outcome = await change(self, request, terms := terms_from_wire(request, origin_of(context)))
            return reply_of(reply, outcome.revision, outcome.plan, validate_only=terms.validate_only)

        return rpc

    return rpc_of


def require(field: str, value: object) -> None:
    """Raises InvalidSpec where a field that a request needs is empty."""
    if not value:
        raise InvalidSpec([SpecViolation(field, "is required")])


def visible(routes: Mapping[str, Route]) -> dict[str, Route]:
    """The routes that the caller may see, by path, sorted."""
    known = known_endpoints()
    return {path: routes[path] for path in sorted(routes) if known is None or routes[path].endpoint in known}


class ResourceEdit:
    """What an Apply request makes of a resource: replaces it, or the fields of its `update_mask`."""

    def __init__(self, request: Any, wanted: Any) -> None:
        """`wanted`: the resource in the request. Raises InvalidSpec where the mask names no field of it, or others."""
        self.wanted = wanted
        self.paths = paths_of(request, wanted.DESCRIPTOR)
        self._allows_missing: bool = request.allow_missing

    def changes(self, path: str) -> bool:
        """Whether it gives the field of this path, alone or with others."""
        return not self.paths or any(f"{path}.".startswith(f"{it}.") for it in self.paths)

    def of(self, present: Any | None, to_wire: Callable[[Any], Any], kind: str, known: Collection[str]) -> Any:
        """The message of the resource afterwards; `present`: before. Raises SlotmeshError where it must be there."""
        if not self.paths or (present is None and self._allows_missing):
            return self.wanted
        if present is None:
            raise to_exception(no_such(kind, self.wanted.name, known))
        return with_fields(to_wire(present), self.wanted, self.paths)


class ResourceServicer:
    """Backends, endpoints and HTTP routes; replicas and routers."""

    def __init__(
        self,
        configurator: Configurator,
        store: Store,
        state: MeshState,
        board: TableBoard,
        *,
        shifts: Shifter,
        loads: KnownLoads,
        launches: bool,
    ) -> None:
        """`loads`: what members have reported of theirs. `launches`: whether this controller starts replicas."""
        self._configurator = configurator
        self._store = store
        self._state = state
        self._board = board
        self._shifts = shifts
        self._loads = loads
        self._launches = launches

    @changes(pb.ApplyBackendResponse)
    async def ApplyBackend(self, request: pb.ApplyBackendRequest, terms: ChangeTerms) -> PlannedChange:
        require("backend", request.HasField("backend"))
        edit = ResourceEdit(request, request.backend)

        def edited(present: Backend | None) -> tuple[Backend, list[SpecViolation]]:
            backend, found = backend_from_wire(edit.of(present, backend_to_wire, BACKEND, self._store.read().backends))
            is_other_code = edit.changes("handler") and not edit.changes("version")
            return as_written(backend) if is_other_code else backend, found

        return await self._configurator.apply_backend(edited, request.backend.name, terms)

    async def GetBackend(self, request: pb.GetBackendRequest, context: Context) -> pb.GetBackendResponse:
        require("name", request.name)
        known = self._known()
        backend = backend_with_status(known_backend(known.desired, request.name), known)
        return pb.GetBackendResponse(backend=backend, revision=known.desired.configured_at)

    async def ListBackends(self, request: pb.ListBackendsRequest, context: Context) -> pb.ListBackendsResponse:
        known = self._known()
        desired = known.desired
        names = _named_by(desired.endpoints.get(request.endpoint)) if request.endpoint else desired.backends.keys()
        rows = [(name, desired.backends[name]) for name in sorted(names)]
        page = pb.ListBackendsResponse(revision=desired.configured_at)
        return fill_page(request, page, "backends", rows, lambda it: backend_with_status(it, known))

    @changes(pb.DeleteBackendResponse)
    async def DeleteBackend(self, request: pb.DeleteBackendRequest, terms: ChangeTerms) -> PlannedChange:
        require("name", request.name)
        return await self._configurator.delete((f"{BACKEND}/{request.name}",), terms)

    @changes(pb.ApplyEndpointResponse)
    async def ApplyEndpoint(self, request: pb.ApplyEndpointRequest, terms: ChangeTerms) -> PlannedChange:
        require("endpoint", request.HasField("endpoint"))
        return await self._apply_endpoint(ResourceEdit(request, request.endpoint), terms)

    @changes(pb.SetTrafficResponse)
    async def SetTraffic(self, request: pb.SetTrafficRequest, terms: ChangeTerms) -> PlannedChange:
        require("endpoint", request.endpoint)
        require("traffic", request.HasField("traffic"))
        paths = paths_of(request, request.traffic.DESCRIPTOR)
        endpoint = mesh_pb2.Endpoint(name=request.endpoint, traffic=request.traffic)
        mask = FieldMask(paths=[f"traffic.{it}" for it in paths] or ["traffic"])
        edit = ResourceEdit(pb.ApplyEndpointRequest(update_mask=mask), endpoint)
        return await self._apply_endpoint(edit, terms, requires_ready=request.require_ready)

    async def _apply_endpoint(
        self, edit: ResourceEdit, terms: ChangeTerms, *, requires_ready: bool = False
    ) -> PlannedChange:
        def edited(present: Endpoint | None) -> Endpoint:
            return endpoint_from_wire(edit.of(present, endpoint_to_wire, ENDPOINT, self._store.read().endpoints))

        moves = edit.changes("traffic.weights")
        return await self._configurator.apply_endpoint(
            *(edited, edit.wanted.name, terms), moves=moves, requires_ready=requires_ready
        )

    async def GetEndpoint(self, request: pb.GetEndpointRequest, context: Context) -> pb.GetEndpointResponse:
        require("name", request.name)
        desired = self._store.read()
        endpoint = self._endpoint(known_endpoint(desired, request.name), desired)
        return pb.GetEndpointResponse(endpoint=endpoint, revision=desired.configured_at)

    async def ListEndpoints(self, request: pb.ListEndpointsRequest, context: Context) -> pb.ListEndpointsResponse:
        desired = self._store.read()
        rows = [
            (name, desired.endpoints[name])
            for name in sorted(desired.endpoints)
            if not request.backend or request.backend in _named_by(desired.endpoints[name])
        ]
        page = pb.ListEndpointsResponse(revision=desired.configured_at)
        return fill_page(request, page, "endpoints", rows, lambda it: self._endpoint(it, desired))

    @changes(pb.DeleteEndpointResponse)
    async def DeleteEndpoint(self, request: pb.DeleteEndpointRequest, terms: ChangeTerms) -> PlannedChange:
        require("name", request.name)
        return await self._configurator.delete((f"{ENDPOINT}/{request.name}",), terms)

    @changes(pb.ApplyHttpRouteResponse)
    async def ApplyHttpRoute(self, request: pb.ApplyHttpRouteRequest, terms: ChangeTerms) -> PlannedChange:
        require("route", request.HasField("route"))
        edit = ResourceEdit(request, request.route)

        def edited(present: Route | None) -> Route:
            return route_from_wire(edit.of(present, route_to_wire, ROUTE, self._store.read().routes))

        return await self._configurator.apply_route(edited, request.route.name, terms)

    async def GetHttpRoute(self, request: pb.GetHttpRouteRequest, context: Context) -> pb.GetHttpRouteResponse:
        require("name", request.name)
        desired = self._store.read()
        route = known_route(visible(desired.routes), request.name)
        return pb.GetHttpRouteResponse(route=_route(route), revision=desired.configured_at)

    async def ListHttpRoutes(self, request: pb.ListHttpRoutesRequest, context: Context) -> pb.ListHttpRoutesResponse:
        desired = self._store.read()
        rows = [it for it in visible(desired.routes).items() if request.endpoint in {"", it[1].endpoint}]
        page = pb.ListHttpRoutesResponse(revision=desired.configured_at)
        return fill_page(request, page, "routes", rows, _route)

    @changes(pb.DeleteHttpRouteResponse)
    async def DeleteHttpRoute(self, request: pb.DeleteHttpRouteRequest, terms: ChangeTerms) -> PlannedChange:
        require("name", request.name)
        return await self._configurator.delete((route_subject(request.name),), terms)

    async def ListReplicas(self, request: pb.ListReplicasRequest, context: Context) -> pb.ListReplicasResponse:
        replicas = self._state.observed.replicas(request.backend or None)
        backends = self._store.read().backends
        return page_of_replicas(
            *(request, replicas, self._known().wall_s, lambda it: self._loads.of_replica(it).newest),
            *(outdated_among(backends), differing_settings(backends)),
        )

    async def ListRouters(self, request: pb.ListRoutersRequest, context: Context) -> pb.ListRoutersResponse:
        routers, table, wall_s = self._state.observed.routers, self._board.table, self._known().wall_s
        recent = self._loads.of_routers
        loads = {name: load for name, reports in recent.items() if (load := reports.newest) is not None}
        revision = table.revision if table is not None else 0
        page = pb.ListRoutersResponse(
            generation=self._store.generation, table_revision=revision, time_bounds=TIME_BOUNDS
        )
        rows = [(name, name) for name in sorted(routers)]
        return fill_page(
            *(request, page, "routers", rows),
            lambda name: router_to_wire(routers[name], wall_s, loads[name].endpoints if name in loads else ()),
        )

    async def GetSnapshot(self, request: pb.GetSnapshotRequest, context: Context) -> pb.GetSnapshotResponse:
        known, table = self._known(), self._board.table
        endpoints = known.desired.endpoints
        response = snapshot_to_wire(
            known, (self._endpoint(endpoints[name], known.desired) for name in sorted(endpoints))
        )
        response.generation, response.revision = self._store.generation, known.desired.configured_at
        response.table_revision = table.revision if table is not None else 0
        return response

    def _known(self) -> KnownMesh:
        clock = self._state.clock
        return KnownMesh(
            desired=self._store.read(),
            observed=self._state.observed,
            loads=self._loads,
            now=clock.now(),
            time_of_day_s=clock.time_of_day(),
            launches=self._launches,
            deferred_starts=self._state.deferred_starts,
            ledger=self._configurator.devices.ledger(),
        )

    def _endpoint(self, endpoint: Endpoint, desired: Desired) -> mesh_pb2.Endpoint:
        """The endpoint as it is configured, with its actual state."""
        wire = endpoint_to_wire(endpoint)
        wire.etag = etag_of(endpoint)
        if (shift := desired.shifts.get(endpoint.name)) is not None:
            wire.status.shift.CopyFrom(shift_to_wire(shift, *self._shifts.known_of(shift)))
        return wire


def _named_by(endpoint: Endpoint | None) -> frozenset[str]:
    """The backends that the policy of an endpoint names."""
    traffic = None if endpoint is None else endpoint.traffic
    return frozenset() if traffic is None else frozenset({*traffic.weights, *traffic.shadows})


def _route(route: Route) -> mesh_pb2.HttpRoute:
    wire = route_to_wire(route)
    wire.etag = etag_of(route)
    return wire
