"""Which run id means what, and what a replica can take."""

from __future__ import annotations

from router_service.core.replicas.replica import RoutedReplica
from router_service.core.runs import Sent
from tests.unit.router.parts import replica, run


def carried(each: RoutedReplica, count: int) -> Sent:
    """A slice that a frame has carried."""
    sent = each.send(run(count=count), count, 0, 0.0)
    assert each.outbox.popleft() is sent
    each.inflight.number(sent)
    return sent


def test_run_ids_are_cut_into_slices_wherever_they_come_from() -> None:
    each = replica()
    a, b = carried(each, 3), carried(each, 3)
    assert [(sent, offset, at, count) for sent, offset, at, count in each.inflight.slices([2, 3, 4, 99, 6, 1])] == [
        (a, 1, 0, 2),
        (b, 0, 2, 1),
        (b, 2, 4, 1),
        (a, 0, 5, 1),
    ]


def test_an_answer_counts_once() -> None:
    each = replica()
    sent = carried(each, 4)
    assert each.answer(sent, 1, 2) == [(1, 2)]
    assert each.own == 2
    assert each.answer(sent, 0, 4) == [(0, 1), (3, 1)]
    assert each.answer(sent, 0, 4) == []
    assert (sent.remaining, each.own) == (0, 0)
    assert not each.inflight


def test_the_open_parts_are_what_was_not_answered() -> None:
    each = replica()
    sent = carried(each, 5)
    assert sent.open_parts() == [(0, 5)]
    each.answer(sent, 1, 1)
    sent.abandon(3, 1)
    assert sent.open_parts() == [(0, 1), (2, 1), (4, 1)]
    assert each.own == 4, "a call that nobody waits for still takes its place"


def test_long_lived_slices_do_not_keep_the_index_of_ended_ones() -> None:
    each = replica(max_ongoing=10**6)
    stays = carried(each, 1)
    for _ in range(10_000):
        each.answer_whole(carried(each, 1))
    assert len(each.inflight._firsts) < 500  # the bound is what is tested
    assert [sent for sent, *_ in each.inflight.slices([stays.first])] == [stays]


def test_what_others_take_and_what_was_sent_is_not_free() -> None:
    each = replica(max_ongoing=10, prefetch=4, others=3)
    assert (each.free, each.free_slots) == (11, 7)
    each.send(run(count=5), 5, 0, 0.0)
    assert (each.free, each.free_slots) == (6, 2)
    each.draining = True
    each.refresh()
    assert each.free <= 0


def test_run_ids_begin_anew_on_a_new_link() -> None:
    each = replica()
    first = carried(each, 3)
    waiting = each.send(run(count=2), 2, 0, 0.0)
    assert each.take_back() == [waiting]
    assert each.lose() == [first]
    assert (each.own, each.linked) == (0, False)
    assert list(each.inflight.slices([1, 2, 3])) == []
    assert carried(each, 1).first == 1
