"""Deficit round robin between the flows that wait for one backend."""

from __future__ import annotations

import pytest

from router_service.core.callers import Caller, Flow, Window
from router_service.core.fair_queue import TURN_CALLS, FairQueue
from tests.unit.router.parts import caller, run


def serve(queue: FairQueue, room: int = 1) -> tuple[Caller, int]:
    """Sends up to `room` calls of the head; returns whose they were and how many."""
    head = queue.head()
    assert head is not None
    count = min(queue.turn(head), room)
    head.cursor += count
    queue.served(count)
    return head.caller, count


def calls_before(queue: FairQueue, wanted: Caller, room: int) -> int:
    """How many calls of others leave before the first one of `wanted`."""
    others = 0
    while True:
        by, count = serve(queue, room)
        if by is wanted:
            return others
        others += count


@pytest.mark.parametrize("room", [1, 7, TURN_CALLS, 1000])
@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_a_single_call_waits_for_one_turn_of_a_flood(room: int, size: int) -> None:
    queue, flood, single = FairQueue(), caller(), caller()
    for seq in range(100_000 // size):
        queue.append(run(seq, count=size, by=flood))
    queue.append(run(10**6, by=single))
    assert calls_before(queue, single, room) <= TURN_CALLS
    queue.append(run(10**6 + 1, by=single))
    assert calls_before(queue, single, room) <= TURN_CALLS


def test_among_many_floods_everyone_has_its_turn() -> None:
    queue, floods, single = FairQueue(), [caller() for _ in range(9)], caller()
    for seq, flood in enumerate(floods):
        queue.append(run(seq, count=10_000, by=flood))
    queue.append(run(99, by=single))
    assert calls_before(queue, single, 16) == 9 * TURN_CALLS


def test_flows_with_much_to_do_get_equal_shares() -> None:
    queue, flows = FairQueue(), [caller() for _ in range(3)]
    for seq, flow in enumerate(flows):
        for number in range(seq + 1):  # of runs of different sizes
            queue.append(run(10 * seq + number, count=6000 // (seq + 1), by=flow))
    served = dict.fromkeys(flows, 0)
    for _ in range(300):
        by, count = serve(queue, 5)
        served[by] += count
    assert max(served.values()) - min(served.values()) <= TURN_CALLS


def test_alone_a_flow_may_send_all_it_has() -> None:
    queue, flow = FairQueue(), caller()
    queue.append(run(1, count=5000, by=flow))
    head = queue.head()
    assert head is not None
    assert queue.turn(head) == 5000


def test_a_turn_goes_on_over_several_runs_and_sends() -> None:
    queue, one, other = FairQueue(), caller(), caller()
    for seq in range(200):
        queue.append(run(seq, by=one))
    queue.append(run(200, count=200, by=other))
    turns = [serve(queue, 3) for _ in range(TURN_CALLS + TURN_CALLS // 3 + 1)]
    assert [by for by, _ in turns[:TURN_CALLS]] == [one] * TURN_CALLS
    assert all(by is other for by, _ in turns[TURN_CALLS:])
    assert sum(count for _, count in turns[TURN_CALLS:]) == TURN_CALLS


def test_who_has_nothing_waiting_keeps_no_credit_and_no_place() -> None:
    queue, one, other, third = FairQueue(), caller(), caller(), caller()
    queue.append(run(1, by=one))
    queue.append(run(2, count=1000, by=other))
    queue.append(run(3, count=1000, by=third))
    serve(queue)
    assert queue.head() is not None, "the sender asks who is next"
    queue.append(run(4, count=1000, by=one))
    order = []
    for _ in range(4):
        by, count = serve(queue, 1000)
        assert count == TURN_CALLS
        order.append(by)
    assert order == [other, third, one, other]


def test_callers_that_share_a_flow_share_its_turn() -> None:
    shared = Flow()
    one, other = (Caller(Window(1, 1), shared) for _ in range(2))
    queue, single = FairQueue(), caller()
    queue.append(run(1, count=1000, by=one))
    queue.append(run(2, count=1000, by=other))
    queue.append(run(3, by=single))
    assert calls_before(queue, single, 1000) == TURN_CALLS


def test_refused_runs_go_back_to_their_flow_by_age() -> None:
    queue, one, other = FairQueue(), caller(), caller()
    queue.append(run(5, by=one))
    queue.append(run(6, by=other))
    queue.put_back(run(1, by=one))
    queue.put_back(run(2, by=other))
    seen = []
    while (head := queue.head()) is not None:
        seen.append(head.seq)
        head.cursor = 1
        queue.served(1)
    assert seen == [1, 5, 2, 6]


def test_draining_takes_out_all_flows_oldest_first() -> None:
    queue, one, other = FairQueue(), caller(), caller()
    for seq in (1, 4, 5):
        queue.append(run(seq, by=one))
    queue.append(run(2, by=other, slo_s=0.1))
    queue.append(run(3, by=other))
    gone = run(6, by=other)
    queue.append(gone)
    gone.cursor = 1
    assert [each.seq for each in queue.drain()] == [1, 2, 3, 4, 5]
    assert not queue
    queue.append(run(7, by=one))
    assert queue.head() is not None


def test_a_flow_whose_calls_were_taken_back_costs_the_others_nothing() -> None:
    queue, gone, there = FairQueue(), caller(), caller()
    taken_back = run(1, count=10, by=gone)
    queue.append(taken_back)
    queue.append(run(2, count=500, by=there))
    taken_back.cursor = 10
    assert serve(queue, 1000) == (there, 500)
    assert not queue
