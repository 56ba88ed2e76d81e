"""Links that break: what was sent is unknown, what was not goes on, and what is idempotent is executed again."""

from __future__ import annotations

from typing import Any

import pytest

from router_service.core.calls import FirstAttempt
from router_service.core.events import RunsCompleted
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.streams.chunks import joined
from tests.unit.router.world import OK, World
from tests.unit.router.world_callers import Fields, caller

KEYED = [pytest.param({}, id="unkeyed"), pytest.param({"ordering_key": "k"}, id="keyed")]


def pair(*, lazy: bool = False, **table: Any) -> World:
    """All calls go to r1; when it is gone, r2 may take them."""
    world = World({"b": ["r1", "r2"]}, slots=100, owner=("r1", 1), lazy=lazy, **table)
    world.report("r2", others=100)
    return world


def move(world: World) -> None:
    """What goes on goes to r2."""
    world.report("r2")
    world.owner = ("r2", 2)
    world.links_at_once = False
    world.push()


def earn_retries(world: World, retries: int) -> None:
    world.submit(range(10_000, 10_000 + 5 * retries))
    world.complete("r1")


@pytest.mark.parametrize("fields", KEYED)
def test_what_was_sent_is_lost_and_may_have_been_executed(fields: Fields) -> None:
    world = pair()
    world.submit([1, 2, 3], **fields)
    world.complete("r1", 1)
    world.lose("r1")
    move(world)
    assert world.outcomes == {1: OK, 2: Reason.REPLICA_LOST, 3: Reason.REPLICA_LOST}
    assert world.failures[2].executed is Executed.UNKNOWN
    assert world.failures[2].metadata == {"backend": "b", "replica_id": "r1"}
    assert "cut" in world.failures[2].message
    assert not world.got("r2")


@pytest.mark.parametrize("fields", KEYED)
def test_what_no_frame_carried_goes_on_elsewhere_in_order(fields: Fields) -> None:
    world = pair(lazy=True)
    world.submit([1, 2], **fields)
    world.cut("r1")
    world.submit([3, 4], **fields)
    world.submit([5], by=caller(), **fields)
    world.lazy = False
    world.lose("r1")
    world.submit([6], **fields)
    move(world)
    assert world.reasons([1, 2]) == {Reason.REPLICA_LOST}
    got = world.got("r2")
    assert [each for each in got if each != 5] == [3, 4, 6]
    assert {batch.attempt for batch in world.batches["r2"]} == {0}, "it was never sent: no retry"


@pytest.mark.parametrize("fields", KEYED)
def test_idempotent_calls_are_executed_again_in_order(fields: Fields) -> None:
    world = pair()
    earn_retries(world, 10)
    world.submit([1, 2, 3], idempotent=True, **fields)
    world.submit([4, 5], idempotent=True, **fields)
    world.complete("r1", 2)
    world.lose("r1")
    world.submit([6], idempotent=True, **fields)
    move(world)
    assert [([int(joined(payload)) for payload in batch.payloads], batch.attempt) for batch in world.batches["r2"]] == [
        ([1, 3, 4, 5], 1),
        ([6], 0),
    ]
    world.complete("r2")
    assert world.reasons(range(1, 7)) == {OK}
    assert world.scheduler.counters.retries == {("b",): 4}


def test_another_attempt_says_which_calls_of_which_stream_it_is_at() -> None:
    world = pair()
    earn_retries(world, 10)
    sent = len(world.batches["r1"])
    world.replicas["r1"].stream_id = "first"
    world.submit([1, 2, 3], idempotent=True)
    world.submit([4, 5], idempotent=True)
    ids = [batch.first_run_id + at for batch in world.batches["r1"][sent:] for at in range(len(batch.payloads))]
    assert len(ids) == 5
    world.complete("r1", 2)
    world.lose("r1")
    move(world)
    (batch,) = world.batches["r2"]
    assert batch.origin == FirstAttempt("first", [ids[0], *ids[2:]])
    world.replicas["r2"].stream_id = "second"
    world.link("r1")
    world.lose("r2")
    world.push()
    *_, batch = world.batches["r1"]
    assert batch.attempt == 2
    assert batch.origin == FirstAttempt("first", [ids[0], *ids[2:]]), "the first attempt's, not the second's"


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("fields", KEYED)
def test_each_of_several_batches_says_which_calls_of_the_first_attempt_it_has(fields: Fields, size: int) -> None:
    world = pair(settings={"max_wire_batch_size": size})
    earn_retries(world, 10)
    sent = len(world.batches["r1"])
    world.replicas["r1"].stream_id = "first"
    world.submit(range(1, 8), idempotent=True, **fields)
    run_ids = [batch.first_run_id + at for batch in world.batches["r1"][sent:] for at in range(len(batch.payloads))]
    world.lose("r1")
    move(world)
    found = {
        int(joined(payload)): run_id
        for batch in world.batches["r2"]
        if batch.origin is not None
        for payload, run_id in zip(batch.payloads, batch.origin.run_ids, strict=True)
    }
    assert found == dict(zip(range(1, 8), run_ids, strict=True))


