"""Keyed calls through every change of their owner."""

from __future__ import annotations

from typing import Any

import pytest

from slotmesh.errors import Reason
from tests.unit.router.world import OK, World
from tests.unit.router.world_callers import Fields

KEYED: Fields = {"ordering_key": "k"}


def owned(backends: dict[str, list[str]] | None = None, **table: Any) -> World:
    """`old` owns all partitions."""
    return World(backends or {"b": ["old", "new"]}, owner=("old", 1), **table)


def move(world: World, to: str | None = "new") -> None:
    world.owner = (to, world.owner[1] + 1)
    world.push()


def test_keyed_calls_go_to_their_owner_with_its_epoch() -> None:
    world = owned(weights={"b": 1.0})
    world.submit([1], **KEYED)
    move(world)
    world.complete("old")
    world.submit([2], **KEYED)
    assert (world.got("old"), world.got("new")) == ([1], [2])
    assert [batch.owner_epoch for batch in (*world.batches["old"], *world.batches["new"])] == [1, 2]


def test_an_endpoint_that_comes_back_does_not_overtake_what_it_left_at_a_replica() -> None:
    world = owned()
    world.submit([1], **KEYED)
    world.endpoints = []
    world.push()
    world.endpoints = ["e"]
    move(world)
    world.submit([2], **KEYED)
    assert not world.got("new"), "the first call still runs at the old owner"
    world.complete("old")
    assert world.got("new") == [2]


@pytest.mark.parametrize("way", ["unsent", "refused"])
@pytest.mark.parametrize("backends", [{"b": ["old", "new"]}, {"b": ["old"], "c": ["new"]}])
def test_what_the_old_owner_gives_back_leaves_for_the_new_one_before_what_waits(
    way: str, backends: dict[str, list[str]]
) -> None:
    world = owned(backends, lazy=way == "unsent")
    world.submit([1], **KEYED)
    world.submit([2], **KEYED)
    if "c" in backends:
        world.weights = {"c": 1.0}
        del world.backends["b"]
    move(world)
    world.submit([3], **KEYED)
    assert not world.got("new"), "the old owner has not answered"
    world.lazy = False
    if way == "unsent":
        world.lose("old")
    else:
        world.refuse("old", reason=Reason.DRAINING)
    assert world.got("new") == [1, 2, 3]


def test_a_partition_without_owner_waits_for_one() -> None:
    world = owned()
    move(world, to=None)
    world.submit([1, 2], **KEYED)
    assert not world.outcomes
    move(world)
    assert world.got("new") == [1, 2]


def test_a_refused_epoch_is_not_tried_again() -> None:
    world = owned()
    world.submit([1], **KEYED)
    world.refuse("old", reason=Reason.STALE_TABLE)
    world.report("old", others=1)
    world.push()
    world.submit([2], **KEYED)
    assert world.got("old") == [1]
    move(world, to="old")
    assert world.got("old") == [1, 1, 2]


def test_an_owner_that_refuses_for_another_reason_is_tried_again() -> None:
    world = owned()
    world.lazy = True
    world.submit([1, 2], **KEYED)
    world.cut("old")
    world.refuse("old", 1, 2, reason=Reason.QUEUE_FULL)
    world.cut("old")
    world.complete("old")
    assert world.outcomes == {1: OK, 2: OK}


def test_an_owner_that_refuses_because_it_drains_gets_no_more() -> None:
    world = owned()
    world.submit([1], **KEYED)
    world.refuse("old", reason=Reason.DRAINING)
    world.submit([2], **KEYED)
    assert world.got("old") == [1]
    move(world)
    assert world.got("new") == [1, 2]


def test_a_drained_owner_gets_no_more_and_its_calls_wait_for_the_next() -> None:
    world = owned()
    world.submit([1], **KEYED)
    world.drain("old")
    world.submit([2], **KEYED)
    move(world)
    assert not world.got("new")
    world.complete("old")
    assert world.got("new") == [2]
    assert world.outcomes == {1: OK}


def test_the_owners_window_bounds_what_it_has_and_load_does_not() -> None:
    world = owned()
    world.report("old", others=4, keyed_window=3)
    world.submit(range(5), **KEYED)
    assert world.at_replica("old") == [0, 1, 2]
    world.complete("old", 0)
    assert world.at_replica("old") == [1, 2, 3]


def test_one_partition_does_not_starve_the_others() -> None:
    world = owned(slots=10**4)
    world.report("old", keyed_window=0)
    world.submit(range(2000), ordering_key="flood")
    world.submit([5000], ordering_key="single")
    world.report("old", keyed_window=300)
    assert 5000 in world.got("old"), "a turn is 256 calls"


def test_a_key_that_is_on_the_move_holds_up_no_other_key() -> None:
    world = owned()
    world.submit([1], **KEYED)
    move(world)
    world.submit([2], **KEYED)
    world.submit([3], ordering_key="another")
    world.submit([4])
    assert world.got("new") == [3] or sorted(world.got("new")) == [3, 4]
    assert 2 not in world.got("new")


def test_a_replica_that_left_the_table_is_disconnected_with_its_last_answer() -> None:
    world = owned()
    world.submit([1], **KEYED)
    world.backends["b"] = ["new"]
    move(world)
    assert not world.closed
    world.complete("old")
    assert world.closed == ["old"]
