"""The events beside a state file: a SQLite file of its own, for controllers that lead later.

Purpose: events are no part of the state. In a file of their own they never keep a change of the state waiting, a disk
that fails under them refuses no change, and a damaged page of them keeps no controller from starting.
Invariants: one thread reads and writes the file, another than that of the state; the event loop never waits for a disk.
One leader writes: a file that a later leader has opened takes no events of an earlier one. A damaged file is put aside,
and begun anew; one that a newer version has written is left as it is. Nothing is deleted before this leader has read
what there is. A batch is stored as a whole. It survives the end of the process immediately, and a failure of power
after some seconds.
Owner: the store.
"""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from controller_service.core.event_log import EventBounds, EventKind, FeedEvent, Notice
from controller_service.store.protocol import EventStore, EventsUnwritten
from controller_service.store.sqlite.connecting import code_of, connect, create_private, reason_of, shut_from_others
from slotmesh.logs import get_logger

APPLICATION_ID: Final = 0x534C4D45
"""`SLME`."""
VERSION: Final = 1
_CREATE: Final = (
    "CREATE TABLE leader (id INTEGER PRIMARY KEY CHECK (id = 1), name TEXT NOT NULL)",
    "INSERT INTO leader VALUES (1, '')",
    """CREATE TABLE events (
        number INTEGER PRIMARY KEY,
        feed TEXT NOT NULL,
        time REAL NOT NULL,
        kind INTEGER NOT NULL,
        subject TEXT NOT NULL,
        message TEXT NOT NULL
    )""",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})
_KINDS: Final = {kind.value: kind for kind in EventKind}


class DamagedEvents(Exception):
    """The file does not hold what was written."""


