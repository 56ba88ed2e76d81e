"""Records of calls and executions: append-only, written by many processes, read when all is over.

Purpose: clients record what they sent and what came of it, handlers record what they executed; a history checker reads
both and compares.
Invariants: a record is one line, written by one `write` to a file opened with O_APPEND: lines of different processes
never mix, and what was written survives SIGKILL of the writer. Times are of the machine's monotonic clock, which all of
its processes share.

    class Counter:
        def __init__(self) -> None:
            self.records = Recorder.from_environment()

        async def add(self, key: str, number: int) -> int:
            with self.records.executing(number, key=key):
                ...
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Final, Self

VARIABLE: Final = "SLOTMESH_TEST_RECORDS"
"""Environment variable with the path of the file."""


class Event(StrEnum):
    """What a record tells."""

    CALLED = "called"
    """A client made a call."""
    ANSWERED = "answered"
    """A client got the outcome of a call."""
    STARTED = "started"
    """A handler began to execute a call."""
    FINISHED = "finished"
    """A handler ended executing a call, well or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One line of the file."""

    event: Event
    call: int | str
    """Identity of the call, unique in the file: chosen by the client and passed as an argument."""
    key: str = ""
    """Ordering key; empty for none."""
    outcome: str = ""
    """Of ANSWERED: `ok`, or the reason of the failure. Of FINISHED: `ok`, or the exception's type."""
    executed: str = ""
    """Of ANSWERED with a failure: `no`, `unknown` or `yes`."""
    at: float = 0.0
    """Seconds, monotonic."""
    pid: int = 0
    """Of the writer."""


class Recorder:
    """Writes records. Safe in any number of threads and processes at once."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._pid = os.getpid()

    @classmethod
    def from_environment(cls) -> Self:
        """What handlers use: the path is in `VARIABLE`. Raises KeyError where it is not."""
        return cls(Path(os.environ[VARIABLE]))

    def called(self, *calls: int | str, key: str = "") -> None:
        """Before the calls are made: what is not in the file was never sent."""
        self._write(Event.CALLED, calls, key)

    def answered(self, *calls: int | str, key: str = "", outcome: str = "ok", executed: str = "") -> None:
        """After the calls' outcome is known."""
        self._write(Event.ANSWERED, calls, key, outcome, executed)

    def started(self, *calls: int | str, key: str = "") -> None:
        self._write(Event.STARTED, calls, key)

    def finished(self, *calls: int | str, key: str = "", outcome: str = "ok") -> None:
        self._write(Event.FINISHED, calls, key, outcome)

    @contextmanager
    def executing(self, *calls: int | str, key: str = "") -> Iterator[None]:
        """The start and the end of executing calls, whatever the end is."""
        self.started(*calls, key=key)
        try:
            yield
        except BaseException as error:
            self.finished(*calls, key=key, outcome=type(error).__name__)
            raise
        self.finished(*calls, key=key)

    def close(self) -> None:
        """May be called again. A handler need not: the process's end does it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _write(
        self, event: Event, calls: Iterable[int | str], key: str = "", outcome: str = "", executed: str = ""
    ) -> None:
        at = time.monotonic()
        data = b"".join(
            json.dumps([event, call, key, outcome, executed, at, self._pid]).encode() + b"\n" for call in calls
        )
        written = os.write(self._fd, data)
        assert written == len(data), "the disk is full"


def read_records(path: Path) -> list[Record]:
    """All records, in the order in which they were written; none where nothing was.

    A line without an end is being written, or its writer was killed in the act: it is left out. Any other line that is
    no record raises ValueError.
    """
    if not path.exists():
        return []
    complete, _, _ = path.read_bytes().rpartition(b"\n")
    return [_read(line) for line in complete.splitlines()]


def _read(line: bytes) -> Record:
    try:
        event, call, key, outcome, executed, at, pid = json.loads(line)
        return Record(event=Event(event), call=call, key=key, outcome=outcome, executed=executed, at=at, pid=pid)
    except (ValueError, TypeError) as error:
        raise ValueError(f"not a record: {line!r}") from error
