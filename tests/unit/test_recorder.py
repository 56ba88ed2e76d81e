"""The recorder loses nothing, mixes nothing, and outlives its writers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.mesh import ROOT
from tests.support.recorder import VARIABLE, Event, Recorder, read_records

WRITER = """
import os, signal
from tests.support.recorder import Recorder
recorder = Recorder.from_environment()
for number in range(500):
    recorder.started(f"{os.getpid()}-{number}", key="k" * (number % 100))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_recorded_is_read(tmp_path: Path) -> None:
    path = tmp_path / "records"
    assert read_records(path) == []
    with Recorder(path) as recorder:
        recorder.called(1, 2, key="a")
        with recorder.executing(1, key="a"):
            pass
        with pytest.raises(ZeroDivisionError), recorder.executing("two", key="ü\n"):
            raise ZeroDivisionError
        recorder.answered(1, outcome="REPLICA_LOST", executed="unknown")
    records = read_records(path)
    assert [(it.event, it.call, it.key, it.outcome, it.executed) for it in records] == [
        (Event.CALLED, 1, "a", "", ""),
        (Event.CALLED, 2, "a", "", ""),
        (Event.STARTED, 1, "a", "", ""),
        (Event.FINISHED, 1, "a", "ok", ""),
        (Event.STARTED, "two", "ü\n", "", ""),
        (Event.FINISHED, "two", "ü\n", "ZeroDivisionError", ""),
        (Event.ANSWERED, 1, "", "REPLICA_LOST", "unknown"),
    ]
    assert {it.pid for it in records} == {os.getpid()}
    assert [it.at for it in records] == sorted(it.at for it in records)


def test_processes_write_side_by_side_and_may_be_killed(tmp_path: Path) -> None:
    path = tmp_path / "records"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER], cwd=ROOT, env={**os.environ, VARIABLE: str(path)})
        for _ in range(3)
    ]
    assert {writer.wait(20) for writer in writers} == {-signal.SIGKILL}
    records = read_records(path)
    for writer in writers:
        mine = [it.call for it in records if it.pid == writer.pid]
        assert mine == [f"{writer.pid}-{number}" for number in range(500)]


def test_a_line_that_is_being_written_is_left_out_and_a_broken_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "records"
    with Recorder(path) as recorder:
        recorder.started(1)
    with path.open("ab") as file:
        file.write(b'["started", 2')
    assert [it.call for it in read_records(path)] == [1]
    with path.open("ab") as file:
        file.write(b"\n")
    with pytest.raises(ValueError, match="not a record"):
        read_records(path)
