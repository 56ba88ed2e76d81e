"""While clients have too many results unread, no calls are started that would bring more."""

from __future__ import annotations

import pytest

from router_service.core.events import BrakeChanged
from router_service.core.queueing.backend_queues import FEW_CALLS
from router_service.shell.clients import connected_streams
from router_service.shell.clients.connected_streams import Brake
from router_service.shell.dispatcher import Dispatcher
from slotmesh.spec.model import SloScope
from tests.support.fakes.clock import FakeClock
from tests.support.wait import wait_until
from tests.unit.router.world import World
from tests.unit.router.world_callers import caller

MANY = FEW_CALLS + 1


def test_many_calls_wait_and_few_do_not() -> None:
    world = World({"b": ["r"]}, slots=1000)
    world.step(BrakeChanged(is_braked=True))
    world.submit(range(1, MANY + 1), by=caller())
    assert not world.held["r"]
    world.submit([100], by=caller())
    assert list(world.held["r"].values()) == [100]
    world.step(BrakeChanged(is_braked=False))
    assert sorted(world.held["r"].values()) == [*range(1, MANY + 1), 100]


def test_calls_of_a_key_are_sent_as_ever() -> None:
    world = World({"b": ["r"]}, slots=1000, owner=("r", 1))
    world.step(BrakeChanged(is_braked=True))
    world.submit(range(1, MANY + 1), ordering_key="k")
    assert len(world.held["r"]) == MANY


@pytest.mark.asyncio
async def test_the_brake_tells_when_it_was_on_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connected_streams, "BRAKE_S", 0.0)
    world, told = World({"b": ["r"]}), []
    dispatcher = Dispatcher(world.scheduler, FakeClock(), lambda *_: None)  # type: ignore[arg-type]
    each = Brake(dispatcher, lambda: told.append("long"))
    queue = next(iter(world.scheduler.topology.backends.values())).queue
    each(True)
    assert queue.is_braked
    each(False)
    assert not queue.is_braked
    each(True)
    await wait_until(lambda: bool(told), what="it was on for long")
    assert told == ["long"], "one timer, and none of a brake that is off"


def test_it_is_on_for_backends_that_come_meanwhile() -> None:
    world = World({"b": ["r"]}, slots=1000)
    world.step(BrakeChanged(is_braked=True))
    world.backends["c"] = ["s"]
    world.weights = {"c": 1.0}
    world.push()
    world.submit(range(1, MANY + 1))
    assert not world.held["s"]
    world.step(BrakeChanged(is_braked=False))
    assert len(world.held["s"]) == MANY


@pytest.mark.parametrize("scope", [SloScope.CLIENT, SloScope.BACKEND])
def test_calls_that_it_holds_up_leave_a_backend_that_has_no_replica_for_them(scope: SloScope) -> None:
    world = World({"b": [], "c": ["s"]}, slots=1000, settings={"slo_scope": scope})
    world.step(BrakeChanged(is_braked=True))
    world.submit(range(1, MANY + 1))
    assert world.queued == {"b": MANY}
    world.weights = {"c": 1.0}
    world.push()
    assert world.queued == {"c": MANY}
    world.step(BrakeChanged(is_braked=False))
    assert len(world.held["s"]) == MANY
