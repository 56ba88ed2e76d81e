"""Decisions that a scenario shows best: what shares a batch, and when it is cut."""

from __future__ import annotations

from replica_service.core.call_metadata import Weighed
from replica_service.core.events import (
    BatchEnded,
    LimitsChanged,
    ReplicaTimePassed,
    RunsCancelled,
    RunsReceived,
    StampEchoed,
    TurnEnded,
)
from replica_service.core.runs import ReplicaRun, RouterPeer
from replica_service.core.scheduler import ReplicaScheduler
from replica_service.core.work import StartCalls
from slotmesh.handlers import BatchControl, BatchSettings
from tests.unit.replica.scheduler_notes import GATHER_S, batch_of, run, scheduler, told, turn_of


def test_a_batch_waits_for_others_from_its_first_call_on() -> None:
    core, link = scheduler(), RouterPeer()
    assert told(core.step(RunsReceived([run(link, 1, 1, method="batch", arrived=1.0)]), 1.0)) == []
    assert core.next_deadline() == 1.0 + GATHER_S
    assert told(core.step(RunsReceived([run(link, 2, 1, method="batch", arrived=1.2)]), 1.2)) == []
    assert core.next_deadline() == 1.0 + GATHER_S
    assert told(core.step(ReplicaTimePassed(), 1.4)) == []
    assert told(core.step(ReplicaTimePassed(), 1.5)) == ["batch 1-1,2-2"]


def test_a_batch_waits_no_longer_where_the_first_call_of_a_lane_was_taken_back() -> None:
    core, link = scheduler(max_batch_size=8, max_ongoing=8), RouterPeer()
    core.step(RunsReceived([run(link, 1, 1, key="a", method="batch", arrived=1.0)]), 1.0)
    core.step(RunsReceived([run(link, 2, 1, method="batch", arrived=1.1)]), 1.1)
    core.step(RunsReceived([run(link, 3, 1, key="a", method="batch", arrived=1.3)]), 1.3)
    assert core.next_deadline() == 1.0 + GATHER_S
    core.step(RunsCancelled(link, [(1, 1)]), 1.4)
    assert core.next_deadline() == 1.1 + GATHER_S
    core.step(RunsCancelled(link, [(2, 2)]), 1.4)
    assert core.next_deadline() == 1.3 + GATHER_S


def test_permits_in_another_order_than_calls_came_prolong_no_wait() -> None:
    core, link = scheduler(max_ongoing=1, prefetch=4), RouterPeer()
    (start,) = core.step(RunsReceived([run(link, 1, 1)]), 0.0)
    assert isinstance(start, StartCalls)
    core.step(RunsReceived([run(link, 2, 1, method="batch", arrived=0.1)]), 0.1)
    core.step(RunsReceived([run(link, 3, 1, key="a", method="batch", arrived=0.3)]), 0.3)
    core.step(LimitsChanged(max_ongoing=3, prefetch=4), 0.31)
    assert core.next_deadline() == 0.1 + GATHER_S


def test_a_full_batch_is_cut_at_once_and_the_next_when_it_ends() -> None:
    core, link = scheduler(max_ongoing=9), RouterPeer()
    first = core.step(RunsReceived([run(link, 1, 5, method="batch")]), 0.0)
    assert told(first) == ["batch 1-3"]
    assert core.next_deadline() is None
    assert told(core.step(RunsReceived([run(link, 6, 2, method="batch")]), 0.1)) == []
    assert told(core.step(ReplicaTimePassed(), 9.0)) == []
    second = core.step(BatchEnded(batch_of(first)), 0.2)
    assert told(second) == ["batch 4-5,6-6"]


def test_consecutive_calls_of_a_key_share_a_batch_and_never_two() -> None:
    core, link = scheduler(max_ongoing=9), RouterPeer()
    commands = core.step(
        RunsReceived([run(link, 1, 1, method="batch", key="a"), run(link, 2, 4, method="batch", key="a")]), 0.0
    )
    assert told(commands) == ["batch 1-1,2-3"]
    assert told(core.step(BatchEnded(batch_of(commands)), 1.0)) == ["batch 4-5"]


def test_calls_of_a_key_that_come_while_it_gathers_join_the_batch() -> None:
    core, link = scheduler(max_ongoing=9), RouterPeer()
    core.step(RunsReceived([run(link, 1, 1, method="batch", key="a")]), 0.0)
    assert told(core.step(RunsReceived([run(link, 2, 2, method="batch", key="a")]), 0.1)) == ["batch 1-1,2-3"]


