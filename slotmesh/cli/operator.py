"""Requests of operators to a controller."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

from google.protobuf.field_mask_pb2 import FieldMask

from slotmesh.cli.console import CommandFailed
from slotmesh.cli.controller_connection import ControllerConnection
from slotmesh.cli.controller_view import ControllerStatus, Members, Snapshot
from slotmesh.cli.parameters import BACKEND, ROUTE
from slotmesh.convert.specification import (
    backend_from_wire,
    endpoint_from_wire,
    mesh_to_wire,
    route_from_wire,
    traffic_to_wire,
)
from slotmesh.errors import Failure, NotLeader, Reason
from slotmesh.spec.model import Endpoint, Mesh, TrafficPolicy
from slotmesh.spec.routes import route_path
from slotmesh.status import to_exception
from slotmesh.transport.current_channel import LEADER_FACT
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from slotmesh.v1.operations_pb2 import Operation, WaitOperationsRequest
from slotmesh.v1.traffic_shift_pb2 import TrafficShift

RPC_TIMEOUT_S: Final = 30.0
"""The time limit for a response of a reachable controller."""
MAX_NAMES: Final = 1_000
"""Operations that one request may name."""


class Operator:
    """A client of a controller. Raises SlotmeshError if it refuses, CommandFailed if it cannot be reached.

    Commands send the requests of their own rpcs; the methods are what several commands ask for, or what is converted.
    """

    def __init__(self, connection: ControllerConnection) -> None:
        self.connection = connection

    @classmethod
    @asynccontextmanager
    async def at(cls, addresses: str) -> AsyncIterator[Operator]:
        """Connects to the controller at `HOST:PORT`; of several, with commas between them, to the one that leads.

        Raises CommandFailed if there is none.
        """
        async with ControllerConnection.open(addresses.split(",")) as connection:
            yield cls(connection)

    async def send(self, request: Any, timeout_s: float = RPC_TIMEOUT_S) -> Any:
        """The response of the rpc that has this type of request."""
        with self.connection.peer.telling():
            return await self.connection.send(request, timeout_s)

    async def stream(self, request: Any, timeout_s: float | None = None) -> AsyncGenerator[Any, None]:
        """The responses of the rpc that has this type of request."""
        while True:
            call = self.connection.call(request, timeout=timeout_s)
            try:
                with self.connection.peer.telling():
                    async for response in call:
                        yield response
                return
            except NotLeader as refused:
                if not await self.connection.follow(refused.metadata.get(LEADER_FACT, "")):
                    raise
            finally:
                call.cancel()

    async def standing(self) -> ControllerStatus:
        """Whether the controller leads."""
        return await self.connection.standing()

    async def apply(self, mesh: Mesh, **terms: Any) -> pb.ApplyMeshResponse:
        """Configures the mesh as `mesh`. `terms`: other fields of the request."""
        response: pb.ApplyMeshResponse = await self.send(pb.ApplyMeshRequest(mesh=mesh_to_wire(mesh), **terms))
        return response

    async def apply_file(self, mesh: Mesh, **terms: Any) -> pb.ApplyMeshResponse:
        """Applies the changes of a file since it was last applied. A dry run reports conflicts, too."""
        return await self.apply(mesh, merge=True, **terms)

    async def endpoint(self, name: str) -> Endpoint:
        """The endpoint of that name. Raises EndpointNotFound, which lists the existing endpoints."""
        endpoints = {endpoint.name: endpoint for endpoint in await self._endpoints()}
        if name not in endpoints:
            known = f"there are {', '.join(sorted(endpoints))}" if endpoints else "there is none"
            message = f"no endpoint is named {name!r} ({known})"
            raise to_exception(Failure(reason=Reason.ENDPOINT_NOT_FOUND, message=message), endpoint=name)
        return endpoints[name]

    async def set_traffic(self, endpoint: str, policy: TrafficPolicy, fields: Sequence[str], **terms: Any) -> int:
        """Changes these fields of an endpoint's policy: `weights`, `shadows`. Returns the revision that has it.

        `terms`: other fields of the request.
        """
        traffic, mask = traffic_to_wire(policy), FieldMask(paths=fields)
        request = pb.SetTrafficRequest(endpoint=endpoint, traffic=traffic, update_mask=mask, **terms)
        return int((await self.send(request)).revision)

    async def shift(self, endpoint: str) -> TrafficShift | None:
        """The newest shift of an endpoint; None if it was never shifted. Raises EndpointNotFound."""
        status = (await self.send(pb.GetEndpointRequest(name=endpoint))).endpoint.status
        return status.shift if status.HasField("shift") else None

    async def revisions(self, most: int) -> tuple[pb.ConfigurationRevision, ...]:
        """The newest changes of the configuration, newest first."""
        revisions, _ = await self.pages(pb.ListRevisionsRequest(page_size=most), "revisions", most)
        return tuple(revisions[:most])

    async def members(self) -> Members:
        """The members. Routers are queried after replicas, so that their table contains these replicas."""
        replicas, _ = await self.pages(pb.ListReplicasRequest(whole_errors=True), "replicas")
        routers, page = await self.pages(pb.ListRoutersRequest(), "routers")
        return Members(
            replicas=tuple(replicas),
            routers=tuple(routers),
            generation=page.generation,
            table_revision=page.table_revision,
        )

    async def snapshot(self) -> Snapshot:
        """The whole mesh. Its parts are queried one after another, so it may change in between."""
        endpoints, _ = await self.pages(pb.ListEndpointsRequest(), "endpoints")
        backends, page = await self.pages(pb.ListBackendsRequest(), "backends")
        pools = {pool.name: pool for it in backends for pool in it.status.device_pools}
        return Snapshot(
            backends=tuple(backend_from_wire(backend)[0] for backend in backends),
            endpoints=tuple(map(endpoint_from_wire, endpoints)),
            members=await self.members(),
            wanted_replicas={
                it.name: it.status.wanted_replicas for it in backends if it.status.HasField("wanted_replicas")
            },
            deferred_starts=_deferred(backends),
            device_pools=tuple(pools[name] for name in sorted(pools)),
            rollouts=tuple(it.status.rollout for it in backends if it.status.HasField("rollout")),
            shifts=tuple(it.status.shift for it in endpoints if it.status.HasField("shift")),
            revision=page.revision,
            controller=await self.standing(),
        )

    async def sample(self, timeout_s: float = RPC_TIMEOUT_S) -> pb.GetSnapshotResponse:
        """The whole mesh at one moment, with two load reports of each member."""
        response: pb.GetSnapshotResponse = await self.send(pb.GetSnapshotRequest(), timeout_s)
        return response

    async def backend(self, name: str) -> mesh_pb2.Backend:
        """The backend with its status. Raises BackendNotFound."""
        response: pb.GetBackendResponse = await self.send(pb.GetBackendRequest(name=name))
        return response.backend

    async def configuration(self) -> Mesh:
        """All backends, endpoints and routes, by name."""
        return (await self.configured())[1]

    async def configured(self) -> tuple[int, Mesh, Mapping[str, str]]:
        """The revision of the configuration, all backends, endpoints and routes, and why starts wait, by backend."""
        backends, page = await self.pages(pb.ListBackendsRequest(), "backends")
        routes, _ = await self.pages(pb.ListHttpRoutesRequest(), "routes")
        mesh = Mesh(
            backends=tuple(backend_from_wire(backend)[0] for backend in backends),
            endpoints=await self._endpoints(),
            routes=tuple(map(route_from_wire, routes)),
        )
        return page.revision, mesh, _deferred(backends)

    async def delete(self, subject: str) -> int:
        """Deletes `backend/NAME`, `endpoint/NAME` or `route/PATH`. Returns the configuration's revision after that."""
        kind, _, name = subject.partition("/")
        if kind == ROUTE:
            response = await self.send(pb.DeleteHttpRouteRequest(name=route_path(subject)))
        else:
            request = pb.DeleteBackendRequest if kind == BACKEND else pb.DeleteEndpointRequest
            response = await self.send(request(name=name))
        return int(response.revision)

    async def drain(self, replica_id: str) -> list[str]:
        """Drains a replica: it finishes its running calls and ends. Returns operations. Raises ReplicaNotFound."""
        return list((await self.send(pb.DrainReplicaRequest(replica_id=replica_id))).operations)

    async def operations(self, names: Sequence[str], timeout_s: float = 0.0) -> list[Operation]:
        """These operations, once all are done, or one has failed, or after that time."""
        batches = [names[at : at + MAX_NAMES] for at in range(0, len(names), MAX_NAMES)]
        found: list[Operation] = []
        for batch in batches:
            request = WaitOperationsRequest(names=batch)
            request.timeout.FromTimedelta(timedelta(seconds=timeout_s / len(batches)))
            found += (await self.send(request)).operations
        return found

    async def pages(self, request: Any, field: str, most: int | None = None) -> tuple[list[Any], Any]:
        """The entries of all pages, or of the first pages that have `most`; and the last of these pages."""
        entries: list[Any] = []
        while True:
            page = await self.send(request)
            entries += getattr(page, field)
            if not page.next_page_token or (most is not None and len(entries) >= most):
                return entries, page
            request.page_token = page.next_page_token

    async def _endpoints(self) -> tuple[Endpoint, ...]:
        return tuple(map(endpoint_from_wire, (await self.pages(pb.ListEndpointsRequest(), "endpoints"))[0]))


def _deferred(backends: Sequence[mesh_pb2.Backend]) -> Mapping[str, str]:
    return {it.name: it.status.deferred_start for it in backends if it.status.deferred_start}


async def routers_of(controller: str, router: str = "") -> list[str]:
    """The address of this router, or of all that the controller lists. Raises CommandFailed if it lists none."""
    if router:
        return [router]
    async with Operator.at(controller) as operator:
        listed, _ = await operator.pages(pb.ListRoutersRequest(), "routers")
    if not listed:
        raise CommandFailed(f"the controller at {controller} knows no router")
    return [it.address for it in listed]
