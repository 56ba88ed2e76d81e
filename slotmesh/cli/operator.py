"""Requests of operators to a controller: the one place of the command line that knows its messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf.timestamp_pb2 import Timestamp

from slotmesh.cli.connection import Peer
from slotmesh.cli.snapshot import Applied, Members, ReplicaStatus, RouterStatus, Snapshot
from slotmesh.errors import Failure, Reason
from slotmesh.spec.model import Endpoint, Mesh, TrafficPolicy
from slotmesh.spec.wire import backend_from_wire, endpoint_from_wire, mesh_to_wire, traffic_to_wire
from slotmesh.status import to_exception
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from slotmesh.v1.controller_service_pb2_grpc import ControllerServiceStub

RPC_TIMEOUT_S: Final = 30.0
"""Longest wait for an answer of a controller that is there."""


class Operator:
    """A client of a controller. Raises SlotmeshError where it refuses, CommandFailed where it cannot be reached."""

    def __init__(self, peer: Peer, stub: Any) -> None:
        self._peer = peer
        self._stub = stub

    @classmethod
    @asynccontextmanager
    async def at(cls, address: str) -> AsyncIterator[Operator]:
        """Connects to the controller at `HOST:PORT`. Raises CommandFailed where there is none."""
        peer = Peer("controller", address)
        async with peer.connect() as channel:
            yield cls(peer, ControllerServiceStub(channel))

    async def apply(self, mesh: Mesh, *, prune: bool = False) -> Applied:
        """Configures the mesh as `mesh`; deletes what that lacks only with `prune`."""
        request = pb.ApplyMeshRequest(mesh=mesh_to_wire(mesh), prune=prune)
        with self._peer.telling():
            response = await self._stub.ApplyMesh(request, timeout=RPC_TIMEOUT_S)
        return Applied(
            revision=response.revision,
            created=tuple(response.created),
            updated=tuple(response.updated),
            unchanged=tuple(response.unchanged),
            deleted=tuple(response.deleted),
        )

    async def endpoint(self, name: str) -> Endpoint:
        """The endpoint of that name. Raises EndpointNotFound, which names those that there are."""
        endpoints = {endpoint.name: endpoint for endpoint in await self._endpoints()}
        if name not in endpoints:
            known = f"there are {', '.join(sorted(endpoints))}" if endpoints else "there is none"
            message = f"no endpoint is named {name!r} ({known})"
            raise to_exception(Failure(reason=Reason.ENDPOINT_NOT_FOUND, message=message), endpoint=name)
        return endpoints[name]

    async def set_traffic(self, endpoint: str, said: TrafficPolicy, *, clear_shadows: bool = False) -> int:
        """Changes an endpoint's policy: weights and shadows that are not given stay as they are.

        Returns the configuration's revision that has it.
        """
        request = pb.SetTrafficRequest(endpoint=endpoint, traffic=traffic_to_wire(said), clear_shadows=clear_shadows)
        with self._peer.telling():
            response = await self._stub.SetTraffic(request, timeout=RPC_TIMEOUT_S)
        return int(response.revision)

    async def members(self) -> Members:
        """The members. Routers are asked for after replicas, so that the newest table has these replicas."""
        replicas = await self._replicas()
        with self._peer.telling():
            routers = await self._stub.ListRouters(pb.ListRoutersRequest(), timeout=RPC_TIMEOUT_S)
        return Members(
            replicas=replicas,
            routers=tuple(_router(router) for router in routers.routers),
            generation=routers.generation,
            revision=routers.revision,
        )

    async def snapshot(self) -> Snapshot:
        """The whole mesh. Its parts are asked for one after another: it may change meanwhile."""
        with self._peer.telling():
            backends = await self._stub.ListBackends(pb.ListBackendsRequest(), timeout=RPC_TIMEOUT_S)
        return Snapshot(
            backends=tuple(backend_from_wire(backend)[0] for backend in backends.backends),
            endpoints=await self._endpoints(),
            members=await self.members(),
        )

    async def _replicas(self) -> tuple[ReplicaStatus, ...]:
        """All of them, with their whole error texts."""
        request = pb.ListReplicasRequest(whole_errors=True)
        replicas: list[ReplicaStatus] = []
        with self._peer.telling():
            while True:
                page = await self._stub.ListReplicas(request, timeout=RPC_TIMEOUT_S)
                replicas += map(_replica, page.replicas)
                if not page.next_page_token:
                    return tuple(replicas)
                request.page_token = page.next_page_token

    async def _endpoints(self) -> tuple[Endpoint, ...]:
        with self._peer.telling():
            response = await self._stub.ListEndpoints(pb.ListEndpointsRequest(), timeout=RPC_TIMEOUT_S)
        return tuple(endpoint_from_wire(endpoint) for endpoint in response.endpoints)


def _replica(wire: mesh_pb2.Replica) -> ReplicaStatus:
    return ReplicaStatus(
        replica_id=wire.replica_id,
        backend=wire.backend,
        state=_state_name(wire.state),
        address=wire.address,
        pid=wire.pid,
        max_ongoing=wire.max_ongoing,
        error=wire.error,
        start_time=_time(wire.start_time) if wire.HasField("start_time") else None,
        metrics_address=wire.metrics_address,
        warning=wire.warning,
        restart_count=wire.restart_count,
        last_exit=wire.last_exit,
        version=wire.version,
    )


def _router(wire: mesh_pb2.Router) -> RouterStatus:
    return RouterStatus(
        router_id=wire.router_id,
        address=wire.address,
        generation=wire.generation,
        revision=wire.revision,
        linked_replica_ids=frozenset(wire.linked_replica_ids),
        start_time=_time(wire.start_time) if wire.HasField("start_time") else None,
        metrics_address=wire.metrics_address,
        version=wire.version,
    )


def _state_name(state: int) -> str:
    """A state that a newer controller knows is shown by its number."""
    known = mesh_pb2.ReplicaState.values()
    return mesh_pb2.ReplicaState.Name(state).removeprefix("REPLICA_STATE_") if state in known else str(state)  # type: ignore[arg-type]


def _time(wire: Timestamp) -> datetime:
    return wire.ToDatetime(tzinfo=UTC)
