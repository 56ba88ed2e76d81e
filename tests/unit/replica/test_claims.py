"""Which calls may start: each reason why not, and what a claim means to a hold of its turn."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from math import inf
from typing import Any

import pytest

from replica_service.core.call_metadata import ReplicaCallOptions
from replica_service.core.failures import CANCELLED, EXPIRED, UNHEARD
from replica_service.core.runs import ReplicaLane, ReplicaRun, RouterPeer, StartTurn
from replica_service.core.session_records import Record
from replica_service.core.work import (
    MAX_TURN_S,
    Claim,
    Skip,
    StartNow,
    TurnClaims,
    claim,
    mark_failure,
    may_begin,
    note_failure,
    too_late,
)

NOW = 100.0


def run_of(calls: int, *, deadline: float = inf, fresh_until: float = inf, **options: Any) -> ReplicaRun:
    link = RouterPeer()
    link.fresh_until = fresh_until
    call_options = ReplicaCallOptions(method="m", ordering_key="k", **options)
    run = ReplicaRun(link, 1, [b""] * calls, call_options, "e", NOW - 1, deadline)
    run.record = Record("s", 1, range(1, calls + 1), calls, attempt=0, recovers=False)
    return run


def turn_of(run: ReplicaRun) -> StartTurn:
    return StartTurn(ReplicaLane(("e", "k"), 0), run, 0, len(run.payloads), NOW)


def withdrawn(run: ReplicaRun, *indices: int) -> ReplicaRun:
    for index in indices:
        run.withdraw(index, index + 1)
    return run


def fenced(run: ReplicaRun) -> ReplicaRun:
    assert run.record is not None
    run.record.is_fenced = True
    return run


def failed(run: ReplicaRun, index: int) -> ReplicaRun:
    mark_failure(run, index)
    return run


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (run_of(5), StartNow(5, inf)),
        (run_of(5, deadline=NOW + 2, fresh_until=NOW + 1), StartNow(5, NOW + 1)),
        (run_of(5, deadline=NOW + 1, fresh_until=NOW + 2), StartNow(5, NOW + 1)),
        (run_of(5, deadline=NOW), Skip(5, EXPIRED)),
        (run_of(5, deadline=NOW, fresh_until=NOW), Skip(5, EXPIRED)),
        (run_of(5, fresh_until=NOW), None),
        (fenced(run_of(5)), None),
        (withdrawn(run_of(5), 0, 3), Skip(1, CANCELLED)),
        (withdrawn(run_of(5), 3), StartNow(3, inf)),
        (withdrawn(run_of(5), 7), StartNow(5, inf)),
        (run_of(5, stop_generation=1), StartNow(1, inf)),
        (failed(run_of(5, stop_generation=1), 0), StartNow(1, inf)),
        (withdrawn(run_of(5, stop_generation=1), 1), StartNow(1, inf)),
        (failed(run_of(5), 0), StartNow(5, inf)),
    ],
)
def test_from_the_first_call_on(run: ReplicaRun, expected: Claim) -> None:
    assert claim(run, 0, 5, NOW) == expected


def test_behind_a_failure_a_lane_that_stops_starts_nothing() -> None:
    run = failed(run_of(5, stop_generation=1), 2)
    assert claim(run, 2, 5, NOW) == StartNow(3, inf)
    assert claim(run, 3, 5, NOW) is None
    told = run_of(5, stop_generation=1)
    note_failure(told, 2)
    assert claim(told, 3, 5, NOW) == StartNow(4, inf), "it belongs to no session"


def test_a_batch_begins_as_a_whole_or_not_at_all() -> None:
    sound = run_of(2)
    for other in (run_of(2, deadline=NOW), run_of(2, fresh_until=NOW), fenced(run_of(2))):
        assert not may_begin([(sound, 0, 2), (other, 0, 2)], NOW)
    assert may_begin([(sound, 0, 2), (run_of(2, deadline=NOW + 1, fresh_until=NOW + 1), 0, 2)], NOW)
    assert too_late(sound, NOW) is None
    assert too_late(run_of(1, deadline=NOW, fresh_until=NOW), NOW) is EXPIRED
    assert too_late(run_of(1, fresh_until=NOW), NOW) is UNHEARD


def locks() -> list[AbstractContextManager[object] | None]:
    return [None, threading.Lock()]


@pytest.mark.parametrize("lock", locks(), ids=["one loop", "two threads"])
def test_what_was_claimed_has_started_when_the_turn_is_held_up(lock: AbstractContextManager[object] | None) -> None:
    turns, turn = TurnClaims(lock), turn_of(run_of(5))
    assert turns.claim(turn, 0, NOW, most=3) == StartNow(3, inf)
    turns.hold(turn)
    assert turn.stop == (3 if lock is None else 1)
    assert turns.go_on(turn, 1) is (lock is None)
    assert turns.claim(turn, turn.stop, NOW) is None


def test_calls_that_were_claimed_together_start_one_by_one_where_another_thread_may_hold_them_up() -> None:
    turns, turn = TurnClaims(threading.Lock()), turn_of(run_of(5))
    assert turns.claim(turn, 0, NOW) == StartNow(5, inf)
    assert turns.go_on(turn, 1)
    assert turn.next == 2
    withdrawn(turn.run, 2)
    assert not turns.go_on(turn, 2)
    assert turns.claim(turn, 2, NOW) == Skip(3, CANCELLED)
    turns.hold(turn)
    assert turn.stop == 3, "a call that was skipped is answered"


def test_a_turn_is_over_after_its_time_but_has_one_call_at_least() -> None:
    turns, turn = TurnClaims(), turn_of(run_of(5))
    assert turns.claim(turn, 0, NOW + 7, most=1) == StartNow(1, inf)
    assert turns.claim(turn, 1, NOW + 7 + MAX_TURN_S / 2, most=1) == StartNow(2, inf)
    assert turns.claim(turn, 2, NOW + 7 + MAX_TURN_S) is None


def test_nothing_is_claimed_of_a_turn_that_was_held_up_before() -> None:
    turns, turn = TurnClaims(), turn_of(run_of(5))
    turns.hold(turn)
    assert turns.claim(turn, 0, NOW) is None
