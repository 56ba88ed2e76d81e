"""The router's membership: an AttachRouter stream, kept up while the router runs.

Purpose: identifies the router and reports its state; takes each routing table or delta, and acknowledges it. Of several
controllers, it follows the leader.
Invariants: the last table stays in use while the controller is unreachable, and until one arrives that may replace it;
each report names the current table and the links that work when it is written.
Owner: the app, which runs `run` and `tick` as tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import grpc

from router_service import convert
from router_service.core.events import TableReceived
from router_service.core.rosters import ReplicaKey
from router_service.core.routing_table import DeltaMismatch, RoutingTable, TableDelta, follow_delta
from router_service.shell.dispatcher import Dispatcher
from router_service.shell.reports import LinkReport, load_report
from slotmesh.grpc_internals.call_writer import writer_of
from slotmesh.internal.v1 import membership_service_pb2, membership_service_pb2_grpc
from slotmesh.logs import get_logger
from slotmesh.names import sendable_text
from slotmesh.runtime.backoff import Backoff, WarningBackoff
from slotmesh.runtime.channels import Dialer
from slotmesh.spec.model import BUILT_IN_BALANCERS
from slotmesh.status import from_rpc_error
from slotmesh.streams.leadership import TermFence
from slotmesh.transport.current_channel import ControllerChannels
from slotmesh.transport.duplex import TRANSPORT_ERRORS, read_frame, run_stream
from slotmesh.transport.pump import StreamPump
from slotmesh.transport.server_addresses import ServerAddresses
from slotmesh.version import VERSION

Request = membership_service_pb2.AttachRouterRequest
Response = membership_service_pb2.AttachRouterResponse
AttachRouterCall = grpc.aio.StreamStreamCall[Request, Response]

REPORT_EVERY_S = 1.0
GOODBYE_S = 5.0
"""How long the last report may take to reach the controller."""
MAX_END_REASON_CHARS = 300
MAX_UNKNOWN_BALANCERS = 100
LOAD_REST_S = 0.1
"""Minimum interval of reports triggered by load, so that callers that call and cancel do not cause a storm of them."""

_log = get_logger(__name__)


class TableWatch:
    """Attaches to the controller that leads, again and again."""

    def __init__(
        self,
        controllers: ServerAddresses,
        hello: membership_service_pb2.RouterHello,
        dispatcher: Dispatcher,
        links: LinkReport,
        backoff: Backoff,
        dialer: Dialer,
    ) -> None:
        self._channels = ControllerChannels(controllers, dialer)
        self._search = self._channels.search
        self._terms = TermFence()
        self._hello = hello
        self._dispatcher = dispatcher
        self._links = links
        self._backoff = backoff
        self._warnings = WarningBackoff()
        self._pump: StreamPump[Request] | None = None
        self._call: AttachRouterCall | None = None
        self._end_reason = ""
        self.is_over = False
        """`goodbye` was called: no stream follows on the present one."""
        self._written = asyncio.Event()
        """Nothing is left to be written after the goodbye."""
        self._ended = asyncio.Event()
        """The stream of the goodbye has ended."""
        self._from_stream: RoutingTable | None = None
        """The newest table that arrived on this stream and was applied: the next delta may be based on it."""
        self._parts: convert.TableAssembly | convert.DeltaAssembly | None = None
        """What has arrived of a table, or of a delta, whose last part has not."""
        self._is_whole_due = False
        """A delta did not apply: the controller is to be asked for the whole table."""
        self._report_due = False
        self._load_reported_at = float("-inf")
        """When the load last asked for a report, seconds (monotonic)."""
        self._unknown_balancers: dict[str, str] = {}
        """Balancers of backends in the newest table that this router does not know. A warning was logged for each."""

    def report_soon(self) -> None:
        """Something that is part of reports has changed."""
        self._report_due = True
        if self._pump is not None:
            self._pump.wake()

    def load_waits(self) -> None:
        """Calls wait though no replica takes any: this is reported to the controller immediately."""
        now = self._dispatcher.clock.now()
        if now - self._load_reported_at >= LOAD_REST_S:
            self._load_reported_at = now
            self.report_soon()

    def ends(self, reason: str) -> None:
        """The router begins to end. `reason`: for people."""
        self._end_reason = sendable_text(reason, MAX_END_REASON_CHARS)
        self.report_soon()

    async def goodbye(self) -> None:
        """Writes the last report and half-closes; returns when the controller has read it, or after `GOODBYE_S`."""
        self.is_over = True
        if self._call is None:
            return
        self.report_soon()
        try:
            async with asyncio.timeout(GOODBYE_S):
                await self._written.wait()
                await self._call.done_writing()
                await self._ended.wait()
        except (TimeoutError, *TRANSPORT_ERRORS):
            _log.warning("the controller did not read the last report", controller=self._search.current)

    async def run(self) -> None:
        """Attaches until cancelled, or `goodbye` has ended the stream."""
        async with self._channels as channels:
            while not self.is_over:
                controller, is_referred, why = channels.address, False, ""
                try:
                    stub = membership_service_pb2_grpc.MembershipServiceStub(await channels.current())
                    controller = channels.address
                    why = await self._converse(stub.AttachRouter())
                    channels.failed()
                except grpc.aio.AioRpcError as error:
                    is_referred = channels.refused(from_rpc_error(error))
                    why = f"{error.code().name}: {channels.explained(error.details() or '')}"
                if self.is_over:
                    return
                self._log_end(controller, why, is_referred=is_referred)
                if not is_referred:
                    await asyncio.sleep(self._backoff.next_delay_s())

    def _log_end(self, controller: str, why: str, *, is_referred: bool) -> None:
        left_out = self._warnings.take(self._dispatcher.clock.now())
        if left_out is None:
            return
        log = _log.info if is_referred else _log.warning
        log(
            "controller link ended; the last routing table stays in force"
            if self._dispatcher.scheduler.table.revision
            else "controller link ended; there is no routing table yet, and no call is served before there is one",
            controller=controller,
            reason=why,
            next=self._search.current,
            **({"times_before": left_out} if left_out else {}),
        )

    async def tick(self) -> None:
        """Reports every second until cancelled."""
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            self.report_soon()

    async def _converse(self, call: AttachRouterCall) -> str:
        """One stream, from hello to its end; returns why the router, or the controller, ended it."""
        write = writer_of(call)
        self._call, self._pump = call, StreamPump(write, self._next_frame)
        self._from_stream, self._is_whole_due, self._parts = None, False, None
        try:
            for frame in self._first_frames():
                await write(frame)
            self._report_due = True
            return await run_stream(self._pump, self._read(call))
        finally:
            self._call = self._pump = None
            self._ended.set()
            call.cancel()

    async def _read(self, call: AttachRouterCall) -> str:
        generation = ""
        while (response := await read_frame(call)) is not None:
            generation = response.table_part.table.generation or generation
            if generation and not self._terms.obeys(generation, response.term):
                return f"it leads under term {response.term}, and a newer one is known"
            self._search.announced(response.controller_addresses)
            match response.WhichOneof("frame"):
                case "table_part":
                    self._backoff.reset()
                    self._warnings.reset()
                    self._take_part(response.table_part)
                case None if response.is_on_hold:
                    self._backoff.reset()
                    _log.warning(
                        "the controller is on hold, since its state file is older than what members hold: it sends no"
                        " table, and a router that is started again now gets none",
                        controller=self._search.current,
                        **_version(self._dispatcher.scheduler.table),
                    )
                case None:
                    pass  # a message of a newer controller
        return "the controller ended the stream"

    def _take_part(self, part: membership_service_pb2.TablePart) -> None:
        """Nothing changes before the last part has arrived. Parts of a kind that is not known are left out."""
        if part.is_first:
            before = self._dispatcher.scheduler.table
            self._parts = None
            match part.WhichOneof("of"):
                case "table":
                    self._parts = convert.TableAssembly(part.table, before)
                case "delta":
                    self._parts = convert.DeltaAssembly(part.delta, before)
                case None:
                    pass  # of a newer controller
        match self._parts:
            case convert.TableAssembly() as table:
                table.add(part.table)
                if part.is_last:
                    self._parts = None
                    self._take(table.finish())
            case convert.DeltaAssembly() as delta:
                self._take_delta(partial(self._delta_of, delta, part))
            case None:
                pass

    def _delta_of(
        self, delta: convert.DeltaAssembly, part: membership_service_pb2.TablePart, _before: RoutingTable
    ) -> TableDelta | None:
        """The delta, if this is its last part. Raises DeltaMismatch: then the parts that follow are left out."""
        self._parts = None
        delta.add(part.delta)
        if part.is_last:
            return delta.finish()
        self._parts = delta
        return None

    def _take_delta(self, read: Callable[[RoutingTable], TableDelta | None]) -> None:
        """The table that follows, or a request for the whole one: of the same revision there may be other tables.

        A store that was put back to an older copy counts revisions again that there have been. So a delta applies only
        to a table that this stream has carried.
        """
        table = self._dispatcher.scheduler.table
        try:
            if table is not self._from_stream:
                raise DeltaMismatch("the table in force did not come on this stream")
            if (delta := read(table)) is not None:
                self._take(follow_delta(table, delta))
        except DeltaMismatch as mismatch:
            _log.info("a delta does not apply: the whole table is asked for", reason=str(mismatch), **_version(table))
            self._is_whole_due = True
            self.report_soon()

    def _take(self, table: RoutingTable) -> None:
        self._dispatcher.post(TableReceived(table, self._hello.address))
        if self._dispatcher.scheduler.table is not table:
            _log.info("routing table passed over: it is older, or does not cover the one in force", **_version(table))
            return
        self._from_stream = table
        self._warn_of_balancers()
        _log.info(
            "routing table applied",
            endpoints=len(table.endpoints),
            replicas=sum(len(backend.replicas) for backend in table.backends.values()),
            **_version(table),
        )
        self._dispatcher.first_table.came()
        self.report_soon()

    def _first_frames(self) -> Iterator[Request]:
        """The parts of the current table, and the hello: a controller without state learns from the table."""
        if (table := self._dispatcher.scheduler.table).revision:
            yield from (Request(table_part=part) for part in convert.table_to_parts(table))
        yield Request(hello=self._hello)

    def _warn_of_balancers(self) -> None:
        """Logs once for each backend that its balancer is not the configured one."""
        backends = self._dispatcher.scheduler.topology.backends.values()
        unknown = {each.name: each.balancer_name for each in backends if not each.has_its_balancer}
        for backend, name in unknown.items():
            if self._unknown_balancers.get(backend) != name:
                _log.warning(
                    "this router does not have the backend's balancer, another one stands in: start it with"
                    " --balancers, install what has the entry point, or update the router",
                    backend=backend,
                    balancer=name,
                    stands_in=BUILT_IN_BALANCERS[0],
                    version=VERSION,
                )
        self._unknown_balancers = unknown

    def _next_frame(self) -> Request | None:
        if self._is_whole_due:
            self._is_whole_due = False
            table = self._dispatcher.scheduler.table
            return Request(
                table_request=membership_service_pb2.TableRequest(generation=table.generation, revision=table.revision)
            )
        if not self._report_due or self._written.is_set():
            if self.is_over:
                self._written.set()
            return None
        self._report_due = False
        scheduler = self._dispatcher.scheduler
        return Request(
            report=membership_service_pb2.RouterReport(
                generation=scheduler.table.generation,
                revision=scheduler.table.revision,
                linked=_owners(self._links.linked_replicas()),
                links_subset=scheduler.topology.links.is_partial,
                unlinked=_owners(self._links.unlinked_replicas()),
                unknown_balancers=sorted({*self._unknown_balancers.values()})[:MAX_UNKNOWN_BALANCERS],
                ended=_owners(self._links.ended_replicas()),
                end_reason=self._end_reason,
                **load_report(scheduler, self._dispatcher.clock),
            )
        )


def _version(table: RoutingTable) -> dict[str, object]:
    return {"generation": table.generation, "revision": table.revision}


def _owners(replicas: Iterable[ReplicaKey]) -> Iterator[membership_service_pb2.PartitionOwner]:
    for replica_id, incarnation in replicas:
        yield membership_service_pb2.PartitionOwner(replica_id=replica_id, incarnation=incarnation)
