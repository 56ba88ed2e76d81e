"""How many calls of a run travel together: the rule, and what the scheduler makes of it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_service.core.events import ServiceTimesReported
from router_service.core.limits.capacity import SLICE_NS, SLICE_S, MethodTime, joins, slice_calls, worth_calls
from slotmesh.spec.model import BUILT_IN_BALANCERS
from tests.unit.router.world import World

QUICK = MethodTime(2e-6)
SLOW = MethodTime(0.01)
TIMES = st.none() | st.builds(MethodTime, st.floats(0, 10), st.integers(0, 5000))


def sizes(world: World) -> dict[str, int]:
    """Calls at each replica that has any."""
    return {name: len(world.held[name]) for name in world.replicas if world.held[name]}


def tell(world: World, time: MethodTime, *names: str, method: str = "") -> None:
    for name in names or tuple(world.replicas):
        world.step(ServiceTimesReported(world.replicas[name], {method: time}))


# -- the rule ----------------------------------------------------------------------------------------------------------


def test_what_is_not_known_is_spread_evenly() -> None:
    assert slice_calls(40, 4, None) == 10
    assert slice_calls(41, 4, None) == 11


def test_quick_calls_go_together() -> None:
    assert slice_calls(200, 8, QUICK) == 200
    assert worth_calls(QUICK.service_s) > 300


def test_calls_of_a_slices_length_and_more_go_one_by_one() -> None:
    for service_s in (SLICE_S, 0.01, 1.0):
        assert slice_calls(8, 8, MethodTime(service_s)) == 1
        assert slice_calls(64, 8, MethodTime(service_s)) == 8


def test_in_between_a_slice_has_work_for_as_long_as_it_is_worth() -> None:
    time = MethodTime(99e-6)
    assert slice_calls(40, 8, time) == 10
    assert slice_calls(400, 8, time) == 50, "there are no more replicas"


def test_a_batch_method_gets_full_batches_first() -> None:
    time = MethodTime(0.001, batch_size=32)
    assert slice_calls(40, 8, time) == 32
    assert slice_calls(20, 8, time) == 20
    assert slice_calls(512, 8, time) == 64


@given(calls=st.integers(1, 20_000), replicas=st.integers(0, 100), time=TIMES)
def test_a_slice_is_some_of_the_calls_and_all_are_taken_by_the_replicas(
    calls: int, replicas: int, time: MethodTime | None
) -> None:
    share = slice_calls(calls, replicas, time)
    assert 1 <= share <= calls
    assert share * max(1, replicas) >= calls


@given(calls=st.integers(1, 20_000), replicas=st.integers(1, 100), service_s=st.floats(0, 10))
def test_no_slice_is_worth_less_than_its_messages_and_few_much_more(
    calls: int, replicas: int, service_s: float
) -> None:
    share, worth = slice_calls(calls, replicas, MethodTime(service_s)), worth_calls(service_s)
    assert share >= min(worth, calls)
    even = -(-calls // replicas)
    assert share <= max(2 * worth, even)


def test_only_quick_calls_join_and_only_where_there_is_some_work_and_not_much() -> None:
    assert joins(1, QUICK)
    assert joins(SLICE_NS - QUICK.call_ns, QUICK)
    assert not joins(SLICE_NS, QUICK)
    assert not joins(0, QUICK), "nothing is there that they could join"
    assert not joins(1, SLOW)
    assert not joins(1, None)


# -- the scheduler -----------------------------------------------------------------------------------------------------


def test_a_run_of_quick_calls_goes_whole_to_one_replica() -> None:
    world = World({"b": ["r1", "r2", "r3", "r4"]}, slots=512)
    tell(world, QUICK)
    world.submit(range(200))
    assert list(sizes(world).values()) == [200]


def test_a_run_that_was_not_heard_of_is_spread() -> None:
    world = World({"b": ["r1", "r2", "r3", "r4"]}, slots=512)
    world.submit(range(200))
    assert list(sizes(world).values()) == [50] * 4


def test_a_method_is_known_by_itself() -> None:
    world = World({"b": ["r1", "r2"]}, slots=512)
    tell(world, QUICK, method="quick")
    tell(world, SLOW, method="slow")
    world.submit(range(100), method="slow")
    assert sizes(world) == {"r1": 50, "r2": 50}


def test_what_a_replica_says_replaces_what_it_has_said() -> None:
    world = World({"b": ["r1", "r2"]}, slots=512)
    tell(world, QUICK)
    tell(world, SLOW)
    world.submit(range(100))
    assert sizes(world) == {"r1": 50, "r2": 50}


def test_quick_calls_join_those_that_are_there_until_there_are_enough() -> None:
    """A caller each: 32 of them in one frame, as unary calls are, and no 32 frames."""
    world = World({"b": ["r1", "r2", "r3", "r4"]}, slots=512)
    tell(world, QUICK)
    worth = worth_calls(QUICK.service_s)
    for call_id in range(worth):
        world.submit([call_id])
    assert list(sizes(world).values()) == [worth]
    world.submit([worth])
    assert sorted(sizes(world).values()) == [1, worth], "then the next replica is filled"


def test_quick_calls_do_not_join_a_slow_one() -> None:
    """Behind it they would wait, if its handler keeps the loop, while others are idle."""
    world = World({"b": ["r1", "r2", "r3", "r4"]}, slots=512)
    for replica in world.replicas.values():
        world.step(ServiceTimesReported(replica, {"slow": SLOW, "quick": QUICK}))
    world.submit([1], method="slow")
    (slow,) = sizes(world)
    for call_id in range(2, 102):
        world.submit([call_id], method="quick")
    assert sizes(world)[slow] == 1
    assert sorted(sizes(world).values()) == [1, 100]


def test_quick_calls_do_not_join_calls_that_are_not_known() -> None:
    world = World({"b": ["r1", "r2"]}, slots=512)
    for replica in world.replicas.values():
        world.step(ServiceTimesReported(replica, {"quick": QUICK}))
    world.submit([1], method="new")
    world.submit([2], method="quick")
    assert sizes(world) == {"r1": 1, "r2": 1}


def test_work_is_taken_off_as_it_was_added_whatever_is_told_between() -> None:
    world = World({"b": ["r"]}, slots=512)
    tell(world, QUICK)
    world.submit(range(100))
    tell(world, SLOW)
    world.submit(range(100, 150))
    world.complete("r", *range(50))
    world.complete("r")
    assert world.replicas["r"].work_ns == 0


def test_slow_calls_do_not_join() -> None:
    world = World({"b": ["r1", "r2", "r3", "r4"]}, slots=512)
    tell(world, SLOW)
    for call_id in range(4):
        world.submit([call_id])
    assert list(sizes(world).values()) == [1] * 4


def test_quick_calls_one_after_another_have_their_turns() -> None:
    """Nothing is there that the next one could join."""
    world = World({"b": ["r1", "r2"]}, slots=4)
    tell(world, QUICK)
    taken: Counter[str] = Counter()
    for call_id in range(4):
        world.submit([call_id])
        (name,) = sizes(world)
        taken[name] += 1
        world.complete(name)
    assert taken == {"r1": 2, "r2": 2}


def test_whoever_is_being_filled_has_left_or_is_full() -> None:
    world = World({"b": ["r1", "r2"]}, slots=3)
    tell(world, QUICK)
    world.submit([1, 2, 3])
    (first,) = sizes(world)
    world.submit([4])
    assert len(sizes(world)) == 2, "there is no room for more"
    world.backends["b"].remove(first)
    world.push()
    world.submit([5])
    other = "r2" if first == "r1" else "r1"
    assert world.at_replica(other) == [4, 5]


@pytest.mark.parametrize("balancer", BUILT_IN_BALANCERS)
def test_nothing_waits_while_there_is_room(balancer: str) -> None:
    world = World({"b": ["r1", "r2", "r3"]}, slots=100, settings={"balancer": balancer})
    tell(world, QUICK)
    world.submit(range(350))
    assert sizes(world) == {"r1": 100, "r2": 100, "r3": 100}
    assert world.queued == {"b": 50}
    world.complete("r2")
    assert world.queued == {}
    assert len(world.held["r2"]) == 50


def test_no_shadows_copy_is_dropped_while_there_is_a_free_slot_elsewhere() -> None:
    """Room behind the running ones is none for a copy."""
    world = World({"b": ["r"], "s": ["s1", "s2"]}, slots=4, shadows={"s": 1.0})
    for name in ("s1", "s2"):
        world.report(name, prefetch=10)
    tell(world, QUICK)
    for call_id in range(8):
        world.submit([call_id])
    assert [len(world.held[name]) for name in ("s1", "s2")] == [4, 4]


def test_a_shadows_copies_go_together_too() -> None:
    world = World({"b": ["r"], "s": ["s1", "s2", "s3"]}, slots=512, shadows={"s": 1.0})
    tell(world, QUICK)
    world.submit(range(90))
    assert sorted(len(world.held[name]) for name in ("s1", "s2", "s3")) == [0, 0, 90]
