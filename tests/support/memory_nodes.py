"""Routers and replicas of a mesh in memory, and the wires between them."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from replica_service.convert.reports import reconciled_to_wire
from replica_service.convert.runs import questions_of, runs_of
from replica_service.core.events import PartitionsRevoked, StampEchoed
from replica_service.core.runs import RouterPeer, StartTurn
from replica_service.core.work import StartCalls
from replica_service.shell.engine import Engine
from replica_service.shell.handler.binding import bind_methods
from replica_service.shell.router_outbox import Outbox
from router_service import convert as router_convert
from router_service.core.commands import (
    AskReconcile,
    CallDelivery,
    CancelRun,
    CloseLink,
    DeliverDone,
    DeliverFailure,
    DeliverResults,
    Flush,
    NameRoster,
    OpenLink,
    ReportLoad,
    ReportRunDefect,
    RouterCommand,
)
from router_service.core.events import (
    CapacityReported,
    LanesStopped,
    LinkLost,
    LinkOpened,
    RouterEvent,
    RouterTimePassed,
    RunsCompleted,
    RunsRefused,
    ServiceTimesReported,
    SessionReconciled,
)
from router_service.core.limits.capacity import KnownReplica
from router_service.core.replicas.replica import RoutedReplica as RouterReplica
from router_service.core.rosters import ReplicaKey, RosterVersion
from router_service.core.run_states import RUN_LIFE
from router_service.core.runs import Caller
from router_service.core.scheduler import RouterScheduler
from slotmesh.convert.batches import FramePayloads, ids_from_wire, ranges_from_wire, ranges_to_wire
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.handlers import describe
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.status import from_wire
from slotmesh.streams.spliced_frames import whole
from slotmesh.v1 import call_pb2
from tests.support.fakes.clock import FakeClock
from tests.support.hand_executor import HandExecutor, Running

ENDPOINT: Final = "e"
METHOD: Final = "append"
MAX_ONGOING: Final = 3
SILENCE_S: Final = 4.0
"""After which a router gives up a replica that it does not hear."""

Request = replica_service_pb2.ExecuteRequest
Response = replica_service_pb2.ExecuteResponse

BROKEN: Final = Failure(reason=Reason.HANDLER_ERROR, message="ValueError: no", executed=Executed.YES)


@dataclass(eq=False)
class Wire:
    """One Execute stream."""

    router: RouterNode
    replica: ReplicaNode
    core: RouterReplica
    """The replica, as the router knows it."""
    link: RouterPeer
    outbox: Outbox
    down: deque[Request] = field(default_factory=deque)
    """Frames on their way to the replica."""
    up: deque[Response] = field(default_factory=deque)
    is_held: bool = False
    """The network delivers nothing, and says nothing."""
    is_left: bool = False
    """The router has ended it; the replica reads what is under way, and then knows."""
    is_up: bool = False
    """The router has heard what the replica can take."""
    heard_at: float = 0.0


class ReplicaNode:
    """One incarnation of a replica."""

    def __init__(self, key: ReplicaKey, time: FakeClock, loop: asyncio.AbstractEventLoop) -> None:
        self.key = key
        self.is_alive = True
        self.is_stopped = False
        """It stands still, and time goes on."""
        self.wires: list[Wire] = []
        self.engine = loop.run_until_complete(_make_engine(time))
        self.executor = HandExecutor(self.engine.outcomes, time.now)
        executors: Any = self.engine._executors
        executors.by_method[METHOD] = self.executor  # instead of those that run by themselves
        executors.all = (self.executor,)
        self._time = time

    def connect(self, router: RouterNode, core: RouterReplica) -> Wire:
        """A router opens a stream."""
        link, outbox = self.engine.open()
        outbox.hurry()  # whoever looks for a frame takes what there is
        wire = Wire(router, self, core, link, outbox, heard_at=self._time.now())
        self.wires.append(wire)
        self.flush()
        return wire

    def accept(self, wire: Wire) -> None:
        """Takes the next frame of the wire."""
        request = wire.down.popleft()
        match request.WhichOneof("frame"):
            case "runs":
                runs, rejected, announced = runs_of(request.runs, wire.link, self._time.now())
                assert not announced
                self.engine.submit(runs, rejected)
            case "cancel":
                cancel = request.cancel
                ranges = ranges_from_wire(cancel.runs)
                self.engine.cancel(wire.link, ranges, tells_stopped=cancel.tell_stopped)
            case "ack":
                self.engine.acknowledge(wire.link, ranges_from_wire(request.ack.runs))
            case "reconcile":
                answers = self.engine.reconcile(questions_of(request.reconcile))
                for answer in reconciled_to_wire(answers):
                    wire.outbox.reconciled(answer)
            case frame:
                raise AssertionError(frame)
        self.flush()

    def echoed(self, wire: Wire) -> None:
        """The router has answered a sign of life of this very moment."""
        self.engine.post(StampEchoed(wire.link, self._time.now()))
        self.flush()

    def close(self, wire: Wire) -> None:
        """The wire has ended, and this side knows."""
        self.wires.remove(wire)
        self.engine.close(wire.link)
        self.flush()

    def begin(self, work: StartCalls | StartTurn) -> Running | None:
        running = self.executor.begin(work)
        self.flush()
        return running

    def end(self, running: Running, *, failure: Failure | None = None) -> None:
        self.executor.end(running, failure=failure)
        self.flush()

    def revoke(self, partition: int, epoch: int) -> None:
        """The partition is about to move away."""
        self.engine.post(PartitionsRevoked({ENDPOINT: {partition: epoch}}))
        self.flush()

    def is_emptied(self, partition: int) -> bool:
        return self.engine.scheduler.is_emptied(ENDPOINT, partition)

    def flush(self) -> None:
        """Everything that is to be said is under way."""
        for wire in self.wires:
            while (frame := wire.outbox.next_frame()) is not None:
                wire.up.append(whole(frame))


class RouterNode:
    """One life of a router."""

    def __init__(self, name: str, time: FakeClock, seed: int) -> None:
        self.name = name
        self.scheduler = RouterScheduler(random.Random(seed).random)
        self.replicas: dict[ReplicaKey, RouterReplica] = {}
        self.wires: dict[KnownReplica, Wire] = {}
        self.inboxes: dict[Caller, list[CallDelivery]] = {}
        """What leaves for each caller that is connected."""
        self.named: dict[Caller, RosterVersion] = {}
        """The newest roster that the client of each was told of, as far as it has not acknowledged it."""
        self.to_flush: dict[RouterReplica, None] = {}
        self.is_lazy = False
        """Frames are cut when somebody says so."""
        self._time = time

    @property
    def now(self) -> float:
        return self._time.now()

    def step(self, event: RouterEvent) -> None:
        """Something happens, now; commands are carried out."""
        self.do(self.scheduler.step(event, self.now))

    def do(self, commands: Iterable[RouterCommand]) -> None:
        """Carries commands out."""
        for command in commands:
            match command:
                case OpenLink(replica):
                    self.replicas[replica.key] = replica
                case CloseLink(replica):
                    del self.replicas[replica.key]
                    self.to_flush.pop(replica, None)
                    if (wire := self.wires.pop(replica, None)) is not None:
                        wire.is_left = True
                case Flush(replica):
                    self.to_flush[replica] = None
                case CancelRun(sent, lo, count, asks):
                    self.cancel(sent.replica, sent.first + lo, count, asks=asks)
                case AskReconcile(replica, session):
                    self.wires[replica].down.append(Request(reconcile=router_convert.reconcile_of([session])))
                case NameRoster(caller, version):
                    if caller in self.inboxes:
                        self.named[caller] = version
                case DeliverResults() | DeliverFailure() | DeliverDone():
                    if (inbox := self.inboxes.get(command.caller)) is not None:
                        inbox.append(command)
                case ReportRunDefect(state, event):
                    raise AssertionError(RUN_LIFE.impossible(state, event))
                case ReportLoad():
                    pass  # there is no controller
                case _:
                    raise AssertionError(command)
        if not self.is_lazy:
            self.cut_all()

    def forget(self, replica: KnownReplica, links: int, first: int, count: int) -> None:
        """Replicas need not keep these outcomes."""
        wire = self.wires.get(replica)
        if wire is not None and replica.links == links and wire.is_up:
            runs = ranges_to_wire([(first, first + count - 1)])
            wire.down.append(Request(ack=replica_service_pb2.AckRuns(runs=runs)))

    def cancel(self, replica: KnownReplica, first: int, count: int, *, asks: bool) -> None:
        """Nobody waits for these runs."""
        if (wire := self.wires.get(replica)) is not None:
            runs = ranges_to_wire([(first, first + count - 1)])
            wire.down.append(Request(cancel=replica_service_pb2.CancelRuns(runs=runs, tell_stopped=asks)))

    def cut_all(self) -> None:
        """Everything that is to be said is under way."""
        while self.to_flush:
            replica = next(iter(self.to_flush))
            del self.to_flush[replica]
            while batches := self.scheduler.cut_frame(replica, 16, 10**6):
                request = Request()
                payloads = FramePayloads(len(batches))
                for batch in batches:
                    large = router_convert.add_batch(request.runs, batch, payloads, self.now)
                    assert not list(large)
                assert not payloads.beside
                self.wires[replica].down.append(request)

    def accept(self, wire: Wire) -> None:
        """Takes the next frame of the wire."""
        response, replica = wire.up.popleft(), wire.core
        wire.heard_at = self.now
        capacity = router_convert.capacity_from_wire(response.capacity)
        match response.WhichOneof("frame"):
            case "opened":
                wire.is_up = True
                self.step(LinkOpened(replica, capacity))
            case None:
                self.step(CapacityReported(replica, capacity))
            case "results":
                frame = response.results
                results = router_convert.results_of(frame, lambda batch: list(batch.payloads))
                failures = router_convert.failures_of(response)
                done = ids_from_wire(frame.done)
                self.step(RunsCompleted(replica, results, failures, capacity, done))
            case "refused":
                refused = response.refused
                ids = ids_from_wire(refused.runs)
                self.step(RunsRefused(replica, ids, from_wire(refused.failure), capacity))
            case "service_times":
                self.step(ServiceTimesReported(replica, router_convert.times_of(response.service_times)))
            case "stopped":
                self.step(LanesStopped(replica, ranges_from_wire(response.stopped.runs)))
            case "reconciled":
                for session_id, epoch, found in router_convert.found_of(response.reconciled):
                    self.step(SessionReconciled(replica, session_id, epoch, found))
            case frame:
                raise AssertionError(frame)

    def lose(self, wire: Wire) -> None:
        """The wire has ended, and this side knows."""
        del self.wires[wire.core]
        wire.is_left = True
        if wire.is_up:
            self.step(LinkLost(wire.core, "it broke"))
        self.to_flush.pop(wire.core, None)

    def tick(self) -> None:
        """Time has passed."""
        self.step(RouterTimePassed())
        for wire in list(self.wires.values()):
            if wire.heard_at + SILENCE_S <= self.now:
                self.lose(wire)


class _Ledger:
    """What is described to engines; what their executors do, tests decide."""

    async def append(self, payload: bytes) -> bytes:
        return payload


async def _make_engine(time: FakeClock) -> Engine:
    return Engine(bind_methods(_Ledger(), describe(_Ledger)), time, max_ongoing=MAX_ONGOING, prefetch=2)


def wire_options(
    key: str, *, idempotent: bool, timeout_s: float = 0.0, stop_generation: int = 0
) -> call_pb2.CallOptions:
    """Options of a call, as clients send them. Without a timeout where it is 0."""
    options = call_pb2.CallOptions(
        method=METHOD,
        content_type="application/octet-stream",
        ordering_key=key,
        idempotent=idempotent,
    )
    if stop_generation:
        options.stream.stop_generation = stop_generation
    if timeout_s:
        options.timeout.FromNanoseconds(round(timeout_s * 1e9))
    return options
