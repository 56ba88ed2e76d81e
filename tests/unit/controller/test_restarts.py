"""Quick deaths are counted for each version of a backend: a new one starts without delay, an old one keeps its own."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from controller_service.core.desired.handler_code import template_of
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.event_log import EventKind
from controller_service.core.observed import launches, transitions
from controller_service.core.observed.member_messages import Hello, ObservedReport
from controller_service.core.observed.state import TEMPLATES_KEPT, Observed, ReplicaState, Restarts
from controller_service.core.observed.transitions import FIRST_INTERVAL_S, LOOPING_AFTER, QUICK_DEATH_S
from controller_service.core.reconciling.backends import StartReplicas, reconcile_backend
from slotmesh.spec.model import Backend

OLD = Backend(name="v1", handler="app:Old", num_replicas=1)
NEW = replace(OLD, handler="app:New")
LONG_S = QUICK_DEATH_S + 1.0
READY = ObservedReport(state=ReplicaState.READY, address="h:1", max_ongoing=1)


class World:
    """A clock, and what the controller has observed."""

    def __init__(self) -> None:
        self.now = 100.0
        self.observed = Observed()
        self.loops: list[str] = []
        self._numbers = count()

    def start(self, backend: Backend = OLD, *, ready: bool = False) -> str:
        name, template = f"r-{next(self._numbers)}", template_of(backend)
        self.observed = launches.launched(self.observed, name, "v1", template=template, pid=1, now=self.now).observed
        if ready:
            hello = Hello(replica_id=name, incarnation="1", backend="v1")
            self.observed = transitions.attached(self.observed, hello, now=self.now).observed
            self.observed = transitions.reported(self.observed, name, "1", READY, now=self.now).observed
        return name

    def end(self, name: str, *, asked: bool = False) -> None:
        if asked:
            self.observed = transitions.drain_requested(self.observed, name, "why").observed
        done = launches.exited(self.observed, name, "exited with status 1", failed=not asked, now=self.now)
        self.observed = done.observed
        self.loops += [it.message for it in done.notices if it.kind is EventKind.BACKEND_CRASH_LOOPING]

    def die(self, backend: Backend = OLD, times: int = 1) -> None:
        for _ in range(times):
            self.now += 1.0
            self.end(self.start(backend))

    def streak(self, backend: Backend = OLD) -> int:
        return self.observed.restarts_of("v1", template_of(backend)).streak

    def starts(self, backend: Backend) -> bool:
        """Whether a missing replica of the backend is started now."""
        desired = Desired().apply(ChangeSet(put_backends=(backend,)))
        outcome = reconcile_backend(
            "v1", desired, self.observed, self.now, owners=(), launches=True, time_of_day_s=self.now
        )
        return any(isinstance(it, StartReplicas) for it in outcome.actions)


def test_a_new_version_starts_without_delay_and_the_one_before_keeps_its_own() -> None:
    world = World()
    world.die(OLD, times=10)
    assert not world.starts(OLD)
    assert world.starts(NEW)
    world.die(NEW)
    assert (world.streak(OLD), world.streak(NEW)) == (10, 1)
    assert world.observed.restarts_of("v1", template_of(NEW)).not_before == world.now + FIRST_INTERVAL_S


def test_deaths_of_another_version_are_not_in_the_row() -> None:
    world = World()
    world.die(OLD, times=LOOPING_AFTER - 1)
    world.die(NEW, times=LOOPING_AFTER - 1)
    assert world.loops == []
    world.die(NEW)
    (text,) = world.loops
    assert text.startswith(f"{LOOPING_AFTER} times in a row")


@pytest.mark.parametrize("asked", [False, True])
def test_a_long_life_ends_the_row_also_if_it_was_ordered_to_end(asked: bool) -> None:
    world = World()
    world.die(times=5)
    name = world.start(ready=True)
    world.now += LONG_S
    world.end(name, asked=asked)
    assert not world.observed.restarts


def test_one_that_was_started_since_and_lives_long_ends_the_row_of_the_others_once() -> None:
    world = World()
    world.die(times=5)
    world.now += 1.0
    world.start(ready=True)
    world.now += LONG_S
    for streak in (1, 2, 3):
        world.die()
        assert world.streak() == streak


def test_a_long_life_of_another_version_does_not_end_the_row() -> None:
    world = World()
    world.die(OLD, times=5)
    name = world.start(NEW, ready=True)
    world.now += LONG_S
    world.end(name, asked=True)
    world.die(OLD)
    assert world.streak(OLD) == 6


def test_what_is_remembered_is_bounded_and_the_version_that_died_last_stays() -> None:
    world = World()
    world.die(OLD, times=2)
    for number in range(2 * TEMPLATES_KEPT):
        world.die(replace(OLD, handler=f"app:H{number}"))
        world.die(OLD)
    assert len(world.observed.restarts["v1"]) == TEMPLATES_KEPT
    assert world.streak(OLD) == 2 + 2 * TEMPLATES_KEPT
    assert world.streak(replace(OLD, handler="app:H0")) == 0


def test_what_was_forgotten_leaves_nothing_behind() -> None:
    observed = Observed().with_restarts("v1", "t", Restarts(streak=1))
    assert not observed.with_restarts("v1", "t", Restarts()).restarts
    assert observed.with_restarts("v1", "t", Restarts(streak=1)) is observed
