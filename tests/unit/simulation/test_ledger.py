"""The books, and what they do not let pass."""

from __future__ import annotations

import pytest

from simulation.ledger import SimulationLedger, Violation

TRAVEL = 0.25


def test_a_call_waits_until_it_starts_less_its_last_way() -> None:
    ledger = SimulationLedger(slots=1)
    (call,) = ledger.arrive(1, 1.0)
    ledger.sent(1, 1.0)
    ledger.refused(1, 1.5)
    ledger.sent(1, 3.0)
    ledger.started(call, 3.25, TRAVEL)
    ledger.ended(5.0)
    ledger.settled(call, 5.25, failed=False)
    ledger.check()
    assert list(ledger.waited) == [2.0]
    assert ledger.refusals == 1


def test_idle_slots_count_while_something_is_queued() -> None:
    ledger = SimulationLedger(slots=3)
    ledger.arrive(2, 0.0)
    ledger.measure_from(0.0)
    ledger.sent(1, 2.0)
    ledger.started(0, 2.0, 0.0)
    ledger.sent(1, 3.0)
    ledger.started(1, 9.0, 0.0)
    counted = ledger.counted(10.0)
    assert counted.idle_while_queued == 2.0 * 3 + 1.0 * 2
    assert counted.queued == counted.wasted == 2.0 * 2 + 1.0
    assert counted.time == 10.0


def test_only_as_many_queued_calls_are_wasted_as_there_are_idle_slots() -> None:
    ledger = SimulationLedger(slots=1)
    ledger.arrive(5, 0.0)
    assert ledger.counted(2.0).wasted == 2.0


def test_nothing_that_was_before_is_measured() -> None:
    ledger = SimulationLedger(slots=1)
    ledger.arrive(2, 0.0)
    ledger.sent(2, 1.0)
    ledger.refused(1, 2.0)
    assert ledger.measure_from(4.0) == 2
    counted = ledger.counted(5.0)
    assert (counted.time, counted.refusals, counted.queued) == (1.0, 0, 1.0)


def test_a_call_that_starts_twice_is_a_violation() -> None:
    ledger = SimulationLedger(slots=2)
    ledger.arrive(1, 0.0)
    ledger.started(0, 0.0, 0.0)
    with pytest.raises(Violation, match="call 0 started twice"):
        ledger.started(0, 1.0, 0.0)


def test_a_call_without_a_slot_is_a_violation() -> None:
    ledger = SimulationLedger(slots=1)
    ledger.arrive(2, 0.0)
    ledger.started(0, 0.0, 0.0)
    with pytest.raises(Violation, match="more calls run than there are slots"):
        ledger.started(1, 1.0, 0.0)


def test_two_outcomes_are_a_violation_and_so_is_none() -> None:
    ledger = SimulationLedger(slots=1)
    ledger.arrive(2, 0.0)
    ledger.settled(0, 0.0, failed=True)
    with pytest.raises(Violation, match="call 0 has two outcomes"):
        ledger.settled(0, 0.0, failed=False)
    with pytest.raises(Violation, match="1 of 2 calls have no outcome"):
        ledger.check()


def test_what_fails_in_the_queue_leaves_it() -> None:
    ledger = SimulationLedger(slots=1)
    (call,) = ledger.arrive(1, 0.0)
    ledger.settled(call, 0.0, failed=True)
    ledger.check()
    assert ledger.failed == 1


def test_a_queue_that_does_not_empty_is_a_violation() -> None:
    ledger = SimulationLedger(slots=1)
    (call,) = ledger.arrive(1, 0.0)
    ledger.settled(call, 0.0, failed=False)
    with pytest.raises(Violation, match="1 calls are queued after the end"):
        ledger.check()
