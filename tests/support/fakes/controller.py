"""A scripted controller over real gRPC: routers that attach get the table that a test names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, TypeAlias

import grpc

from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.errors import Failure
from slotmesh.internal.v1 import membership_service_pb2, membership_service_pb2_grpc
from slotmesh.server.server import GrpcServer
from slotmesh.status import to_exception
from slotmesh.transport.duplex import read_request
from slotmesh.v1 import mesh_pb2
from tests.support.tables import one_delta, one_part

Context = grpc.aio.ServicerContext[Any, Any]


def table(
    revision: int,
    replicas: Mapping[str, str],
    *,
    others: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    weights: Mapping[str, float] = MappingProxyType({"b": 1.0}),
    shadows: Mapping[str, float] = MappingProxyType({}),
    epoch: int = 1,
    max_ongoing: int = 512,
    roster_revision: int | None = None,
    departed: Mapping[str, int] = MappingProxyType({}),
    **bounds: Any,
) -> membership_service_pb2.RoutingTable:
    """Endpoint `echo`, served by backend `b` with these replicas (id -> address), who own the partitions in turn.

    `others` are more backends, and `bounds` the settings of all.
    """
    owners = [membership_service_pb2.PartitionOwner(replica_id=each, incarnation="life") for each in replicas]
    return membership_service_pb2.RoutingTable(
        generation="g",
        revision=revision,
        roster_revision=revision if roster_revision is None else roster_revision,
        departed=[
            membership_service_pb2.DepartedReplica(replica_id=each, incarnation="life", generation="g", revision=at)
            for each, at in departed.items()
        ],
        endpoints=[
            membership_service_pb2.EndpointRoute(
                name="echo",
                traffic=mesh_pb2.TrafficPolicy(weights=weights, shadows=shadows),
                assignment=1,
            )
        ],
        assignments=[
            membership_service_pb2.PartitionAssignment(
                owners=owners,
                partition_owners=[number % len(owners) if owners else -1 for number in range(PARTITIONS)],
                owner_epochs=[epoch] * PARTITIONS,
            )
        ],
        backends=[
            membership_service_pb2.BackendRoute(
                name=name,
                replicas=[
                    membership_service_pb2.ReplicaRoute(
                        replica_id=each, incarnation="life", address=address, max_ongoing=max_ongoing
                    )
                    for each, address in named.items()
                ],
                backend=mesh_pb2.Backend(name=name, **bounds),
            )
            for name, named in {"b": replicas, **others}.items()
        ],
    )


Frames: TypeAlias = asyncio.Queue[membership_service_pb2.AttachRouterResponse]


class FakeController(membership_service_pb2_grpc.MembershipServiceServicer):
    """Pushes each table to every router that is attached, and the newest one to those that attach later."""

    def __init__(self) -> None:
        self.address = ""
        self.term = 1
        """Under which it leads."""
        self.controllers: list[str] = []
        """Where it says that controllers are."""
        self.refusal: Failure | None = None
        """What it refuses routers with."""
        self.hellos: list[membership_service_pb2.RouterHello] = []
        self.brought: list[membership_service_pb2.RoutingTable] = []
        """The table that each of `hellos` followed."""
        self.reports: list[membership_service_pb2.RouterReport] = []
        """Of all routers."""
        self.requests: list[membership_service_pb2.TableRequest] = []
        """Of whole tables, in place of deltas."""
        self.reports_of: dict[str, list[membership_service_pb2.RouterReport]] = {}
        """By router id."""
        self.goodbyes = 0
        """Routers that have half-closed their stream."""
        self._newest: membership_service_pb2.AttachRouterResponse | None = None
        self._attached: set[Frames] = set()
        self._writing: set[asyncio.Future[None]] = set()

    def push(self, wire: membership_service_pb2.RoutingTable) -> None:
        """The routers get this table next."""
        self._newest = membership_service_pb2.AttachRouterResponse(table_part=one_part(wire))
        for frames in self._attached:
            frames.put_nowait(self._newest)

    def push_delta(self, wire: membership_service_pb2.RoutingTableDelta) -> None:
        """The routers that are attached get this delta next."""
        self.push_parts(one_delta(wire))

    def push_parts(self, *parts: membership_service_pb2.TablePart) -> None:
        """The routers that are attached get these parts next."""
        for frames in self._attached:
            for part in parts:
                frames.put_nowait(membership_service_pb2.AttachRouterResponse(table_part=part))

    def forget(self) -> None:
        """The streams of all routers end, and those that attach again get nothing before the next push."""
        self._newest = None
        self.cut()

    def cut(self) -> None:
        """Ends the streams of all routers that are attached."""
        for writing in self._writing:
            writing.cancel()

    async def AttachRouter(  # type: ignore[override]  # it writes to the context instead of yielding
        self, request_iterator: object, context: Context
    ) -> None:
        if self.refusal is not None:
            raise to_exception(self.refusal)
        frames: Frames = asyncio.Queue()
        if self._newest is not None:
            frames.put_nowait(self._newest)
        self._attached.add(frames)
        writing = asyncio.ensure_future(self._write(context, frames))
        self._writing.add(writing)
        reading = asyncio.ensure_future(self._read(context))
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._attached.discard(frames)
            self._writing.discard(writing)
            for each in (reading, writing):
                each.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)

    async def _read(self, context: Context) -> None:
        reports: list[membership_service_pb2.RouterReport] = []
        table = membership_service_pb2.RoutingTable()
        while (request := await read_request(context)) is not None:
            if request.WhichOneof("frame") == "table_part":
                table.MergeFrom(request.table_part.table)
            elif request.WhichOneof("frame") == "hello":
                self.hellos.append(request.hello)
                self.brought.append(table)
                self.reports_of[request.hello.router_id] = reports
            elif request.WhichOneof("frame") == "table_request":
                self.requests.append(request.table_request)
            else:
                self.reports.append(request.report)
                reports.append(request.report)
        self.goodbyes += 1

    async def _write(self, context: Context, frames: Frames) -> None:
        while True:
            said = membership_service_pb2.AttachRouterResponse(term=self.term, controller_addresses=self.controllers)
            said.MergeFrom(await frames.get())
            await context.write(said)

    async def AttachReplica(  # type: ignore[override]  # it aborts
        self, request_iterator: object, context: Context
    ) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "only routers attach here")


@asynccontextmanager
async def fake_controller(host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[FakeController]:
    """A scripted controller; on a free port if `port` is 0."""
    controller = FakeController()
    server = GrpcServer("fake controller", host=host, port=port)
    server.add(membership_service_pb2_grpc.add_MembershipServiceServicer_to_server, controller)
    await server.start()
    controller.address = server.address
    try:
        yield controller
    finally:
        await server.stop()
