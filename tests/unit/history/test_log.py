"""What is written is read: calls, outcomes, faults, deaths, and the executions of processes that were killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given

from tests.history.log import HistoryLog, clients_file, executions_file, read_history
from tests.history.model import Call, Death, Entry, Execution, Fault, History, Outcome
from tests.support.recorder import Recorder
from tests.unit.history.histories import histories

ENTRIES: list[Entry] = [
    Call(tag="c/k/0", client="c", endpoint="e", key="k", sequence=3, idempotent=True, sent_at=1.5, deadline=2.5),
    Call(tag="c//0", client="c", endpoint="e", sent_at=1.25),
    Outcome(tag="c/k/0", at=2.0, reply="c/k/0"),
    Fault(what="SIGKILL of router-1", at=2.5, cleared_at=3.0, seen="died"),
    Death(pid=7, at=2.5),
    Outcome(tag="c//0", at=3.0, reason="REPLICA_LOST", executed="UNKNOWN"),
]


def test_an_empty_folder_is_an_empty_history(tmp_path: Path) -> None:
    assert read_history(tmp_path) == History(calls=[], outcomes=[], executions=[], faults=[])


def test_two_writers_and_a_line_without_an_end(tmp_path: Path) -> None:
    with HistoryLog(tmp_path) as one, HistoryLog(tmp_path) as other:
        one.add(*ENTRIES[:2])
        other.add(*ENTRIES[2:])
    with clients_file(tmp_path).open("ab") as file:
        file.write(b'{"type": "dea')
    history = read_history(tmp_path)
    assert history == History(
        calls=ENTRIES[:2],  # type: ignore[arg-type]  # these are calls
        outcomes=[ENTRIES[2], ENTRIES[5]],  # type: ignore[list-item]  # and these outcomes
        executions=[],
        faults=[ENTRIES[3]],  # type: ignore[list-item]
        deaths={7: 2.5},
    )


def test_a_line_that_is_no_entry_is_refused(tmp_path: Path) -> None:
    clients_file(tmp_path).write_bytes(b'{"type": "rumour"}\n')
    with pytest.raises(ValueError, match="rumour"):
        read_history(tmp_path)


def test_executions_are_paired_and_unfinished_ones_kept(tmp_path: Path) -> None:
    with Recorder(executions_file(tmp_path)) as recorder:
        recorder.started("a", key="k")
        recorder.started("b")
        recorder.finished("a", key="k")
        recorder.started("a", key="k")
    executions = read_history(tmp_path).executions
    assert [(it.tag, it.key, it.pid, it.ended_at is None) for it in executions] == [
        ("a", "k", os.getpid(), False),
        ("b", "", os.getpid(), True),
        ("a", "k", os.getpid(), True),
    ]
    first = executions[0]
    assert first.ended_at is not None
    assert first.started_at <= first.ended_at <= executions[2].started_at


@given(histories())
def test_values_of_a_history_have_words(history: History) -> None:
    for call in history.calls:
        assert repr(call.tag) in str(call)
    assert history.since_start(history.began_at) == "+0.000 s"
    assert all(isinstance(it, Execution) for it in history.executions)
