"""Runs of one flow, the one that is due first at the head."""

from __future__ import annotations

import weakref

import pytest

from router_service.core.queueing.run_queues import SloQueue
from router_service.core.runs import RouterRun
from slotmesh.spec.model import SloScope
from tests.unit.router.parts import caller, run
from tests.unit.router.world import World


def in_turn(queue: SloQueue) -> list[int]:
    """The runs' ages, in the order in which they leave."""
    left: list[int] = []
    while (head := queue.head()) is not None:
        head.cursor = len(head.payloads)
        left.append(head.seq)
    return left


def queue_of(*runs: RouterRun) -> SloQueue:
    queue = SloQueue()
    for each in runs:
        queue.append(each)
    return queue


def ids_in_turn(queue: SloQueue, room: int = 1) -> list[int]:
    """The calls in the order in which they leave, up to `room` at once."""
    left: list[int] = []
    while (head := queue.head()) is not None:
        begin, head.cursor = head.cursor, min(head.cursor + room, len(head.payloads))
        left += head.ids[begin : head.cursor]
    return left


@pytest.mark.parametrize(
    ("slos", "turns"),
    [
        pytest.param([None, None, None], [1, 2, 3], id="without any, by age"),
        pytest.param([0.3, 0.2, 0.1], [3, 2, 1], id="with all, by SLO"),
        pytest.param([None, 0.1], [2, 1], id="one that is due before a second has passed"),
        pytest.param([None, 5.0], [1, 2], id="one that is due later than a call without"),
        pytest.param([5.0, None], [2, 1], id="an SLO may put off"),
        pytest.param([0.2, 0.2, 0.2], [1, 2, 3], id="equals by age"),
        pytest.param([None, 1.0], [1, 2], id="equal to the one without, by age"),
        pytest.param([1.0, None], [1, 2], id="equal to the one without, by age again"),
        pytest.param([0.0, 0.0], [1, 2], id="due at once"),
    ],
)
def test_the_run_that_is_due_first_leaves_first(slos: list[float | None], turns: list[int]) -> None:
    queue = queue_of(*(run(seq, slo_s=slo_s) for seq, slo_s in enumerate(slos, 1)))
    assert in_turn(queue) == turns


def test_calls_without_an_slo_are_not_starved_by_those_that_keep_coming() -> None:
    """It counts as due one second after it came: what comes later and wants to be answered then is behind it."""
    stream = [run(2 + number, slo_s=0.1, arrived=number / 10) for number in range(100)]
    queue = queue_of(run(1), *stream)
    turns = in_turn(queue)
    assert turns.index(1) == 9


def test_an_slo_counts_from_arrival() -> None:
    early, late = run(1, slo_s=2.0, arrived=0.0), run(2, slo_s=1.0, arrived=5.0)
    assert in_turn(queue_of(late, early)) == [1, 2]


def test_what_was_handed_back_stands_by_its_slo_again() -> None:
    queue = queue_of(run(5, slo_s=0.5), run(6))
    queue.put_back(run(1, slo_s=0.7))
    queue.put_back(run(2))
    queue.put_back(run(3, slo_s=0.1))
    assert in_turn(queue) == [3, 5, 1, 2, 6]


def test_slices_of_one_run_go_back_in_the_order_of_their_calls() -> None:
    queue = queue_of(run(1, first=7, slo_s=0.5))
    for first in (3, 1, 5):
        queue.put_back(run(1, first=first, slo_s=0.5))
    firsts = []
    while (head := queue.head()) is not None:
        firsts.append(head.ids[0])
        head.cursor = 1
    assert firsts == [1, 3, 5, 7]


def test_runs_are_never_compared() -> None:
    queue = SloQueue()
    for _ in range(10):
        queue.append(run(1, slo_s=0.5))
    assert len(queue.drain()) == 10


def test_a_run_that_was_taken_back_is_skipped_and_not_drained() -> None:
    gone, there, fifo = run(1, slo_s=0.1), run(2, slo_s=0.2), run(3)
    queue = queue_of(gone, there, fifo)
    gone.cursor = 1
    assert queue.head() is there
    assert sorted(each.seq for each in queue.drain()) == [2, 3]
    assert queue.head() is None


def test_runs_that_were_taken_back_do_not_pile_up() -> None:
    queue = queue_of(run(0, slo_s=0.1))
    gone: weakref.WeakSet[RouterRun] = weakref.WeakSet()
    for number in range(1, 10_000):
        each = run(number, slo_s=1.0)
        queue.append(each)
        gone.add(each)
        each.cursor = 1
    assert len(gone) < 2_000
    assert [each.seq for each in queue.drain()] == [0]


@pytest.mark.parametrize(("scope", "order"), [(SloScope.CLIENT, [1, 2, 3, 5, 4]), (SloScope.BACKEND, [1, 5, 2, 3, 4])])
def test_slos_order_among_clients_where_the_backend_says_so(scope: SloScope, order: list[int]) -> None:
    world = World({"b": ["r"]}, slots=1, settings={"slo_scope": scope})
    mine, theirs = caller(), caller()
    world.submit([1], by=mine)
    world.submit([2], by=mine)
    world.submit([3], by=mine)
    world.submit([4], by=theirs)
    world.submit([5], by=theirs, slo_s=0.1)
    for _ in order:
        world.complete("r")
    assert world.got("r") == order


def test_a_backend_that_changes_its_scope_takes_along_what_waits() -> None:
    world = World({"b": ["r"]}, slots=1)
    mine, theirs = caller(), caller()
    world.submit([1], by=mine)
    world.submit([2], by=mine)
    world.submit([3], by=mine)
    world.submit([4], by=theirs, slo_s=0.1)
    world.settings = {"slo_scope": SloScope.BACKEND}
    world.push()
    assert world.queued == {"b": 3}
    world.complete("r")
    assert world.at_replica("r") == [4]
    world.settings = {}
    world.push()
    world.complete("r")
    world.complete("r")
    assert sorted(world.got("r")) == [1, 2, 3, 4]


@pytest.mark.parametrize("slo_s", [None, 0.5])
@pytest.mark.parametrize("slices", [[(1, 4)], [(3, 4), (1, 2)], [(1, 2), (3, 4)], [(1, 2)]])
def test_slices_of_a_run_that_has_partly_left_go_back_before_its_rest(
    slo_s: float | None, slices: list[tuple[int, int]]
) -> None:
    whole, other = run(1, first=1, count=8, slo_s=slo_s), run(2, first=9, count=2, slo_s=slo_s)
    queue = queue_of(whole, other)
    assert queue.head() is whole
    whole.cursor = 4
    for first, last in slices:
        queue.put_back(run(1, first=first, count=last - first + 1, slo_s=slo_s))
    back = sorted(each for first, last in slices for each in range(first, last + 1))
    assert ids_in_turn(queue) == [*back, 5, 6, 7, 8, 9, 10]
