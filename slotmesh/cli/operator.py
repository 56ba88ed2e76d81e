"""An operator's requests to the controller that leads; each change takes effect once even if its reply is lost.

Purpose: each changing request carries a random id. If the connection breaks before the reply, the request is sent once
more with the same id, to the controller that leads then. While a command waits for the effects of its change, its
queries move to the new leader, too (`hold_on`). A controller that stands by names the one that leads: requests that it
has refused are sent there.
Invariants: no other refusal is repeated. One channel is open, and a second one only while the connection is replaced.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Final, Self

import grpc
from google.protobuf.field_mask_pb2 import FieldMask

from slotmesh.cli.connection import ConnectionBroke, Peer, begin, is_lost, leader_among, standing_of
from slotmesh.cli.console import CommandFailed, looks, say
from slotmesh.cli.controller_view import ControllerStatus, Members, Snapshot
from slotmesh.cli.parameters import BACKEND, ROUTE
from slotmesh.convert.specification import (
    backend_from_wire,
    endpoint_from_wire,
    mesh_to_wire,
    route_from_wire,
    traffic_to_wire,
)
from slotmesh.errors import BadRequest, NotLeader, Reason, SlotmeshError
from slotmesh.ids import new_id
from slotmesh.spec.model import Endpoint, Mesh, TrafficPolicy
from slotmesh.spec.routes import route_path
from slotmesh.status import from_rpc_error
from slotmesh.transport.current_channel import LEADER_FACT
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from slotmesh.v1.controller_service_pb2 import AdoptStateRequest
from slotmesh.v1.info_service_pb2 import ControllerStanding
from slotmesh.v1.operations_pb2 import Operation, WaitOperationsRequest
from slotmesh.v1.traffic_shift_pb2 import TrafficShift

STORED_ON_HOLD: Final = (
    "slotmesh: the controller is on hold: the change is stored, and takes no effect before an operator ends the hold"
    " (`slotmesh status` shows how)"
)
BACK_WITHIN_S: Final = 10.0
"""The time limit after a lost reply for the controller to respond again, or for another one to lead."""
_LOOK_EVERY_S: Final = 0.1
_AUTHOR: Final = (("slotmesh-client", "slotmesh"),)
"""Metadata of changes: the author that the history records."""
RPC_TIMEOUT_S: Final = 30.0
"""The time limit for a response of a reachable controller."""
MAX_NAMES: Final = 1_000
"""Operations that one request may name."""


class Operator:
    """A client of a controller. Raises SlotmeshError if it refuses, CommandFailed if it cannot be reached.

    Commands send the requests of their own rpcs; the methods are what several commands ask for, or what is converted.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        """Does not connect yet."""
        self._addresses = addresses
        self._opened = AsyncExitStack()
        """Closes the channel."""
        self._known: ControllerStatus | None = None
        """The status that the controller reported first on this channel."""
        self._holds_on_s = 0.0
        self._peer: Peer
        self._channel: grpc.aio.Channel

    @classmethod
    @asynccontextmanager
    async def at(cls, addresses: str) -> AsyncIterator[Self]:
        """Connects to the controller at `HOST:PORT`; of several, with commas between them, to the one that leads.

        Raises CommandFailed if there is none.
        """
        operator = cls(addresses.split(","))
        try:
            await operator._connect()
            yield operator
        finally:
            await operator._opened.aclose()

    async def send(self, request: Any, timeout_s: float = RPC_TIMEOUT_S) -> Any:
        """The response of the rpc that has this type of request."""
        with self._peer.telling():
            return await self._answer(request, timeout_s)

    async def stream(self, request: Any, timeout_s: float | None = None) -> AsyncGenerator[Any, None]:
        """The responses of the rpc that has this type of request."""
        while True:
            call = begin(self._channel, request, timeout=timeout_s)
            try:
                with self._peer.telling():
                    async for response in call:
                        yield response
                return
            except NotLeader as refused:
                if not await self._follow(refused.metadata.get(LEADER_FACT, "")):
                    raise
            finally:
                call.cancel()

    @property
    def is_on_hold(self) -> bool:
        """Whether the controller last reported that it reconciles nothing: changes are stored, without effect."""
        return self._known is not None and self._known.is_on_hold

    def hold_on(self, within_s: float) -> None:
        """From now on, repeats a query if its connection breaks or its controller resigns, and one leads in time."""
        self._holds_on_s = within_s

    async def standing(self) -> ControllerStatus:
        """The current status of the controller."""
        while True:
            try:
                return await standing_of(self._channel, self._peer)
            except ConnectionBroke:
                if not await self._is_back():
                    raise

    async def apply(self, mesh: Mesh, **terms: Any) -> pb.ApplyMeshResponse:
        """Configures the mesh as `mesh`. `terms`: other fields of the request."""
        response: pb.ApplyMeshResponse = await self.send(pb.ApplyMeshRequest(mesh=mesh_to_wire(mesh), **terms))
        return response

    async def apply_file(self, mesh: Mesh, **terms: Any) -> pb.ApplyMeshResponse:
        """Applies the changes of a file since it was last applied. A dry run reports conflicts, too."""
        return await self.apply(mesh, merge=True, **terms)

    async def endpoint(self, name: str) -> mesh_pb2.Endpoint:
        """The endpoint of that name, with its status. Raises EndpointNotFound, which lists the existing endpoints."""
        response: pb.GetEndpointResponse = await self.send(pb.GetEndpointRequest(name=name))
        return response.endpoint

    async def set_traffic(self, endpoint: str, policy: TrafficPolicy, fields: Sequence[str], **terms: Any) -> int:
        """Changes these fields of an endpoint's policy: `weights`, `shadows`. Returns the revision that has it.

        `terms`: other fields of the request.
        """
        traffic, mask = traffic_to_wire(policy), FieldMask(paths=fields)
        request = pb.SetTrafficRequest(endpoint=endpoint, traffic=traffic, update_mask=mask, **terms)
        return int((await self.send(request)).revision)

    async def shift(self, endpoint: str) -> TrafficShift | None:
        """The newest shift of an endpoint; None if it was never shifted. Raises EndpointNotFound."""
        status = (await self.endpoint(endpoint)).status
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

    async def delete_all(self, subjects: Sequence[str]) -> int | None:
        """Deletes all of these in one change. None: the controller is older, deletes one at a time, and did nothing."""
        try:
            return int((await self.send(pb.ApplyMeshRequest(deletions=subjects))).revision)
        except BadRequest as refused:
            if "mesh: is required" not in str(refused):  # as older controllers do
                raise
            return None

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

    # -- the connection ------------------------------------------------------------------------------------------------

    async def _answer(self, request: Any, timeout_s: float) -> Any:
        """The response. Raises as a stub does. A change is repeated after a lost reply, if that is safe."""
        if "request_id" in request.DESCRIPTOR.fields_by_name:
            return await self._change(request, timeout=timeout_s, metadata=_AUTHOR)
        while True:
            try:
                return await begin(self._channel, request, timeout=timeout_s)
            except grpc.RpcError as error:
                if await self._follow(_named_leader(error)):
                    continue
                leads_no_more = from_rpc_error(error).reason is Reason.NOT_LEADER
                if not ((is_lost(error) or leads_no_more) and await self._is_back()):
                    raise

    async def _change(self, request: Any, **terms: Any) -> Any:
        request.request_id = new_id()
        has_no_hold = isinstance(request, AdoptStateRequest) or getattr(request, "validate_only", False)
        for is_last in (False, True):
            standing = await self._known_standing()
            try:
                response = await begin(self._channel, request, **terms)
            except grpc.RpcError as error:
                if is_last:
                    raise
                if not (await self._follow(_named_leader(error)) or (is_lost(error) and await self._reconnect())):
                    raise
            else:
                if standing.is_on_hold and not has_no_hold:
                    say(STORED_ON_HOLD, err=True)
                return response
        raise AssertionError("the last attempt returns or raises")

    async def _known_standing(self) -> ControllerStatus:
        """The status that the controller reported first on this channel."""
        if self._known is None:
            try:
                self._known = await standing_of(self._channel, self._peer)
            except (CommandFailed, SlotmeshError):
                # The response to the request itself explains the failure.
                self._known = ControllerStatus(self._peer.address, ControllerStanding())
        return self._known

    async def _is_back(self) -> bool:
        """Reconnects after a broken connection, if `hold_on` was called. Returns whether a leader is connected."""
        return self._holds_on_s > 0 and await self._reconnect(self._holds_on_s)

    async def _follow(self, leader: str) -> bool:
        """Connects to the leader that a refusal names, once. Returns False if it does not answer, or does not lead.

        At that address this machine may reach a controller of another mesh: it has to list the one that has refused.
        """
        if not leader or leader in self._addresses:
            return False
        peer, standby = Peer("controller", leader), (await self._known_standing()).advertised
        try:
            async with peer.connect() as channel:
                role = (await standing_of(channel, peer)).role
                if not (role.leads and standby and standby in role.standby_addresses):
                    return False
        except (CommandFailed, SlotmeshError):
            return False
        self._addresses = (*self._addresses, leader)
        await self._connect()
        return True

    async def _reconnect(self, within_s: float = BACK_WITHIN_S) -> bool:
        """Connects to the current leader. Returns False if there is none within `within_s`."""
        async for is_late in looks(_LOOK_EVERY_S, within_s):
            if is_late:
                break
            with suppress(CommandFailed, SlotmeshError):
                await self._connect()
                standing = await standing_of(self._channel, self._peer)
                if standing.role.leads:
                    self._known = standing
                    return True
        return False

    async def _connect(self) -> None:
        peer = Peer("controller", await leader_among(self._addresses))
        async with AsyncExitStack() as opening:
            channel = await opening.enter_async_context(peer.connect())
            before, self._opened = self._opened, opening.pop_all()
        self._channel, self._peer, self._known = channel, peer, None
        await before.aclose()


def _named_leader(error: grpc.RpcError) -> str:
    """The leader's address, if a controller that stands by has refused the request; otherwise empty."""
    return from_rpc_error(error).metadata.get(LEADER_FACT, "")


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
