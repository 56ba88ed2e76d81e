from __future__ import annotations

from slotmesh.client.stream.pending_calls import PendingCalls
from tests.unit.client.parts import Sink, make_map_part, make_part


def settle(pending: PendingCalls, *ids: int) -> list[tuple[int, int, int, int]]:
    """As `settle`, with the part's first id for the part."""
    return [(part.first, at, start, count) for part, at, start, count in pending.settle(list(ids))]


def test_ids_go_on_from_part_to_part() -> None:
    pending = PendingCalls(next_id=5)
    parts = [make_part(1, 1), make_part(1), make_part(1, 1, 1)]
    for part in parts:
        pending.add(part)
    assert [part.first for part in parts] == [5, 7, 8]
    assert (pending.next_id, pending.calls, pending.nbytes) == (11, 6, 6)


def test_neighbours_are_settled_as_one_slice() -> None:
    pending = PendingCalls()
    pending.add(make_part(10, 20, 30))
    pending.add(make_part(40, 50))
    assert settle(pending, 1, 2, 3, 4, 5) == [(1, 0, 0, 3), (4, 0, 3, 2)]
    assert (pending.calls, pending.nbytes, pending.strays) == (0, 0, 0)


def test_a_slice_ends_where_the_ids_leave_the_part() -> None:
    pending = PendingCalls()
    pending.add(make_part(*[1] * 100))
    pending.add(make_part(*[1] * 100))
    ids = [*range(51, 81), *range(101, 151)]
    assert settle(pending, *ids) == [(1, 50, 0, 30), (101, 0, 30, 50)]
    assert pending.calls == 120


def test_any_order_is_understood() -> None:
    pending = PendingCalls()
    pending.add(make_part(1, 2, 4, 8))
    assert settle(pending, 3, 1) == [(1, 2, 0, 1), (1, 0, 1, 1)]
    assert (pending.calls, pending.nbytes) == (2, 10)
    assert settle(pending, 4, 2) == [(1, 3, 0, 1), (1, 1, 1, 1)]
    assert (pending.calls, pending.nbytes) == (0, 0)


def test_ids_that_only_look_consecutive_from_their_ends_are_told_apart() -> None:
    pending = PendingCalls()
    pending.add(make_part(*[1] * 6))
    slices = settle(pending, 1, 2, 4, 3, 5, 6)
    found = {start + i: first + at + i for first, at, start, count in slices for i in range(count)}
    assert found == {0: 1, 1: 2, 2: 4, 3: 3, 4: 5, 5: 6}


def test_a_second_answer_changes_nothing() -> None:
    pending = PendingCalls()
    pending.add(make_part(1, 1, 1))
    assert settle(pending, 2) == [(1, 1, 0, 1)]
    assert settle(pending, 2) == []
    assert settle(pending, 1, 2, 3) == [(1, 0, 0, 1), (1, 2, 2, 1)]
    assert settle(pending, 1, 2, 3) == []
    assert (pending.calls, pending.strays) == (0, 5)


def test_an_id_twice_in_one_answer_counts_once() -> None:
    pending = PendingCalls()
    pending.add(make_part(1, 1))
    assert settle(pending, 1, 1, 2) == [(1, 0, 0, 1), (1, 1, 2, 1)]
    assert (pending.calls, pending.strays) == (0, 1)


def test_ids_that_were_never_given_are_strays() -> None:
    pending = PendingCalls(next_id=10)
    pending.add(make_part(1))
    assert settle(pending, 0, -3, 9, 11, 10) == [(10, 0, 4, 1)]
    assert pending.strays == 4


def test_what_is_left_comes_out_in_the_order_sent() -> None:
    pending = PendingCalls()
    pending.add(make_part(1, 1, 1))
    pending.add(make_part(1))
    settle(pending, 2)
    assert [part.first + at + i for part, at, _, count in pending.drain() for i in range(count)] == [1, 3, 4]
    assert (pending.calls, pending.nbytes) == (0, 0)


def test_calls_that_nobody_waits_for_are_told_once_as_ranges() -> None:
    pending = PendingCalls()
    first, second = make_part(1, 1, 1), make_part(1, 1)
    pending.add(first)
    pending.add(second)
    for sink in (first.sinks[0], first.sinks[2], second.sinks[0]):
        sink.cancelled = True
    assert pending.take_unwanted(pending.next_id) == [(1, 1), (3, 4)]
    assert pending.take_unwanted(pending.next_id) == []
    second.sinks[1].cancelled = True
    assert pending.take_unwanted(pending.next_id) == [(5, 5)]
    assert (pending.calls, pending.nbytes) == (5, 5), "they count until their outcome is there"
    assert settle(pending, 1, 2, 3, 4, 5) == [(1, 0, 0, 3), (4, 0, 3, 2)]


