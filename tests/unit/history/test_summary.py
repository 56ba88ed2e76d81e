"""The drawn summary, and how long it was silent."""

from __future__ import annotations

from tests.history.model import Call, Execution, Fault, History, Outcome
from tests.history.summary import silences, summary


def results(client: str, *times: float) -> History:
    """Results of a client at these times, of calls that were all sent at 0.0."""
    tags = [f"{client}/{number}" for number in range(len(times))]
    return History(
        calls=[Call(tag=tag, client=client, endpoint="e", sent_at=0.0) for tag in tags],
        outcomes=[Outcome(tag=tag, at=at) for tag, at in zip(tags, times, strict=True)],
        executions=[Execution(tag=tag, pid=1, started_at=0.0, ended_at=0.1) for tag in tags],
    )


def both(one: History, other: History, *faults: float) -> History:
    return History(
        calls=[*one.calls, *other.calls],
        outcomes=[*one.outcomes, *other.outcomes],
        executions=[*one.executions, *other.executions],
        faults=[Fault(what=f"fault {at:g}", at=at, cleared_at=at + 0.5, seen="seen") for at in faults],
    )


def test_silence_is_told_for_everybody_and_for_the_client_that_is_worst_off() -> None:
    history = both(results("a", 1.0, 2.25, 2.5, 4.0, 8.0), results("b", 1.0, 3.75, 4.0, 8.0), 2.0, 6.0)
    told = [(it.fault.at, it.everybody_s, it.worst_client_s) for it in silences(history)]
    assert told == [(2.0, 2.0, 2.0), (6.0, 2.0, 2.0)], "until the next fault, or the last result"


def test_what_was_silent_before_a_fault_is_not_its_own() -> None:
    (silence,) = silences(both(results("a", 1.0, 5.0, 5.5), results("b", 4.0, 5.25), 4.5))
    assert (silence.everybody_s, silence.worst_client_s) == (0.5, 0.75)


def test_a_failure_is_no_result() -> None:
    history = both(results("a", 1.0, 5.0), results("b", 1.0, 5.0), 2.0)
    failure = Outcome(tag="a/9", at=3.0, reason="REPLICA_LOST", executed="UNKNOWN")
    history = History(calls=history.calls, outcomes=[*history.outcomes, failure], executions=[], faults=history.faults)
    assert [it.everybody_s for it in silences(history)] == [3.0]
    assert silences(History(outcomes=[failure], faults=history.faults)) == []


def test_without_a_fault_there_is_no_silence() -> None:
    assert silences(both(results("a", 1.0), results("b", 9.0))) == []


def test_it_is_drawn() -> None:
    lines = summary(both(results("a", 1.0, 5.0, 10.0), results("b", 1.0), 5.0), "title").splitlines()
    assert lines[:3] == ["title", "4 calls, 4 outcomes, 4 executed, 0 again", "         4  a result"]
    bars, marks = lines[3].partition("|")[2], lines[4].partition("|")[2]
    assert (bars[10], bars[50], bars[99], bars[30]) == ("█", "▄", "▄", " ")
    assert marks[49:57] == " ^-----|"[:1] + "^-----" + " "
    assert lines[5] == "    +5.000 s  fault 5: no result for 5.000 s, one client 5.000 s (seen)"
    assert summary(History()) == "0 calls, 0 outcomes, 0 executed, 0 again"
