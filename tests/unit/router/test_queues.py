"""Queues, deadlines and admission of the router's core."""

from __future__ import annotations

import weakref

from router_service.core.admission import Account
from router_service.core.callers import Caller, Window
from router_service.core.calls import CallOptions, Run
from router_service.core.deadlines import DeadlineHeap
from router_service.core.queues import RunQueue

CALLER = Caller(Window(calls=1, bytes=1))


def run(seq: int, count: int = 1, first: int = 1, size: int = 1) -> Run:
    return Run(
        seq=seq,
        caller=CALLER,
        endpoint="e",
        options=CallOptions(),
        ids=range(first, first + count),
        payloads=[b"x" * size] * count,
        arrived=0.0,
    )


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
    gone: weakref.WeakSet[Run] = weakref.WeakSet()
    for number in range(1, 10_000):
        each = run(number)
        queue.append(each)
        gone.add(each)
        each.cursor = 1
    assert len(gone) < 2_000
    assert [each.seq for each in queue.drain()] == [0]


def test_what_does_not_fit_is_told_apart_by_calls_and_by_bytes() -> None:
    account = Account("b", max_calls=5, max_bytes=100, max_queue_time_s=1.0)
    assert account.charge(run(1, count=3)) == 3
    assert account.charge(run(2, count=3)) == 2
    assert account.charge(run(3, count=1)) == 0
    assert "5 of 5 calls" in account.full().message
    account = Account("b", max_calls=100, max_bytes=10, max_queue_time_s=1.0)
    assert account.charge(run(1, count=4, size=3)) == 3
    assert (account.calls, account.size) == (3, 9)


def test_a_release_gives_back_what_was_charged() -> None:
    account = Account("b", max_calls=5, max_bytes=100, max_queue_time_s=1.0)
    each = run(1, count=5, size=2)
    account.charge(each)
    account.release(each, 2)
    each.cursor = 2
    assert (account.calls, account.size) == (3, 6)
    account.release(each, 3)
    assert (account.calls, account.size) == (0, 0)


def test_due_runs_come_in_order_of_time_and_ended_ones_do_not() -> None:
    heap = DeadlineHeap()
    late, soon, ended = run(1), run(2), run(3)
    heap.push(2.0, late)
    heap.push(1.0, soon)
    heap.push(0.5, ended)
    ended.unanswered = 0
    assert heap.next_deadline() == 1.0
    assert heap.pop_due(0.9) == []
    assert heap.pop_due(2.0) == [soon, late]
    assert heap.next_deadline() is None


def test_a_deadline_does_not_keep_an_answered_call_alive() -> None:
    heap = DeadlineHeap()
    answered = run(1)
    heap.push(30.0, answered)
    reference = weakref.ref(answered)
    del answered
    assert reference() is None
    assert heap.next_deadline() is None


def test_ended_runs_do_not_pile_up() -> None:
    heap = DeadlineHeap()
    for number in range(50_000):
        each = run(number)
        heap.push(30.0, each)
        each.unanswered = 0
    assert len(heap) < 5_000