def test_an_answer_that_was_faster_leaves_nothing_to_take_back() -> None:
    pending = PendingCalls()
    part = make_part(1, 1, 1)
    pending.add(part)
    settle(pending, 2)
    for sink in part.sinks:
        sink.cancelled = True
    assert pending.take_unwanted(pending.next_id) == [(1, 1), (3, 3)]


def test_a_map_is_unwanted_as_a_whole() -> None:
    pending = PendingCalls()
    part = make_map_part(1, 1, 1, 1)
    pending.add(part)
    settle(pending, 3)
    assert pending.take_unwanted(pending.next_id) == []
    part.gather.cancelled = True  # type: ignore[union-attr]  # a Sink
    assert pending.take_unwanted(pending.next_id) == [(1, 2), (4, 4)]
    assert pending.take_unwanted(pending.next_id) == []


def test_young_calls_are_not_looked_at() -> None:
    pending = PendingCalls()
    parts = [make_part(1), make_part(1)]
    for part in parts:
        pending.add(part)
        part.sinks[0].cancelled = True
    assert pending.take_unwanted(1) == []
    assert pending.take_unwanted(2) == [(1, 1)]
    assert pending.take_unwanted(3) == [(2, 2)]


def test_finished_parts_are_forgotten() -> None:
    pending = PendingCalls()
    for _ in range(10_000):
        pending.add(make_part(1))
        settle(pending, pending.next_id - 1)
    assert len(pending._sent._firsts) < 200
    pending.add(make_part(1, 1))
    assert settle(pending, pending.next_id - 1) == [(pending.next_id - 2, 1, 0, 1)]


def test_unanswered_calls_are_ranges_across_parts() -> None:
    pending = PendingCalls()
    for sizes in ([1, 1, 1], [1, 1], [1]):
        pending.add(make_part(*sizes))
    assert pending.unanswered() == [(1, 6)]
    settle(pending, 2, 5)
    assert pending.unanswered() == [(1, 1), (3, 4), (6, 6)]


def test_payloads_of_answered_calls_are_not_kept() -> None:
    pending = PendingCalls()
    part = make_part(3, 4, 5)
    pending.add(part, now=7.0)
    settle(pending, 2)
    assert part.payloads == [b"xxx", b"", b"xxxxx"]
    assert part.sent_at == 7.0


def test_ids_within_a_range_are_those_of_parts_that_are_here() -> None:
    pending = PendingCalls(next_id=10)
    pending.add(make_part(1, 1, 1))
    pending.add(make_part(1))
    pending.add(make_part(1, 1))
    settle(pending, 13)
    assert pending.ids_within(-(2**60), 2**60) == [10, 11, 12, 14, 15]
    assert pending.ids_within(11, 14) == [11, 12, 14]
    assert pending.ids_within(13, 13) == []
    assert pending.ids_within(16, 99) == []
    assert pending.ids_within(12, 11) == []


def test_what_nobody_waits_for_is_dropped_whether_it_was_told_or_not() -> None:
    pending = PendingCalls()
    part, together = make_part(1, 1, 1, 1), make_map_part(1, 1, sink=Sink(cancelled=True))
    pending.add(part)
    pending.add(together)
    part.sinks[0].cancelled = part.sinks[2].cancelled = True
    assert pending.take_unwanted(before=2) == [(1, 1), (3, 3)]
    part.sinks[3].cancelled = True
    assert [part.first + at for part, at, _, _ in pending.drain_unwanted()] == [1, 3, 4, 5, 6]
    assert pending.unanswered() == [(2, 2)]


def test_those_who_were_told_are_not_told_again_in_the_end() -> None:
    pending = PendingCalls()
    part, together = make_part(1, 1, 1), make_map_part(1, 1, sink=Sink(cancelled=True))
    pending.add(part)
    pending.add(together)
    pending.add(make_map_part(1))
    part.sinks[1].cancelled = True
    assert pending.take_unwanted(before=9) == [(2, 2), (4, 5)]
    assert pending.take_all() == [(1, 1), (3, 3), (6, 6)]
