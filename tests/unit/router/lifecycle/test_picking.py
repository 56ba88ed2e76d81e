"""Picking a replica, with each of the balancers: what holds for all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from router_service.core.events import RunsCompleted
from slotmesh.errors import Reason
from slotmesh.spec.model import BUILT_IN_BALANCERS
from tests.unit.router.world import OK, World

MakeWorld = Callable[..., World]


@pytest.fixture(params=BUILT_IN_BALANCERS)
def make(request: pytest.FixtureRequest) -> MakeWorld:
    def world(*replicas: str, slots: int = 1, **table: Any) -> World:
        return World({"b": replicas}, slots=slots, settings={"balancer": request.param}, **table)

    return world


def test_without_a_replica_calls_wait_until_one_joins(make: MakeWorld) -> None:
    world = make()
    world.submit([1, 2])
    assert world.queued == {"b": 2}
    world.backends["b"].append("r")
    world.push()
    assert world.at_replica("r") == [1]
    world.complete("r", 1)
    assert world.at_replica("r") == [2]


def test_a_call_that_one_refuses_is_accepted_by_another(make: MakeWorld) -> None:
    world = make("r1", "r2")
    world.submit([1])
    (first,) = [name for name in ("r1", "r2") if world.held[name]]
    world.refuse(first, 1, others=1)
    other = "r2" if first == "r1" else "r1"
    assert world.at_replica(other) == [1]
    world.complete(other)
    assert world.outcomes == {1: OK}


def test_when_none_accepts_a_new_one_does(make: MakeWorld) -> None:
    world = make("r1", "r2")
    world.submit([1])
    for _ in range(2):
        (taker,) = [name for name in ("r1", "r2") if world.held[name]]
        world.refuse(taker, 1, others=1)
    assert world.queued == {"b": 1}
    world.backends["b"].append("r3")
    world.push()
    assert world.at_replica("r3") == [1]


def test_available_then_not_then_available(make: MakeWorld) -> None:
    world = make("r")
    world.report("r", others=1)
    world.submit([1])
    assert world.queued == {"b": 1}
    world.report("r", others=0)
    assert world.at_replica("r") == [1]


def test_of_two_that_take_calls_one_leaves(make: MakeWorld) -> None:
    world = make("r1", "r2", slots=3)
    world.backends["b"].remove("r1")
    world.push()
    world.submit([1, 2, 3])
    assert world.at_replica("r2") == [1, 2, 3]
    assert world.closed == ["r1"]


def test_what_was_refused_keeps_its_age(make: MakeWorld) -> None:
    world = make("r")
    world.submit([1])
    for call_id in (2, 3, 4):
        world.submit([call_id])
    world.refuse("r", 1, others=1)
    world.report("r", others=0)
    assert world.at_replica("r") == [1]
    for _ in range(3):
        world.complete("r")
    assert world.got("r") == [1, 1, 2, 3, 4]


@pytest.mark.parametrize("gone", [1, 2, 3, 4])
def test_a_queued_call_that_is_taken_back_leaves_the_order_of_the_others(make: MakeWorld, gone: int) -> None:
    world = make("r")
    world.submit([100])
    for call_id in (1, 2, 3, 4):
        world.submit([call_id])
    world.cancel((gone, gone))
    for _ in range(4):
        world.complete("r")
    assert world.got("r")[1:] == [each for each in (1, 2, 3, 4) if each != gone]
    assert world.outcomes[gone] == Reason.CANCELLED


def test_an_answer_after_the_replica_left_the_table_counts(make: MakeWorld) -> None:
    world = make("r1")
    world.submit([1])
    world.backends["b"] = ["r2"]
    world.push()
    assert world.closed == []
    world.submit([2])
    assert world.at_replica("r2") == [2]
    world.complete("r1")
    assert world.outcomes == {1: OK}
    assert world.closed == ["r1"]
    world.step(RunsCompleted(world.replicas["r1"], [([1], [b"again"], "")], [], None))


def test_load_never_goes_below_nothing(make: MakeWorld) -> None:
    world = make("r", slots=2)
    world.submit([1])
    replica = world.replicas["r"]
    for ids in ([1], [1], [1, 2, 3], [0], [-5]):
        results = [b"x"] * len(ids)
        world.step(RunsCompleted(replica, [(ids, results, "")], [], None))
        assert replica.own == 0
    assert world.outcomes == {1: OK}
    world.held["r"].clear()
    world.submit([2, 3, 4])
    assert world.at_replica("r") == [2, 3]


def test_a_report_that_is_older_than_what_was_sent_makes_no_room_twice(make: MakeWorld) -> None:
    """A replica counts the calls of this router itself; `others` leaves them out."""
    world = make("r", slots=2)
    world.submit([1, 2, 3])
    world.report("r", others=0)
    world.report("r")
    assert world.at_replica("r") == [1, 2]


def test_a_completion_starts_the_next_at_once(make: MakeWorld) -> None:
    world = make("r1", "r2")
    for call_id in range(1, 6):
        world.submit([call_id])
    for _ in range(3):
        name = next(name for name in ("r1", "r2") if world.held[name])
        world.complete(name)
        assert len(world.held[name]) == 1
    assert world.queued == {}


def test_nothing_idles_while_something_waits(make: MakeWorld) -> None:
    world = make("r1", "r2", "r3", slots=3)
    world.submit(range(30))
    while world.queued:
        assert all(len(world.held[name]) == 3 for name in ("r1", "r2", "r3"))
        world.complete(max(("r1", "r2", "r3"), key=lambda name: len(world.held[name])))
    assert sorted(call for name in ("r1", "r2", "r3") for call in world.got(name)) == list(range(30))


def test_a_run_is_spread_over_all_that_are_idle(make: MakeWorld) -> None:
    world = make("r1", "r2", "r3", "r4", slots=100)
    world.submit(range(40))
    sizes = Counter({name: len(world.held[name]) for name in world.replicas})
    assert sum(sizes.values()) == 40
    assert len(sizes) >= 2
    assert max(sizes.values()) <= 20


def test_it_was_that_replica_that_died_and_not_another_one(make: MakeWorld) -> None:
    world = make("r1", "r2", slots=2)
    world.submit([1, 2, 3, 4])
    others = world.at_replica("r2")
    lost = world.at_replica("r1")
    world.lose("r1")
    assert world.reasons(lost) == {Reason.REPLICA_LOST}
    world.submit([5])
    assert world.queued == {"b": 1}, "r1 is out at once"
    world.complete("r2")
    assert world.reasons(others) == {OK}
    assert world.at_replica("r2") == [5]
    world.link("r1")
    world.submit([6, 7])
    assert sorted(world.at_replica("r1") + world.at_replica("r2")) == [5, 6, 7]


def test_a_balancer_that_replaces_another_one_knows_every_replica() -> None:
    for old in BUILT_IN_BALANCERS:
        for new in BUILT_IN_BALANCERS:
            world = World({"b": ["r1", "r2"]}, slots=1, settings={"balancer": old})
            world.submit([1])
            world.settings["balancer"] = new
            world.push()
            world.submit([2, 3])
            assert sorted(world.at_replica("r1") + world.at_replica("r2")) == [1, 2]
            assert world.queued == {"b": 1}
