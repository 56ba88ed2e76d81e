"""Sessions through a whole mesh in memory, whatever breaks, in any order: real cores, and naive clients.

Two routers, three replicas and some that join, two clients. Each client counts its calls, as sessions do, and remembers
each; it knows nothing of routers but where its connection goes. What is checked is what clients and handlers see.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from math import inf
from typing import ClassVar
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from replica_service.core.failures import TAKEN_BACK
from router_service.core.lifecycle import deadlines_and_cancellation
from slotmesh.calls.key_hash import partition_of
from tests.properties.mesh_invariants import all_calls_end, answers_belong_to_calls_that_are_here
from tests.properties.mesh_model import (
    CALL_SHARE,
    KEYS,
    MOST_REPLICAS,
    TIMEOUTS_S,
    TROUBLE_SHARE,
    TROUBLES,
    MeshModel,
)
from tests.support.examples import examples
from tests.support.memory_nodes import BROKEN, ReplicaNode


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
        self.model = MeshModel(troubles | self.always, is_lazy=is_lazy)

    # -- frames and handlers ---------------------------------------------------------------------------------------

    @rule(seed=st.integers(0, 2**16), steps=st.integers(1, 400))
    def go_on(self, seed: int, steps: int) -> None:
        """Frames arrive, handlers begin and end, clients call and hear, things break: so many small steps.

        Drawn at random, not by hypothesis, which would have to learn first what is possible when.
        """
        chance = random.Random(seed)
        for _ in range(steps):
            if chance.random() < CALL_SHARE:
                client, key = chance.choice(self.model.clients), chance.choice(("", "", *KEYS))
                timeout_s = chance.choice(TIMEOUTS_S) if "timeouts" in self.model.troubles else 0.0
                self.model.call(
                    client, chance.randint(1, 4), key, idempotent=chance.random() < 0.3, timeout_s=timeout_s
                )
            if self.model.troubles and chance.random() < TROUBLE_SHARE:
                self.break_something(chance)
            if steps_now := self.possible(chance):
                chance.choice(steps_now)()

    @rule(seed=st.integers(0, 2**16))
    def something_breaks(self, seed: int) -> None:
        if self.model.troubles:
            self.break_something(random.Random(seed))

    @rule(seconds=st.sampled_from((0.1, 1.0, 3.5, 5.0)))
    def time_passes(self, seconds: float) -> None:
        """Where nothing is silent, frames arrive before long."""
        self.model.mesh.pass_time(seconds if "silence" in self.model.troubles else 0.1)

    def possible(self, chance: random.Random) -> list[Callable[[], object]]:
        mesh = self.model.mesh
        found: list[Callable[[], object]] = [partial(wire.replica.accept, wire) for wire in mesh.downward()]
        found += [partial(wire.router.accept, wire) for wire in mesh.upward()]
        for replica in mesh.replicas.values():
            if not replica.is_stopped:
                found += [partial(self.model.begin, replica, work) for work in replica.executor.startable]
                found += [partial(self.model.end, replica, running) for running in replica.executor.running]
                found += [
                    partial(self.model.end, replica, running, failure=TAKEN_BACK)
                    for running in replica.executor.running
                    if running.is_cancelled
                ]
        for client in self.model.clients:
            connection = client.connection
            if connection is not None and connection.is_open:
                if connection.caller in connection.router.named:
                    found.append(partial(client.acknowledge_roster, self.model.now))
                if connection.router.inboxes.get(connection.caller):
                    found.append(partial(self.model.hear, client, 1))
                if len(connection.unacknowledged) > 3:
                    found.append(partial(self.model.acknowledge, client))
            else:
                found.append(partial(client.connect, chance.choice(mesh.routers), self.model.now))
        for router in mesh.routers:
            found += [partial(self.model.disconnect, router, caller) for caller in self.model.left_behind(router)]
        found += [router.cut_all for router in mesh.routers if router.to_flush]
        found += [partial(mesh.notice, wire) for wire in mesh.wires() if wire.is_left and not wire.is_held]
        found += [
            partial(mesh.push, router)
            for router in mesh.routers
            if mesh.is_behind(router) and router not in self.model.uninformed
        ]
        found += [partial(mesh.connect, router, name) for router, name in mesh.unconnected()]
        return found

    # -- what breaks -----------------------------------------------------------------------------------------------

    def break_something(self, chance: random.Random) -> None:
        """One of what the example is about. What was broken for a while may come back."""
        mesh = self.model.mesh
        replica = chance.choice([*mesh.replicas.values()])
        match chance.choice(sorted(self.model.troubles)):
            case "routers":
                if chance.random() < 0.3:
                    self.kill_router(chance.randrange(2), chance.randrange(4))
                else:
                    router = chance.choice(mesh.routers)
                    self.model.reconnect(chance.choice(self.model.clients), router, is_noticed=chance.random() < 0.5)
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
                    self.model.end(replica, chance.choice(replica.executor.running), failure=BROKEN)
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
        elif wires := list(self.model.mesh.wires()):
            wire = chance.choice(wires)
            wire.is_held = not wire.is_held
        self.model.mesh.pass_time(chance.choice((0.5, 1.0, 3.5)))

    def tables_differ(self, chance: random.Random) -> None:
        """A router is cut off from the controller, or reached again; a replica joins, or a client moves."""
        self.model.uninformed ^= {chance.choice(self.model.mesh.routers)}
        if len(self.model.mesh.replicas) < MOST_REPLICAS and chance.random() < 0.5:
            self.model.mesh.join()
        else:
            self.model.reconnect(
                chance.choice(self.model.clients), chance.choice(self.model.mesh.routers), is_noticed=False
            )

    def break_wire(self, chance: random.Random) -> None:
        if wires := [wire for wire in self.model.mesh.wires() if not wire.replica.is_stopped]:
            self.model.mesh.break_wire(chance.choice(wires))

    def give_up(self, chance: random.Random) -> None:
        """Somebody waits for a call no longer."""
        client = chance.choice(self.model.clients)
        if sent := [call_id for call_id, call in client.unanswered.items() if call.sent_at is not None]:
            client.cancel(chance.choice(sent), self.model.now)

    def kill_router(self, number: int, seed: int) -> None:
        old = self.model.mesh.routers[number]
        self.model.mesh.kill_router(number, seed)
        self.model.mesh.routers[number].is_lazy = self.model.is_lazy
        for client in self.model.clients:
            if client.connection is not None and client.connection.router is old:
                client.connection.is_open = False

    # -- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def what_always_holds(self) -> None:
        answers_belong_to_calls_that_are_here(self.model)

    def teardown(self) -> None:
        if hasattr(self, "model"):
            try:
                all_calls_end(self.model)
            finally:
                self.model.loop.close()


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
        for client in self.model.clients:
            client.stops = True
        self.patience = mock.patch.object(deadlines_and_cancellation, "PATIENCE_S", inf)
        self.patience.start()

    def teardown(self) -> None:
        if hasattr(self, "patience"):
            self.patience.stop()
        super().teardown()


def test_frames_of_a_link_that_its_router_gave_up_take_nothing_from_the_next_link() -> None:
    """A replica reads an earlier attempt at a call after a later one of the same router."""
    machine = TablesMachine()
    machine.start(troubles={"silence"}, is_lazy=True)
    parts = ((124, 292), (212, 121), (25560, 98), (275, 148), (20936, 1), (258, 246), (39160, 218))
    for seed, steps in parts:
        machine.go_on(seed=seed, steps=steps)
        machine.what_always_holds()
    machine.teardown()


TestLanesThatStop = pytest.mark.timeout(120)(StoppingMachine.TestCase)
TestLanesThatStop.settings = settings(max_examples=examples(100), stateful_step_count=8, deadline=None)

TestOverdueCalls = pytest.mark.timeout(120)(OverdueMachine.TestCase)
TestOverdueCalls.settings = settings(max_examples=examples(100), stateful_step_count=8, deadline=None)

TestMeshSessions = pytest.mark.timeout(120)(MeshMachine.TestCase)
TestMeshSessions.settings = settings(max_examples=examples(150), stateful_step_count=8, deadline=None)
TestDifferingTables = pytest.mark.timeout(120)(TablesMachine.TestCase)
TestDifferingTables.settings = settings(max_examples=examples(60), stateful_step_count=8, deadline=None)
