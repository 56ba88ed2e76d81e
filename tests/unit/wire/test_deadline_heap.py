"""The heap of moments at which somebody must look at a run."""

from __future__ import annotations

import weakref

from router_service.core.queueing.deadlines import DeadlineHeap
from tests.unit.router.parts import run


def test_due_runs_come_in_order_of_time_and_ended_ones_do_not() -> None:
    heap = DeadlineHeap()
    late, soon, ended = run(1), run(2), run(3)
    heap.watch(2.0, late)
    heap.watch(1.0, soon)
    heap.watch(0.5, ended)
    ended.unanswered = 0
    assert heap.next_deadline() == 1.0
    assert heap.pop_due(0.9) == []
    assert heap.pop_due(2.0) == [soon, late]
    assert heap.next_deadline() is None


def test_a_run_has_one_entry_that_counts_the_earliest() -> None:
    heap = DeadlineHeap()
    each = run(1)
    heap.watch(3.0, each)
    heap.watch(5.0, each)
    assert heap.next_deadline() == 3.0
    heap.watch(1.0, each)
    assert heap.pop_due(1.0) == [each]
    assert heap.next_deadline() is None, "what it was put off from is no entry"
    heap.watch(4.0, each)
    assert heap.pop_due(4.0) == [each]


def test_a_deadline_does_not_keep_an_answered_call_alive() -> None:
    heap = DeadlineHeap()
    answered = run(1)
    heap.watch(30.0, answered)
    reference = weakref.ref(answered)
    del answered
    assert reference() is None
    assert heap.next_deadline() is None


def test_ended_runs_do_not_pile_up() -> None:
    heap = DeadlineHeap()
    for number in range(50_000):
        each = run(number)
        heap.watch(30.0, each)
        each.unanswered = 0
    assert len(heap) < 5_000
