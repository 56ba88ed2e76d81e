"""The heap of deadlines: items come out when they are due."""

from __future__ import annotations

import weakref
from math import inf

from slotmesh.calls.deadline_heap import DeadlineHeap


class Item:
    def __init__(self) -> None:
        self.alarm = inf


def test_due_items_come_in_order_of_time_and_ended_ones_do_not() -> None:
    heap: DeadlineHeap[Item] = DeadlineHeap()
    late, soon, ended = Item(), Item(), Item()
    heap.watch(2.0, late)
    heap.watch(1.0, soon)
    heap.watch(0.5, ended)
    ended.alarm = inf
    assert heap.next_deadline() == 1.0
    assert heap.pop_due(0.9) == []
    assert heap.pop_due(2.0) == [soon, late]
    assert (soon.alarm, late.alarm) == (inf, inf)
    assert heap.next_deadline() is None


def test_an_item_has_one_entry_that_counts_the_earliest() -> None:
    heap: DeadlineHeap[Item] = DeadlineHeap()
    each = Item()
    heap.watch(3.0, each)
    heap.watch(5.0, each)
    assert heap.next_deadline() == 3.0
    heap.watch(1.0, each)
    assert heap.pop_due(1.0) == [each]
    assert heap.next_deadline() is None, "what it was put off from is no entry"
    heap.watch(4.0, each)
    assert heap.pop_due(4.0) == [each]


def test_what_is_put_off_is_due_then_and_not_before() -> None:
    heap: DeadlineHeap[Item] = DeadlineHeap()
    each = Item()
    heap.watch(3.0, each)
    heap.put_off(5.0, each)
    assert heap.next_deadline() == 5.0
    assert heap.pop_due(4.9) == []
    assert heap.pop_due(5.0) == [each]


def test_a_deadline_does_not_keep_an_item_alive() -> None:
    heap: DeadlineHeap[Item] = DeadlineHeap()
    each = Item()
    heap.watch(30.0, each)
    reference = weakref.ref(each)
    del each
    assert reference() is None
    assert heap.next_deadline() is None


def test_ended_items_do_not_pile_up() -> None:
    heap: DeadlineHeap[Item] = DeadlineHeap()
    items = [Item() for _ in range(50_000)]
    for each in items:
        heap.watch(30.0, each)
        each.alarm = inf
    assert len(heap) < 100


def test_neither_do_moments_that_were_put_off() -> None:
    heap: DeadlineHeap[Item] = DeadlineHeap()
    each = Item()
    for number in range(50_000):
        heap.put_off(float(number), each)
    assert len(heap) < 100
    assert heap.pop_due(49_999.0) == [each]
