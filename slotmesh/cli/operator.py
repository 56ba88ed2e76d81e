"""Requests of operators to a controller."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from slotmesh.cli.changing import CHANGING, ControllerConnection, set_num_replicas
from slotmesh.cli.parameters import ROUTE
from slotmesh.cli.snapshot import ControllerStatus, Members, Snapshot
from slotmesh.convert.specification import (
    backend_from_wire,
    endpoint_from_wire,
    mesh_to_wire,
    route_from_wire,
    traffic_to_wire,
)
from slotmesh.errors import Failure, Reason
from slotmesh.spec.model import Endpoint, Mesh, TrafficPolicy
from slotmesh.spec.routes import route_path
from slotmesh.status import to_exception
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import route_service_pb2
from slotmesh.v1.controller_service_pb2_grpc import ControllerServiceStub
from slotmesh.v1.route_service_pb2_grpc import RouteServiceStub

_AUTHOR: Final = (("slotmesh-client", "slotmesh"),)
"""Metadata of changes: the author that the history records."""
_ROUTE_RPCS: Final = frozenset({"ListRoutes", "DeleteRoute"})
"""Of another service than the others."""
RPC_TIMEOUT_S: Final = 30.0
"""The time limit for a response of a reachable controller."""


class Operator:
    """A client of a controller. Raises SlotmeshError if it refuses, CommandFailed if it cannot be reached."""

    def __init__(self, connection: ControllerConnection) -> None:
        self.connection = connection
        self._stub = connection.stub(ControllerServiceStub)
        self._routes = connection.stub(RouteServiceStub)

    @classmethod
    @asynccontextmanager
    async def at(cls, addresses: str) -> AsyncIterator[Operator]:
        """Connects to the controller at `HOST:PORT`; of several, with commas between them, to the one that leads.

        Raises CommandFailed if there is none.
        """
        async with ControllerConnection.open(addresses.split(",")) as connection:
            yield cls(connection)

    async def _send(self, rpc: str, request: Any, timeout_s: float = RPC_TIMEOUT_S) -> Any:
        metadata = _AUTHOR if rpc in CHANGING else ()
        stub = self._routes if rpc in _ROUTE_RPCS else self._stub
        with self.connection.peer.telling():
            return await getattr(stub, rpc)(request, timeout=timeout_s, metadata=metadata)

    async def standing(self) -> ControllerStatus:
        """Whether the controller leads."""
        return await self.connection.standing()

    async def apply(self, mesh: Mesh, *, prune: bool = False) -> pb.ApplyMeshResponse:
        """Configures the mesh as `mesh`; deletes what that lacks only with `prune`."""
        request = pb.ApplyMeshRequest(mesh=mesh_to_wire(mesh), prune=prune)
        response: pb.ApplyMeshResponse = await self._send("ApplyMesh", request)
        return response

    async def apply_file(
        self,
        mesh: Mesh,
        *,
        prune: bool = False,
        force: bool = False,
        dry_run: bool = False,
        expected_revision: int | None = None,
    ) -> pb.ApplyMeshResponse:
        """Applies the changes of a file since it was last applied. A dry run reports conflicts, too."""
        request = pb.ApplyMeshRequest(
            mesh=mesh_to_wire(mesh),
            prune=prune,
            merge=True,
            force=force,
            dry_run=dry_run,
            expected_revision=expected_revision,
        )
        response: pb.ApplyMeshResponse = await self._send("ApplyMesh", request)
        return response

    async def endpoint(self, name: str) -> Endpoint:
        """The endpoint of that name. Raises EndpointNotFound, which lists the existing endpoints."""
        endpoints = {endpoint.name: endpoint for endpoint in await self._endpoints()}
        if name not in endpoints:
            known = f"there are {', '.join(sorted(endpoints))}" if endpoints else "there is none"
            message = f"no endpoint is named {name!r} ({known})"
            raise to_exception(Failure(reason=Reason.ENDPOINT_NOT_FOUND, message=message), endpoint=name)
        return endpoints[name]

    async def set_traffic(
        self, endpoint: str, policy: TrafficPolicy, *, clear_shadows: bool = False, requires_ready: bool = False
    ) -> int:
        """Changes an endpoint's policy: weights and shadows that are not given stay as they are.

        `requires_ready`: refused if a backend that gets more has no ready replica. Returns the revision that has it.
        """
        request = pb.SetTrafficRequest(endpoint=endpoint, traffic=traffic_to_wire(policy), clear_shadows=clear_shadows)
        request.require_ready = requires_ready
        return int((await self._send("SetTraffic", request)).revision)

    async def shift_traffic(self, request: pb.ShiftTrafficRequest) -> int:
        """Begins to shift the traffic of an endpoint. Returns the revision of its first step."""
        return int((await self._send("ShiftTraffic", request)).revision)

    async def end_shift(self, endpoint: str, *, goes_back: bool) -> int:
        """Ends a shift with the present weights, or with those before it. Returns the revision after that."""
        return int((await self._send("EndShift", pb.EndShiftRequest(endpoint=endpoint, go_back=goes_back))).revision)

    async def shift(self, endpoint: str) -> pb.TrafficShift | None:
        """The newest shift of an endpoint; None if it was never shifted. Raises EndpointNotFound."""
        return next(iter(await self.shifts(endpoint)), None)

    async def shifts(self, endpoint: str = "") -> tuple[pb.TrafficShift, ...]:
        """The newest shift of an endpoint, or of each. Raises EndpointNotFound."""
        return tuple((await self._send("ListShifts", pb.ListShiftsRequest(endpoint=endpoint))).shifts)

    async def revisions(self, most: int) -> tuple[pb.ConfigurationRevision, ...]:
        """The newest changes of the configuration, newest first."""
        request = pb.ListRevisionsRequest(page_size=most)
        return tuple((await self._pages("ListRevisions", request, "revisions", most))[:most])

    async def roll_back(self, revision: int | None, *, dry_run: bool = False) -> pb.RollbackResponse:
        """Restores an earlier configuration; None: the one before the newest change."""
        request = pb.RollbackRequest(revision=revision, dry_run=dry_run)
        response: pb.RollbackResponse = await self._send("Rollback", request)
        return response

    async def members(self) -> Members:
        """The members. Routers are queried after replicas, so that their table contains these replicas."""
        replicas = await self._pages("ListReplicas", pb.ListReplicasRequest(whole_errors=True), "replicas")
        routers = await self._send("ListRouters", pb.ListRoutersRequest())
        return Members(
            replicas=tuple(replicas),
            routers=tuple(routers.routers),
            generation=routers.generation,
            revision=routers.revision,
        )

    async def router_addresses(self) -> list[str]:
        return [it.address for it in (await self._send("ListRouters", pb.ListRoutersRequest())).routers]

    async def snapshot(self) -> Snapshot:
        """The whole mesh. Its parts are queried one after another, so it may change in between."""
        shifts = await self.shifts()
        listed = await self._send("ListBackends", pb.ListBackendsRequest())
        return Snapshot(
            backends=tuple(backend_from_wire(backend)[0] for backend in listed.backends),
            endpoints=await self._endpoints(),
            members=await self.members(),
            scaled_to=dict(listed.scaled_to),
            rollouts=await self.rollouts(),
            shifts=shifts,
            revision=listed.revision,
            controller=await self.standing(),
        )

    async def sample(self, timeout_s: float = RPC_TIMEOUT_S) -> pb.GetSnapshotResponse:
        """The whole mesh at one moment, with two load reports of each member."""
        response: pb.GetSnapshotResponse = await self._send("GetSnapshot", pb.GetSnapshotRequest(), timeout_s)
        return response

    async def rollouts(self, backend: str = "") -> tuple[pb.Rollout, ...]:
        """The newest rollout of a backend, or of each. Raises BackendNotFound."""
        return tuple((await self._send("ListRollouts", pb.ListRolloutsRequest(backend=backend))).rollouts)

    async def hold_rollout(self, backend: str, *, is_paused: bool) -> None:
        """Pauses or resumes a rollout. Raises BackendNotFound."""
        if is_paused:
            await self._send("PauseRollout", pb.PauseRolloutRequest(backend=backend))
        else:
            await self._send("ResumeRollout", pb.ResumeRolloutRequest(backend=backend))

    async def undo_rollout(self, backend: str) -> int:
        """Restores what replicas were started with before. Returns the revision. Raises BackendNotFound."""
        return int((await self._send("UndoRollout", pb.UndoRolloutRequest(backend=backend))).revision)

    async def configuration(self) -> Mesh:
        """All backends, endpoints and routes, by name."""
        return (await self.configured())[1]

    async def configured(self) -> tuple[int, Mesh]:
        """The revision of the configuration, and all backends, endpoints and routes, by name."""
        listed = await self._send("ListBackends", pb.ListBackendsRequest())
        backends = tuple(backend_from_wire(backend)[0] for backend in listed.backends)
        endpoints = await self._endpoints()
        routes = (await self._send("ListRoutes", route_service_pb2.ListRoutesRequest())).routes
        return listed.revision, Mesh(backends=backends, endpoints=endpoints, routes=tuple(map(route_from_wire, routes)))

    async def scale(self, backend: str, replicas: int, *, dry_run: bool = False) -> pb.ApplyMeshResponse:
        """Sets `num_replicas` and nothing else, whatever else is changed meanwhile. Raises BackendNotFound."""
        with self.connection.peer.telling():
            return await set_num_replicas(
                self._stub, backend, replicas, dry_run=dry_run, timeout=RPC_TIMEOUT_S, metadata=_AUTHOR
            )

    async def delete(self, subject: str) -> int:
        """Deletes `backend/NAME`, `endpoint/NAME` or `route/PATH`. Returns the configuration's revision after that."""
        kind, _, name = subject.partition("/")
        if kind == ROUTE:
            request = route_service_pb2.DeleteRouteRequest(path=route_path(subject))
            return int((await self._send("DeleteRoute", request)).revision)
        if kind == "backend":
            return int((await self._send("DeleteBackend", pb.DeleteBackendRequest(name=name))).revision)
        return int((await self._send("DeleteEndpoint", pb.DeleteEndpointRequest(name=name))).revision)

    async def drain(self, replica_id: str) -> None:
        """Drains a replica: it finishes its running calls and ends. Raises ReplicaNotFound."""
        await self._send("DrainReplica", pb.DrainReplicaRequest(replica_id=replica_id))

    async def adopt_state(self, *, from_members: bool) -> pb.AdoptStateResponse:
        """Begins a generation; the controller ends. Returns it, and the subjects that have changed."""
        request = pb.AdoptStateRequest(source=pb.STATE_SOURCE_MEMBERS if from_members else pb.STATE_SOURCE_STORE)
        response: pb.AdoptStateResponse = await self._send("AdoptState", request)
        return response

    async def forget(self, replica_id: str) -> int:
        """Declares that a replica has ended; returns the number of its incarnations that did not count as ended."""
        return len((await self._send("ForgetReplica", pb.ForgetReplicaRequest(replica_id=replica_id))).incarnations)

    async def describe_backend(self, name: str) -> pb.DescribeBackendResponse:
        """The backend of that name with its replicas and autoscaling decisions. Raises BackendNotFound."""
        response: pb.DescribeBackendResponse = await self._send("DescribeBackend", pb.DescribeBackendRequest(name=name))
        return response

    async def logs(
        self, name: str, *, lines: int, follow: bool, max_ended: int | None = None
    ) -> AsyncGenerator[pb.ReadLogsResponse, None]:
        """The newest `lines` of output of a replica, or of each replica of a backend; with `follow` new ones, too.

        `max_ended`: of a backend's replicas that have ended only the newest ones; None: all that are kept.

        Raises ReplicaNotFound.
        """
        request = pb.ReadLogsRequest(name=name, lines=lines, follow=follow, max_ended=max_ended)
        call = self._stub.ReadLogs(request, timeout=None if follow else RPC_TIMEOUT_S)
        try:
            with self.connection.peer.telling():
                async for page in call:
                    yield page
        finally:
            call.cancel()

    async def events(self, request: pb.WatchEventsRequest) -> AsyncGenerator[pb.WatchEventsResponse, None]:
        """Events of the mesh, oldest first; without end unless the request has `until_newest`."""
        call = self._stub.WatchEvents(request)
        try:
            with self.connection.peer.telling():
                async for event in call:
                    yield event
        finally:
            call.cancel()

    async def _pages(self, rpc: str, request: Any, field: str, most: int | None = None) -> list[Any]:
        """The entries of all pages, or of the first pages that have `most`."""
        entries: list[Any] = []
        while True:
            page = await self._send(rpc, request)
            entries += getattr(page, field)
            if not page.next_page_token or (most is not None and len(entries) >= most):
                return entries
            request.page_token = page.next_page_token

    async def _endpoints(self) -> tuple[Endpoint, ...]:
        response = await self._send("ListEndpoints", pb.ListEndpointsRequest())
        return tuple(map(endpoint_from_wire, response.endpoints))