def test_another_method_of_the_key_waits_for_the_batch() -> None:
    core, link = scheduler(max_ongoing=9), RouterPeer()
    runs = [
        run(link, 1, 1, method="batch", key="a"),
        run(link, 2, 1, key="a"),
        run(link, 3, 1, method="batch", key="a"),
    ]
    assert told(core.step(RunsReceived(runs), 0.0)) == []
    cut = core.step(ReplicaTimePassed(), GATHER_S)
    assert told(cut) == ["batch 1-1"]
    turn = core.step(BatchEnded(batch_of(cut)), 1.0)
    assert told(turn) == ["turn 2-2"]
    assert told(core.step(TurnEnded(turn_of(turn), 1), 2.0)) == ["batch 3-3"]


def test_a_batch_is_full_when_it_has_all_permits() -> None:
    core, link = scheduler(max_ongoing=2, prefetch=2), RouterPeer()
    assert told(core.step(RunsReceived([run(link, 1, 4, method="batch")]), 0.0)) == ["batch 1-2"]


def test_a_call_that_does_not_fit_keeps_its_place_among_those_of_other_keys_and_of_none() -> None:
    weights = {1: 10, 2: 4, 3: 8, 4: 2, 5: 8}
    control = BatchControl(BatchSettings(max_batch_size=10, batch_wait_timeout_s=0.0))
    core = ReplicaScheduler(
        {"batch": control},
        max_ongoing=10,
        weigh={"batch": lambda part, index: Weighed(weights[part.first + index])},
    )
    link = RouterPeer()
    commands = core.step(RunsReceived([run(link, 1, 1, method="batch")]), 0.0)
    for number in (2, 3, 4, 5):
        key = "a" if number == 3 else ""
        assert told(core.step(RunsReceived([run(link, number, 1, method="batch", key=key)]), 0.0)) == []
    batches = []
    while commands:
        batches += told(commands)
        commands = core.step(BatchEnded(batch_of(commands)), 0.0)
    assert batches == ["batch 1-1", "batch 2-2", "batch 3-3,4-4", "batch 5-5"]


def test_a_call_that_was_parked_while_it_gathered_is_not_weighed_again() -> None:
    weighings = []

    def weigh(part: ReplicaRun, index: int) -> Weighed:
        weighings.append(part.first + index)
        return Weighed(1)

    control = BatchControl(BatchSettings(max_batch_size=10, batch_wait_timeout_s=GATHER_S))
    core, link = ReplicaScheduler({"batch": control}, max_ongoing=10, weigh={"batch": weigh}), RouterPeer()
    link.fresh_until = GATHER_S
    core.step(RunsReceived([run(link, 1, 2, method="batch"), run(link, 3, 2, method="batch", key="a")]), 0.0)
    assert told(core.step(ReplicaTimePassed(), GATHER_S)) == []
    assert len(link.parked) == 2
    assert told(core.step(StampEchoed(link, GATHER_S), GATHER_S)) == ["batch 3-4,1-2"]
    assert sorted(weighings) == [1, 2, 3, 4]


def test_calls_that_expire_in_a_batcher_free_their_permits_for_the_next_batch() -> None:
    core, link = scheduler(max_ongoing=2, prefetch=2), RouterPeer()
    running = core.step(RunsReceived([run(link, 1, 2, method="batch")]), 0.0)
    core.step(RunsReceived([run(link, 3, 1, method="batch", deadline=0.3), run(link, 4, 1, method="batch")]), 0.1)
    assert told(core.step(BatchEnded(batch_of(running)), 0.4)) == ["fail 3-3 DEADLINE_IN_QUEUE"]
    assert core.in_use == 1
    assert told(core.step(ReplicaTimePassed(), 0.1 + GATHER_S)) == ["batch 4-4"]


def test_permits_that_expired_calls_leave_start_what_is_due_in_the_same_turn() -> None:
    core, link = scheduler(max_ongoing=3, prefetch=3), RouterPeer()
    core.step(RunsReceived([run(link, 1, 2, method="batch", deadline=0.3), run(link, 3, 1)]), 0.0)
    core.step(RunsReceived([run(link, 4, 3, method="batch")]), 0.1)
    # At the end of the wait the two have expired; their permits go to two of the three, which have waited long, too.
    assert told(core.step(ReplicaTimePassed(), 0.9)) == ["fail 1-2 DEADLINE_IN_QUEUE", "batch 4-5"]
