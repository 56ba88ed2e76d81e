"""What the router counts: exact, growing, and under labels that no caller chooses."""

from __future__ import annotations

from slotmesh.errors import Reason
from tests.unit.router.world import World


def test_calls_and_failures_are_counted_by_endpoint_backend_and_reason() -> None:
    world = World({"b": ["r"]}, slots=4)
    world.submit(range(6), timeout_s=60.0)
    world.complete("r", 0)
    world.fail("r", 1, 2)
    world.cancel((5, 5))
    world.lose("r")
    world.at(30.0)
    counters = world.scheduler.counters
    assert counters.calls == {("e",): 6}
    assert counters.failures == {
        ("e", "b", Reason.HANDLER_ERROR): 2,
        ("e", "", Reason.CANCELLED): 1,
        ("e", "b", Reason.REPLICA_LOST): 2,
    }
    assert counters.link_failures == {("b",): 1}


def test_calls_that_a_replica_hands_back_are_refusals_and_no_failures() -> None:
    world = World({"b": ["r"]}, slots=4)
    world.submit(range(3))
    world.refuse("r", 1, 2, others=3)
    world.refuse("r", 0, reason=Reason.DRAINING)
    assert world.scheduler.counters.refusals == {("b", Reason.QUEUE_FULL): 2, ("b", Reason.DRAINING): 1}
    assert not world.scheduler.counters.failures


def test_names_that_callers_make_up_are_no_labels() -> None:
    world = World({"b": ["r"]})
    for number in range(100):
        world.submit([number], to=f"made-up-{number}")
    counters = world.scheduler.counters
    assert counters.calls == {("",): 100}
    assert counters.failures == {("", "", Reason.ENDPOINT_NOT_FOUND): 100}


def test_totals_outlive_what_they_count() -> None:
    world = World({"b": ["r"]})
    world.submit([1])
    world.complete("r")
    world.backends, world.endpoints = {}, []
    world.push()
    world.backends, world.endpoints = {"b": ["s"]}, ["e"]
    world.push()
    world.submit([2])
    world.complete("s")
    counters = world.scheduler.counters
    assert counters.calls == {("e",): 2}
    assert sum(counters.backends["b"].queue_time.counts) == 2


def test_times_in_the_queue_and_at_the_replica_are_told_apart() -> None:
    world = World({"b": ["r"]}, slots=2)
    world.submit([1, 2, 3])
    world.now = 4.0
    world.complete("r", 1)
    world.now = 11.0
    world.complete("r", 2)
    world.fail("r", 3)
    counts = world.scheduler.counters.backends["b"]
    assert (sum(counts.queue_time.counts), counts.queue_time.total) == (3, 0.0 + 0.0 + 4.0)
    assert (sum(counts.replica_time.counts), counts.replica_time.total) == (3, 4.0 + 11.0 + 7.0)
