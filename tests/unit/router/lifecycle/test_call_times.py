"""Times by endpoint and method, with labels that callers cannot multiply."""

from __future__ import annotations

from router_service.core.counters import MAX_METHODS, OTHER, CallTimes
from tests.unit.router.world import World


def test_methods_beyond_the_bound_share_a_label() -> None:
    times = CallTimes()
    for number in range(10 * MAX_METHODS):
        times.executed("e", f"m{number}", 0.0, 0.001, 2)
    assert len(times.by_method) == MAX_METHODS + 1
    assert sum(times.by_method["e", OTHER].total_time.counts) == 2 * 9 * MAX_METHODS
    times.executed("e", "m0", 0.0, 0.001, 1)
    times.executed("f", "m0", 0.0, 0.001, 1)
    assert sum(times.by_method["e", "m0"].total_time.counts) == 3
    assert sum(times.by_method["f", "m0"].total_time.counts) == 1


def test_calls_that_were_executed_are_counted_with_their_wait_and_in_all() -> None:
    world = World({"b": ["r"]}, slots=1)
    world.submit([1])
    world.submit([2])
    world.now = 0.2
    world.complete("r")
    world.now = 0.3
    world.complete("r")
    world.submit([3], to="made-up")
    ((label, times),) = world.scheduler.counters.times.by_method.items()
    assert label[0] == "e"
    assert (sum(times.queue_time.counts), round(times.queue_time.total, 6)) == (2, 0.2)
    assert (sum(times.total_time.counts), round(times.total_time.total, 6)) == (2, 0.5)
