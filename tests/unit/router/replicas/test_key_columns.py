"""Calls of many keys that arrive together: one slice for each owner, until something happens to some of them."""

from __future__ import annotations

from typing import Any

import pytest

from router_service.core.events import RunsCompleted
from slotmesh.errors import Executed, Reason
from tests.unit.router.world import OK, World

KEYED_WINDOW = 100


def two_owners(**table: Any) -> World:
    """`left` owns the keys a, b and c, `right` all others."""
    world = World({"b": ["left", "right"]}, owner=("right", 1), links_at_once=False, lazy=True, **table)
    world.owner_of = dict.fromkeys("abc", ("left", 1))
    world.push()
    for name in ("left", "right"):
        world.link(name, keyed_window=KEYED_WINDOW)
    return world


def move(world: World, keys: str, to: str | None, epoch: int = 2) -> None:
    world.owner_of |= dict.fromkeys(keys, (to, epoch))
    world.push()


def cut_both(world: World) -> None:
    for name in ("left", "right"):
        world.cut(name)


def lanes(world: World, name: str) -> list[tuple[int, str, int]]:
    """Call, key and epoch of all that the replica got."""
    return [
        (int(payload), *batch.lane(at)[::2])  # type: ignore[arg-type]
        for batch in world.batches[name]
        for at, payload in enumerate(batch.payloads)
    ]


def test_they_go_to_their_owners_in_one_slice_and_one_batch_each() -> None:
    world = two_owners()
    world.submit_column("axbyaz")
    assert [len(world.replicas[name].outbox) for name in ("left", "right")] == [1, 1]
    cut_both(world)
    assert lanes(world, "left") == [(1, "a", 1), (3, "b", 1), (5, "a", 1)]
    assert lanes(world, "right") == [(2, "x", 1), (4, "y", 1), (6, "z", 1)]
    assert [len(world.batches[name]) for name in ("left", "right")] == [1, 1]
    world.complete("left", 5, 1)
    world.complete("right")
    world.complete("left")
    assert world.outcomes == dict.fromkeys(range(1, 7), OK)
    assert not world.caller.runs


def test_what_waits_holds_up_its_own_partition_alone() -> None:
    world = two_owners()
    move(world, "b", None)
    world.submit([1], ordering_key="b")
    world.submit_column("abca", first=2)
    world.cut("left")
    assert world.got("left") == [2, 4, 5]
    assert world.queued or world.scheduler.topology.endpoints["e"].account.calls == 2
    move(world, "b", "left", 3)
    world.cut("left")
    assert lanes(world, "left")[3:] == [(1, "b", 3), (3, "b", 3)]


def test_the_owners_window_bounds_them_and_the_rest_follows_in_order() -> None:
    world = two_owners()
    world.report("left", keyed_window=3)
    world.submit_column("abacba")
    world.cut("left")
    assert world.got("left") == [1, 2, 3]
    for _ in range(6):
        world.complete("left", *world.at_replica("left")[:1])
        world.cut("left")
    assert world.got("left") == [1, 2, 3, 4, 5, 6]


def test_later_calls_of_a_key_do_not_overtake_a_column_in_the_same_frame() -> None:
    """The second batch has other options, and so a place of its own, which the first column could not join."""
    world = two_owners()
    world.submit_column("ab", timeout_s=9.0)
    world.submit([3], ordering_key="a", timeout_s=5.0)
    world.submit_column("ba", first=4, timeout_s=9.0)
    world.submit([6], ordering_key="b", timeout_s=5.0)
    world.submit([7], ordering_key="c", timeout_s=9.0)
    world.cut("left")
    of_a = [call for call, key, _ in lanes(world, "left") if key == "a"]
    of_b = [call for call, key, _ in lanes(world, "left") if key == "b"]
    assert (of_a, of_b) == ([1, 3, 5], [2, 4, 6])
    assert len(world.got("left")) == 7


def test_calls_that_are_taken_back_before_a_frame_leave_the_others_in_their_place() -> None:
    world = two_owners()
    world.submit_column("abcab")
    world.cancel((2, 3))
    world.submit([6], ordering_key="a")
    world.cut("left")
    assert lanes(world, "left") == [(1, "a", 1), (4, "a", 1), (5, "b", 1), (6, "a", 1)]
    assert world.reasons([2, 3]) == {"CANCELLED"}
    move(world, "abc", "right")
    world.submit_column("abc", first=7)
    world.cut("right")
    assert world.got("right") == [9], "nothing of c is at the old owner"
    world.complete("left")
    world.cut("right")
    assert sorted(world.got("right")) == [7, 8, 9]


def test_one_call_that_is_left_keeps_its_key() -> None:
    world = two_owners()
    world.submit_column("ab")
    world.cancel((1, 1))
    world.cut("left")
    assert lanes(world, "left") == [(2, "b", 1)]


def test_a_call_that_is_cancelled_at_the_replica_holds_up_nobody() -> None:
    world = two_owners()
    world.submit_column("abc")
    world.cut("left")
    world.cancel((2, 2))
    world.complete("left")
    assert world.outcomes == {1: OK, 2: "CANCELLED", 3: OK}
    assert not world.replicas["left"].keyed


def test_a_key_goes_to_its_new_owner_as_soon_as_its_own_calls_are_answered() -> None:
    world = two_owners()
    world.submit_column("abcb")
    world.cut("left")
    move(world, "abc", "right")
    world.submit_column("abc", first=5)
    world.cut("right")
    assert not world.got("right")
    world.complete("left", 1)
    world.cut("right")
    assert world.got("right") == [5], "b and c still run at the old owner"
    world.complete("left", 4)
    world.cut("right")
    assert world.got("right") == [5], "one of two calls of b"
    world.fail("left", 2)
    world.cut("right")
    assert world.got("right") == [5, 6]
    world.lose("left")
    world.cut("right")
    assert world.got("right") == [5, 6, 7]


