"""Requests of operators to a controller: the only module of the command line that uses its messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, cast

from slotmesh.cli.applied import Applied, applied_from_wire, rolled_back_from_wire
from slotmesh.cli.changing import ControllerConnection, RouteRequests, set_num_replicas
from slotmesh.cli.connection import Peer
from slotmesh.cli.event_stream import EventFilter, MeshEvent, read_events
from slotmesh.cli.figures.convert import sample_from_wire
from slotmesh.cli.figures.samples import MeshSample
from slotmesh.cli.parameters import ROUTE
from slotmesh.cli.snapshot import (
    BackendDescription,
    ControllerStatus,
    LoggedLines,
    Members,
    ReplicaStatus,
    Revision,
    RolloutStatus,
    ShiftStatus,
    Snapshot,
)
from slotmesh.cli.statuses import (
    decision_from_wire,
    replica_from_wire,
    revision_from_wire,
    rollout_from_wire,
    router_from_wire,
    shift_from_wire,
)
from slotmesh.convert.specification import backend_from_wire, endpoint_from_wire, mesh_to_wire, traffic_to_wire
from slotmesh.errors import Failure, Reason
from slotmesh.spec.model import Endpoint, Mesh, TrafficPolicy
from slotmesh.spec.routes import route_path
from slotmesh.status import to_exception
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1.controller_service_pb2_grpc import ControllerServiceStub

_AUTHOR: Final = (("slotmesh-client", "slotmesh"),)
"""Metadata of changes: the author that the history records."""
RPC_TIMEOUT_S: Final = 30.0
"""The time limit for a response of a reachable controller."""


class Operator:
    """A client of a controller. Raises SlotmeshError where it refuses, CommandFailed where it cannot be reached."""

    def __init__(self, connection: ControllerConnection) -> None:
        self.connection = connection
        self._stub = connection.stub(ControllerServiceStub)
        self._routes = RouteRequests(connection, timeout_s=RPC_TIMEOUT_S, metadata=_AUTHOR)

    @property
    def _peer(self) -> Peer:
        return self.connection.peer

    @classmethod
    @asynccontextmanager
    async def at(cls, addresses: str) -> AsyncIterator[Operator]:
        """Connects to the controller at `HOST:PORT`; of several, with commas between them, to the one that leads.

        Raises CommandFailed where there is none.
        """
        async with ControllerConnection.open(addresses.split(",")) as connection:
            yield cls(connection)

    async def standing(self) -> ControllerStatus:
        """Whether the controller leads."""
        return await self.connection.standing()

    async def apply(self, mesh: Mesh, *, prune: bool = False) -> Applied:
        """Configures the mesh as `mesh`; deletes what that lacks only with `prune`."""
        return await self._apply(pb.ApplyMeshRequest(mesh=mesh_to_wire(mesh), prune=prune))

    async def apply_file(
        self,
        mesh: Mesh,
        *,
        prune: bool = False,
        force: bool = False,
        dry_run: bool = False,
        expected_revision: int | None = None,
    ) -> Applied:
        """Applies the changes of a file since it was last applied. A dry run reports conflicts, too."""
        request = pb.ApplyMeshRequest(
            mesh=mesh_to_wire(mesh),
            prune=prune,
            merge=True,
            force=force,
            dry_run=dry_run,
            expected_revision=expected_revision,
        )
        return await self._apply(request)

    async def _apply(self, request: pb.ApplyMeshRequest) -> Applied:
        with self._peer.telling():
            response = await self._stub.ApplyMesh(request, timeout=RPC_TIMEOUT_S, metadata=_AUTHOR)
        return applied_from_wire(response)

    async def endpoint(self, name: str) -> Endpoint:
        """The endpoint of that name. Raises EndpointNotFound, which lists the existing endpoints."""
        endpoints = {endpoint.name: endpoint for endpoint in await self._endpoints()}
        if name not in endpoints:
            known = f"there are {', '.join(sorted(endpoints))}" if endpoints else "there is none"
            message = f"no endpoint is named {name!r} ({known})"
            raise to_exception(Failure(reason=Reason.ENDPOINT_NOT_FOUND, message=message), endpoint=name)
        return endpoints[name]

    async def set_traffic(
        self, endpoint: str, said: TrafficPolicy, *, clear_shadows: bool = False, requires_ready: bool = False
    ) -> int:
        """Changes an endpoint's policy: weights and shadows that are not given stay as they are.

        `requires_ready`: refused if a backend that gets more has no ready replica. Returns the revision that has it.
        """
        request = pb.SetTrafficRequest(endpoint=endpoint, traffic=traffic_to_wire(said), clear_shadows=clear_shadows)
        request.require_ready = requires_ready
        with self._peer.telling():
            response = await self._stub.SetTraffic(request, timeout=RPC_TIMEOUT_S, metadata=_AUTHOR)
        return int(response.revision)

    async def shift_traffic(self, request: pb.ShiftTrafficRequest) -> int:
        """Begins to shift the traffic of an endpoint. Returns the revision of its first step."""
        with self._peer.telling():
            response = await self._stub.ShiftTraffic(request, timeout=RPC_TIMEOUT_S, metadata=_AUTHOR)
        return int(response.revision)

    async def end_shift(self, endpoint: str, *, goes_back: bool) -> int:
        """Ends a shift where it is, or with the weights before it. Returns the revision after that."""
        request = pb.EndShiftRequest(endpoint=endpoint, go_back=goes_back)
        with self._peer.telling():
            response = await self._stub.EndShift(request, timeout=RPC_TIMEOUT_S, metadata=_AUTHOR)
        return int(response.revision)

    async def shift(self, endpoint: str) -> ShiftStatus | None:
        """The newest shift of an endpoint; None if it was never shifted. Raises EndpointNotFound."""
        return next(iter(await self.shifts(endpoint)), None)

    async def shifts(self, endpoint: str = "") -> tuple[ShiftStatus, ...]:
        """The newest shift of an endpoint, or of each. Raises EndpointNotFound."""
        with self._peer.telling():
            response = await self._stub.ListShifts(pb.ListShiftsRequest(endpoint=endpoint), timeout=RPC_TIMEOUT_S)
        return tuple(map(shift_from_wire, response.shifts))

    async def revisions(self, most: int) -> tuple[Revision, ...]:
        """The newest changes of the configuration, newest first."""
        request = pb.ListRevisionsRequest(page_size=most)
        revisions: list[Revision] = []
        with self._peer.telling():
            while True:
                page = await self._stub.ListRevisions(request, timeout=RPC_TIMEOUT_S)
                revisions += map(revision_from_wire, page.revisions)
                if not page.next_page_token or len(revisions) >= most:
                    return tuple(revisions[:most])
                request.page_token = page.next_page_token

    async def roll_back(self, revision: int | None, *, dry_run: bool = False) -> tuple[int, Applied]:
        """Brings an earlier configuration back; None: the one before the newest change. Returns its revision, too."""
        request = pb.RollbackRequest(revision=revision, dry_run=dry_run)
        with self._peer.telling():
            response = await self._stub.Rollback(request, timeout=RPC_TIMEOUT_S, metadata=_AUTHOR)
        return response.rolled_back_to, rolled_back_from_wire(response)

    async def members(self) -> Members:
        """The members. Routers are queried after replicas, so that their table contains these replicas."""
        replicas = await self._replicas()
        with self._peer.telling():
            routers = await self._stub.ListRouters(pb.ListRoutersRequest(), timeout=RPC_TIMEOUT_S)
        return Members(
            replicas=replicas,
            routers=tuple(router_from_wire(router) for router in routers.routers),
            generation=routers.generation,
            revision=routers.revision,
        )

    async def snapshot(self) -> Snapshot:
        """The whole mesh. Its parts are queried one after another, so it may change in between."""
        shifts = await self.shifts()
        said = await self._backends()
        return Snapshot(
            backends=tuple(backend_from_wire(backend)[0] for backend in said.backends),
            endpoints=await self._endpoints(),
            members=await self.members(),
            scaled_to=dict(said.scaled_to),
            rollouts=await self.rollouts(),
            shifts=shifts,
            revision=said.revision,
            controller=await self.standing(),
        )

    async def sample(self, timeout_s: float = RPC_TIMEOUT_S) -> MeshSample:
        """All at one moment, with how loaded it is and was."""
        with self._peer.telling():
            return sample_from_wire(await self._stub.GetSnapshot(pb.GetSnapshotRequest(), timeout=timeout_s))

    async def rollouts(self, backend: str = "") -> tuple[RolloutStatus, ...]:
        """The newest rollout of a backend, or of each. Raises BackendNotFound."""
        request = pb.ListRolloutsRequest(backend=backend)
        with self._peer.telling():
            response = await self._stub.ListRollouts(request, timeout=RPC_TIMEOUT_S)
        return tuple(map(rollout_from_wire, response.rollouts))

    async def hold_rollout(self, backend: str, *, is_paused: bool) -> None:
        """Pauses a rollout, or lets it go on. Raises BackendNotFound."""
        with self._peer.telling():
            if is_paused:
                rpc, request = self._stub.PauseRollout, cast("Any", pb.PauseRolloutRequest(backend=backend))
            else:
                rpc, request = self._stub.ResumeRollout, pb.ResumeRolloutRequest(backend=backend)
            await rpc(request, timeout=RPC_TIMEOUT_S, metadata=_AUTHOR)

    async def undo_rollout(self, backend: str) -> int:
        """Brings back what replicas were started with before. Returns the revision. Raises BackendNotFound."""
        request = pb.UndoRolloutRequest(backend=backend)
        with self._peer.telling():
            response = await self._stub.UndoRollout(request, timeout=RPC_TIMEOUT_S, metadata=_AUTHOR)
        return int(response.revision)

    async def configuration(self) -> Mesh:
        """All backends, endpoints and routes, by name."""
        return (await self.configured())[1]

    async def configured(self) -> tuple[int, Mesh]:
        """The same, and the revision that has the backends."""
        said = await self._backends()
        backends = tuple(backend_from_wire(backend)[0] for backend in said.backends)
        endpoints = await self._endpoints()
        return said.revision, Mesh(backends=backends, endpoints=endpoints, routes=await self._routes.list())

    async def scale(self, backend: str, replicas: int, *, dry_run: bool = False) -> Applied:
        """Sets `num_replicas` and nothing else, whatever else is changed meanwhile. Raises BackendNotFound."""
        with self._peer.telling():
            return await set_num_replicas(
                self._stub, backend, replicas, dry_run=dry_run, timeout=RPC_TIMEOUT_S, metadata=_AUTHOR
            )

    async def delete(self, subject: str) -> int:
        """Deletes `backend/NAME`, `endpoint/NAME` or `route/PATH`. Returns the configuration's revision after that."""
        kind, _, name = subject.partition("/")
        if kind == ROUTE:
            return await self._routes.delete(route_path(subject))
        with self._peer.telling():
            if kind == "backend":
                rpc, request = self._stub.DeleteBackend, cast("Any", pb.DeleteBackendRequest(name=name))
            else:
                rpc, request = self._stub.DeleteEndpoint, pb.DeleteEndpointRequest(name=name)
            response = await rpc(request, timeout=RPC_TIMEOUT_S, metadata=_AUTHOR)
        return int(response.revision)

    async def drain(self, replica_id: str) -> None:
        """Drains a replica: it finishes its running calls and ends. Raises ReplicaNotFound."""
        with self._peer.telling():
            request = pb.DrainReplicaRequest(replica_id=replica_id)
            await self._stub.DrainReplica(request, timeout=RPC_TIMEOUT_S, metadata=_AUTHOR)

    async def adopt_state(self, *, from_members: bool) -> tuple[str, tuple[str, ...]]:
        """Begins a generation; the controller ends. Returns it, and the subjects that have changed."""
        request = pb.AdoptStateRequest(source=pb.STATE_SOURCE_MEMBERS if from_members else pb.STATE_SOURCE_STORE)
        with self._peer.telling():
            response = await self._stub.AdoptState(request, timeout=RPC_TIMEOUT_S, metadata=_AUTHOR)
        return response.generation, tuple(response.changed)

    async def forget(self, replica_id: str) -> int:
        """Declares that a replica has ended; returns how many of its incarnations did not count as that before."""
        with self._peer.telling():
            request = pb.ForgetReplicaRequest(replica_id=replica_id)
            response = await self._stub.ForgetReplica(request, timeout=RPC_TIMEOUT_S, metadata=_AUTHOR)
        return len(response.incarnations)

    async def describe_backend(self, name: str) -> BackendDescription:
        """The backend of that name, and what has become of it. Raises BackendNotFound."""
        with self._peer.telling():
            response = await self._stub.DescribeBackend(pb.DescribeBackendRequest(name=name), timeout=RPC_TIMEOUT_S)
        return BackendDescription(
            rollout=next(iter(await self.rollouts(name)), None),
            backend=backend_from_wire(response.backend)[0],
            revision=response.revision,
            replicas=tuple(map(replica_from_wire, response.replicas)),
            wanted_replicas=response.wanted_replicas if response.HasField("wanted_replicas") else None,
            latest_decision=decision_from_wire(response.latest_decision)
            if response.HasField("latest_decision")
            else None,
            latest_change=decision_from_wire(response.latest_change) if response.HasField("latest_change") else None,
        )

    async def logs(self, name: str, *, lines: int, follow: bool) -> AsyncGenerator[LoggedLines, None]:
        """What a replica, or a backend's replicas, have written: the newest `lines` of each; with `follow` what comes.

        Raises ReplicaNotFound.
        """
        request = pb.ReadLogsRequest(name=name, lines=lines, follow=follow)
        call = self._stub.ReadLogs(request, timeout=None if follow else RPC_TIMEOUT_S)
        try:
            with self._peer.telling():
                async for page in call:
                    yield LoggedLines(replica_id=page.replica_id, lines=tuple(page.lines), missed=page.missed)
        finally:
            call.cancel()

    def events(self, wanted: EventFilter, *, after: str = "", follow: bool = False) -> AsyncGenerator[MeshEvent, None]:
        """Those after a cursor, else all that are kept; with `follow` those to come, too, without end."""
        return read_events(self._peer, self._stub, wanted, after=after, follow=follow)

    async def _replicas(self) -> tuple[ReplicaStatus, ...]:
        """All of them, with their whole error texts."""
        request = pb.ListReplicasRequest(whole_errors=True)
        replicas: list[ReplicaStatus] = []
        with self._peer.telling():
            while True:
                page = await self._stub.ListReplicas(request, timeout=RPC_TIMEOUT_S)
                replicas += map(replica_from_wire, page.replicas)
                if not page.next_page_token:
                    return tuple(replicas)
                request.page_token = page.next_page_token

    async def _backends(self) -> pb.ListBackendsResponse:
        with self._peer.telling():
            response: pb.ListBackendsResponse = await self._stub.ListBackends(
                pb.ListBackendsRequest(), timeout=RPC_TIMEOUT_S
            )
        return response

    async def _endpoints(self) -> tuple[Endpoint, ...]:
        with self._peer.telling():
            response = await self._stub.ListEndpoints(pb.ListEndpointsRequest(), timeout=RPC_TIMEOUT_S)
        return tuple(endpoint_from_wire(endpoint) for endpoint in response.endpoints)
