"""The checker accepts what is correct, and catches each seeded defect by its name and its call."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.history.checker import assert_holds, assert_results, check, told
from tests.history.model import Call, Execution, Fault, History, Load, Outcome, Violation
from tests.support.examples import examples
from tests.unit.history.defects import DEFECTS, Defect
from tests.unit.history.histories import Fate, histories


@given(histories())
def test_correct_histories_are_accepted(history: History) -> None:
    assert check(history) == []


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
@settings(
    max_examples=examples(50), suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow], deadline=None
)
@given(data=st.data())
def test_each_defect_is_caught(defect: Defect, data: st.DataObject) -> None:
    wrong = defect(data.draw(histories()), data)
    violations = check(wrong)
    assert DEFECTS[defect] in {violation.invariant for violation in violations}
    assert all(violation.tags for violation in violations)


def two_of_a_lane(*executions: Execution) -> History:
    calls = [Call(tag=f"c/{n}", client="c", endpoint="e", key="k", sequence=n, sent_at=10.0) for n in range(2)]
    outcomes = [Outcome(tag=f"c/{n}", at=14.0, reply=f"c/{n}") for n in range(2)]
    return History(calls=calls, outcomes=outcomes, executions=executions)


def test_a_violation_says_which_call_when_and_where() -> None:
    history = two_of_a_lane(
        Execution(tag="c/1", key="k", pid=7, started_at=11.0, ended_at=11.5),
        Execution(tag="c/0", key="k", pid=8, started_at=12.0, ended_at=12.5),
    )
    (violation,) = check(history)
    assert str(violation) == (
        "order: key 'k' of c: number 0 ('c/0') was executed by pid 8 at +2.000 s (until +2.500 s), "
        "after number 1, by pid 7 at +1.000 s (until +1.500 s)"
    )
    with pytest.raises(AssertionError, match=r"^1 violations:\n  order: "):
        assert_holds(history)


def test_what_a_killed_process_executed_runs_until_it_was_killed() -> None:
    history = two_of_a_lane(
        Execution(tag="c/0", key="k", pid=7, started_at=11.0),
        Execution(tag="c/1", key="k", pid=8, started_at=12.0, ended_at=12.5),
    )
    assert [it.invariant for it in check(history)] == ["overlap"]
    assert check(replace(history, deaths={7: 11.5})) == []
    assert [it.invariant for it in check(replace(history, deaths={7: 12.1}))] == ["overlap"]


def test_idempotent_calls_may_be_executed_again_from_any_of_them_on_but_never_from_an_earlier_one() -> None:
    def lane(*numbers: int) -> list[str]:
        calls = [
            Call(tag=str(n), client="c", endpoint="e", key="k", sequence=n, idempotent=True, sent_at=0.0)
            for n in range(4)
        ]
        executions = [
            Execution(tag=str(n), key="k", pid=1, started_at=at, ended_at=at + 0.5) for at, n in enumerate(numbers)
        ]
        outcomes = [Outcome(tag=str(n), at=20.0) for n in range(4)]
        return [it.invariant for it in check(History(calls=calls, outcomes=outcomes, executions=executions))]

    assert lane(0, 1, 2, 3) == lane(0, 1, 0, 1, 2, 3) == lane(0, 1, 2, 1, 2, 3) == lane(0, 0, 0, 1, 2, 2, 3, 3) == []
    assert lane(0, 1, 2, 1, 2, 1, 2, 3) == lane(0, 1, 2, 3, 3) == []
    assert (
        lane(0, 1, 2, 0, 2, 1, 3)
        == lane(0, 1, 2, 2, 1, 3)
        == lane(0, 2, 1, 3)
        == lane(1, 0, 2, 3)
        == lane(0, 1, 2, 3, 3, 0)
        == ["order"]
    )


@given(histories())
def test_a_call_that_failed_is_told_where_results_were_expected(history: History) -> None:
    if all(outcome.is_result for outcome in history.outcomes):
        assert_results(history)
    else:
        with pytest.raises(AssertionError, match="violations:\n  failed: call"):
            assert_results(history)
    assert_results(history, of=lambda _call: False)


LOAD = Load(clients=2, outcomes_per_s=3)


def loaded(*clients: str, at: float = 9.5, seen: str = "it died", sent_at: float = 9.0) -> History:
    """Outcomes of these clients, then a fault at 10.0, while a call that was sent at `sent_at` is unanswered."""
    calls = [
        Call(tag=str(number), client=client, endpoint="e", sent_at=9.0) for number, client in enumerate((*clients, "d"))
    ]
    calls[-1] = msgspec.structs.replace(calls[-1], sent_at=sent_at)
    times = [*[at] * len(clients), 11.0]
    return History(
        calls=calls,
        outcomes=[Outcome(tag=call.tag, at=at) for call, at in zip(calls, times, strict=True)],
        executions=[Execution(tag=call.tag, pid=1, started_at=call.sent_at, ended_at=11.0) for call in calls],
        faults=[Fault(what="SIGKILL of router-1", at=10.0, cleared_at=10.0, seen=seen)],
    )


def test_a_run_counts_when_its_load_was_there_and_its_faults_hit() -> None:
    assert check(loaded("a", "b", "b"), LOAD) == []


@pytest.mark.parametrize(
    ("history", "words"),
    [
        (loaded("a", "b"), "2 clients got 2 outcomes; the run counts only with 2 and 3/s"),
        (loaded("a", "a", "a"), "1 clients got 3 outcomes"),
        (loaded("a", "b", "b", at=10.5), "0 clients got 0 outcomes"),
        (loaded("a", "b", "b", seen=""), "SIGKILL of router-1 at +1.000 s: nobody saw that it happened"),
        (loaded("a", "b", "b", sent_at=10.1), "no call was unanswered then"),
        (replace(loaded("a", "b", "b"), faults=[]), "there was no fault"),
    ],
    ids=["too little", "too few clients", "too late", "unseen", "idle", "no fault"],
)
def test_a_run_that_proves_nothing_does_not_count(history: History, words: str) -> None:
    assert check(history) == [], "only the run's conditions are wrong"
    (violation,) = check(history, LOAD)
    assert words in str(violation)


def test_fates_are_all_generated() -> None:
    """Each fate by itself makes a correct history."""
    for fate in Fate:

        @settings(max_examples=examples(5), database=None)
        @given(histories(fates=(fate,)))
        def accepted(history: History) -> None:
            assert check(history) == []

        accepted()


def test_many_violations_are_told_by_their_kinds() -> None:
    violations = [Violation(invariant="late", text=str(n)) for n in range(10)] + [Violation(invariant="lie", text="!")]
    lines = told(violations).splitlines()
    assert lines[0] == "11 violations:"
    assert lines[1:] == [*(f"  late: {n}" for n in range(8)), "  late: ... and 2 more", "  lie: !"]


def given_up(*executions: Execution, faults: tuple[Fault, ...], executed: str = "UNKNOWN") -> list[str]:
    """Two calls with a timeout of 1 s that left at 10.0 and 10.1, and were given up at 11.2."""
    calls = [Call(tag=f"c/{n}", client="c", endpoint="e", sent_at=10 + n / 10, deadline=11 + n / 10) for n in range(2)]
    outcomes = [Outcome(tag=it.tag, at=11.2, reason="DEADLINE_RUNNING", executed=executed) for it in calls]
    history = History(calls=calls, outcomes=outcomes, executions=executions, faults=faults)
    return [it.invariant for it in check(history)]


def started(number: int, at: float, pid: int = 7) -> Execution:
    return Execution(tag=f"c/{number}", pid=pid, started_at=at, ended_at=at + 0.1)


def test_a_process_that_stood_still_starts_one_call_late() -> None:
    stop = Fault(what="SIGSTOP of replica-1", at=10.5, cleared_at=13.0, seen="it stood still")
    assert given_up(started(0, 13.0), faults=(stop,)) == []
    assert given_up(started(0, 13.0, 7), started(1, 13.0, 8), faults=(stop,)) == []
    assert given_up(started(0, 13.0), started(1, 13.0), faults=(stop,)) == ["late start"]
    assert given_up(started(0, 13.0), faults=()) == ["late start"]


def test_what_was_held_up_on_its_way_starts_within_its_timeout() -> None:
    cut = Fault(what="router-1 cut", at=10.2, cleared_at=13.0, seen="packets vanished", holds_calls_s=inf)
    both = started(0, 13.2), started(1, 14.3)
    assert given_up(*both, faults=(cut,)) == []
    assert given_up(*both, faults=(msgspec.structs.replace(cut, holds_calls_s=2.0),)) == ["late start"] * 2
    assert given_up(*both, faults=(msgspec.structs.replace(cut, at=10.7),)) == ["late start"] * 2
    assert given_up(*both, faults=(msgspec.structs.replace(cut, cleared_at=12.0),)) == ["late start"]
    assert given_up(started(0, 13.2), faults=(cut,), executed="NO") == ["lie", "late start"]
