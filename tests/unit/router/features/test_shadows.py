"""Sampled copies: in free slots only, and never felt by the caller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from router_service.core.counters import ShadowOutcome
from router_service.core.events import CallerLeft
from slotmesh.errors import Reason
from tests.unit.router.world import OK, World
from tests.unit.router.world_callers import Fields

KEYED = [pytest.param({}, id="unkeyed"), pytest.param({"ordering_key": "k"}, id="keyed")]
COMPLETED, FAILED, DROPPED = (each.value for each in ShadowOutcome)


def shadowed(*dark: str, share: float = 1.0, **table: Any) -> World:
    """Every call is copied to `dark`."""
    return World({"b": ["r"], "dark": dark}, owner=("r", 1), shadows={"dark": share}, **table)


def copies(world: World) -> dict[str, int]:
    return {outcome: count for (_, outcome), count in world.scheduler.counters.shadows.items() if count}


def test_copies_belong_to_no_session_so_that_nobody_finds_their_outcomes() -> None:
    world = shadowed("d")
    client = world.connect()
    world.submit([1, 2], by=client)
    assert [batch.session for batch in world.batches["r"]] == [client.session]
    assert [batch.session for batch in world.batches["d"]] == [None]


@pytest.mark.parametrize("fields", KEYED)
def test_a_copy_is_executed_and_its_result_thrown_away(fields: Fields) -> None:
    world = shadowed("d")
    world.submit([1, 2], **fields)
    assert sorted(world.at_replica("d")) == [1, 2]
    world.complete("d")
    assert not world.outcomes
    world.complete("r")
    assert world.outcomes == {1: OK, 2: OK}
    assert copies(world) == {COMPLETED: 2}
    assert not world.scheduler.shadows_under_way


@pytest.mark.parametrize("fields", KEYED)
@pytest.mark.parametrize(
    ("meets", "counted"),
    [
        pytest.param(lambda world: None, {}, id="it hangs"),
        pytest.param(lambda world: world.fail("d"), {FAILED: 3}, id="its handler raises"),
        pytest.param(lambda world: world.refuse("d", others=4), {DROPPED: 3}, id="its replica refuses"),
        pytest.param(lambda world: world.refuse("d", reason=Reason.DRAINING), {DROPPED: 3}, id="its replica drains"),
        pytest.param(lambda world: world.lose("d"), {FAILED: 3}, id="its replica is lost"),
    ],
)
def test_whatever_a_copy_meets_its_caller_does_not_hear_of_it(
    fields: Fields, meets: Callable[[World], None], counted: dict[str, int]
) -> None:
    world = shadowed("d")
    world.submit([1, 2, 3], **fields)
    meets(world)
    assert not world.outcomes
    assert copies(world) == counted
    assert world.queued == {}, "a copy is not sent again"
    world.complete("r")
    assert world.reasons([1, 2, 3]) == {OK}
    assert not world.caller.runs
    assert not world.scheduler.counters.failures
    world.submit([4], **fields)
    world.complete("r")
    assert world.outcomes[4] == OK


@pytest.mark.parametrize("fields", KEYED)
def test_a_copy_that_is_lost_is_not_executed_again_however_idempotent(fields: Fields) -> None:
    world = shadowed("d", "d2")
    world.submit([1], idempotent=True, **fields)
    (name,) = [each for each in ("d", "d2") if world.held[each]]
    world.lose(name)
    assert copies(world) == {FAILED: 1}
    assert not world.scheduler.counters.retries


@pytest.mark.parametrize("fields", KEYED)
def test_only_free_slots_are_taken_and_the_rest_is_dropped(fields: Fields) -> None:
    world = shadowed("d", slots=4)
    world.submit([1, 2, 3], **fields)
    world.submit([4, 5, 6], **fields)
    assert len(world.at_replica("d")) == 4
    assert copies(world) == {DROPPED: 2}
    assert set(world.queued) <= {"b"}


def test_what_may_only_wait_behind_running_calls_is_no_free_slot() -> None:
    world = shadowed("d", slots=2)
    world.report("d", prefetch=10)
    world.submit([1, 2, 3, 4])
    assert len(world.at_replica("d")) == 2
    assert copies(world) == {DROPPED: 2}


def test_slots_that_others_use_are_not_free() -> None:
    world = shadowed("d", slots=4)
    world.report("d", others=3)
    world.submit([1, 2])
    assert len(world.at_replica("d")) == 1


def test_copies_are_spread_over_the_shadows_replicas() -> None:
    world = shadowed("d1", "d2", slots=4)
    world.submit(range(4))
    assert len(world.at_replica("d1")) == len(world.at_replica("d2")) == 2
    world.submit(range(4, 8))
    assert sorted(world.at_replica("d1") + world.at_replica("d2")) == list(range(8))


@pytest.mark.parametrize("fields", KEYED)
def test_a_backend_without_replicas_is_a_shadow_of_nothing(fields: Fields) -> None:
    world = shadowed()
    world.submit([1, 2], **fields)
    world.complete("r")
    assert world.reasons([1, 2]) == {OK}
    assert copies(world) == {DROPPED: 2}


def test_a_backend_that_is_not_there_is_a_shadow_of_nothing() -> None:
    world = World({"b": ["r"]}, shadows={"nowhere": 1.0})
    world.submit([1])
    world.complete("r")
    assert world.outcomes == {1: OK}
    assert world.scheduler.counters.shadows == {("nowhere", DROPPED): 1}


def test_a_copy_never_takes_the_slot_that_the_call_itself_needs() -> None:
    world = World({"b": ["r"]}, slots=2, shadows={"b": 1.0})
    world.submit([1, 2])
    assert world.at_replica("r") == [1, 2]
    assert copies(world) == {DROPPED: 2}
    world.complete("r", 1)
    world.submit([3])
    assert world.at_replica("r") == [2, 3]


def test_a_copy_never_overtakes_calls_that_wait_for_its_backend() -> None:
    world = World({"b": ["r"], "c": ["s1"]}, slots=1, shadows={"c": 1.0}, weights={"c": 1.0})
    world.submit([1, 2])
    world.weights = {"b": 1.0}
    world.push()
    assert world.queued == {"c": 1}
    world.submit([3])
    assert world.at_replica("r") == [3]
    world.complete("s1")
    assert world.at_replica("s1") == [2]


def test_a_copy_in_a_slot_delays_calls_no_longer_than_it_runs() -> None:
    world = World({"b": ["r"]}, slots=2, shadows={"b": 1.0})
    world.submit([1])
    assert world.at_replica("r") == [1, 1]
    world.submit([2])
    assert world.queued == {"b": 1}
    world.complete("r")
    assert world.at_replica("r") == [2]


def test_copies_in_an_outbox_go_with_the_link() -> None:
    world = shadowed("d", lazy=True)
    world.submit([1, 2])
    world.lose("d")
    assert copies(world) == {DROPPED: 2}
    assert not world.scheduler.shadows_under_way
    world.cut("r")
    world.complete("r")
    assert world.reasons([1, 2]) == {OK}


@pytest.mark.parametrize("fields", KEYED)
def test_a_copy_ends_with_its_deadline(fields: Fields) -> None:
    world = shadowed("d")
    world.submit([1], timeout_s=5.0, **fields)
    world.complete("r")
    world.at(5.0)
    assert copies(world) == {FAILED: 1}
    assert len(world.cancelled["d"]) == 1
    assert world.outcomes == {1: OK}


def test_a_call_that_is_taken_back_leaves_its_copy_alone() -> None:
    world = shadowed("d")
    world.submit([1])
    world.cancel((1, 1))
    world.do(world.scheduler.step(CallerLeft(world.caller), 0.0))
    assert not world.cancelled["d"]
    world.complete("d")
    assert copies(world) == {COMPLETED: 1}


def test_several_shadows_get_copies_of_their_own() -> None:
    world = World({"b": ["r"], "x": ["x1"], "y": ["y1"]}, slots=10, shadows={"x": 1.0, "y": 1.0})
    world.submit([1, 2])
    assert sorted(world.at_replica("x1")) == sorted(world.at_replica("y1")) == [1, 2]


@pytest.mark.parametrize("fields", [*KEYED, pytest.param({"shard_key": "s"}, id="sharded")])
@pytest.mark.parametrize("size", [1, 20])
def test_the_share_of_copies_is_the_shadows(fields: Fields, size: int) -> None:
    world = shadowed("d", share=0.2, slots=100, seed=size)
    for first in range(0, 10_000, size):
        world.submit(range(first, first + size), **fields)
        world.complete("r")
        world.complete("d")
    counted = copies(world)
    assert set(counted) == {COMPLETED}
    assert abs(counted[COMPLETED] - 2000) < 4 * 40  # standard deviations
    assert max(Counter(world.got("d")).values()) == 1


def test_a_change_of_the_shadows_leaves_the_weights_and_what_runs() -> None:
    world = shadowed("d")
    world.submit([1])
    world.shadows = {}
    world.push()
    world.submit([2])
    assert world.at_replica("d") == [1]
    assert world.at_replica("r") == [1, 2]
