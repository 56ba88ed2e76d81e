"""Runs that wait in order of age."""

from __future__ import annotations

import weakref

from router_service.core.queueing.run_queues import RunQueue
from router_service.core.runs import RouterRun
from tests.unit.router.parts import run


def test_refused_runs_go_back_by_age() -> None:
    queue = RunQueue()
    young, old, middle = run(9), run(1), run(5)
    queue.append(young)
    queue.put_back(middle)
    queue.put_back(old)
    assert queue.drain() == [old, middle, young]


def test_slices_of_one_run_go_back_in_the_order_of_their_calls() -> None:
    queue = RunQueue()
    rest = run(1, count=4, first=7)
    queue.append(rest)
    queue.put_back(run(1, count=2, first=3))
    queue.put_back(run(1, count=2, first=1))
    queue.put_back(run(1, count=2, first=5))
    assert [each.ids[0] for each in queue.drain()] == [1, 3, 5, 7]


def test_a_run_that_was_taken_back_is_skipped() -> None:
    queue = RunQueue()
    gone, there = run(1), run(2)
    queue.append(gone)
    queue.append(there)
    gone.cursor = 1
    assert queue.head() is there
    there.cursor = 1
    assert not queue


def test_runs_that_were_taken_back_do_not_pile_up_behind_one_that_waits() -> None:
    queue = RunQueue()
    queue.append(run(0))
    gone: weakref.WeakSet[RouterRun] = weakref.WeakSet()
    for number in range(1, 10_000):
        each = run(number)
        queue.append(each)
        gone.add(each)
        each.cursor = 1
    assert len(gone) < 2_000
    assert [each.seq for each in queue.drain()] == [0]
