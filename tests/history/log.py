"""Histories as files: written while a run goes on, read when all is over.

Purpose: the side of the clients writes calls, outcomes, faults and deaths to `clients.jsonl`, through `HistoryLog`;
handlers write executions to `executions.jsonl`, through `tests.support.recorder`, which survives SIGKILL of the writer.
Invariants: files are opened with O_APPEND and each entry is one write, so any number of processes write side by side.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from tests.history.model import Call, Death, Entry, Execution, Fault, History, Outcome
from tests.support.recorder import Event, read_records


def clients_file(folder: Path) -> Path:
    return folder / "clients.jsonl"


def executions_file(folder: Path) -> Path:
    """What the environment variable of `tests.support.recorder` has to name."""
    return folder / "executions.jsonl"


class HistoryLog:
    """Appends entries to the history in a folder."""

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(clients_file(folder), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._encoder = msgspec.json.Encoder()

    def add(self, *entries: Entry) -> None:
        """Calls are added before they leave: what is not in the file was never sent."""
        data = self._encoder.encode_lines(entries)
        written = os.write(self._fd, data)
        assert written == len(data), "the disk is full"

    def close(self) -> None:
        """May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def read_history(folder: Path) -> History:
    """All that was recorded in a folder. Raises ValueError for a line that is no entry."""
    entries = _read_entries(clients_file(folder))
    return History(
        calls=[it for it in entries if isinstance(it, Call)],
        outcomes=[it for it in entries if isinstance(it, Outcome)],
        faults=[it for it in entries if isinstance(it, Fault)],
        deaths={it.pid: it.at for it in entries if isinstance(it, Death)},
        executions=read_executions(executions_file(folder)),
    )


def read_executions(path: Path) -> list[Execution]:
    """What handlers recorded, by start. An end belongs to the oldest start of its call that its process has open."""
    executions: list[Execution] = []
    unfinished: dict[tuple[int, str], deque[int]] = defaultdict(deque)
    for record in read_records(path):
        tag = str(record.call)
        if record.event is Event.STARTED:
            unfinished[record.pid, tag].append(len(executions))
            executions.append(Execution(tag=tag, key=record.key, pid=record.pid, started_at=record.at))
        elif record.event is Event.FINISHED:
            index = unfinished[record.pid, tag].popleft()
            begun = executions[index]
            executions[index] = Execution(
                tag=tag, key=begun.key, pid=begun.pid, started_at=begun.started_at, ended_at=record.at
            )
    return executions


def _read_entries(path: Path) -> list[Entry]:
    """Without a last line that has no end: its writer was killed in the act."""
    if not path.exists():
        return []
    complete, _, _ = path.read_bytes().rpartition(b"\n")
    decoder = msgspec.json.Decoder(Entry)
    return [decoder.decode(line) for line in complete.splitlines()]
