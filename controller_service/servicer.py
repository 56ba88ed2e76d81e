"""The controller's two gRPC services: validate, convert, call the shell.

Invariants: no decision is made here; a refused specification names every mistake, as BadRequest details and in the
message.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote

import grpc

from controller_service.convert.changes import change_of, terms_from_wire
from controller_service.convert.events import event_to_wire, wanted_notices
from controller_service.convert.replica_pages import page_of_replicas
from controller_service.convert.routers import router_to_wire
from controller_service.core import transitions
from controller_service.core.reconcile import wanted_replicas
from controller_service.shell.configurator import Configurator, backend_not_found, endpoint_not_found
from controller_service.shell.events import UNKNOWN, EventFeed, NoCursor
from controller_service.shell.mesh_state import MeshState
from controller_service.shell.replica_links import ReplicaLinks
from controller_service.shell.router_links import RouterLinks
from controller_service.shell.table_board import TableBoard
from controller_service.store.protocol import Store
from slotmesh.errors import Failure, Reason
from slotmesh.spec.model import Backend, InvalidSpec, Mesh, Mistake
from slotmesh.spec.wire import (
    backend_from_wire,
    backend_to_wire,
    endpoint_from_wire,
    endpoint_to_wire,
    mesh_from_wire,
    traffic_from_wire,
)
from slotmesh.status import MAX_TEXT_BYTES, abort, to_exception
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import controller_service_pb2_grpc, membership_service_pb2_grpc, mesh_pb2

Context = grpc.aio.ServicerContext[Any, Any]
ServicerT = TypeVar("ServicerT")
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")

_LAST_LINE_BYTES: Final = 64
"""Room for the line that says how many mistakes were left out."""


def _names_all_mistakes(
    rpc: Callable[[ServicerT, RequestT, Context], Awaitable[ResponseT]],
) -> Callable[[ServicerT, RequestT, Context], Awaitable[ResponseT]]:
    """An rpc whose InvalidSpec becomes INVALID_ARGUMENT with a field violation for each mistake."""

    @functools.wraps(rpc)
    async def telling(self: ServicerT, request: RequestT, context: Context) -> ResponseT:
        try:
            return await rpc(self, request, context)
        except InvalidSpec as invalid:
            told = _those_that_fit(invalid.mistakes)
            lines = [str(mistake) for mistake in told]
            if unsaid := len(invalid.mistakes) - len(told):
                lines.append(f"and {unsaid} more mistakes")
            failure = Failure(reason=Reason.BAD_REQUEST, message="\n".join(lines))
            await abort(context, failure, [(mistake.path, mistake.message) for mistake in told])

    return telling


def _those_that_fit(mistakes: Sequence[Mistake]) -> list[Mistake]:
    """The first mistakes: a message is clipped at `MAX_TEXT_BYTES`, percent-encoded."""
    told: list[Mistake] = []
    left = MAX_TEXT_BYTES - _LAST_LINE_BYTES
    for mistake in mistakes:
        left -= len(quote(f"{mistake}\n", safe=" "))
        if left < 0:
            break
        told.append(mistake)
    return told


class ControllerServicer(controller_service_pb2_grpc.ControllerServiceServicer):
    """What operators call."""

    def __init__(
        self,
        configurator: Configurator,
        store: Store,
        state: MeshState,
        board: TableBoard,
        feed: EventFeed,
        *,
        launches: bool,
    ) -> None:
        """`launches`: whether this controller starts replicas."""
        self._launches = launches
        self._configurator = configurator
        self._store = store
        self._state = state
        self._board = board
        self._feed = feed

    @_names_all_mistakes
    async def ApplyMesh(self, request: pb.ApplyMeshRequest, context: Context) -> pb.ApplyMeshResponse:
        mesh, mistakes = mesh_from_wire(request.mesh)
        outcome = await self._configurator.apply_mesh(
            mesh, terms_from_wire(request), prune=request.prune, found=mistakes
        )
        plan = outcome.plan
        return pb.ApplyMeshResponse(
            revision=outcome.revision,
            created=plan.created,
            updated=plan.updated,
            unchanged=plan.unchanged,
            deleted=plan.deleted,
        )

    @_names_all_mistakes
    async def ApplyBackend(self, request: pb.ApplyBackendRequest, context: Context) -> pb.ApplyBackendResponse:
        backend, mistakes = backend_from_wire(request.backend)
        mesh = Mesh(backends=(backend,))
        outcome = await self._configurator.apply_mesh(mesh, terms_from_wire(request), found=mistakes)
        return pb.ApplyBackendResponse(revision=outcome.revision, change=change_of(outcome.plan))

    async def GetBackend(self, request: pb.GetBackendRequest, context: Context) -> pb.GetBackendResponse:
        desired = self._store.read()
        backend = desired.backends.get(request.name)
        if backend is None:
            raise to_exception(backend_not_found(request.name))
        return pb.GetBackendResponse(backend=self._in_force(backend), revision=desired.configured_at)

    async def ListBackends(self, request: pb.ListBackendsRequest, context: Context) -> pb.ListBackendsResponse:
        desired = self._store.read()
        backends = desired.backends
        return pb.ListBackendsResponse(
            backends=[self._in_force(backends[name]) for name in sorted(backends)], revision=desired.configured_at
        )

    def _in_force(self, backend: Backend) -> mesh_pb2.Backend:
        """Defaults are filled in. Only a controller that launches replicas has a default for their number."""
        wire = backend_to_wire(backend)
        if self._launches:
            wire.num_replicas = wanted_replicas(backend)
        return wire

    async def DeleteBackend(self, request: pb.DeleteBackendRequest, context: Context) -> pb.DeleteBackendResponse:
        outcome = await self._configurator.delete_backend(request.name, terms_from_wire(request))
        return pb.DeleteBackendResponse(revision=outcome.revision, change=change_of(outcome.plan))

    @_names_all_mistakes
    async def ApplyEndpoint(self, request: pb.ApplyEndpointRequest, context: Context) -> pb.ApplyEndpointResponse:
        if request.clear_traffic and request.endpoint.HasField("traffic"):
            raise InvalidSpec([Mistake("clear_traffic", "contradicts endpoint.traffic: set one of them")])
        outcome = await self._configurator.apply_endpoint(
            endpoint_from_wire(request.endpoint), terms_from_wire(request), clear_traffic=request.clear_traffic
        )
        return pb.ApplyEndpointResponse(revision=outcome.revision, change=change_of(outcome.plan))

    async def GetEndpoint(self, request: pb.GetEndpointRequest, context: Context) -> pb.GetEndpointResponse:
        desired = self._store.read()
        endpoint = desired.endpoints.get(request.name)
        if endpoint is None:
            raise to_exception(endpoint_not_found(request.name))
        return pb.GetEndpointResponse(endpoint=endpoint_to_wire(endpoint), revision=desired.configured_at)

    async def ListEndpoints(self, request: pb.ListEndpointsRequest, context: Context) -> pb.ListEndpointsResponse:
        desired = self._store.read()
        endpoints = desired.endpoints
        return pb.ListEndpointsResponse(
            endpoints=[endpoint_to_wire(endpoints[name]) for name in sorted(endpoints)], revision=desired.configured_at
        )

    async def DeleteEndpoint(self, request: pb.DeleteEndpointRequest, context: Context) -> pb.DeleteEndpointResponse:
        outcome = await self._configurator.delete_endpoint(request.name, terms_from_wire(request))
        return pb.DeleteEndpointResponse(revision=outcome.revision, change=change_of(outcome.plan))

    @_names_all_mistakes
    async def SetTraffic(self, request: pb.SetTrafficRequest, context: Context) -> pb.SetTrafficResponse:
        if request.clear_shadows and request.traffic.shadows:
            raise InvalidSpec([Mistake("clear_shadows", "contradicts traffic.shadows: set one of them")])
        outcome = await self._configurator.set_traffic(
            request.endpoint,
            traffic_from_wire(request.traffic),
            terms_from_wire(request),
            clear_shadows=request.clear_shadows,
        )
        return pb.SetTrafficResponse(revision=outcome.revision, change=change_of(outcome.plan))

    async def ListReplicas(self, request: pb.ListReplicasRequest, context: Context) -> pb.ListReplicasResponse:
        return page_of_replicas(request, self._state.observed.replicas(request.backend or None), self._wall_s)

    async def ListRouters(self, request: pb.ListRoutersRequest, context: Context) -> pb.ListRoutersResponse:
        routers, table = self._state.observed.routers, self._board.table
        return pb.ListRoutersResponse(
            routers=[router_to_wire(routers[name], self._wall_s) for name in sorted(routers)],
            generation=self._store.generation,
            revision=table.revision if table is not None else 0,
        )

    async def DrainReplica(self, request: pb.DrainReplicaRequest, context: Context) -> pb.DrainReplicaResponse:
        replica = self._state.observed.replica(request.replica_id)
        if replica is None or replica.gone:
            failure = Failure(reason=Reason.REPLICA_NOT_FOUND, message=f"there is no replica {request.replica_id!r}")
            raise to_exception(failure)
        self._state.apply_to_replica(
            request.replica_id,
            lambda observed, _: transitions.told_to_drain(observed, request.replica_id, "an operator asked for it"),
        )
        return pb.DrainReplicaResponse()

    @_names_all_mistakes
    async def WatchEvents(  # type: ignore[override]  # it writes instead of yielding
        self, request: pb.WatchEventsRequest, context: Context
    ) -> None:
        wanted, missed = wanted_notices(request), 0
        if request.after and request.from_oldest:
            raise InvalidSpec([Mistake("from_oldest", "contradicts after: set one of them")])
        try:
            watching = self._feed.watch(after=request.after, from_oldest=request.from_oldest)
        except NoCursor as error:
            raise InvalidSpec([Mistake("after", "must be the cursor of an event, as WatchEvents says it")]) from error
        with watching as watcher:
            # At once, so that the watcher knows from when on it gets all events.
            await context.send_initial_metadata(())
            while True:
                event, unheard = await watcher.next()
                missed = UNKNOWN if UNKNOWN in {missed, unheard} else missed + unheard
                if wanted(event.notice):
                    cursor = self._feed.cursor(event)
                    await context.write(event_to_wire(event.time_s, event.notice, cursor, missed=missed))
                    missed = 0

    def _wall_s(self, monotonic_s: float) -> float:
        return time.time() - (self._state.clock.now() - monotonic_s)


class MembershipServicer(membership_service_pb2_grpc.MembershipServiceServicer):
    """What replicas and routers call."""

    def __init__(self, replicas: ReplicaLinks, routers: RouterLinks) -> None:
        self._replicas = replicas
        self._routers = routers

    async def AttachReplica(  # type: ignore[override]  # it reads and writes instead of iterating
        self, request_iterator: object, context: Context
    ) -> None:
        await self._replicas.serve(context)

    async def AttachRouter(  # type: ignore[override]  # as above
        self, request_iterator: object, context: Context
    ) -> None:
        await self._routers.serve(context)