class EventFile:
    """The file of one leader."""

    def __init__(self, path: Path, leader: str) -> None:
        """`leader`: no other controller that leads has this name."""
        self._path = path
        self._leader = leader
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._is_ours = False
        """The file has had this leader's name."""
        self._is_loaded = False
        """What the file has was read: before that nothing is added, and nothing deleted."""
        self._loaded_through: int | None = None
        """From `load` until the first batch: the number that it follows. Beyond that there are only unknown kinds."""

    def load(self, bounds: EventBounds) -> list[FeedEvent]:
        """The newest events within the bounds, oldest first. This leader writes from now on. Raises EventsUnwritten."""
        try:
            return self._read(self._ready(), bounds)
        except DamagedEvents as error:
            self._put_aside(str(error))
        except sqlite3.Error as error:
            if code_of(error) not in _DAMAGED:
                raise self._unwritten(error) from error
            self._put_aside(str(error))
        except OSError as error:
            raise self._unwritten(error) from error
        return []

    def append(self, events: Sequence[FeedEvent], dropped_through: int) -> None:
        """Raises EventsUnwritten."""
        try:
            connection = self._ready()
            if not self._is_loaded:
                raise EventsUnwritten(f"{self._path}: its events have not been read")
            connection.execute("BEGIN IMMEDIATE")
            self._require_leader(connection)
            if self._loaded_through is not None:
                connection.execute("DELETE FROM events WHERE number > ?", (self._loaded_through,))
            connection.executemany("INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?, ?, ?)", map(_row, events))
            connection.execute("DELETE FROM events WHERE number <= ?", (dropped_through,))
            connection.execute("COMMIT")
            self._loaded_through = None
        except EventsUnwritten:
            self.close()
            raise
        except DamagedEvents as error:
            self._put_aside(str(error))
            raise EventsUnwritten(f"{self._path}: {error}") from error
        except (sqlite3.Error, OSError) as error:
            unwritten = self._unwritten(error)
            if isinstance(error, sqlite3.Error) and code_of(error) in _DAMAGED:
                self._put_aside(str(error))
            raise unwritten from error

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _ready(self) -> sqlite3.Connection:
        """Raises sqlite3.Error, OSError, DamagedEvents, EventsUnwritten."""
        if self._connection is not None and self._identity == _identity(self._path):
            return self._connection
        self.close()
        if not self._path.exists():
            create_private(self._path)
        if not self._path.is_file():
            raise OSError(errno.EEXIST, "another thing than a file is there: move it away")
        shut_from_others(self._path)
        connection = self._connection = connect(self._path)
        try:
            self._begin(connection)
        except BaseException:
            self.close()
            raise
        return connection

    def _begin(self, connection: sqlite3.Connection) -> None:
        self._identity = _identity(self._path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        self._require_version(connection)
        if not self._is_ours:
            connection.execute("UPDATE leader SET name = ?", (self._leader,))
        connection.execute("COMMIT")
        self._is_ours = True

    def _require_version(self, connection: sqlite3.Connection) -> None:
        """Makes the tables of a file that has none."""
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if (application, version) == (0, 0) and not connection.execute("SELECT * FROM sqlite_schema").fetchone():
            for statement in _CREATE:
                connection.execute(statement)
            self._is_ours = False
        elif application != APPLICATION_ID or version < 1:
            raise DamagedEvents("it is no file of events")
        elif version > VERSION:
            raise EventsUnwritten(f"{self._path}: was written by a newer slotmesh, and is left as it is", is_final=True)

    def _require_leader(self, connection: sqlite3.Connection) -> None:
        row = connection.execute("SELECT name FROM leader").fetchone()
        if row is None:
            raise DamagedEvents("it does not name its leader")
        if row[0] != self._leader:
            connection.execute("ROLLBACK")
            raise EventsUnwritten(f"{self._path}: another controller leads", is_final=True)

    def _read(self, connection: sqlite3.Connection, bounds: EventBounds) -> list[FeedEvent]:
        found, size = list[FeedEvent](), 0
        try:
            for row in connection.execute("SELECT * FROM events ORDER BY number DESC LIMIT ?", (bounds.events,)):
                event = _event(row)
                size += 0 if event is None else event.size
                if size > bounds.size:
                    break
                if event is not None:
                    found.append(event)
        except (TypeError, ValueError) as error:
            raise DamagedEvents("a row is none of an event") from error
        self._is_loaded, self._loaded_through = True, found[0].number if found else 0
        return found[::-1]

    def _put_aside(self, why: str) -> None:
        """The next batch begins a new file."""
        aside = self._path.with_name(f"{self._path.name}.damaged")
        _log.warning("the file of events is damaged, and begun anew", path=str(self._path), kept_as=aside.name, why=why)
        self.close()
        self._is_ours, self._is_loaded, self._loaded_through = False, True, None
        with suppress(OSError):
            self._path.replace(aside)
        for suffix in ("-wal", "-shm"):
            self._path.with_name(f"{self._path.name}{suffix}").unlink(missing_ok=True)

    def _unwritten(self, error: sqlite3.Error | OSError) -> EventsUnwritten:
        self.close()
        reason = reason_of(error) if isinstance(error, sqlite3.Error) else error.strerror or str(error)
        return EventsUnwritten(f"{self._path}: {reason}")


def _row(event: FeedEvent) -> tuple[int, str, float, int, str, str]:
    notice = event.notice
    texts = (text.encode("utf-8", "replace").decode() for text in (notice.subject, notice.message))
    subject, message = texts
    return event.number, event.feed, event.time_s, notice.kind.value, subject, message


def _event(row: tuple[object, ...]) -> FeedEvent | None:
    """None if this version does not know its kind. Raises TypeError, ValueError."""
    number, feed, time_s, kind, subject, message = row
    if not isinstance(number, int) or not isinstance(time_s, float) or not isinstance(kind, int):
        raise TypeError("numbers")
    if not isinstance(feed, str) or not isinstance(subject, str) or not isinstance(message, str):
        raise TypeError("texts")
    if (known := _KINDS.get(kind)) is None:
        return None
    return FeedEvent(feed, number, time_s, Notice(kind=known, subject=subject, message=message))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


_log = get_logger(__name__)


def events_path(state: Path) -> Path:
    """Where the events of a state file are."""
    return state.with_name(f"{state.name}.events")


class SqliteEvents(EventStore):
    """Events in a file."""

    def __init__(self, path: Path, leader: str) -> None:
        """`leader`: no other controller that leads has this name."""
        self._file = EventFile(path, leader)
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="events")
        self._is_closed = False

    async def load(self, bounds: EventBounds) -> list[FeedEvent]:
        if self._is_closed:
            raise EventsUnwritten("the store is closed", is_final=True)
        return await asyncio.wrap_future(self._writer.submit(self._file.load, bounds))

    async def append(self, events: Sequence[FeedEvent], *, dropped_through: int) -> None:
        if self._is_closed:
            raise EventsUnwritten("the store is closed", is_final=True)
        await asyncio.wrap_future(self._writer.submit(self._file.append, events, dropped_through))

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        closing = self._writer.submit(self._file.close)
        self._writer.shutdown(wait=False)
        await asyncio.wrap_future(closing)
