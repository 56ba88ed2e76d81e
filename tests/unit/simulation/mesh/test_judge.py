"""What counts as a violation beside the invariants of `tests.history`."""

from __future__ import annotations

import pytest

from simulation.mesh.history import CANCELLED, FINISHED, RAISED, Recorder
from simulation.mesh.judge import judge
from tests.history.model import Call


class Run:
    """Two calls of a lane that stops: the first one starts at 1 s."""

    def __init__(self) -> None:
        self.now = 0.0
        self.recorder = Recorder(lambda: self.now)
        for number in range(2):
            call = Call(tag=f"{number}", client="c", endpoint="e", key="k", sequence=number, sent_at=0.0, deadline=2.0)
            self.recorder.called(call, stop_generation=1)

    def execute(self, tag: str, begins: float, ends: float, how: str = FINISHED) -> None:
        self.now = begins
        number = self.recorder.started(tag, "k", 7)
        self.now = ends
        self.recorder.ended(number, how)

    def hear(self, tag: str, at: float, reason: str = "", executed: str = "") -> None:
        self.now = at
        self.recorder.heard(tag, reason=reason, executed=executed)

    def invariants(self, *, is_calm: bool = True) -> set[str]:
        return {each.invariant for each in judge(self.recorder, is_calm=is_calm)}


@pytest.mark.parametrize("how", [RAISED, CANCELLED])
def test_nothing_runs_after_a_failure(how: str) -> None:
    run = Run()
    run.execute("0", 1.0, 1.1, how)
    run.hear("0", 1.1, "HANDLER_ERROR", "YES")
    run.execute("1", 1.2, 1.3)
    run.hear("1", 1.3)

    assert run.invariants() == {"stopped lane"}


def test_a_call_that_was_not_executed_stops_its_lane_too() -> None:
    run = Run()
    run.hear("0", 1.0, "QUEUE_TIMEOUT", "NO")
    run.execute("1", 1.2, 1.3)
    run.hear("1", 1.3)

    assert run.invariants() == {"stopped lane"}


def test_a_call_that_went_well_and_whose_result_was_lost_stops_nothing() -> None:
    run = Run()
    run.execute("0", 1.0, 1.1)
    run.execute("1", 1.2, 1.3)
    run.hear("0", 1.4, "REPLICA_LOST", "UNKNOWN")
    run.hear("1", 1.4)

    assert run.invariants(is_calm=False) == set()
    assert run.invariants(is_calm=True) == {"stopped lane"}  # nothing was there to lose it


def test_one_that_ended_after_its_deadline_has_failed() -> None:
    run = Run()
    run.execute("0", 1.0, 2.5)
    run.execute("1", 2.6, 2.7)
    run.hear("0", 2.8, "DEADLINE_RUNNING", "UNKNOWN")
    run.hear("1", 2.8)

    assert run.invariants(is_calm=False) == {"stopped lane"}


def test_what_is_left_of_a_timeout_counts_from_the_arrival_at_the_replica() -> None:
    run = Run()
    run.now = 1.0
    run.recorder.came_to_replica("0", 1.9)
    run.execute("0", 1.0, 2.9)
    run.execute("1", 2.9, 3.0)
    run.hear("0", 3.2, "DEADLINE_RUNNING", "UNKNOWN")
    run.hear("1", 3.2)

    assert run.invariants(is_calm=False) == set()


def test_after_a_reset_the_lane_goes_on() -> None:
    run = Run()
    run.hear("0", 1.0, "QUEUE_TIMEOUT", "NO")
    run.recorder.stop_lanes["1"] = 2
    run.execute("1", 1.2, 1.3)
    run.hear("1", 1.3)

    assert run.invariants() == set()


@pytest.mark.parametrize("reason", ["CANCELLED", "INTERNAL"])
def test_failures_without_a_reason(reason: str) -> None:
    run = Run()
    run.recorder.stop_lanes.clear()
    run.hear("0", 1.0, reason, "UNKNOWN")
    run.hear("1", 1.0)
    run.execute("1", 0.9, 0.95)

    assert run.invariants() == {"reason"}


def test_who_gives_a_call_up_hears_that_it_was_cancelled() -> None:
    run = Run()
    run.recorder.stop_lanes.clear()
    run.recorder.given_up.add("0")
    run.hear("0", 1.0, "CANCELLED", "UNKNOWN")
    run.execute("1", 0.9, 0.95)
    run.hear("1", 1.0)

    assert run.invariants() == set()


def test_a_key_that_does_not_work_again_is_stuck() -> None:
    run = Run()
    run.recorder.stop_lanes.clear()
    run.recorder.must_succeed.add("1")
    run.hear("0", 1.0, "QUEUE_TIMEOUT", "NO")
    run.hear("1", 1.0, "QUEUE_TIMEOUT", "NO")

    assert run.invariants() == {"stuck"}


def test_who_hears_nothing_hangs() -> None:
    run = Run()
    run.hear("0", 1.0, "QUEUE_TIMEOUT", "NO")

    assert run.invariants() == {"lost"}


def test_a_call_with_a_request_id_runs_again_only_for_an_attempt_after_the_end_of_its_replica() -> None:
    run = Run()
    run.recorder.stop_lanes.clear()
    run.recorder.attempts["0"] = [0.5, 1.05]
    run.execute("0", 1.0, 1.1)
    run.execute("1", 1.2, 1.3)
    run.hear("1", 1.3)
    run.execute("0", 1.4, 1.5)
    run.hear("0", 1.5)
    assert run.invariants() == {"repeated"}

    run.recorder.deaths[7] = 1.2
    assert run.invariants() == {"repeated"}, "it waited while its replica ended"

    run.recorder.attempts["0"].append(1.3)
    assert run.invariants() == set()


def test_a_call_without_a_request_id_runs_once_whatever_ends() -> None:
    run = Run()
    run.recorder.stop_lanes.clear()
    run.recorder.deaths[7] = 1.05
    run.execute("0", 1.0, 1.1)
    run.execute("0", 1.4, 1.5)
    run.execute("1", 1.6, 1.7)
    run.hear("0", 1.5)
    run.hear("1", 1.7)

    assert "executed twice" in run.invariants()
