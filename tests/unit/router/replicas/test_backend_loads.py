"""What the router tells the controller of the load of each backend, and when out of turn."""

from __future__ import annotations

from router_service.shell.reports import RoutedLoad, loads_of
from slotmesh.spec.model import Prospect
from tests.unit.router.slot_world import SlotWorld
from tests.unit.router.world import World


def loads(world: World) -> dict[str, RoutedLoad]:
    return {load.backend: load for load in loads_of(world.scheduler.topology, world.scheduler.counters, world.now)}


def test_what_waits_what_runs_and_what_was_sent() -> None:
    world = World({"a": ["a1"]}, slots=2)
    world.submit(range(5))
    load = loads(world)["a"]
    assert (load.queued, load.ongoing, load.sent) == (3, 2, 2)
    assert load.queue_time_s > 0.0
    world.complete("a1")
    while loads(world)["a"].ongoing:
        world.complete("a1")
    load = loads(world)["a"]
    assert (load.queued, load.ongoing, load.sent, load.queue_time_s) == (0, 0, 5, 0.0)


def test_a_slot_counts_as_sent_and_the_call_in_it_does_not() -> None:
    world = SlotWorld({"b": ["b1"]}, slots=2)
    world.reserve()
    world.grant("b1")
    assert loads(world)["b"].sent == 1
    world.dispatch("b1")
    world.release("b1")
    assert loads(world)["b"].sent == 1


def test_the_first_call_that_waits_where_none_runs_is_told_at_once() -> None:
    world = World({"a": []}, prospects={"a": Prospect.COMING})
    world.submit([0])
    assert world.load_reports == 1
    world.submit([1, 2])
    assert world.load_reports == 1, "once: it has been told"
    assert loads(world)["a"].queued == 3
    world.cancel((0, 2))
    world.submit([3])
    assert world.load_reports == 2


def test_calls_that_wait_for_busy_replicas_are_told_in_turn() -> None:
    world = World({"a": ["a1"]}, slots=1)
    world.submit(range(5))
    assert loads(world)["a"].queued == 4
    assert not world.load_reports


def test_calls_whose_key_has_no_owner_ask_for_all_backends_that_they_may_go_to() -> None:
    world = World({"a": [], "b": []}, weights={"a": 0.9, "b": 0.1}, prospects=dict.fromkeys("ab", Prospect.COMING))
    world.submit(range(10), ordering_key="k")
    assert world.load_reports == 1
    assert [load.queued for load in loads(world).values()] == [9, 1]
