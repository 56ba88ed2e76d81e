"""Calls with a request id whose partition has moved: for a minute they are looked up at earlier owners first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from router_service.core.events import CallsSubmitted
from router_service.core.look_ups import LINK_WAIT_S, NOT_OWNED
from router_service.core.routing.earlier_owners import SPACING_S, EarlierOwners
from router_service.core.routing.topology import MAX_CANDIDATES
from router_service.core.routing_table import EndpointRoute, PartitionOwners
from slotmesh.calls.key_hash import PARTITIONS, partition_of
from slotmesh.calls.request_ids import KEEP_S, CallIdentity
from slotmesh.errors import Executed, Reason
from tests.unit.router.world import OK, World
from tests.unit.router.world_callers import options

REQUEST = CallIdentity("a", b"")
KEYED: dict[str, Any] = {"ordering_key": "k", "request": REQUEST}


@pytest.fixture
def world() -> World:
    """The partitions have moved from `a` to `b`."""
    world = World({"x": ["a", "b", "c"]}, owner=("a", 1))
    world.owner = ("b", 2)
    world.push()
    return world


def test_the_earlier_owner_answers_what_it_remembers(world: World) -> None:
    world.submit([1], **KEYED)
    assert (world.got("a"), world.got("b")) == ([1], [])
    assert world.batches["a"][0].owner_epoch == NOT_OWNED
    world.complete("a", 1)
    assert world.outcomes == {1: OK}


@pytest.mark.parametrize("reason", [Reason.STALE_TABLE, Reason.DRAINING])
def test_what_it_does_not_remember_goes_to_the_owner(world: World, reason: Reason) -> None:
    world.submit([1], **KEYED)
    world.refuse("a", 1, reason=reason)
    assert (world.got("a"), world.got("b")) == ([1], [1])
    assert world.batches["b"][0].owner_epoch == 2
    world.complete("b", 1)
    assert world.outcomes == {1: OK}


def test_each_earlier_owner_is_queried(world: World) -> None:
    world.at(SPACING_S)
    world.owner = ("c", 3)
    world.push()
    world.submit([1], **KEYED)
    world.refuse("b", 1, reason=Reason.STALE_TABLE)
    world.refuse("a", 1, reason=Reason.STALE_TABLE)
    assert [world.got(name) for name in "abc"] == [[1], [1], [1]]


def test_after_an_epoch_that_skips_one_each_replica_is_queried(world: World) -> None:
    world.at(KEEP_S)  # the move from `a` to `b` is forgotten
    world.owner = ("b", 4)
    world.push()
    world.submit([1], **KEYED)
    world.refuse("a", 1, reason=Reason.STALE_TABLE)
    world.refuse("c", 1, reason=Reason.STALE_TABLE)
    assert [world.got(name) for name in "abc"] == [[1], [1], [1]]


def test_with_more_replicas_the_call_fails_as_its_owners_are_not_known(world: World) -> None:
    world.backends["x"] = [f"r{number}" for number in range(MAX_CANDIDATES)] + ["b"]
    world.owner = ("b", 4)
    world.push()
    world.submit([1], **KEYED)
    assert (world.failures[1].reason, world.failures[1].executed) == (Reason.BACKEND_UNAVAILABLE, Executed.UNKNOWN)
    world.submit([2], ordering_key="k")
    assert world.got("b") == [2]


def test_an_owner_that_was_queried_and_has_owned_again_since_is_queried_again() -> None:
    world = World({"x": ["a", "b", "c"]}, owner=("a", 1))
    world.owner = ("b", 2)
    world.push()
    world.report("b", keyed_window=0)
    world.submit([1], **KEYED)
    world.refuse("a", 1, reason=Reason.STALE_TABLE)
    world.report("a", keyed_window=0)
    world.at(SPACING_S)
    world.owner = ("a", 3)
    world.push()
    world.refuse("b", 1, reason=Reason.STALE_TABLE)
    world.at(2 * SPACING_S)
    world.owner = ("c", 4)
    world.push()
    assert (world.got("a"), world.got("c")) == ([1, 1], [])
    world.refuse("a", 1, reason=Reason.STALE_TABLE)
    assert world.got("c") == [1]


def test_look_ups_hold_back_nothing_but_their_ordering_key(world: World) -> None:
    other = next(key for key in map(str, range(100_000)) if partition_of(key) == partition_of("k"))
    world.submit([1], **KEYED)
    world.submit([2], ordering_key="k")
    world.submit_column("k", first=3)
    world.submit([4], ordering_key=other)
    for number in (5, 6):
        shared = replace(options(request=CallIdentity(str(number), b"")), partition=partition_of("k"))
        world.step(CallsSubmitted(world.caller, "e", [(shared, [number], [b"%d" % number])]))
    assert (world.got("a"), world.got("b")) == ([1, 5, 6], [4])
    world.refuse("a", 6, reason=Reason.STALE_TABLE)
    assert world.got("b") == [4, 6]
    world.refuse("a", 1, reason=Reason.STALE_TABLE)
    assert world.got("b") == [4, 6, 1, 2, 3]


def test_look_ups_of_one_key_overlap_and_their_calls_leave_in_order(world: World) -> None:
    for number in range(1, 6):
        world.submit([number], ordering_key="k", request=CallIdentity(str(number), b""))
    world.refuse("a", 2, 3, reason=Reason.STALE_TABLE)
    assert world.got("b") == []
    world.refuse("a", 1, reason=Reason.STALE_TABLE)
    assert world.got("b") == [1, 2, 3]
    world.complete("a", 4)
    world.refuse("a", 5, reason=Reason.STALE_TABLE)
    assert world.got("b") == [1, 2, 3, 5]


def test_a_call_that_ends_while_it_is_looked_up_holds_back_nothing(world: World) -> None:
    world.submit([1], timeout_s=1.0, **KEYED)
    world.submit([2], ordering_key="k")
    world.at(1.0)
    assert world.failures[1].reason is Reason.DEADLINE_RUNNING
    assert world.got("b") == [2]


def test_what_its_owner_hands_back_does_not_pass_an_older_call_that_is_looked_up(world: World) -> None:
    world.submit([1], **KEYED)
    world.refuse("a", 1, reason=Reason.STALE_TABLE)
    world.submit([2], ordering_key="k")
    world.submit([3], ordering_key="k")
    world.owner = ("c", 3)
    world.push()
    assert world.got("b") == [1, 2, 3]
    world.refuse("b", 1, reason=Reason.STALE_TABLE)
    world.refuse("b", 2, 3, reason=Reason.STALE_TABLE)
    assert (world.got("b"), world.got("c")) == ([1, 2, 3, 1], [])
    world.refuse("b", 1, reason=Reason.STALE_TABLE)
    assert world.got("c") == [1, 2, 3]


def test_calls_that_were_looked_up_wait_for_the_owner_by_age(world: World) -> None:
    other = next(key for key in map(str, range(100_000)) if partition_of(key) == partition_of("k"))
    world.report("b", keyed_window=0)
    world.submit([1], **KEYED)
    world.submit([2], ordering_key="k")
    world.submit([3], ordering_key=other)
    world.refuse("a", 1, reason=Reason.STALE_TABLE)
    world.report("b", keyed_window=10)
    assert world.got("b") == [1, 2, 3]


def test_a_refused_look_up_is_no_refusal_of_a_call(world: World) -> None:
    world.submit([1], **KEYED)
    world.refuse("a", 1, reason=Reason.STALE_TABLE)
    assert not world.scheduler.counters.refusals


def test_an_earlier_owner_that_refuses_to_look_may_remember_the_call(world: World) -> None:
    world.submit([1], **KEYED)
    world.refuse("a", 1, reason=Reason.QUEUE_FULL)
    assert (world.failures[1].reason, world.failures[1].executed) == (Reason.BACKEND_UNAVAILABLE, Executed.UNKNOWN)


def test_a_link_that_breaks_during_a_look_up_leaves_the_call_unknown_unless_its_replica_has_ended(world: World) -> None:
    world.submit([1], **KEYED)
    world.submit([2], ordering_key="k")
    world.lose("a")
    assert (world.outcomes, world.got("b")) == ({}, [])
    world.at(LINK_WAIT_S)
    assert (world.failures[1].reason, world.failures[1].executed) == (Reason.BACKEND_UNAVAILABLE, Executed.UNKNOWN)
    assert world.got("b") == [2]
    world.link("a")
    world.submit([3], **KEYED)
    world.backends["x"].remove("a")
    world.push()
    world.lose("a")
    assert world.got("b") == [2, 3]


def test_an_endpoint_that_is_removed_and_created_again_has_its_earlier_owners() -> None:
    moves = EarlierOwners()
    moves.changed(owned(1, 1), owned(2, 2), 0.0)
    moves.changed(owned(2, 2), {}, SPACING_S)
    moves.changed({}, owned(3, 1), SPACING_S)
    earlier = moves.of("e", 0, SPACING_S)
    assert (list(earlier.epochs.items()), earlier.is_complete) == ([(("r2", "life"), 2), (("r1", "life"), 1)], True)
    moves.changed(owned(3, 1), owned(4, 2), 10.0)
    moves.changed(owned(4, 2), {}, 10.1)
    moves.changed({}, owned(5, 1), 10.1)
    assert not moves.of("e", 0, 10.1).is_complete, "the owners at the end were not kept"


def test_other_calls_go_to_the_owner(world: World) -> None:
    world.submit([1], ordering_key="k")
    assert (world.got("a"), world.got("b")) == ([], [1])


def test_a_call_that_arrives_while_its_owner_drains_gets_what_the_owner_executes() -> None:
    world = World({"x": ["a", "b"]}, owner=("a", 1))
    world.drain("a")
    world.submit([1], **KEYED)
    assert world.batches["a"][0].owner_epoch == NOT_OWNED
    world.complete("a", 1)
    assert world.outcomes == {1: OK}


def test_one_that_the_draining_owner_does_not_know_waits_and_is_looked_up_again_when_its_partition_has_moved() -> None:
    world = World({"x": ["a", "b"]}, owner=("a", 1))
    world.drain("a")
    world.submit([1], **KEYED)
    world.submit([2], ordering_key="k")
    world.refuse("a", 1, reason=Reason.STALE_TABLE)
    assert (world.got("a"), world.got("b")) == ([1], [])
    world.owner = ("b", 2)
    world.push()
    assert (world.got("a"), world.got("b")) == ([1, 1], [])
    world.refuse("a", 1, reason=Reason.STALE_TABLE)
    assert world.got("b") == [1, 2]


@pytest.mark.parametrize("by_table", [False, True])
def test_one_that_waits_is_looked_up_when_its_owner_begins_to_drain(by_table: bool) -> None:
    world = World({"x": ["a", "b"]}, owner=("a", 1))
    world.report("a", keyed_window=0)
    world.submit([1], **KEYED)
    world.submit([2], ordering_key="k")
    assert world.got("a") == []
    if by_table:
        world.draining = {"a"}
        world.push()
    else:
        world.drain("a")
    assert ([batch.owner_epoch for batch in world.batches["a"]], world.got("a")) == ([NOT_OWNED], [1])
    world.lose("a")
    assert (world.outcomes, world.got("b")) == ({}, []), "it waits for the next owner"
    world.backends["x"].remove("a")
    world.owner = ("b", 2)
    world.push()
    assert world.got("b") == [1, 2]


def test_an_owner_that_drains_without_a_link_is_not_queried() -> None:
    world = World({"x": ["a", "b"]}, owner=("a", 1))
    world.links_at_once = False
    world.drain("a")
    world.lose("a")
    world.submit([1], **KEYED)
    world.at(LINK_WAIT_S)
    assert (world.outcomes, world.got("a")) == ({}, [])


def test_moves_are_forgotten_after_a_minute(world: World) -> None:
    world.at(KEEP_S)
    world.submit([1], **KEYED)
    assert (world.got("a"), world.got("b")) == ([], [1])


def test_what_waited_for_the_move_is_looked_up_too() -> None:
    world = World({"x": ["a", "b"]}, owner=("a", 1))
    world.submit([1, 2], ordering_key="k")
    world.refuse("a", 1, 2, reason=Reason.STALE_TABLE)
    world.submit([3], **KEYED)
    world.submit([4], ordering_key="k")
    world.owner = ("b", 2)
    world.push()
    assert world.got("a") == [1, 2, 3]
    world.refuse("a", 3, reason=Reason.STALE_TABLE)
    assert world.got("b") == [1, 2, 3, 4], "in order"


def test_an_earlier_owner_that_cannot_be_reached_may_remember_it(world: World) -> None:
    world.lose("a")
    world.submit([1], **KEYED)
    world.fail_link("a")
    assert world.outcomes == {}
    world.at(LINK_WAIT_S)
    assert (world.failures[1].reason, world.failures[1].executed) == (Reason.BACKEND_UNAVAILABLE, Executed.UNKNOWN)
    assert (world.got("a"), world.got("b")) == ([], [])


def test_a_call_waits_until_the_table_shows_that_an_earlier_owner_without_a_link_has_ended(world: World) -> None:
    world.links_at_once = False
    world.drain("a")
    world.lose("a")
    world.submit([1], **KEYED)
    world.submit([2], ordering_key="k")
    world.push()
    assert (world.outcomes, world.got("b")) == ({}, [])
    world.backends["x"].remove("a")
    world.push()
    assert (world.got("a"), world.got("b")) == ([], [1, 2])
    assert "a" not in {each.replica_id for each in world.scheduler.topology.connected}


def test_a_call_waits_for_a_link_to_an_earlier_owner_that_returns(world: World) -> None:
    world.lose("a")
    world.submit([1], **KEYED)
    world.link("a")
    assert (world.got("a"), world.got("b")) == ([1], [])
    world.refuse("a", 1, reason=Reason.STALE_TABLE)
    assert world.got("b") == [1]


def test_a_timeout_while_an_earlier_owner_cannot_be_reached_leaves_the_call_unknown(world: World) -> None:
    world.lose("a")
    world.submit([1], timeout_s=LINK_WAIT_S / 2, **KEYED)
    world.submit([2], ordering_key="k")
    world.at(LINK_WAIT_S / 2)
    assert world.failures[1].executed is Executed.UNKNOWN
    assert world.got("b") == [2]


def test_a_call_that_is_cancelled_while_an_earlier_owner_cannot_be_reached_is_no_failure(world: World) -> None:
    world.lose("a")
    world.submit([1], **KEYED)
    world.cancel((1, 1))
    assert (world.failures[1].reason, world.failures[1].executed) == (Reason.CANCELLED, Executed.UNKNOWN)


def test_one_that_has_ended_is_not_queried(world: World) -> None:
    world.backends["x"].remove("a")
    world.push()
    world.submit([1], **KEYED)
    assert world.got("b") == [1]


def owned(number: int, epoch: int) -> dict[str, EndpointRoute]:
    owners = PartitionOwners.of([((f"r{number}", "life"), epoch)] * PARTITIONS)
    return {"e": EndpointRoute(name="e", owners=owners)}


def test_owners_are_kept_once_a_second_and_what_is_missing_is_known() -> None:
    moves = EarlierOwners()
    moves.changed(owned(1, 1), owned(2, 2), 0.0)
    assert moves.of("e", 0, 0.0).is_complete
    moves.changed(owned(2, 2), owned(3, 3), SPACING_S / 2)
    earlier = moves.of("e", 0, 1.0)
    assert (list(earlier.epochs), earlier.is_complete) == ([("r1", "life")], False)
    assert moves.of("e", 0, KEEP_S).epochs, "the last move is half a second younger"
    earlier = moves.of("e", 0, KEEP_S + SPACING_S)
    assert (earlier.epochs, earlier.is_complete) == ({}, True)


def test_an_owner_has_the_newest_of_its_epochs() -> None:
    moves = EarlierOwners()
    for number in range(1, 5):
        moves.changed(owned(number % 2, number), owned((number + 1) % 2, number + 1), number * SPACING_S)
    assert moves.of("e", 0, 5.0).epochs == {("r0", "life"): 4, ("r1", "life"): 3}
