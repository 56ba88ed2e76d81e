"""Repeated calls in a whole mesh in memory: whatever breaks, each id is executed once, and its answers are equal.

Real routers and replicas; the test orders all events. No replica ends, and no router starts after a partition has
moved: what these lose, a repetition may execute again.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict

import pytest

from router_service import convert
from router_service.core.callers import Window
from router_service.core.calls import RouterCallOptions
from router_service.core.commands import DeliverFailure, DeliverResults
from router_service.core.events import CallerLeft, CallsSubmitted
from router_service.core.runs import Caller
from slotmesh.calls.key_hash import partition_of
from slotmesh.calls.request_ids import CallIdentity
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.streams.chunks import joined
from tests.support.examples import examples
from tests.support.memory_mesh import MemoryMesh
from tests.support.memory_nodes import BROKEN, ENDPOINT, RouterNode, wire_options

IDS = ("red", "green", "blue")
STEPS = 150
MAX_ROUNDS = 100
LOST = {Reason.REPLICA_LOST, Reason.BACKEND_UNAVAILABLE, Reason.STALE_TABLE}
"""Failures of one attempt."""
Answer = bytes | tuple[Reason, str]


class RepeatingMesh:
    """The mesh, the attempts that wait, and what was executed."""

    def __init__(self, dice: random.Random, *, moves: bool) -> None:
        self.dice = dice
        self.loop = asyncio.new_event_loop()
        self.mesh = MemoryMesh(3, IDS, self.loop)
        self.moves = moves
        self.executed: Counter[str] = Counter()
        self.answers: dict[str, set[Answer]] = defaultdict(set)
        self.waiting: dict[Caller, tuple[RouterNode, str]] = {}
        self.failed = 0
        self._steps = (
            *(self.call,) * 4,
            *(self.deliver,) * 12,
            *(self.begin, self.end) * 3,
            *(self.hear, self.leave, self.break_wire, self.connect, self.push),
            self.move if moves else self.kill_router,
        )
        self.connect_all()

    def step(self) -> None:
        self.dice.choice(self._steps)()
        self.mesh.complete_moves()

    # -- events ----------------------------------------------------------------------------------------------------

    def call(self, request_id: str = "", router: RouterNode | None = None) -> None:
        request_id = request_id or self.dice.choice(IDS)
        router = router or self.dice.choice(self.mesh.routers)
        caller = Caller(Window(calls=10**9, bytes=10**12))
        router.inboxes[caller] = []
        self.waiting[caller] = router, request_id
        shared = convert.options_from_wire(wire_options("", idempotent=False))
        assert isinstance(shared, RouterCallOptions)
        options = convert.with_request(shared, CallIdentity(request_id, b"same"))
        assert isinstance(options, RouterCallOptions)
        router.step(CallsSubmitted(caller, ENDPOINT, [(options, range(1, 2), [request_id.encode()])]))

    def leave(self) -> None:
        if self.waiting:
            caller = self.dice.choice(list(self.waiting))
            router, _ = self.waiting.pop(caller)
            router.inboxes.pop(caller, None)
            router.step(CallerLeft(caller))

    def deliver(self) -> None:
        down, up = self.mesh.downward(), self.mesh.upward()
        if not down and not up:
            return
        wire = self.dice.choice([*down, *up])
        if wire in down and (wire not in up or self.dice.random() < 0.5):
            wire.replica.accept(wire)
        else:
            wire.router.accept(wire)

    def begin(self) -> None:
        for replica in self.dice.sample(list(self.mesh.replicas.values()), 1):
            for work in replica.executor.startable[:1]:
                if (running := replica.begin(work)) is not None:
                    request_id = running.payload.decode()
                    self.executed[request_id] += 1
                    assert self.executed[request_id] == 1, f"{request_id} was executed twice"

    def end(self) -> None:
        for replica in self.mesh.replicas.values():
            for running in replica.executor.running[:1]:
                replica.end(running, failure=BROKEN if self.dice.random() < 0.2 else None)

    def hear(self) -> None:
        for caller, (router, request_id) in list(self.waiting.items()):
            for outcome in router.inboxes.get(caller, []):
                del self.waiting[caller]
                if isinstance(outcome, DeliverResults):
                    self.answers[request_id].add(joined(outcome.payloads[0]))
                else:
                    assert isinstance(outcome, DeliverFailure)
                    self.answered(request_id, outcome.failure)

    def answered(self, request_id: str, failure: Failure) -> None:
        if failure.executed is Executed.YES:
            self.answers[request_id].add((failure.reason, failure.message))
        else:
            assert failure.reason in LOST, failure
            self.failed += 1

    def break_wire(self) -> None:
        if self.dice.random() < 0.3 and (wires := list(self.mesh.wires())):
            self.mesh.break_wire(self.dice.choice(wires))

    def connect(self) -> None:
        for router, name in self.mesh.unconnected()[:1]:
            self.mesh.connect(router, name)

    def push(self) -> None:
        self.mesh.push(self.dice.choice(self.mesh.routers))

    def move(self) -> None:
        self.mesh.move(partition_of(self.dice.choice(IDS)), self.dice.choice(list(self.mesh.replicas)))

    def kill_router(self) -> None:
        if self.dice.random() < 0.3:
            number = self.dice.randrange(2)
            gone = self.mesh.routers[number]
            self.waiting = {caller: each for caller, each in self.waiting.items() if each[0] is not gone}
            self.mesh.kill_router(number, self.dice.randrange(100))

    # -- the end ---------------------------------------------------------------------------------------------------

    def connect_all(self) -> None:
        for wire in self.mesh.wires():
            self.mesh.notice(wire)
        while self.mesh.unconnected():
            self.connect()
        self.deliver_all()

    def deliver_all(self) -> None:
        while self.mesh.downward() or self.mesh.upward():
            self.deliver()
        for wire in self.mesh.wires():
            self.mesh.notice(wire)

    def settle(self) -> None:
        """Nothing breaks any more: everything ends."""
        for _ in range(MAX_ROUNDS):
            for router in self.mesh.routers:
                self.mesh.push(router)
            self.connect_all()
            for _ in range(3):
                self.begin()
                self.end()
            self.mesh.complete_moves()
            self.deliver_all()
            self.hear()
            busy = any(each.executor.running or each.executor.startable for each in self.mesh.replicas.values())
            if not self.waiting and not busy and not self.mesh.moving:
                return
            self.mesh.pass_time(0.01)
        raise AssertionError(f"{len(self.waiting)} attempts wait for ever")


@pytest.mark.parametrize("moves", [False, True], ids=["routers end", "partitions move"])
def test_each_id_is_executed_once_and_has_one_answer(moves: bool) -> None:
    answered = failed = 0
    for seed in range(examples(60)):
        mesh = RepeatingMesh(random.Random(seed), moves=moves)
        try:
            for _ in range(STEPS):
                mesh.step()
            mesh.settle()
            for request_id, router in zip(IDS * 2, [*mesh.mesh.routers] * 3, strict=True):
                mesh.call(request_id, router)
                mesh.settle()
            assert {request_id: len(each) for request_id, each in mesh.answers.items()} == dict.fromkeys(IDS, 1), seed
            answered += sum(mesh.executed.values())
            failed += mesh.failed
        finally:
            mesh.loop.close()
    assert answered == examples(60) * len(IDS)
    assert failed, "links were lost while calls ran"
