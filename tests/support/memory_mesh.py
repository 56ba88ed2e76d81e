"""A mesh in memory: real cores of routers and replicas, real frames between them, time and network in a test's hands.

Routers are their schedulers; replicas are their engines, with executors that a test drives by hand. Between each two of
them is a wire with frames under way in both directions, which can be delivered one by one, held up, or broken. Nothing
here waits or polls, and nothing runs by itself.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from replica_service import convert as replica_convert
from replica_service.core.calls import Link, Run, StartTurn
from replica_service.core.commands import StartBatch, StartCalls
from replica_service.core.lane_history import is_stopped
from replica_service.core.verdicts import CANCELLED
from replica_service.shell.engine import Engine
from replica_service.shell.handler.methods import bind_methods
from replica_service.shell.links.router_outbox import Outbox
from router_service import convert as router_convert
from router_service.core.callers import Caller
from router_service.core.commands import (
    AskReconcile,
    CancelRun,
    CloseLink,
    Command,
    DeliverDone,
    DeliverFailure,
    DeliverResults,
    Flush,
    NameRoster,
    OpenLink,
    Outcome,
)
from router_service.core.replicas import Replica as RouterReplica
from router_service.core.rosters import Departure, Roster, RosterVersion
from router_service.core.scheduler import Scheduler
from router_service.core.table import BackendRoute, EndpointRoute, ReplicaKey, ReplicaRoute, RoutingTable
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.handlers import describe
from slotmesh.partitions import PARTITIONS, partition_of
from slotmesh.status import from_wire
from slotmesh.v1 import call_pb2, replica_service_pb2
from tests.fakes.clock import FakeClock

ENDPOINT: Final = "e"
BACKEND: Final = "b"
METHOD: Final = "append"
MAX_ONGOING: Final = 3
SILENCE_S: Final = 4.0
"""After which a router gives up a replica that it does not hear."""
BEAT_S: Final = 1.0

Request = replica_service_pb2.ExecuteRequest
Response = replica_service_pb2.ExecuteResponse
Work = StartCalls | StartTurn | StartBatch

BROKEN: Final = Failure(reason=Reason.HANDLER_ERROR, message="ValueError: no", executed=Executed.YES)


@dataclass(eq=False)
class Wire:
    """One Execute stream."""

    router: RouterNode
    replica: ReplicaNode
    core: RouterReplica
    """The replica, as the router knows it."""
    link: Link
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


@dataclass(eq=False)
class Running:
    """A call that a handler executes."""

    work: StartCalls | StartTurn
    run: Run
    index: int
    is_cancelled: bool = False
    """It was taken back. A handler may end by that, or go on."""

    @property
    def payload(self) -> bytes:
        return self.run.payloads[self.index]


class HandExecutor:
    """Starts and ends calls when it is told to; otherwise an executor like the others."""

    def __init__(self, sink: Engine, now: Callable[[], float]) -> None:
        self.queue: list[StartCalls | StartTurn] = []
        self.running: list[Running] = []
        self._sink = sink
        self._now = now

    def start(self, work: Work) -> None:
        assert not isinstance(work, StartBatch)
        self.queue.append(work)

    def cancel(self, link: Link, ranges: Iterable[tuple[int, int]]) -> None:
        """What runs goes on until a test ends it, by that or not."""
        for first, last in ranges:
            for each in self.running:
                if each.run.link is link and first <= each.run.first + each.index <= last:
                    each.is_cancelled = True

    def hold(self, turn: StartTurn) -> None:
        turn.stop = turn.next

    def recall(self, is_wanted: Callable[[Run], bool]) -> list[StartCalls | StartBatch]:
        recalled: list[StartCalls | StartBatch] = []
        for work in list(self.queue):
            if isinstance(work, StartCalls) and is_wanted(work.run):
                self.queue.remove(work)
                recalled.append(work)
        return recalled

    def abandon(self, link: Link) -> None:
        """Likewise."""

    def cut_off(self) -> None:
        """Likewise."""

    async def close(self) -> None:
        """Nothing is to be closed."""

    @property
    def startable(self) -> list[StartCalls | StartTurn]:
        """Work of which no call has to end first."""
        busy = {each.work for each in self.running if isinstance(each.work, StartTurn)}
        return [work for work in self.queue if work not in busy]

    def begin(self, work: StartCalls | StartTurn) -> Running | None:
        """Starts the next call of the work, if one may still start."""
        return self._begin_turn(work) if isinstance(work, StartTurn) else self._begin_call(work)

    def end(self, running: Running, *, failure: Failure | None = None) -> None:
        """The call has ended: with a result that tells whose it is, or with the failure."""
        self.running.remove(running)
        run, index = running.run, running.index
        if failure is None:
            self._sink.results(run, index, [b"result of " + running.payload])
        else:
            self._sink.failed(run, index, 1, failure)
        if isinstance(running.work, StartCalls):
            self._sink.calls_ended(run, 1)
        elif running.work.next >= running.work.stop:
            self._end_turn(running.work)

    def _begin_call(self, work: StartCalls) -> Running | None:
        if self._now() >= work.run.link.fresh_until:
            self.queue.remove(work)
            self._sink.returned(work)
            return None
        running = Running(work, work.run, work.lo)
        work.lo += 1
        if work.lo == work.hi:
            self.queue.remove(work)
        self.running.append(running)
        return running

    def _begin_turn(self, turn: StartTurn) -> Running | None:
        run = turn.run
        while turn.next < turn.stop and self._now() < run.link.fresh_until and not is_stopped(run, turn.next):
            index = turn.next
            turn.next += 1
            if run.withdrawn is None or index not in run.withdrawn:
                running = Running(turn, run, index)
                self.running.append(running)
                return running
            self._sink.failed(run, index, 1, CANCELLED)
        self._end_turn(turn)
        return None

    def _end_turn(self, turn: StartTurn) -> None:
        self.queue.remove(turn)
        self._sink.turn_ended(turn, turn.next)


class ReplicaNode:
    """One incarnation of a replica."""

    def __init__(self, key: ReplicaKey, time: FakeClock, loop: asyncio.AbstractEventLoop) -> None:
        self.key = key
        self.is_alive = True
        self.is_stopped = False
        """It stands still, and time goes on."""
        self.wires: list[Wire] = []
        self.engine = loop.run_until_complete(_make_engine(time))
        self.executor = HandExecutor(self.engine, time.now)
        executors: Any = self.engine._executors
        executors.by_method[METHOD] = self.executor  # instead of those that run by themselves
        executors.all = (self.executor,)
        self._time = time

    def connect(self, router: RouterNode, core: RouterReplica) -> Wire:
        """A router opens a stream."""
        link, outbox = self.engine.open(echoes=True)
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
                runs, rejected, announced = replica_convert.runs_of(request.runs, wire.link, self._time.now())
                assert not announced
                self.engine.submit(runs, rejected)
            case "cancel":
                cancel = request.cancel
                ranges = replica_convert.ranges_of(cancel.runs)
                self.engine.cancel(wire.link, ranges, tells_stopped=cancel.tell_stopped)
            case "ack":
                self.engine.acknowledge(wire.link, replica_convert.ranges_of(request.ack.runs))
            case "reconcile":
                answers = self.engine.reconcile(replica_convert.questions_of(request.reconcile))
                for answer in replica_convert.reconciled_to_wire(answers):
                    wire.outbox.reconciled(answer)
            case frame:
                raise AssertionError(frame)
        self.flush()

    def echoed(self, wire: Wire) -> None:
        """The router has answered a sign of life of this very moment."""
        self.engine.echoed(wire.link, self._time.now())
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
        core: Any = self.engine
        core._carry_out(self.engine.scheduler.revoke(ENDPOINT, {partition: epoch}, self._time.now()))
        self.flush()

    def is_emptied(self, partition: int) -> bool:
        return self.engine.scheduler.is_emptied(ENDPOINT, partition)

    def flush(self) -> None:
        """Everything that is to be said is under way."""
        for wire in self.wires:
            while (frame := wire.outbox.next_frame()) is not None:
                wire.up.append(frame)


class RouterNode:
    """One life of a router."""

    def __init__(self, name: str, time: FakeClock, seed: int) -> None:
        self.name = name
        self.scheduler = Scheduler(random.Random(seed).random)
        self.replicas: dict[ReplicaKey, RouterReplica] = {}
        self.wires: dict[RouterReplica, Wire] = {}
        self.inboxes: dict[Caller, list[Outcome]] = {}
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

    def do(self, commands: Iterable[Command]) -> None:
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
                case _:
                    raise AssertionError(command)
        if not self.is_lazy:
            self.cut_all()

    def forget(self, replica: RouterReplica, links: int, first: int, count: int) -> None:
        """Replicas need not keep these outcomes."""
        wire = self.wires.get(replica)
        if wire is not None and replica.links == links and wire.is_up:
            runs = router_convert.ranges_to_wire([(first, first + count - 1)])
            wire.down.append(Request(ack=replica_service_pb2.AckRuns(runs=runs)))

    def cancel(self, replica: RouterReplica, first: int, count: int, *, asks: bool) -> None:
        """Nobody waits for these runs."""
        if (wire := self.wires.get(replica)) is not None:
            runs = router_convert.ranges_to_wire([(first, first + count - 1)])
            wire.down.append(Request(cancel=replica_service_pb2.CancelRuns(runs=runs, tell_stopped=asks)))

    def cut_all(self) -> None:
        """Everything that is to be said is under way."""
        while self.to_flush:
            replica = next(iter(self.to_flush))
            del self.to_flush[replica]
            while batches := self.scheduler.cut_frame(replica, 16, 10**6):
                request = Request()
                for batch in batches:
                    large = router_convert.add_batch(request.runs, batch, self.now)
                    assert not list(large)
                self.wires[replica].down.append(request)

    def accept(self, wire: Wire) -> None:
        """Takes the next frame of the wire."""
        response, replica, core = wire.up.popleft(), wire.core, self.scheduler
        wire.heard_at = self.now
        match response.WhichOneof("frame"):
            case "capacity":
                capacity = router_convert.capacity_from_wire(response.capacity)
                if wire.is_up:
                    self.do(core.capacity_changed(replica, capacity, self.now))
                else:
                    wire.is_up = True
                    self.do(core.link_up(replica, capacity, self.now))
            case "results":
                frame = response.results
                results = router_convert.results_of(frame, lambda batch: list(batch.payloads))
                failures = router_convert.failures_of(frame)
                done = router_convert.run_ids_of(frame.done)
                capacity = router_convert.capacity_from_wire(frame.capacity)
                self.do(core.completed(replica, results, failures, capacity, self.now, done))
            case "refused":
                refused = response.refused
                capacity = router_convert.capacity_from_wire(refused.capacity)
                ids = router_convert.run_ids_of(refused.runs)
                self.do(core.refused(replica, ids, from_wire(refused.failure), capacity, self.now))
            case "stopped":
                self.do(core.stopped(replica, router_convert.ranges_of(response.stopped.runs), self.now))
            case "reconciled":
                for session_id, epoch, found in router_convert.found_of(response.reconciled):
                    self.do(core.reconciled(replica, session_id, epoch, found, self.now))
            case frame:
                raise AssertionError(frame)

    def lose(self, wire: Wire) -> None:
        """The wire has ended, and this side knows."""
        del self.wires[wire.core]
        wire.is_left = True
        if wire.is_up:
            self.do(self.scheduler.link_down(wire.core, "it broke", self.now))
        self.to_flush.pop(wire.core, None)

    def tick(self) -> None:
        """Time has passed."""
        self.do(self.scheduler.expire(self.now))
        for wire in list(self.wires.values()):
            if wire.heard_at + SILENCE_S <= self.now:
                self.lose(wire)


class MemoryMesh:
    """Two routers, some replicas, and a controller that knows who owns what."""

    def __init__(self, replicas: int, keys: Iterable[str], loop: asyncio.AbstractEventLoop) -> None:
        self.time = FakeClock()
        self._loop = loop
        self._lives = 0
        self._revision = 0
        self._roster = Roster(RosterVersion("g", 0))
        self._listed: set[ReplicaKey] = set()
        self.replicas = {f"replica-{number}": self._new_replica(f"replica-{number}") for number in range(replicas)}
        names = sorted(self.replicas)
        self.owners = {partition_of(key): (self.replicas[names[at % len(names)]].key, 1) for at, key in enumerate(keys)}
        self.moving: dict[int, str] = {}
        """Partitions that their owner gives up, and the replicas they go to."""
        self.tables: list[RoutingTable] = []
        self._new_table()
        self.routers = [self._new_router(number) for number in range(2)]

    # -- the controller --------------------------------------------------------------------------------------------

    def push(self, router: RouterNode) -> None:
        """The router gets the newest table."""
        router.do(router.scheduler.apply(self.tables[-1], self.time.now()))

    def move(self, partition: int, to: str) -> None:
        """The partition is to move to another replica, once its owner has nothing of it."""
        (owner, _), epoch = self.owners[partition]
        if to != owner and partition not in self.moving:
            self.moving[partition] = to
            self.replicas[owner].revoke(partition, epoch)
            self.complete_moves()

    def complete_moves(self) -> None:
        for partition, to in list(self.moving.items()):
            (owner, _), epoch = self.owners[partition]
            if self.replicas[owner].is_emptied(partition):
                del self.moving[partition]
                self.owners[partition] = (self.replicas[to].key, epoch + 1)
                self._new_table()

    # -- what breaks -----------------------------------------------------------------------------------------------

    def kill_router(self, number: int, seed: int) -> None:
        """It is gone with all it knew, and another one takes its place. Replicas notice when their wires end."""
        router = self.routers[number]
        for wire in list(router.wires.values()):
            wire.is_left = True
        self.routers[number] = self._new_router(number, seed)

    def kill_replica(self, name: str) -> None:
        """Its routers notice at once, the controller gives its partitions to others."""
        old = self.replicas[name]
        old.is_alive = False
        for wire in list(old.wires):
            if wire.router.wires.get(wire.core) is wire:
                wire.up.clear()
                wire.router.lose(wire)
        old.wires.clear()
        self.replicas[name] = self._new_replica(name)
        others = [each for each in sorted(self.replicas) if each != name]
        for partition, ((owner, _), epoch) in self.owners.items():
            if owner == name:
                self.moving.pop(partition, None)
                self.owners[partition] = (self.replicas[others[partition % len(others)]].key, epoch + 1)
            elif self.moving.get(partition) == name:
                continue  # it moves to the new incarnation
        self._new_table()

    def join(self) -> None:
        """One more replica, of which routers hear by and by."""
        name = f"replica-{len(self.replicas)}"
        self.replicas[name] = self._new_replica(name)
        self._new_table()

    def break_wire(self, wire: Wire) -> None:
        """Both sides notice; what was under way is lost."""
        wire.down.clear()
        wire.up.clear()
        if wire.router.wires.get(wire.core) is wire:
            wire.router.lose(wire)
        wire.is_left = True
        self.notice(wire)

    def notice(self, wire: Wire) -> None:
        """The replica gets to know that the router has ended the wire."""
        if wire.is_left and not wire.down and wire in wire.replica.wires and not wire.replica.is_stopped:
            wire.replica.close(wire)

    def connect(self, router: RouterNode, name: str) -> None:
        """The router opens a stream to the replica."""
        replica = self.replicas[name]
        core = router.replicas[replica.key]
        router.wires[core] = replica.connect(router, core)

    def unconnected(self) -> list[tuple[RouterNode, str]]:
        """Routers and the replicas that they could connect to."""
        return [
            (router, name)
            for router in self.routers
            for name, replica in self.replicas.items()
            if (core := router.replicas.get(replica.key)) is not None
            and core not in router.wires
            and not replica.is_stopped
            and not self._is_held(router, name)
        ]

    def is_behind(self, router: RouterNode) -> bool:
        """Whether there is a newer table than the one that the router has."""
        return router.scheduler.topology.table.revision < self.tables[-1].revision

    def pass_time(self, seconds: float) -> None:
        """Signs of life come and are answered where nothing is in the way."""
        left = seconds
        while left > 0:
            step = min(left, BEAT_S)
            left -= step
            self.time.advance(step)
            for router in self.routers:
                for wire in list(router.wires.values()):
                    if not wire.is_held and not wire.replica.is_stopped and wire.replica.is_alive:
                        wire.heard_at = self.time.now()
                        wire.replica.echoed(wire)
                router.tick()

    # -- to look at ------------------------------------------------------------------------------------------------

    def wires(self) -> Iterator[Wire]:
        """All, also those that only one side still has."""
        seen: dict[Wire, None] = {}
        for router in self.routers:
            seen.update(dict.fromkeys(router.wires.values()))
        for replica in self.replicas.values():
            seen.update(dict.fromkeys(replica.wires))
        return iter(list(seen))

    def downward(self) -> list[Wire]:
        """Those with a frame that the replica can take."""
        return [
            wire
            for wire in self.wires()
            if wire.down and not wire.is_held and not wire.replica.is_stopped and wire in wire.replica.wires
        ]

    def upward(self) -> list[Wire]:
        """Those with a frame that the router can take."""
        return [
            wire for wire in self.wires() if wire.up and not wire.is_held and wire.router.wires.get(wire.core) is wire
        ]

    def _is_held(self, router: RouterNode, name: str) -> bool:
        return any(wire.is_held and wire.router.name == router.name for wire in self.replicas[name].wires)

    def _new_replica(self, name: str) -> ReplicaNode:
        self._lives += 1
        return ReplicaNode((name, f"life-{self._lives}"), self.time, self._loop)

    def _new_router(self, number: int, seed: int = 0) -> RouterNode:
        router = RouterNode(f"router-{number}", self.time, seed)
        self.push(router)
        return router

    def _new_table(self) -> None:
        self._revision += 1
        owners: list[tuple[ReplicaKey | None, int]] = [(None, 0)] * PARTITIONS
        for partition, owner in self.owners.items():
            owners[partition] = owner
        routes = [ReplicaRoute(key=each.key, address="", max_ongoing=MAX_ONGOING) for each in self.replicas.values()]
        self.tables.append(
            RoutingTable(
                generation="g",
                revision=self._revision,
                endpoints={ENDPOINT: EndpointRoute(name=ENDPOINT, weights={BACKEND: 1.0}, owners=owners)},
                backends={BACKEND: BackendRoute(name=BACKEND, replicas=routes)},
                roster=self._new_roster(),
            )
        )

    def _new_roster(self) -> Roster:
        listed = {each.key for each in self.replicas.values()}
        if listed != self._listed:
            version = RosterVersion("g", self._revision)
            departed = [Departure(key, version) for key in sorted(self._listed - listed)]
            self._roster = Roster(version, (*self._roster.departed, *departed))
            self._listed = listed
        return self._roster


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
        stop_generation=stop_generation,
    )
    if timeout_s:
        options.timeout.FromNanoseconds(round(timeout_s * 1e9))
    return options
