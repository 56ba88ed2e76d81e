"""The replica's membership: its report, and one AttachReplica stream that reconnects while the process lives.

Purpose: identifies the replica; reports its state every second and immediately after a change; receives its
configuration and orders. Revoked partitions are reported as each becomes empty, so a long call holds up only its own
partition. Of several controllers, the link follows the leader.
Invariants: the replica continues to serve while no controller is connected. The first report of a stream follows its
hello. An incarnation that was replaced does not reconnect; one that is refused for another reason tries again.
Owner: the app.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from dataclasses import replace

import grpc

from replica_service.core.lifecycle import State
from replica_service.shell.replica import HostedReplica
from replica_service.shell.stopping import ControllerAbsence, Fencing
from slotmesh.convert.specification import backend_from_wire
from slotmesh.errors import Failure, Reason
from slotmesh.grpc_internals.call_writer import writer_of
from slotmesh.internal.v1 import membership_service_pb2 as wire
from slotmesh.internal.v1 import membership_service_pb2_grpc
from slotmesh.logs import get_logger
from slotmesh.runtime.backoff import Backoff
from slotmesh.runtime.channels import PLAIN_TEXT, Dialer
from slotmesh.runtime.tasks import Supervisor
from slotmesh.status import from_rpc_error
from slotmesh.streams.leadership import TermFence
from slotmesh.transport.current_channel import ControllerChannels
from slotmesh.transport.duplex import TRANSPORT_ERRORS, read_frame, run_stream
from slotmesh.transport.pump import StreamPump
from slotmesh.transport.server_addresses import ServerAddresses

REPORT_INTERVAL_S = 1.0
GOODBYE_S = 5.0
"""How long the last report may take to reach the controller."""

_log = get_logger(__name__)


Request = wire.AttachReplicaRequest
Response = wire.AttachReplicaResponse
AttachReplicaCall = grpc.aio.StreamStreamCall[Request, Response]


class ControllerLink:
    """Attaches the replica to the leading controller, again after each disconnection."""

    def __init__(
        self,
        addresses: ServerAddresses,
        hello: wire.ReplicaHello,
        member: HostedReplica,
        backoff: Backoff,
        *,
        orphan_timeout_s: float | None = None,
        dialer: Dialer = PLAIN_TEXT,
        fencing: Fencing | None = None,
    ) -> None:
        """`fencing`: follows acknowledgements of reports; None: the replica needs none.

        `orphan_timeout_s`: how long the replica continues without a controller before it drains; None: without limit.
        """
        self._channels = ControllerChannels(addresses, dialer)
        self._search = self._channels.search
        self._fencing = fencing
        self._terms = TermFence()
        self._absence = ControllerAbsence(self._known_controllers, orphan_timeout_s, member.drain)
        self._hello = hello
        self._member = member
        self._backoff = backoff
        self._call: AttachReplicaCall | None = None
        self._pump: StreamPump[Request] | None = None
        self._pending: deque[Request] = deque()
        self._is_report_due = False
        self.is_over = False
        """`goodbye` was called, or another incarnation took over: `run` returns."""
        self._refusal = ""
        """The failure with which the controller refused the last hello."""
        self._is_unknown = False
        """The controller has no backend of this name."""
        self._written = asyncio.Event()
        """The last frame was written after `goodbye`."""
        self._ended = asyncio.Event()
        """The stream of the goodbye has ended."""
        self.is_end_known = False
        """The controller has read the last report."""

    def _known_controllers(self) -> str:
        return ",".join(self._search.known) or self._channels.address

    async def run(self) -> None:
        """Keeps the replica attached; returns after `goodbye`, or when another incarnation took over."""
        async with self._channels as channels:
            while not self.is_over:
                call, is_referred = None, False
                try:
                    stub = membership_service_pb2_grpc.MembershipServiceStub(await channels.current())
                    call = stub.AttachReplica()
                    async with Supervisor(on_failure=call.cancel) as tasks:
                        why = await self._converse(call, tasks)
                except grpc.aio.AioRpcError as error:
                    failure = from_rpc_error(error)
                    failure = replace(failure, message=channels.explained(failure.message))
                    if failure.reason is Reason.REPLICA_GONE:
                        _log.error("the controller refuses this incarnation for good", reason=failure.message)
                        self._absence.end()
                        self._member.drain(f"refused by the controller: {failure.message}")
                        self.is_over = True
                    is_referred = channels.refused(failure)
                    if not is_referred:
                        self._refused(failure)
                except TRANSPORT_ERRORS as error:
                    channels.failed()
                    self._away(str(error))
                else:
                    channels.failed()
                    self._away(why)
                finally:
                    self._call = self._pump = None
                    self._ended.set()
                    if call is not None:
                        call.cancel()
                if is_referred:
                    continue
                if not self.is_over:
                    await asyncio.sleep(self._backoff.next_delay_s())

    def _refused(self, failure: Failure) -> None:
        """Logs a refusal that an operator has to resolve, once."""
        if failure.reason is not Reason.BAD_REQUEST:
            self._away(failure.message)
            return
        self._absence.end()
        if failure.message != self._refusal:
            self._refusal = failure.message
            _log.error("the controller refuses this replica; it tries again", reason=failure.message)

    def _away(self, reason: str) -> None:
        if not self.is_over:
            self._absence.begin(reason)

    def report_soon(self) -> None:
        """Reports immediately instead of with the next interval."""
        self._is_report_due = True
        if self._pump is not None:
            self._pump.wake()

    async def goodbye(self) -> None:
        """Writes the last report and half-closes; returns when the controller has read it, or after `GOODBYE_S`."""
        self.is_over = True
        self._absence.end()
        if self._call is None:
            return
        self._ended.clear()
        self.report_soon()
        try:
            async with asyncio.timeout(GOODBYE_S):
                await self._written.wait()
                await self._call.done_writing()
                await self._ended.wait()
        except (TimeoutError, *TRANSPORT_ERRORS):
            _log.warning("the controller did not receive the last report", address=self._search.current)

    async def _converse(self, call: AttachReplicaCall, tasks: Supervisor) -> str:
        """Runs one stream from hello to its end. Returns why the replica or the controller ended it."""
        self._call = call
        self._hello.has_served = self._member.state is not State.STARTING
        self._hello.newest_epoch = self._member.newest_epoch
        # Sent by the pump, so that a refused stream always ends with the controller's error, not with a failed write.
        self._pending = deque([Request(hello=self._hello)])
        pump = self._pump = StreamPump(writer_of(call), self._next_frame)
        self.report_soon()
        tasks.keep(self._tick, name="reports")
        return await run_stream(pump, self._read(call, pump, tasks))

    async def _read(self, call: AttachReplicaCall, pump: StreamPump[Request], tasks: Supervisor) -> str:
        generation = ""
        while (frame := await read_frame(call)) is not None:
            if frame.WhichOneof("frame") == "configuration":
                generation = frame.configuration.generation
            if not self._terms.obeys(generation, frame.term):
                return f"it leads under term {frame.term}, and a newer term is known"
            self._absence.end(is_attached=True)  # only a controller that leads sends frames
            self._handle(frame, pump, tasks)
        self.is_end_known = self._written.is_set()
        return "it has ended the stream"

    def _handle(self, frame: Response, pump: StreamPump[Request], tasks: Supervisor) -> None:
        match frame.WhichOneof("frame"):
            case "configuration":
                self._backoff.reset()
                self._refusal = ""
                for name in ("generation", "revision", "term_id"):
                    setattr(self._hello, name, getattr(frame.configuration, name))
                self._search.announced(frame.configuration.controller_addresses)
                _log.info("attached", controller=self._search.current)
                self._log_whether_known(frame.configuration)
                self._follow_rank(frame.configuration)
                self._member.follow_routers(frame.configuration.router_addresses)
                if not self._is_unknown:  # otherwise nothing in it is of this backend
                    backend, _ = backend_from_wire(frame.configuration.backend)
                    self._member.configure(backend)
            case "drain":
                self._member.drain(f"ordered by the controller: {frame.drain.message}")
            case "revoke":
                tasks.start(self._revoke(frame.revoke, pump), name="revocation")
                if frame.revoke.through_epoch:
                    self._fence(frame.revoke.through_epoch, pump)
            case "acknowledged":
                if self._fencing is not None:
                    self._fencing.acknowledged(frame.acknowledged.stamp)
            case "on_hold":
                self._backoff.reset()
                self._refusal = ""
                self._log_hold(is_starting=frame.on_hold.is_starting)
            case unknown:
                _log.warning("unknown frame of a newer controller ignored", frame=unknown)

    def _follow_rank(self, configuration: wire.ReplicaConfiguration) -> None:
        """A controller of an earlier version assigns no ranks: what a newer one has assigned before is kept."""
        if configuration.HasField("rank"):
            self._hello.rank = configuration.rank
            self._member.follow_rank(configuration.rank, configuration.num_replicas or None)

    def _log_hold(self, *, is_starting: bool) -> None:
        if is_starting:
            _log.info("attached to a controller that has just started", controller=self._search.current)
            return
        fence = {} if self._fencing is None else {"fences_itself": "unless the hold ends before --fence-after"}
        _log.warning(
            "the controller is on hold: its state file is older than what members hold. This replica goes on as it is",
            controller=self._search.current,
            **fence,
        )

    def _log_whether_known(self, configuration: wire.ReplicaConfiguration) -> None:
        """Logs when the controller has no backend of this name, and when it has.

        Until then no router calls the replica, and its handler, which has `user_config` from the backend, does not
        start. A replica that was configured keeps its configuration.
        """
        was_unknown, self._is_unknown = self._is_unknown, configuration.is_backend_unknown
        name = self._hello.backend
        if self._is_unknown and not was_unknown:
            _log.warning(
                "the controller has no backend of this name, and the handler starts once it has: apply it (`slotmesh"
                " apply`), or correct --backend",
                backend=name,
            )
        elif was_unknown and not self._is_unknown:
            _log.info("the backend was applied", backend=name)

    async def _revoke(self, order: wire.RevokePartitions, pump: StreamPump[Request]) -> None:
        epochs: dict[str, dict[int, int]] = {}
        for each in order.endpoints:
            epochs.setdefault(each.endpoint, {}).update(zip(each.partitions, each.owner_epochs, strict=True))
        async with aclosing(self._member.revoke(epochs)) as waves:
            async for emptied in waves:
                frame = Request(emptied=wire.PartitionsEmptied())
                for endpoint, empty in emptied.items():
                    frame.emptied.endpoints.add(endpoint=endpoint, partitions=empty.keys(), owner_epochs=empty.values())
                self._pending.append(frame)
                pump.wake()

    def _fence(self, epoch: int, pump: StreamPump[Request]) -> None:
        busy = [
            wire.EndpointPartitions(endpoint=name, partitions=sorted(here), owner_epochs=[epoch] * len(here))
            for name, here in sorted(self._member.fence(epoch).items())
        ]
        self._pending.append(Request(emptied=wire.PartitionsEmptied(through_epoch=epoch, busy=busy)))
        pump.wake()

    async def _tick(self) -> None:
        while True:
            self.report_soon()
            await asyncio.sleep(REPORT_INTERVAL_S)

    def _next_frame(self) -> Request | None:
        if self._pending:
            return self._pending.popleft()
        if not self._is_report_due:
            if self.is_over:
                self._written.set()
            return None
        self._is_report_due = False
        report = self._member.report()
        if self._fencing is not None:
            report.stamp = self._fencing.stamp()
        return Request(report=report)