def test_what_goes_on_keeps_its_place_before_what_came_later() -> None:
    world = World({"b": ["r"]}, slots=2)
    world.submit([1, 2], idempotent=True)
    world.submit([3])
    world.lose("r")
    world.link("r")
    assert world.at_replica("r") == [1, 2]
    world.complete("r")
    assert world.at_replica("r") == [3]


@pytest.mark.parametrize("fields", KEYED)
def test_the_budget_bounds_what_is_executed_again(fields: Fields) -> None:
    world = pair()
    world.submit(range(10), idempotent=True, **fields)
    world.lose("r1")
    move(world)
    assert world.got("r2") == [0, 1, 2]
    assert world.reasons(range(3, 10)) == {Reason.REPLICA_LOST}
    assert {world.failures[each].executed for each in range(3, 10)} == {Executed.UNKNOWN}


def test_a_budget_is_earned_by_calls_that_end_well() -> None:
    world = pair()
    earn_retries(world, 8)
    world.submit(range(10), idempotent=True)
    world.lose("r1")
    move(world)
    assert world.got("r2") == list(range(8))


def test_attempts_are_counted_up() -> None:
    world = World({"b": ["r"]})
    world.submit([1], idempotent=True)
    for attempt in range(4):
        assert world.batches["r"][-1].attempt == attempt
        world.lose("r")
        world.link("r")
        if world.outcomes:
            break
    assert world.outcomes == {1: Reason.REPLICA_LOST}, "three retries, then the budget is used up"


@pytest.mark.parametrize("way", ["in time", "in the queue", "taken back", "endpoint gone", "refused by the replica"])
def test_after_a_lost_attempt_nothing_says_that_the_call_was_not_executed(way: str) -> None:
    world = World({"b": ["r"]})
    world.submit([1], idempotent=True, timeout_s=60.0 if way != "in time" else 10.0)
    world.lose("r")
    match way:
        case "in time":
            world.at(10.0)
        case "in the queue":
            world.at(30.0)
        case "taken back":
            world.cancel((1, 1))
        case "endpoint gone":
            world.endpoints = []
            world.push()
        case _:
            world.link("r")
            run_ids = list(world.held["r"])
            no = world.scheduler.step(
                RunsCompleted(world.replicas["r"], [], [(run_ids, _not_executed(Reason.METHOD_NOT_FOUND))], None), 0.0
            )
            world.do(no)
    assert world.failures[1].executed is Executed.UNKNOWN


def _not_executed(reason: Reason) -> Failure:
    return Failure(reason=reason, message="no")


def test_a_link_that_breaks_while_the_replica_drains_is_no_failure_of_the_link() -> None:
    world = World({"b": ["r1", "r2"]})
    world.drain("r1")
    world.lose("r1")
    assert not world.scheduler.counters.link_failures
    world.lose("r2")
    assert world.scheduler.counters.link_failures == {("b",): 1}


def test_a_link_that_never_came_up_loses_nothing() -> None:
    world = World({"b": ["r"]}, links_at_once=False)
    world.submit([1])
    assert world.queued == {"b": 1}
    world.link("r")
    assert world.at_replica("r") == [1]


def test_answers_of_an_earlier_link_mean_nothing_on_the_next() -> None:
    world = World({"b": ["r"]})
    world.submit([1])
    world.lose("r")
    world.link("r")
    world.submit([2])
    assert world.at_replica("r") == [2]
    world.complete("r")
    assert world.outcomes == {1: Reason.REPLICA_LOST, 2: OK}
