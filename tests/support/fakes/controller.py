"""A scripted controller over real gRPC: routers that attach get the table that a test names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

import grpc

from slotmesh.runtime.duplex import read_request
from slotmesh.runtime.server import GrpcServer
from slotmesh.v1 import membership_service_pb2, membership_service_pb2_grpc, mesh_pb2
from slotmesh.wire.partitions import PARTITIONS

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


class FakeController(membership_service_pb2_grpc.MembershipServiceServicer):
    """Pushes each table to every router that is attached, and the newest one to those that attach later."""

    def __init__(self) -> None:
        self.address = ""
        self.hellos: list[membership_service_pb2.RouterHello] = []
        self.reports: list[membership_service_pb2.RouterReport] = []
        """Of all routers."""
        self.reports_of: dict[str, list[membership_service_pb2.RouterReport]] = {}
        """By router id."""
        self._newest: membership_service_pb2.RoutingTable | None = None
        self._attached: set[asyncio.Queue[membership_service_pb2.RoutingTable]] = set()

    def push(self, wire: membership_service_pb2.RoutingTable) -> None:
        """The routers get this table next."""
        self._newest = wire
        for tables in self._attached:
            tables.put_nowait(wire)

    async def AttachRouter(  # type: ignore[override]  # it writes to the context instead of yielding
        self, request_iterator: object, context: Context
    ) -> None:
        tables: asyncio.Queue[membership_service_pb2.RoutingTable] = asyncio.Queue()
        if self._newest is not None:
            tables.put_nowait(self._newest)
        self._attached.add(tables)
        writing = asyncio.ensure_future(_write(context, tables))
        reports: list[membership_service_pb2.RouterReport] = []
        try:
            while (request := await read_request(context)) is not None:
                if request.WhichOneof("frame") == "hello":
                    self.hellos.append(request.hello)
                    self.reports_of[request.hello.router_id] = reports
                else:
                    self.reports.append(request.report)
                    reports.append(request.report)
        finally:
            self._attached.discard(tables)
            writing.cancel()

    async def AttachReplica(  # type: ignore[override]  # it aborts
        self, request_iterator: object, context: Context
    ) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "only routers attach here")


async def _write(context: Context, tables: asyncio.Queue[membership_service_pb2.RoutingTable]) -> None:
    while True:
        await context.write(membership_service_pb2.AttachRouterResponse(table=await tables.get()))


@asynccontextmanager
async def fake_controller() -> AsyncIterator[FakeController]:
    """A scripted controller on a free port."""
    controller = FakeController()
    server = GrpcServer("fake controller")
    server.add(membership_service_pb2_grpc.add_MembershipServiceServicer_to_server, controller)
    await server.start()
    controller.address = server.address
    try:
        yield controller
    finally:
        await server.stop()
