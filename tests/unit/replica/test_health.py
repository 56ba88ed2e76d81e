"""The core of health checks: when they start, and what their answers mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica_service.core.handler_health import FAILURES, HandlerHealth, HealthCommand, HealthSettings

START, CANCEL, GIVE_UP = HealthCommand.START, HealthCommand.CANCEL, HealthCommand.GIVE_UP
SETTINGS = HealthSettings(period_s=10.0, timeout_s=30.0)


def health(settings: HealthSettings = SETTINGS) -> HandlerHealth:
    return HandlerHealth(settings, 0.0)


def test_checks_start_one_period_after_the_other() -> None:
    core = health()
    assert core.next_deadline() == 10.0
    assert core.passed(9.9) == []
    assert core.passed(10.0) == [START]
    assert core.answered("", 10.5) == []
    assert core.next_deadline() == 20.0
    assert core.passed(20.0) == [START]
    assert core.answered("", 34.0) == []
    assert core.next_deadline() == 34.0, "one that takes longer than a period is followed by the next at once"


def test_three_failures_in_a_row_are_one_too_many() -> None:
    core = health()
    told = []
    for at in (10.0, 20.0, 30.0):
        assert core.passed(at) == [START]
        told.append(core.answered(f"no {at}", at))
    assert told == [[], [], [GIVE_UP]]
    assert core.is_sick
    assert core.problem == "no 30.0"
    assert core.next_deadline() is None
    assert core.passed(100.0) == []


def test_one_that_passes_makes_what_failed_forgotten() -> None:
    core = health()
    for at, problem in [(10.0, "no"), (20.0, "no"), (30.0, ""), (40.0, "no"), (50.0, "no"), (60.0, "")]:
        core.passed(at)
        assert core.answered(problem, at) == []
        assert core.problem == problem
    assert core.failures == 0


def test_one_that_hangs_fails_after_its_time_and_then_each_period_and_is_not_started_again() -> None:
    core = health()
    assert core.passed(10.0) == [START]
    assert core.next_deadline() == 40.0
    assert core.passed(40.0) == [CANCEL]
    assert core.problem == "check_health has not answered for 30 s"
    assert core.passed(50.0) == []
    assert core.problem == "check_health has not answered for 40 s"
    assert core.passed(60.0) == [GIVE_UP]


def test_a_late_answer_counts_for_nothing_and_lets_the_next_check_start() -> None:
    core = health()
    core.passed(10.0)
    core.passed(40.0)
    assert core.answered("", 45.0) == []
    assert core.failures == 1
    assert core.next_deadline() == 45.0
    assert core.passed(45.0) == [START]
    assert core.answered("", 46.0) == []
    assert core.failures == 0


def test_other_settings_hold_from_the_next_check_on() -> None:
    core = health()
    core.configure(HealthSettings(period_s=2.0, timeout_s=1.0))
    assert core.next_deadline() == 2.0
    assert core.passed(2.0) == [START]
    core.configure(SETTINGS)
    assert core.next_deadline() == 3.0, "the one that runs keeps its time"


@given(
    st.lists(st.tuples(st.floats(0.1, 50.0), st.sampled_from(["", "no", None])), max_size=60),
    st.floats(0.1, 20.0),
    st.floats(0.1, 40.0),
)
def test_never_two_at_once_and_sick_exactly_once(
    steps: list[tuple[float, str | None]], period_s: float, timeout_s: float
) -> None:
    """Time passes, and checks answer or go on."""
    core = health(HealthSettings(period_s=period_s, timeout_s=timeout_s))
    now, running, cancelled, given_up = 0.0, False, False, 0

    def follow(commands: list[HealthCommand]) -> None:
        nonlocal running, cancelled, given_up
        for command in commands:
            if command is START:
                assert not running
                running, cancelled = True, False
            elif command is CANCEL:
                assert running
                assert not cancelled
                cancelled = True
            else:
                given_up += 1

    for passing, answer in steps:
        now += passing
        follow(core.passed(now))
        if running and answer is not None:
            running = False
            follow(core.answered(answer, now))
        deadline = core.next_deadline()
        assert (deadline is None) is core.is_sick is bool(given_up)
        assert core.failures <= FAILURES
    assert given_up <= 1


@pytest.mark.parametrize("problem", ["", "no"])
def test_an_answer_after_the_end_changes_nothing(problem: str) -> None:
    core = health(HealthSettings(period_s=1.0, timeout_s=1.0))
    core.passed(1.0)
    core.passed(2.0)
    core.passed(3.0)
    assert core.passed(4.0) == [GIVE_UP]
    assert core.answered(problem, 5.0) == []
    assert core.is_sick
    assert core.problem.startswith("check_health has not answered")
