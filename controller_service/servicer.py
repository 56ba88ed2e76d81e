"""The controller's two gRPC services: validate, convert, call the shell. The composition root mounts them.

Invariants: no decision is made here; a refused specification names every violation, as BadRequest details and in the
message.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from itertools import count
from typing import NamedTuple

from controller_service.convert.changes import from_members, origin_of, page_of_revisions
from controller_service.convert.checks import logs_not_found
from controller_service.convert.operators import event_to_wire, requested_shift_from_wire, wanted_notices
from controller_service.convert.statuses import KnownLoads
from controller_service.core.desired.planning import ChangeTerms
from controller_service.core.event_log import UNKNOWN
from controller_service.resource_servicer import Context, ResourceServicer, changes, require
from controller_service.shell.changes.configurator import Configurator, PlannedChange
from controller_service.shell.changes.controls import ReplicaControl, StateKeeper
from controller_service.shell.changes.requests import answers_once
from controller_service.shell.events import EventFeed, NoCursor
from controller_service.shell.loops.shifter import Shifter
from controller_service.shell.members.replica_links import ReplicaLinks
from controller_service.shell.members.router_links import RouterLinks
from controller_service.shell.members.tables import TableBoard
from controller_service.shell.mesh_state import MeshState
from controller_service.shell.operations import OperationWaits
from controller_service.shell.replica_logs import MAX_LINE_BYTES, LogBook
from controller_service.store.protocol import Store
from slotmesh.convert.same_names import message_of
from slotmesh.convert.specification import mesh_from_wire, seconds
from slotmesh.internal.v1 import membership_service_pb2_grpc
from slotmesh.names import sendable_text
from slotmesh.spec.model import InvalidSpec, SpecViolation
from slotmesh.status import to_exception
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import controller_service_pb2_grpc, operations_pb2


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


class OperatorControls(NamedTuple):
    """What operators order of parts of the mesh."""

    shifts: Shifter
    replicas: ReplicaControl
    state: StateKeeper
    operations: OperationWaits


@answers_once(pb.DESCRIPTOR.services_by_name["ControllerService"])
class ControllerServicer(ResourceServicer, controller_service_pb2_grpc.ControllerServiceServicer):
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
        super().__init__(configurator, store, state, board, shifts=controls.shifts, loads=loads, launches=launches)
        self._logs = logs
        self._control, self._keeper, self._operations = controls.replicas, controls.state, controls.operations
        self._feed = feed

    @changes(pb.ApplyMeshResponse)
    async def ApplyMesh(self, request: pb.ApplyMeshRequest, terms: ChangeTerms) -> PlannedChange:
        if request.deletions:
            if request.HasField("mesh") or request.prune or request.merge or request.force:
                others = "`mesh`, `prune`, `merge` and `force`"
                text = f"must be without {others}: a request deletes resources, or applies a mesh"
                raise InvalidSpec([SpecViolation("deletions", text)])
            return await self._configurator.delete(request.deletions, terms)
        require("mesh", request.HasField("mesh"))
        if request.force and not request.merge:
            raise InvalidSpec([SpecViolation("force", "has a meaning with `merge` only")])
        mesh, found = await asyncio.to_thread(mesh_from_wire, request.mesh)  # it may have thousands of endpoints
        if request.merge:
            return await self._configurator.apply_file(
                mesh, terms, prune=request.prune, force=request.force, found=found
            )
        return await self._configurator.apply_mesh(mesh, terms, prune=request.prune, found=found)

    @changes(pb.PauseRolloutResponse)
    async def PauseRollout(self, request: pb.PauseRolloutRequest, terms: ChangeTerms) -> PlannedChange:
        require("backend", request.backend)
        return await self._configurator.hold_rollout(request.backend, terms, is_paused=not request.resume)

    @changes(pb.ShiftTrafficResponse)
    async def ShiftTraffic(self, request: pb.ShiftTrafficRequest, terms: ChangeTerms) -> PlannedChange:
        require("endpoint", request.endpoint)
        shift = requested_shift_from_wire(request)
        return await self._shifts.begin(shift, terms, requires_ready=request.require_ready)

    async def ListRevisions(self, request: pb.ListRevisionsRequest, context: Context) -> pb.ListRevisionsResponse:
        return page_of_revisions(request, self._store.read())

    @changes(pb.RollbackResponse)
    async def Rollback(self, request: pb.RollbackRequest, terms: ChangeTerms) -> PlannedChange:
        match request.WhichOneof("target"):
            case "revision":
                return await self._configurator.roll_back(request.revision, terms)
            case "change":
                return await self._configurator.roll_back(request.change, terms, undoes=True)
            case "backend":
                return await self._configurator.undo_rollout(request.backend, terms)
            case "endpoint":
                return await self._shifts.undo(request.endpoint, terms)
            case _:
                raise InvalidSpec([SpecViolation("revision", "is required, or `change`, `backend` or `endpoint`")])

    @changes(pb.DrainReplicaResponse)
    async def DrainReplica(self, request: pb.DrainReplicaRequest, terms: ChangeTerms) -> PlannedChange:
        require("replica_id", request.replica_id)
        return await self._control.drain(request.replica_id, terms)

    @changes(pb.ForgetReplicaResponse)
    async def ForgetReplica(self, request: pb.ForgetReplicaRequest, terms: ChangeTerms) -> PlannedChange:
        require("replica_id", request.replica_id)
        return await self._control.forget(request.replica_id, request.incarnation, terms)

    async def AdoptState(self, request: pb.AdoptStateRequest, context: Context) -> pb.AdoptStateResponse:
        generation, revision, changed = await self._keeper.adopt(origin_of(context), from_members=from_members(request))
        return pb.AdoptStateResponse(generation=generation, revision=revision, changed=changed)

    async def WaitOperations(
        self, request: operations_pb2.WaitOperationsRequest, context: Context
    ) -> operations_pb2.WaitOperationsResponse:
        operations = await self._operations.wait([*request.names], seconds(request.timeout))
        return operations_pb2.WaitOperationsResponse(
            operations=[message_of(operations_pb2.Operation, it) for it in operations]
        )

    async def WatchEvents(  # type: ignore[override]  # it writes instead of yielding
        self, request: pb.WatchEventsRequest, context: Context
    ) -> None:
        wanted, missed = wanted_notices(request), 0
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
        if request.max_lines < 0:
            raise InvalidSpec([SpecViolation("max_lines", f"must be 0 or more, is {request.max_lines}")])
        max_ended = request.max_ended if request.HasField("max_ended") else None
        if max_ended is not None and max_ended < 0:
            raise InvalidSpec([SpecViolation("max_ended", f"must be 0 or more, is {max_ended}")])
        source = request.WhichOneof("source")
        if source is None:
            raise InvalidSpec([SpecViolation("replica_id", "is required, or `backend`")])
        name, of_backend = getattr(request, source), source == "backend"
        if not self._logs.knows(name, of_backend=of_backend):
            known = self._logs.names() if self._launches else None
            raise to_exception(logs_not_found(name, known, of_backend=of_backend))
        count = request.max_lines or sys.maxsize
        pages = self._logs.read(name, count=count, follow=request.follow, max_ended=max_ended)
        async with aclosing(pages):
            async for page in pages:
                lines = (sendable_text(line, MAX_LINE_BYTES) for line in page.lines)
                answer = pb.ReadLogsResponse(replica_id=page.replica_id, lines=lines, missed=page.missed)
                answer.omitted_replica_ids.extend(page.left_out)
                await context.write(answer)