def test_an_answer_that_comes_twice_counts_once() -> None:
    world = two_owners()
    world.submit_column("aba")
    world.cut("left")
    world.complete("left", 1)
    world.step(RunsCompleted(world.replicas["left"], [([1], [b"again"], "")], [], None))
    move(world, "a", "right")
    world.submit_column("a", first=4)
    world.cut("right")
    assert not world.got("right"), "the third call still runs at the old owner"


def test_keys_that_are_refused_wait_for_a_newer_epoch_and_for_no_neighbour() -> None:
    world = two_owners()
    world.submit_column("abca")
    world.cut("left")
    world.refuse("left", 1, 4, reason=Reason.STALE_TABLE, keyed_window=KEYED_WINDOW)
    world.submit_column("ab", first=5)
    world.cut("left")
    assert world.got("left")[4:] == [6], "b is not concerned"
    move(world, "a", "right")
    world.cut("right")
    assert lanes(world, "right") == [(1, "a", 2), (4, "a", 2), (5, "a", 2)], "though b and c still run"


@pytest.mark.parametrize("ends", ["lost", "cut off"])
def test_what_is_lost_and_idempotent_runs_again_in_order_and_other_calls_fail(ends: str) -> None:
    world = two_owners()
    world.submit_column("aba", idempotent=True)
    world.submit_column("cb", first=4)
    world.cut("left")
    if ends == "lost":
        world.lose("left")
    else:
        world.cut_off("left")
    assert world.reasons([4, 5]) == {"REPLICA_LOST"}
    assert all(world.failures[each].executed is Executed.UNKNOWN for each in (4, 5))
    move(world, "abc", "right")
    world.cut("right")
    assert lanes(world, "right") == [(1, "a", 2), (2, "b", 2), (3, "a", 2)]
    assert {batch.attempt for batch in world.batches["right"]} == {1}
    origins = [
        run_id for batch in world.batches["right"] if batch.origin is not None for run_id in batch.origin.run_ids
    ]
    assert origins == [1, 2, 3], "what each was at the first replica"
    world.complete("right")
    assert world.reasons([1, 2, 3]) == {OK}


@pytest.mark.parametrize("moved", "abc")
@pytest.mark.parametrize("ends", ["lost", "cut off", "refused", "not carried"])
def test_each_key_that_comes_back_waits_for_the_owner_of_its_own_partition(ends: str, moved: str) -> None:
    """Wherever it stands among its neighbours, whose owner is to come back."""
    world = two_owners()
    world.submit_column("abc", idempotent=True)
    if ends != "not carried":
        world.cut("left")
    if ends == "cut off":
        world.cut_off("left")
    elif ends == "refused":
        world.refuse("left", 1, 2, 3, reason=Reason.STALE_TABLE, keyed_window=KEYED_WINDOW)
    else:
        world.lose("left")
    move(world, moved, "right")
    world.cut("right")
    called = "abc".index(moved) + 1
    assert lanes(world, "right") == [(called, moved, 2)]
    move(world, "".join(key for key in "abc" if key != moved), "right", 3)
    world.cut("right")
    assert lanes(world, "right")[1:] == [(at, key, 3) for at, key in enumerate("abc", 1) if key != moved]


def test_what_no_frame_has_carried_waits_when_the_link_is_lost() -> None:
    world = two_owners()
    world.submit_column("aba")
    world.lose("left")
    move(world, "abc", "right")
    world.cut("right")
    assert lanes(world, "right") == [(1, "a", 2), (2, "b", 2), (3, "a", 2)]
    assert {batch.attempt for batch in world.batches["right"]} == {0}


def test_their_deadline_ends_them_all() -> None:
    world = two_owners()
    world.submit_column("abx", timeout_s=1.0)
    world.cut("left")
    world.at(1.0)
    assert world.reasons([1, 2]) == {"DEADLINE_RUNNING"}
    assert world.reasons([3]) == {"DEADLINE_IN_QUEUE"}
    world.complete("left")
    assert not world.replicas["left"].keyed


@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
def test_calls_that_are_too_late_when_they_come_are_not_sent(timeout_s: float) -> None:
    world = two_owners()
    world.submit_column("ab", timeout_s=timeout_s)
    assert world.reasons([1, 2]) == {"DEADLINE_IN_QUEUE"}


def test_shadows_get_copies_of_them_too() -> None:
    world = World({"b": ["r"], "dark": ["d"]}, weights={"b": 1.0}, shadows={"dark": 1.0}, owner=("r", 1))
    world.submit_column("ab")
    assert sorted(world.got("r")) == sorted(world.got("d")) == [1, 2]


def test_calls_behind_ones_that_were_sent_again_wait_for_them() -> None:
    world = two_owners()
    client = world.connect(2, (1, 2))
    world.resend([1], by=client, ordering_key="a")
    world.submit_column("ab", first=3, by=client)
    world.cut("left")
    assert world.got("left") == [4]
    world.reconcile("left", client)
    world.reconcile("right", client)
    world.cut("left")
    assert world.got("left") == [4, 1, 3]


def test_a_session_that_has_not_acknowledged_the_replicas_waits() -> None:
    world = two_owners()
    client = world.connect(acknowledges=False)
    world.submit_column("ax", by=client)
    cut_both(world)
    before = world.got("left"), world.got("right")
    world.acknowledge(client)
    cut_both(world)
    assert (before, world.got("left"), world.got("right")) == (([], []), [1], [2])


def test_they_are_counted_once() -> None:
    world = two_owners()
    move(world, "b", None)
    world.submit_column("abxb")
    assert sum(world.scheduler.counters.calls.values()) == 4
