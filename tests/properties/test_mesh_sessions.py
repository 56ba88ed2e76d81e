"""Sessions through a whole mesh in memory, whatever breaks, in any order: real cores, and naive clients.

Two routers, three replicas and some that join, two clients. Each client counts its calls, as sessions do, and remembers
each; it knows nothing of routers but where its connection goes. What is checked is what clients and handlers see.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from math import inf
from typing import ClassVar
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from replica_service.core.calls import StartTurn
from replica_service.core.commands import StartCalls
from replica_service.core.verdicts import TAKEN_BACK
from router_service import convert
from router_service.core import cancellation
from router_service.core.callers import Caller, Window
from router_service.core.calls import Batch, CallOptions
from router_service.core.commands import DeliverDone, DeliverFailure, DeliverResults, Outcome
from router_service.core.rosters import RosterVersion
from router_service.core.sessions import Session
from slotmesh.client.rosters import Rosters
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.partitions import partition_of
from tests.support.memory_mesh import (
    BROKEN,
    ENDPOINT,
    MemoryMesh,
    ReplicaNode,
    RouterNode,
    Running,
    wire_options,
)

REPLICAS = 3
MOST_REPLICAS = 6
"""Some join later."""
KEYS = ("red", "green")
"""Of both clients, which come through different routers or the same one."""
TROUBLES = ("routers", "replicas", "tables", "wires", "silence", "moves", "failures", "timeouts", "cancels")
CALL_SHARE = 0.1
"""Steps in which a client makes calls."""
TROUBLE_SHARE = 0.03
MOST_UNANSWERED = 16
"""Calls of one client."""
MAX_ROUNDS = 400
"""In which everything must have ended when nothing breaks any more."""
TIMEOUTS_S = (0.05, 0.2, 0.6)
STOPPED = Failure(reason=Reason.PREDECESSOR_FAILED, message="not sent again", executed=Executed.UNKNOWN)
ALLOWED = {Reason.REPLICA_LOST, Reason.ROUTER_LOST, Reason.HANDLER_ERROR, Reason.QUEUE_TIMEOUT, Reason.STALE_TABLE}
OVERDUE = {Reason.DEADLINE_IN_QUEUE, Reason.DEADLINE_RUNNING}


@dataclass
class Call:
    """A call that a client made."""

    tag: bytes
    key: str
    idempotent: bool
    timeout_s: float = 0.0
    """0: it has none."""
    stop_generation: int = 0
    is_cancelled: bool = False
    """Its caller has given it up."""
    sent_at: float | None = None
    first_roster: RosterVersion | None = None
    outcome: Failure | bytes | None = None
    executions: int = 0


@dataclass(eq=False)
class Connection:
    """One stream of a session."""

    router: RouterNode
    caller: Caller
    is_open: bool = True
    """The client reads and writes."""
    heard: set[int] = field(default_factory=set)
    unacknowledged: list[Outcome] = field(default_factory=list)


class Client:
    """A session, as a client knows it."""

    def __init__(self, name: str, session_id: str) -> None:
        self.name = name
        self.session_id = session_id
        self.epoch = 0
        self.calls: dict[int, Call] = {}
        self.connection: Connection | None = None
        self.rosters = Rosters()
        self.stops = False
        """Its lanes stop at failures."""
        self.generations: dict[str, int] = {}
        """By key."""

    @property
    def unanswered(self) -> dict[int, Call]:
        return {call_id: call for call_id, call in self.calls.items() if call.outcome is None}

    def make(self, count: int, key: str, *, idempotent: bool, timeout_s: float) -> list[int]:
        first = len(self.calls) + 1
        ids = list(range(first, first + count))
        for call_id in ids:
            generation = self.generations.get(key, 1) if self.stops and key else 0
            self.calls[call_id] = Call(f"{self.name}/{call_id}".encode(), key, idempotent, timeout_s, generation)
        return ids

    def failed(self, call_id: int) -> None:
        """A call has failed. Where its lane stops, the next calls are of a new generation."""
        call = self.calls[call_id]
        if call.stop_generation:
            self.generations[call.key] = max(self.generations.get(call.key, 1), call.stop_generation + 1)

    def stop_lanes(self) -> None:
        """What is behind a failure is not sent again."""
        for call_id, call in self.unanswered.items():
            first = self.first_failure(call)
            if first is not None and first < call_id:
                call.outcome = STOPPED

    def first_failure(self, call: Call) -> int | None:
        """Of the calls of its lane and generation."""
        lane = (call.key, call.stop_generation)
        failed = (
            call_id
            for call_id, each in self.calls.items()
            if call.stop_generation and isinstance(each.outcome, Failure) and (each.key, each.stop_generation) == lane
        )
        return min(failed, default=None)

    def cancel(self, call_id: int, now: float) -> None:
        """A caller gives its call up."""
        self.calls[call_id].is_cancelled = True
        if (connection := self.connection) is not None and connection.is_open:
            router = connection.router
            router.do(router.scheduler.cancel_calls(connection.caller, [(call_id, call_id)], now))

    def connect(self, router: RouterNode, now: float) -> None:
        """Goes on at this router: what was sent is sent again, what was not follows."""
        self.epoch += 1
        self.stop_lanes()
        sent = [call_id for call_id, call in self.unanswered.items() if call.sent_at is not None]
        spans = [(group[0], group[-1]) for group in _consecutive(sent)]
        rosters = [convert.roster_from_wire(each) for each in self.rosters.at_opening(is_resuming=bool(sent))]
        session = Session(self.session_id, self.epoch, spans, rosters)
        self.connection = Connection(router, Caller(Window(10**6, 10**9), session=session))
        caller = self.connection.caller
        router.inboxes[caller] = []
        router.named[caller] = router.scheduler.topology.table.roster.version
        router.do(router.scheduler.connected(caller, now))
        for ids in self._alike(sent):
            age_s = now - (self.calls[ids[0]].sent_at or 0.0)
            first = self.calls[ids[0]].first_roster
            router.do(router.scheduler.submit_again(caller, ENDPOINT, [self._batch(ids)], age_s, first, now))
        for call_id in sent:
            if self.calls[call_id].is_cancelled:
                self.cancel(call_id, now)
        self.send(now)

    def acknowledge_roster(self, now: float) -> None:
        """The roster that the client was told of reaches it, and its router hears of that."""
        connection = self.connection
        if connection is not None and (version := connection.router.named.pop(connection.caller, None)) is not None:
            self.rosters.acknowledge(convert.roster_to_wire(version))
            connection.router.do(connection.router.scheduler.acknowledged(connection.caller, version, now))

    def send(self, now: float) -> None:
        """What has not been sent leaves, if there is a connection."""
        connection = self.connection
        if connection is not None and connection.is_open:
            ids = [call_id for call_id, call in self.unanswered.items() if call.sent_at is None]
            newest = self.rosters.newest
            for call_id in ids:
                self.calls[call_id].sent_at = now
                self.calls[call_id].first_roster = newest and convert.roster_from_wire(newest)
            batches = [self._batch(each) for each in self._alike(ids)]
            router = connection.router
            router.do(router.scheduler.submit(connection.caller, ENDPOINT, batches, now))

    def _alike(self, ids: list[int]) -> Iterator[list[int]]:
        """Calls that may travel as one batch."""
        for _, group in groupby(ids, key=lambda each: _traits(self.calls[each])):
            yield list(group)

    def _batch(self, ids: list[int]) -> Batch:
        call = self.calls[ids[0]]
        wire = wire_options(
            call.key, idempotent=call.idempotent, timeout_s=call.timeout_s, stop_generation=call.stop_generation
        )
        options = convert.options_from_wire(wire)
        assert isinstance(options, CallOptions)
        return options, ids, [self.calls[call_id].tag for call_id in ids]


def _traits(call: Call) -> tuple[object, ...]:
    """What calls of a batch share."""
    return call.key, call.idempotent, call.timeout_s, call.stop_generation, call.sent_at, call.first_roster


def _consecutive(ids: list[int]) -> list[list[int]]:
    return [[each for _, each in group] for _, group in groupby(enumerate(ids), key=lambda pair: pair[1] - pair[0])]


class MeshMachine(RuleBasedStateMachine):
    always: ClassVar[frozenset[str]] = frozenset()
    """Troubles of every example."""

    @initialize(
        troubles=st.sets(st.sampled_from(TROUBLES), max_size=4),
        is_lazy=st.booleans(),
    )
    def start(self, troubles: set[str], is_lazy: bool) -> None:
        """Few kinds of trouble at a time reach deeper than all at once."""
        self.set_up(troubles, is_lazy=is_lazy)

    def set_up(self, troubles: set[str], *, is_lazy: bool) -> None:
        self.troubles = troubles | self.always
        self.loop = asyncio.new_event_loop()
        self.mesh = MemoryMesh(REPLICAS, KEYS, self.loop)
        self.clients = [Client("a", "a" * 32), Client("b", "b" * 32)]
        self.by_tag: dict[bytes, Call] = {}
        self.lanes: dict[tuple[str, str], list[bytes]] = defaultdict(list)
        """Tags by client and key, in the order of the calls."""
        self.newest: dict[tuple[str, str], int] = defaultdict(lambda: -1)
        """Place in its lane of the newest call that was executed."""
        self.is_lazy = is_lazy
        self.uninformed: set[RouterNode] = set()
        """Routers that get no tables."""
        for number, router in enumerate(self.mesh.routers):
            for name in self.mesh.replicas:
                self.mesh.connect(router, name)
            self.clients[number].connect(router, self.now)
        self.deliver_all()
        for router in self.mesh.routers:
            router.is_lazy = is_lazy

    @property
    def now(self) -> float:
        return self.mesh.time.now()

    # -- clients ---------------------------------------------------------------------------------------------------

    def call(self, client: Client, count: int, key: str, *, idempotent: bool, timeout_s: float) -> None:
        if len(client.unanswered) > MOST_UNANSWERED:
            return
        for call_id in client.make(count, key, idempotent=idempotent, timeout_s=timeout_s):
            call = client.calls[call_id]
            self.by_tag[call.tag] = call
            self.lanes[client.name, key].append(call.tag)
        client.send(self.now)

    def hear(self, client: Client, frames: int) -> None:
        connection = client.connection
        if connection is None or not connection.is_open:
            return
        inbox = connection.router.inboxes.get(connection.caller, [])
        for outcome in inbox[:frames]:
            self.heard(client, connection, outcome)
        del inbox[:frames]

    def heard(self, client: Client, connection: Connection, outcome: Outcome) -> None:
        assert connection.heard.isdisjoint(outcome.ids), "two outcomes of a call on one connection"
        connection.heard.update(outcome.ids)
        connection.unacknowledged.append(outcome)
        assert not isinstance(outcome, DeliverDone)
        if isinstance(outcome, DeliverResults):
            assert len(outcome.payloads) == len(outcome.ids)
        for at, call_id in enumerate(outcome.ids):
            call = client.calls[call_id]
            assert call.sent_at is not None
            assert call.outcome is None, "an answered call has another outcome"
            if isinstance(outcome, DeliverFailure):
                call.outcome = outcome.failure
                client.failed(call_id)
                self.check_failure(call, outcome.failure)
            else:
                payload = outcome.payloads[at]
                assert payload == b"result of " + call.tag
                call.outcome = b"result of " + call.tag
                assert call.executions

    def check_failure(self, call: Call, failure: Failure) -> None:
        is_allowed = failure.reason in ALLOWED
        is_allowed |= failure.reason in OVERDUE and call.timeout_s > 0
        is_allowed |= failure.reason is Reason.CANCELLED and call.is_cancelled
        is_allowed |= failure.reason is Reason.PREDECESSOR_FAILED and call.stop_generation > 0
        assert is_allowed, failure
        if failure.executed is Executed.NO:
            assert not call.executions, "it says NO, and was executed"
        elif failure.executed is Executed.YES:
            assert call.executions, "it says YES, and was not executed"

    def acknowledge(self, client: Client) -> None:
        connection = client.connection
        if connection is not None and connection.is_open:
            for outcome in connection.unacknowledged:
                if outcome.replica is not None:
                    count = len(outcome.ids)
                    connection.router.forget(outcome.replica, outcome.links, outcome.first, count)
            connection.unacknowledged.clear()

    def reconnect(self, client: Client, router: RouterNode, *, is_noticed: bool) -> None:
        """The client gives its router up, which may be the last to know."""
        old = client.connection
        if old is not None:
            old.is_open = False
            if is_noticed or old.router is router:
                self.disconnect(old.router, old.caller)
        client.connect(router, self.now)

    def disconnect(self, router: RouterNode, caller: Caller) -> None:
        router.named.pop(caller, None)
        if router.inboxes.pop(caller, None) is not None:
            router.do(router.scheduler.disconnected(caller, self.now))

    def left_behind(self, router: RouterNode) -> list[Caller]:
        """Connections that their clients have left, and the router still has."""
        current = {client.connection.caller for client in self.clients if client.connection is not None}
        return [caller for caller in router.inboxes if caller not in current]

    # -- frames and handlers ---------------------------------------------------------------------------------------

    @rule(seed=st.integers(0, 2**16), steps=st.integers(1, 400))
    def go_on(self, seed: int, steps: int) -> None:
        """Frames arrive, handlers begin and end, clients call and hear, things break: so many small steps.

        Drawn at random, not by hypothesis, which would have to learn first what is possible when.
        """
        chance = random.Random(seed)
        for _ in range(steps):
            if chance.random() < CALL_SHARE:
                client, key = chance.choice(self.clients), chance.choice(("", "", *KEYS))
                timeout_s = chance.choice(TIMEOUTS_S) if "timeouts" in self.troubles else 0.0
                self.call(client, chance.randint(1, 4), key, idempotent=chance.random() < 0.3, timeout_s=timeout_s)
            if self.troubles and chance.random() < TROUBLE_SHARE:
                self.break_something(chance)
            if steps_now := self.possible(chance):
                chance.choice(steps_now)()

    @rule(seed=st.integers(0, 2**16))
    def something_breaks(self, seed: int) -> None:
        if self.troubles:
            self.break_something(random.Random(seed))

    @rule(seconds=st.sampled_from((0.1, 1.0, 3.5, 5.0)))
    def time_passes(self, seconds: float) -> None:
        """Where nothing is silent, frames arrive before long."""
        self.mesh.pass_time(seconds if "silence" in self.troubles else 0.1)

    def possible(self, chance: random.Random) -> list[Callable[[], object]]:
        mesh = self.mesh
        found: list[Callable[[], object]] = [partial(wire.replica.accept, wire) for wire in mesh.downward()]
        found += [partial(wire.router.accept, wire) for wire in mesh.upward()]
        for replica in mesh.replicas.values():
            if not replica.is_stopped:
                found += [partial(self.begin, replica, work) for work in replica.executor.startable]
                found += [partial(self.end, replica, running) for running in replica.executor.running]
                found += [
                    partial(self.end, replica, running, failure=TAKEN_BACK)
                    for running in replica.executor.running
                    if running.is_cancelled
                ]
        for client in self.clients:
            connection = client.connection
            if connection is not None and connection.is_open:
                if connection.caller in connection.router.named:
                    found.append(partial(client.acknowledge_roster, self.now))
                if connection.router.inboxes.get(connection.caller):
                    found.append(partial(self.hear, client, 1))
                if len(connection.unacknowledged) > 3:
                    found.append(partial(self.acknowledge, client))
            else:
                found.append(partial(client.connect, chance.choice(mesh.routers), self.now))
        for router in mesh.routers:
            found += [partial(self.disconnect, router, caller) for caller in self.left_behind(router)]
        found += [router.cut_all for router in mesh.routers if router.to_flush]
        found += [partial(mesh.notice, wire) for wire in mesh.wires() if wire.is_left and not wire.is_held]
        found += [
            partial(mesh.push, router)
            for router in mesh.routers
            if mesh.is_behind(router) and router not in self.uninformed
        ]
        found += [partial(mesh.connect, router, name) for router, name in mesh.unconnected()]
        return found

    def deliver_all(self) -> None:
        for router in self.mesh.routers:
            router.cut_all()
        while True:
            down, up = self.mesh.downward(), self.mesh.upward()
            for wire in down:
                wire.replica.accept(wire)
            for wire in up:
                if wire.up and wire.router.wires.get(wire.core) is wire:
                    wire.router.accept(wire)
            if not down and not up:
                return
            for router in self.mesh.routers:
                router.cut_all()

    def begin(self, replica: ReplicaNode, work: StartCalls | StartTurn) -> None:
        self.begun(replica.begin(work))

    def begun(self, running: Running | None) -> None:
        if running is None:
            return
        call = self.by_tag[running.payload]
        call.executions += 1
        assert call.idempotent or call.executions == 1, f"{call} was executed twice"
        if isinstance(call.outcome, Failure):
            assert call.outcome.executed is not Executed.NO, f"{call} was executed after all"
        if not call.key:
            return
        others = [
            each
            for replica in self.mesh.replicas.values()
            for each in replica.executor.running
            if each is not running and self.by_tag[each.payload].key == call.key
        ]
        assert not others, f"{call} runs beside {others[0].payload!r}"
        client = call.tag.partition(b"/")[0].decode()
        place = self.lanes[client, call.key].index(call.tag)
        assert call.idempotent or place > self.newest[client, call.key], f"{call} was overtaken"
        self.newest[client, call.key] = place

    def end(self, replica: ReplicaNode, running: Running, *, failure: Failure | None = None) -> None:
        replica.end(running, failure=failure)
        self.mesh.complete_moves()

    def work(self, replica: ReplicaNode) -> None:
        """A replica works off what it has."""
        while not replica.is_stopped and (replica.executor.running or replica.executor.startable):
            for running in list(replica.executor.running):
                replica.end(running)
            for work in replica.executor.startable[:1]:
                self.begun(replica.begin(work))
        self.mesh.complete_moves()

    # -- what breaks -----------------------------------------------------------------------------------------------

    def break_something(self, chance: random.Random) -> None:
        """One of what the example is about. What was broken for a while may come back."""
        mesh = self.mesh
        replica = chance.choice([*mesh.replicas.values()])
        match chance.choice(sorted(self.troubles)):
            case "routers":
                if chance.random() < 0.3:
                    self.kill_router(chance.randrange(2), chance.randrange(4))
                else:
                    router = chance.choice(mesh.routers)
                    self.reconnect(chance.choice(self.clients), router, is_noticed=chance.random() < 0.5)
            case "replicas":
                mesh.kill_replica(replica.key[0])
            case "tables":
                self.tables_differ(chance)
            case "wires":
                self.break_wire(chance)
            case "silence":
                self.fall_silent(replica, chance)
            case "moves":
                partition = partition_of(chance.choice(KEYS))
                if not mesh.replicas[mesh.owners[partition][0][0]].is_stopped:
                    mesh.move(partition, replica.key[0])
            case "failures":
                if not replica.is_stopped and replica.executor.running:
                    self.end(replica, chance.choice(replica.executor.running), failure=BROKEN)
            case "timeouts":
                mesh.pass_time(chance.choice((0.04, 0.1, 0.3)))
            case "cancels":
                self.give_up(chance)
            case trouble:
                raise AssertionError(trouble)

    def fall_silent(self, replica: ReplicaNode, chance: random.Random) -> None:
        """A replica stands still, or nothing passes on a wire; or both go on."""
        if chance.random() < 0.3:
            replica.is_stopped = not replica.is_stopped
        elif wires := list(self.mesh.wires()):
            wire = chance.choice(wires)
            wire.is_held = not wire.is_held
        self.mesh.pass_time(chance.choice((0.5, 1.0, 3.5)))

    def tables_differ(self, chance: random.Random) -> None:
        """A router is cut off from the controller, or reached again; a replica joins, or a client moves."""
        self.uninformed ^= {chance.choice(self.mesh.routers)}
        if len(self.mesh.replicas) < MOST_REPLICAS and chance.random() < 0.5:
            self.mesh.join()
        else:
            self.reconnect(chance.choice(self.clients), chance.choice(self.mesh.routers), is_noticed=False)

    def break_wire(self, chance: random.Random) -> None:
        if wires := [wire for wire in self.mesh.wires() if not wire.replica.is_stopped]:
            self.mesh.break_wire(chance.choice(wires))

    def give_up(self, chance: random.Random) -> None:
        """Somebody waits for a call no longer."""
        client = chance.choice(self.clients)
        if sent := [call_id for call_id, call in client.unanswered.items() if call.sent_at is not None]:
            client.cancel(chance.choice(sent), self.now)

    def kill_router(self, number: int, seed: int) -> None:
        old = self.mesh.routers[number]
        self.mesh.kill_router(number, seed)
        self.mesh.routers[number].is_lazy = self.is_lazy
        for client in self.clients:
            if client.connection is not None and client.connection.router is old:
                client.connection.is_open = False

    # -- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def answers_belong_to_calls_that_are_here(self) -> None:
        if not hasattr(self, "mesh"):
            return
        for router in self.mesh.routers:
            for caller in router.inboxes:
                assert all(run.unanswered > 0 for run in caller.runs)
            for replica in router.scheduler.topology.replicas.values():
                assert all(sent.lo >= 0 and sent.count > 0 for sent in replica.outbox)

    def teardown(self) -> None:
        """When everything is whole again, every call ends, and what may not fail has a result."""
        if not hasattr(self, "mesh"):
            return
        try:
            self.heal()
            for _ in range(MAX_ROUNDS):
                if not any(client.unanswered for client in self.clients):
                    break
                self.round()
            assert not any(client.unanswered for client in self.clients), "calls never end"
            self.check_the_end()
        finally:
            self.loop.close()

    def heal(self) -> None:
        for wire in self.mesh.wires():
            wire.is_held = False
        for replica in self.mesh.replicas.values():
            replica.is_stopped = False
        for number, client in enumerate(self.clients):
            if client.connection is None or not client.connection.is_open:
                client.connect(self.mesh.routers[number], self.now)

    def round(self) -> None:
        """Everybody does what there is to do."""
        self.mesh.complete_moves()
        for router in self.mesh.routers:
            for caller in self.left_behind(router):
                self.disconnect(router, caller)
            self.mesh.push(router)
        self.deliver_all()
        for wire in self.mesh.wires():
            self.mesh.notice(wire)
        for router, name in self.mesh.unconnected():
            self.mesh.connect(router, name)
        self.deliver_all()
        for replica in [*self.mesh.replicas.values()]:
            self.work(replica)
        self.deliver_all()
        for client in self.clients:
            client.acknowledge_roster(self.now)
            self.hear(client, 10**6)
            self.acknowledge(client)
        self.mesh.pass_time(0.5)

    def check_the_end(self) -> None:
        for client in self.clients:
            for call_id, call in client.calls.items():
                first = client.first_failure(call)
                assert first is None or call_id <= first or not call.executions, f"{call} ran behind a failure: {first}"
        for call in self.by_tag.values():
            if isinstance(call.outcome, Failure):
                self.check_failure(call, call.outcome)
                reason = call.outcome.reason
                if not self.troubles - {"routers", "moves"}:
                    raise AssertionError(f"nothing was lost, and {call} failed")
                if self.troubles.isdisjoint({"replicas", "tables", "wires", "silence"}):
                    reasons = {BROKEN.reason, *OVERDUE, Reason.CANCELLED, Reason.PREDECESSOR_FAILED}
                    if not self.troubles.isdisjoint({"timeouts", "cancels"}):
                        # It failed at the router that its client has left, and those behind it went on.
                        reasons.add(Reason.REPLICA_LOST)
                    assert reason in reasons


class TablesMachine(MeshMachine):
    """Routers whose tables differ, whatever else breaks."""

    always = frozenset({"tables"})


class OverdueMachine(MeshMachine):
    """Calls whose time is over, or that are given up, while their session moves."""

    @initialize(other=st.sampled_from(TROUBLES), is_lazy=st.booleans())
    def start(self, other: str, is_lazy: bool) -> None:
        self.set_up({"routers", "timeouts", "cancels", other}, is_lazy=is_lazy)


class StoppingMachine(MeshMachine):
    """Lanes stop at failures, and replicas that are asked where answer in time."""

    @initialize(
        troubles=st.sets(st.sampled_from(("timeouts", "cancels", "failures", "moves")), min_size=1),
        is_lazy=st.booleans(),
    )
    def start(self, troubles: set[str], is_lazy: bool) -> None:
        self.set_up(troubles, is_lazy=is_lazy)
        for client in self.clients:
            client.stops = True
        self.patience = mock.patch.object(cancellation, "PATIENCE_S", inf)
        self.patience.start()

    def teardown(self) -> None:
        if hasattr(self, "patience"):
            self.patience.stop()
        super().teardown()


TestLanesThatStop = pytest.mark.timeout(120)(StoppingMachine.TestCase)
TestLanesThatStop.settings = settings(max_examples=100, stateful_step_count=8, deadline=None)

TestOverdueCalls = pytest.mark.timeout(120)(OverdueMachine.TestCase)
TestOverdueCalls.settings = settings(max_examples=100, stateful_step_count=8, deadline=None)

TestMeshSessions = pytest.mark.timeout(120)(MeshMachine.TestCase)
TestMeshSessions.settings = settings(max_examples=150, stateful_step_count=8, deadline=None)
TestDifferingTables = pytest.mark.timeout(120)(TablesMachine.TestCase)
TestDifferingTables.settings = settings(max_examples=60, stateful_step_count=8, deadline=None)
