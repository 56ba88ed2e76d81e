"""The router's membership: an AttachRouter stream, kept up for as long as the router runs.

Purpose: identifies the router and reports its state; takes each routing table and acknowledges it.
Invariants: the last table stays in force while the controller is away, and until there is one that may replace it; each
report names the table in force and the links that work at the moment it is written.
Owner: the app, which runs `run` and `tick` as tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

import grpc
from google.protobuf import timestamp_pb2

from router_service import convert
from router_service.core.routing.events import TableReceived
from router_service.core.routing.rosters import ReplicaKey
from router_service.core.routing.table import RoutingTable
from router_service.shell.dispatcher import Dispatcher
from router_service.shell.replicas.link_report import LinkReport
from slotmesh.runtime.backoff import Backoff
from slotmesh.runtime.channels import open_channel
from slotmesh.runtime.duplex import read_frame, run_stream
from slotmesh.runtime.pump import StreamPump
from slotmesh.telemetry.log import get_logger
from slotmesh.v1 import membership_service_pb2, membership_service_pb2_grpc, mesh_pb2
from slotmesh.version import VERSION

Request = membership_service_pb2.AttachRouterRequest
Response = membership_service_pb2.AttachRouterResponse
AttachRouterCall = grpc.aio.StreamStreamCall[Request, Response]

REPORT_EVERY_S = 1.0

_log = get_logger(__name__)


class TableWatch:
    """Attaches to the controller, again and again."""

    def __init__(
        self,
        controller: str,
        hello: membership_service_pb2.RouterHello,
        dispatcher: Dispatcher,
        links: LinkReport,
        backoff: Backoff,
    ) -> None:
        self._controller = controller
        self._hello = hello
        self._dispatcher = dispatcher
        self._links = links
        self._backoff = backoff
        self._pump: StreamPump[Request] | None = None
        self._in_force: membership_service_pb2.RoutingTable | None = None
        """The table in force, as it came."""
        self._report_due = False
        self._unknown_balancers: dict[str, int] = {}
        """Balancers of backends in the newest table that this router does not know. A warning was logged for each."""

    def report_soon(self) -> None:
        """Something that is part of reports has changed."""
        self._report_due = True
        if self._pump is not None:
            self._pump.wake()

    async def run(self) -> None:
        """Attaches until cancelled."""
        async with open_channel(self._controller) as channel:
            stub = membership_service_pb2_grpc.MembershipServiceStub(channel)
            while True:
                why = await self._converse(stub.AttachRouter())
                _log.warning("controller link ended; the last routing table stays in force", reason=why)
                await asyncio.sleep(self._backoff.next_delay_s())

    async def tick(self) -> None:
        """Reports every second until cancelled."""
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            self.report_soon()

    async def _converse(self, call: AttachRouterCall) -> str:
        """One stream, from hello to its end; returns why it ended."""
        self._pump = StreamPump(call.write, self._next_frame)
        try:
            await call.write(Request(hello=self._full_hello()))
            self._report_due = True
            await run_stream(self._pump, self._read(call))
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        finally:
            call.cancel()
            self._pump = None
        return "the controller ended the stream"

    async def _read(self, call: AttachRouterCall) -> None:
        while (response := await read_frame(call)) is not None:
            if response.WhichOneof("frame") == "table":
                self._backoff.reset()
                self._take(response.table)

    def _take(self, wire: membership_service_pb2.RoutingTable) -> None:
        table = convert.table_from_wire(wire)
        self._dispatcher.post(TableReceived(table))
        if self._dispatcher.scheduler.table is not table:
            _log.info("routing table passed over: it is older, or does not cover the one in force", **_version(table))
            return
        self._in_force = wire
        self._warn_of_balancers(table)
        _log.info(
            "routing table applied",
            endpoints=len(table.endpoints),
            replicas=sum(len(backend.replicas) for backend in table.backends.values()),
            **_version(table),
        )
        self._dispatcher.first_table.came()
        self.report_soon()

    def _full_hello(self) -> membership_service_pb2.RouterHello:
        """With the table in force: a controller without state learns from it."""
        hello = membership_service_pb2.RouterHello()
        hello.CopyFrom(self._hello)
        if self._in_force is not None:
            hello.table.CopyFrom(self._in_force)
        return hello

    def _warn_of_balancers(self, table: RoutingTable) -> None:
        """Logs once for each backend that its balancer is not the configured one."""
        unknown = {each.name: each.unknown_balancer for each in table.backends.values() if each.unknown_balancer}
        for backend, number in unknown.items():
            if self._unknown_balancers.get(backend) != number:
                _log.warning(
                    "the backend's balancer is not known to this version, another one stands in: update the router",
                    backend=backend,
                    balancer=number,
                    stands_in=table.backends[backend].settings.balancer.name.lower(),
                    version=VERSION,
                )
        self._unknown_balancers = unknown

    def _next_frame(self) -> Request | None:
        if not self._report_due:
            return None
        self._report_due = False
        scheduler = self._dispatcher.scheduler
        linked = self._links.linked_replicas()
        return Request(
            report=membership_service_pb2.RouterReport(
                generation=scheduler.table.generation,
                revision=scheduler.table.revision,
                linked_replica_ids=[replica_id for replica_id, _ in linked],
                linked=_owners(linked),
                ended=_owners(self._links.ended_replicas()),
                loads=self._loads(),
            )
        )

    def _loads(self) -> list[mesh_pb2.BackendLoad]:
        sampled_at = timestamp_pb2.Timestamp()
        sampled_at.FromMicroseconds(round(self._dispatcher.clock.time_of_day() * 1e6))
        return [
            mesh_pb2.BackendLoad(
                backend=backend.name,
                queued=backend.account.calls,
                ongoing=backend.ongoing,
                sample_time=sampled_at,
                slot_calls=backend.slot_calls,
            )
            for backend in self._dispatcher.scheduler.topology.backends.values()
        ]


def _version(table: RoutingTable) -> dict[str, object]:
    return {"generation": table.generation, "revision": table.revision}


def _owners(replicas: Iterable[ReplicaKey]) -> Iterator[membership_service_pb2.PartitionOwner]:
    for replica_id, incarnation in replicas:
        yield membership_service_pb2.PartitionOwner(replica_id=replica_id, incarnation=incarnation)
