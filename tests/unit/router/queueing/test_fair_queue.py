"""Deficit round robin between the flows that wait for one backend."""

from __future__ import annotations

import pytest

from router_service.core.callers import Window
from router_service.core.calls import Flow
from router_service.core.queueing.backend_queues import FEW_CALLS, TURN_CALLS, FairQueue
from router_service.core.runs import Caller
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
    for seq in range(20_000 // size):
        queue.append(run(seq, count=size, by=flood))
    queue.append(run(10**6, by=single))
    assert calls_before(queue, single, room) <= TURN_CALLS
    queue.append(run(10**6 + 1, by=single))
    assert calls_before(queue, single, room) <= TURN_CALLS


def test_among_many_floods_everyone_has_its_turn() -> None:
    queue, floods, single = FairQueue(), [caller() for _ in range(9)], caller()
    for seq, flood in enumerate(floods):
        queue.append(run(seq, count=10_000, by=flood))
    queue.append(run(99, count=FEW_CALLS + 1, by=single))
    assert calls_before(queue, single, 16) == 9 * TURN_CALLS


def test_few_calls_go_ahead_of_all_turns() -> None:
    queue, floods, few = FairQueue(), [caller() for _ in range(9)], [caller() for _ in range(3)]
    for seq, flood in enumerate(floods):
        queue.append(run(seq, count=10_000, by=flood))
    for seq, each in enumerate(few, 100):
        queue.append(run(seq, count=FEW_CALLS, by=each))
    assert [serve(queue, 1000) for _ in range(4)] == [*((each, FEW_CALLS) for each in few), (floods[0], TURN_CALLS)]


def test_flows_with_much_to_do_get_equal_shares() -> None:
    queue, flows = FairQueue(), [caller() for _ in range(3)]
    for seq, flow in enumerate(flows):
        for number in range(seq + 1):  # of runs of different sizes
            queue.append(run(10 * seq + number, count=6000 // (seq + 1), by=flow))
    served: dict[Caller, int] = dict.fromkeys(flows, 0)
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
    few = [serve(queue, 3) for _ in range(FEW_CALLS)]
    assert few == [(one, 1)] * FEW_CALLS
    turns = [serve(queue, 3) for _ in range(TURN_CALLS // 3 + 1 + TURN_CALLS - FEW_CALLS)]
    assert sum(count for by, count in turns if by is other) == TURN_CALLS
    assert [by for by, _ in turns[TURN_CALLS // 3 + 1 :]] == [one] * (TURN_CALLS - FEW_CALLS)


def test_who_comes_again_goes_on_with_the_credit_of_this_round() -> None:
    queue, one, other, third = FairQueue(), caller(), caller(), caller()
    queue.append(run(1, by=one))
    queue.append(run(2, count=1000, by=other))
    queue.append(run(3, count=1000, by=third))
    serve(queue)
    assert queue.head() is not None, "the sender asks who is next"
    queue.append(run(4, count=1000, by=one))
    order = [serve(queue, 1000) for _ in range(5)]
    turn = TURN_CALLS
    assert order == [(other, turn), (third, turn), (one, turn - 1), (other, turn), (third, turn)]


def backlogged(flows: int) -> tuple[FairQueue, list[Caller]]:
    """Flows with much to do, in the middle of a round."""
    queue, floods = FairQueue(), [caller() for _ in range(flows)]
    for seq, flood in enumerate(floods):
        queue.append(run(seq, count=2_000, by=flood))
    for _ in range(flows + flows // 2):
        serve(queue, 1000)
    return queue, floods


def test_who_has_little_to_do_does_not_wait_for_hundreds_who_have_much() -> None:
    queue, _ = backlogged(800)
    single = caller()
    for seq in range(TURN_CALLS):
        queue.append(run(10**6 + seq, by=single))
        assert calls_before(queue, single, 16) == 0
        serve(queue, 16)


def test_who_comes_again_and_again_has_no_more_than_its_turn_in_a_round() -> None:
    queue, floods = backlogged(10)
    eager = [caller() for _ in range(5)]
    served: dict[Caller, int] = dict.fromkeys((*floods, *eager), 0)
    seq = 10**6
    for _ in range(100_000):
        for each in eager:
            seq += 1
            queue.append(run(seq, by=each))
        by, count = serve(queue, 16)
        served[by] += count
        if min(served[each] for each in floods) >= 20 * TURN_CALLS:
            break
    assert max(served.values()) - min(served[each] for each in floods) <= 2 * TURN_CALLS


def test_flows_that_are_gone_are_forgotten() -> None:
    queue, _ = backlogged(2)
    for seq in range(5_000):
        queue.append(run(10**6 + seq, by=caller()))
        serve(queue, 16)
    assert len(queue._shares) < 3_000


def test_callers_that_share_a_flow_share_its_turn() -> None:
    shared = Flow()
    one, other = (Caller(Window(1, 1), shared) for _ in range(2))
    queue, single = FairQueue(), caller()
    queue.append(run(1, count=1000, by=one))
    queue.append(run(2, count=1000, by=other))
    queue.append(run(3, count=FEW_CALLS + 1, by=single))
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


def test_a_queue_that_is_braked_serves_only_who_comes_with_few_calls() -> None:
    queue, flood, few = FairQueue(), caller(), caller()
    queue.append(run(1, count=1000, by=flood))
    queue.brake(is_on=True)
    assert not queue
    queue.append(run(2, count=FEW_CALLS, by=few))
    assert serve(queue, 1000) == (few, FEW_CALLS)
    assert not queue
    queue.brake(is_on=False)
    assert serve(queue, 1000) == (flood, TURN_CALLS)


def test_while_the_queue_is_braked_few_calls_again_and_again_are_no_more_than_one_turn() -> None:
    queue, eager = FairQueue(), caller()
    queue.brake(is_on=True)
    served = 0
    for seq in range(2 * TURN_CALLS):
        queue.append(run(seq, by=eager))
        while queue:
            served += serve(queue)[1]
    assert served == TURN_CALLS
    queue.brake(is_on=False)
    while queue:
        served += serve(queue)[1]
    assert served == 2 * TURN_CALLS


def test_who_comes_with_few_calls_does_not_wait_for_a_round_that_lasts_for_many_brakes() -> None:
    queue, few = FairQueue(), caller()
    for seq in range(100):
        queue.append(run(seq, count=1000, by=caller()))
    for brake in range(10):
        served = 0
        for seq in range(TURN_CALLS // 2):
            queue.append(run(1000 + 100 * brake + seq, by=few))
            served += serve(queue) == (few, 1)
            assert queue, "the sender looks for more"
        assert served == TURN_CALLS // 2, "nothing else was done since the last brake"
        queue.brake(is_on=True)
        queue.brake(is_on=False)


def test_what_waits_already_with_few_calls_is_first_when_the_brake_is_off_again() -> None:
    queue, few = FairQueue(), caller()
    for seq in range(100):
        queue.append(run(seq, count=1000, by=caller()))
    served = 0
    while served < 2 * TURN_CALLS:
        queue.append(run(1000 + served, by=few))
        if serve(queue)[0] is not few:
            break
        assert queue, "the sender looks for more"
        served += 1
    assert served == TURN_CALLS, "it has had what is its part of the round"
    queue.brake(is_on=True)
    assert not queue
    queue.brake(is_on=False)
    assert serve(queue) == (few, 1)


def test_brakes_do_not_change_whose_turn_it_is_of_those_with_many_calls() -> None:
    queue, flows = FairQueue(), [caller() for _ in range(3)]
    for seq, each in enumerate(flows):
        queue.append(run(seq, count=1000, by=each))
    had: dict[Caller, int] = dict.fromkeys(flows, 0)
    for _ in range(3 * TURN_CALLS // 8):
        by, count = serve(queue, 8)
        had[by] += count
        queue.brake(is_on=True)
        queue.brake(is_on=False)
    assert had == dict.fromkeys(flows, TURN_CALLS)
