"""The controller's two gRPC services: validate, convert, call the shell. The composition root mounts them.

Invariants: no decision is made here; a refused specification names every violation, as BadRequest details and in the
message.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from itertools import count
from typing import Any, NamedTuple, TypeVar

import grpc
from google.protobuf.message import Message

from controller_service.convert.changes import (
    ChangeRequest,
    from_members,
    origin_of,
    page_of_revisions,
    reply_of,
    terms_from_wire,
)
from controller_service.convert.checks import logs_not_found
from controller_service.convert.operators import (
    KnownLoads,
    decision_to_wire,
    event_to_wire,
    requested_shift_from_wire,
    rollout_to_wire,
    shift_to_wire,
    snapshot_to_wire,
    wanted_notices,
)
from controller_service.convert.replicas import page_of_replicas, replica_to_wire
from controller_service.convert.routers import router_to_wire
from controller_service.core.desired.planning import ChangeTerms
from controller_service.core.event_log import UNKNOWN
from controller_service.core.observed.replica_groups import outdated_among
from controller_service.core.observed.state import wanted_replicas
from controller_service.core.reconciling.rollouts import show_progress
from controller_service.shell.changes.configurator import Configurator, PlannedChange
from controller_service.shell.changes.controls import ReplicaControl, StateKeeper
from controller_service.shell.changes.requests import answers_once, known_backend, known_endpoint
from controller_service.shell.events import EventFeed, NoCursor
from controller_service.shell.loops.shifter import Shifter
from controller_service.shell.members.replica_links import ReplicaLinks
from controller_service.shell.members.router_links import RouterLinks
from controller_service.shell.members.tables import TableBoard
from controller_service.shell.mesh_state import MeshState
from controller_service.shell.replica_logs import MAX_LINE_BYTES, LogBook
from controller_service.store.protocol import Store
from slotmesh.convert.specification import (
    backend_from_wire,
    backend_to_wire,
    endpoint_from_wire,
    endpoint_to_wire,
    mesh_from_wire,
    traffic_from_wire,
)
from slotmesh.internal.v1 import membership_service_pb2_grpc
from slotmesh.names import sendable_text
from slotmesh.spec.model import Backend, InvalidSpec, Mesh, SpecViolation
from slotmesh.status import to_exception
from slotmesh.v1 import controller_service_pb2, controller_service_pb2_grpc, mesh_pb2
from slotmesh.v1 import controller_service_pb2 as pb


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


Context = grpc.aio.ServicerContext[Any, Any]


class OperatorControls(NamedTuple):
    """What operators order of parts of the mesh."""

    shifts: Shifter
    replicas: ReplicaControl
    state: StateKeeper


RequestT = TypeVar("RequestT", bound=ChangeRequest)
ReplyT = TypeVar("ReplyT", bound=Message)


def _changes(
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
            outcome = await change(self, request, terms_from_wire(request, origin_of(context)))
            return reply_of(reply, outcome.revision, outcome.plan)

        return rpc

    return rpc_of


@answers_once(controller_service_pb2.DESCRIPTOR.services_by_name["ControllerService"])
class ControllerServicer(controller_service_pb2_grpc.ControllerServiceServicer):
    """What operators call."""

    def __init__(
        self,
        configurator: Configurator,
        store: Store,
        state: MeshState,
        board: TableBoard,
        feed: EventFeed,
        logs: LogBook,
        *,
        loads: KnownLoads,
        controls: OperatorControls,
        launches: bool,
    ) -> None:
        """`loads`: what members have reported of theirs. `launches`: whether this controller starts replicas."""
        self._logs = logs
        self._loads = loads
        self._shifts, self._control, self._keeper = controls
        self._launches = launches
        self._configurator = configurator
        self._store = store
        self._state = state
        self._board = board
        self._feed = feed

    @_changes(pb.ApplyMeshResponse)
    async def ApplyMesh(self, request: pb.ApplyMeshRequest, terms: ChangeTerms) -> PlannedChange:
        if request.force and not request.merge:
            raise InvalidSpec([SpecViolation("force", "has a meaning with `merge` only")])
        mesh, found = await asyncio.to_thread(mesh_from_wire, request.mesh)  # it may have thousands of endpoints
        if request.merge:
            return await self._configurator.apply_file(
                mesh, terms, prune=request.prune, force=request.force, found=found
            )
        return await self._configurator.apply_mesh(mesh, terms, prune=request.prune, found=found)

    @_changes(pb.ApplyBackendResponse)
    async def ApplyBackend(self, request: pb.ApplyBackendRequest, terms: ChangeTerms) -> PlannedChange:
        backend, found = backend_from_wire(request.backend)
        return await self._configurator.apply_mesh(Mesh(backends=(backend,)), terms, found=found)

    async def GetBackend(self, request: pb.GetBackendRequest, context: Context) -> pb.GetBackendResponse:
        desired = self._store.read()
        backend = known_backend(desired, request.name)
        return pb.GetBackendResponse(backend=self._in_force(backend), revision=desired.configured_at)

    async def DescribeBackend(self, request: pb.DescribeBackendRequest, context: Context) -> pb.DescribeBackendResponse:
        desired, observed = self._store.read(), self._state.observed
        backend = known_backend(desired, request.name)
        scale = observed.scales.get(backend.name)
        has_number = self._launches or scale is not None or backend.num_replicas is not None
        replicas = sorted(observed.replicas(backend.name), key=lambda replica: replica.replica_id)
        return pb.DescribeBackendResponse(
            backend=self._in_force(backend),
            revision=desired.configured_at,
            replicas=[replica_to_wire(replica, self._wall_s) for replica in replicas],
            wanted_replicas=wanted_replicas(backend, observed) if has_number else None,
            latest_decision=None if scale is None else decision_to_wire(scale.latest, self._wall_s),
            latest_change=None if scale is None else decision_to_wire(scale.changed, self._wall_s),
        )

    async def ListBackends(self, request: pb.ListBackendsRequest, context: Context) -> pb.ListBackendsResponse:
        desired = self._store.read()
        backends = desired.backends
        return pb.ListBackendsResponse(
            backends=[self._in_force(backends[name]) for name in sorted(backends)],
            revision=desired.configured_at,
            scaled_to={name: it.number for name, it in self._state.observed.scales.items() if name in backends},
        )

    def _in_force(self, backend: Backend) -> mesh_pb2.Backend:
        """Defaults are filled in. Only a controller that launches replicas has a default for their number."""
        wire = backend_to_wire(backend)
        if self._launches and backend.autoscale is None:
            wire.num_replicas = wanted_replicas(backend, self._state.observed)
        return wire

    @_changes(pb.DeleteBackendResponse)
    async def DeleteBackend(self, request: pb.DeleteBackendRequest, terms: ChangeTerms) -> PlannedChange:
        return await self._configurator.delete_backend(request.name, terms)

    @_changes(pb.ApplyEndpointResponse)
    async def ApplyEndpoint(self, request: pb.ApplyEndpointRequest, terms: ChangeTerms) -> PlannedChange:
        if request.clear_traffic and request.endpoint.HasField("traffic"):
            raise InvalidSpec([SpecViolation("clear_traffic", "contradicts endpoint.traffic: set one of them")])
        endpoint = endpoint_from_wire(request.endpoint)
        return await self._configurator.apply_endpoint(endpoint, terms, clear_traffic=request.clear_traffic)

    async def GetEndpoint(self, request: pb.GetEndpointRequest, context: Context) -> pb.GetEndpointResponse:
        desired = self._store.read()
        endpoint = known_endpoint(desired, request.name)
        return pb.GetEndpointResponse(endpoint=endpoint_to_wire(endpoint), revision=desired.configured_at)

    async def ListEndpoints(self, request: pb.ListEndpointsRequest, context: Context) -> pb.ListEndpointsResponse:
        desired = self._store.read()
        endpoints = desired.endpoints
        return pb.ListEndpointsResponse(
            endpoints=[endpoint_to_wire(endpoints[name]) for name in sorted(endpoints)], revision=desired.configured_at
        )

    @_changes(pb.DeleteEndpointResponse)
    async def DeleteEndpoint(self, request: pb.DeleteEndpointRequest, terms: ChangeTerms) -> PlannedChange:
        return await self._configurator.delete_endpoint(request.name, terms)

    @_changes(pb.SetTrafficResponse)
    async def SetTraffic(self, request: pb.SetTrafficRequest, terms: ChangeTerms) -> PlannedChange:
        if request.clear_shadows and request.traffic.shadows:
            raise InvalidSpec([SpecViolation("clear_shadows", "contradicts traffic.shadows: set one of them")])
        return await self._configurator.set_traffic(
            request.endpoint,
            traffic_from_wire(request.traffic),
            terms,
            clear_shadows=request.clear_shadows,
            requires_ready=request.require_ready,
        )

    @_changes(pb.ShiftTrafficResponse)
    async def ShiftTraffic(self, request: pb.ShiftTrafficRequest, terms: ChangeTerms) -> PlannedChange:
        shift = requested_shift_from_wire(request)
        return await self._shifts.begin(shift, terms, requires_ready=request.require_ready)

    @_changes(pb.EndShiftResponse)
    async def EndShift(self, request: pb.EndShiftRequest, terms: ChangeTerms) -> PlannedChange:
        return await self._shifts.end(request.endpoint, terms, goes_back=request.go_back)

    async def ListShifts(self, request: pb.ListShiftsRequest, context: Context) -> pb.ListShiftsResponse:
        return pb.ListShiftsResponse(shifts=[shift_to_wire(*it) for it in self._shifts.show(request.endpoint)])

    async def ListRevisions(self, request: pb.ListRevisionsRequest, context: Context) -> pb.ListRevisionsResponse:
        return page_of_revisions(request, self._store.read())

    @_changes(pb.RollbackResponse)
    async def Rollback(self, request: pb.RollbackRequest, terms: ChangeTerms) -> PlannedChange:
        return await self._configurator.roll_back(request.revision if request.HasField("revision") else None, terms)

    async def ListReplicas(self, request: pb.ListReplicasRequest, context: Context) -> pb.ListReplicasResponse:
        replicas = self._state.observed.replicas(request.backend or None)
        is_outdated = outdated_among(self._store.read().backends)
        return page_of_replicas(
            request, replicas, self._wall_s, lambda it: self._loads.of_replica(it).newest, is_outdated
        )

    async def ListRouters(self, request: pb.ListRoutersRequest, context: Context) -> pb.ListRoutersResponse:
        routers, table = self._state.observed.routers, self._board.table
        recent = self._loads.of_routers
        loads = {name: load for name, reports in recent.items() if (load := reports.newest) is not None}
        return pb.ListRoutersResponse(
            routers=[
                router_to_wire(routers[name], self._wall_s, loads[name].endpoints if name in loads else ())
                for name in sorted(routers)
            ],
            generation=self._store.generation,
            revision=table.revision if table is not None else 0,
        )

    async def GetSnapshot(self, request: pb.GetSnapshotRequest, context: Context) -> pb.GetSnapshotResponse:
        table, state = self._board.table, self._state
        response = snapshot_to_wire(
            *(self._store.read(), state.observed, self._loads, self._wall_s),
            now=state.clock.now(),
            launches=self._launches,
        )
        response.generation = self._store.generation
        response.revision = table.revision if table is not None else 0
        return response

    async def ListRollouts(self, request: pb.ListRolloutsRequest, context: Context) -> pb.ListRolloutsResponse:
        desired, state = self._store.read(), self._state
        names = [known_backend(desired, request.backend).name] if request.backend else sorted(desired.backends)
        response = pb.ListRolloutsResponse()
        for backend in (desired.backends[name] for name in names) if self._launches else ():
            progress = show_progress(
                desired.rollouts.get(backend.name),
                backend,
                wanted_replicas(backend, state.observed),
                [*state.observed.replicas(backend.name)],
                state.clock.now(),
                time_of_day_s=state.clock.time_of_day(),
                ended_calls=self._loads.ended_calls,
            )
            response.rollouts.append(rollout_to_wire(backend, progress))
        return response

    @_changes(pb.PauseRolloutResponse)
    async def PauseRollout(self, request: pb.PauseRolloutRequest, terms: ChangeTerms) -> PlannedChange:
        return await self._configurator.hold_rollout(request.backend, terms, is_paused=True)

    @_changes(pb.ResumeRolloutResponse)
    async def ResumeRollout(self, request: pb.ResumeRolloutRequest, terms: ChangeTerms) -> PlannedChange:
        return await self._configurator.hold_rollout(request.backend, terms, is_paused=False)

    @_changes(pb.UndoRolloutResponse)
    async def UndoRollout(self, request: pb.UndoRolloutRequest, terms: ChangeTerms) -> PlannedChange:
        return await self._configurator.undo_rollout(request.backend, terms)

    @_changes(pb.DrainReplicaResponse)
    async def DrainReplica(self, request: pb.DrainReplicaRequest, terms: ChangeTerms) -> PlannedChange:
        return await self._control.drain(request.replica_id, terms)

    @_changes(pb.ForgetReplicaResponse)
    async def ForgetReplica(self, request: pb.ForgetReplicaRequest, terms: ChangeTerms) -> PlannedChange:
        return await self._control.forget(request.replica_id, request.incarnation, terms)

    async def AdoptState(self, request: pb.AdoptStateRequest, context: Context) -> pb.AdoptStateResponse:
        generation, revision, changed = await self._keeper.adopt(origin_of(context), from_members=from_members(request))
        return pb.AdoptStateResponse(generation=generation, revision=revision, changed=changed)

    async def WatchEvents(  # type: ignore[override]  # it writes instead of yielding
        self, request: pb.WatchEventsRequest, context: Context
    ) -> None:
        wanted, missed = wanted_notices(request), 0
        if request.after and request.from_oldest:
            raise InvalidSpec([SpecViolation("from_oldest", "contradicts after: set one of them")])
        try:
            watching = self._feed.watch(after=request.after, from_oldest=request.from_oldest)
        except NoCursor as error:
            raise InvalidSpec(
                [SpecViolation("after", "must be the cursor of an event, as WatchEvents returns it")]
            ) from error
        with watching as watcher:
            # Immediately, so that the watcher knows from when on it gets all events.
            await context.send_initial_metadata(())
            # The kept events are with the watcher from its start on: none of these has to be waited for.
            for _ in range(watcher.unread) if request.until_newest else count():
                event, unheard = await watcher.next()
                missed = UNKNOWN if UNKNOWN in {missed, unheard} else missed + unheard
                if wanted(event.notice):
                    cursor = self._feed.cursor(event)
                    await context.write(event_to_wire(event.time_s, event.notice, cursor, missed=missed))
                    missed = 0

    async def ReadLogs(  # type: ignore[override]  # it writes instead of yielding
        self, request: pb.ReadLogsRequest, context: Context
    ) -> None:
        if request.lines < 0:
            raise InvalidSpec([SpecViolation("lines", f"must be 0 or more, is {request.lines}")])
        max_ended = request.max_ended if request.HasField("max_ended") else None
        if max_ended is not None and max_ended < 0:
            raise InvalidSpec([SpecViolation("max_ended", f"must be 0 or more, is {max_ended}")])
        if not self._logs.knows(request.name):
            raise to_exception(logs_not_found(request.name, self._logs.names() if self._launches else None))
        count = request.lines or sys.maxsize
        pages = self._logs.read(request.name, count=count, follow=request.follow, max_ended=max_ended)
        async with aclosing(pages):
            async for page in pages:
                lines = (sendable_text(line, MAX_LINE_BYTES) for line in page.lines)
                answer = pb.ReadLogsResponse(replica_id=page.replica_id, lines=lines, missed=page.missed)
                answer.left_out.extend(page.left_out)
                await context.write(answer)

    def _wall_s(self, monotonic_s: float) -> float:
        return time.time() - (self._state.clock.now() - monotonic_s)
