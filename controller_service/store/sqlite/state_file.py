"""A state file that is open: reads it once, then writes each change as one transaction.

Invariants: `desired` equals the content of the file; a start takes a revision, so that its tables are newer than all
that were announced before; each commit names the revision and the term that it follows, so that a controller that has
lost its lock cannot change anything. After an error the file is opened anew before the next change: its content counts.
Owner: the thread of the store.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.store.forms import BadDocument
from controller_service.store.protocol import Conflict, LeadershipLost, StateRefused, StoreWriteFailed
from controller_service.store.rows import DamagedRows, Head, read_state
from controller_service.store.sqlite.connecting import (
    UNWRITTEN,
    code_of,
    connect,
    connect_to_write,
    create,
    damaged,
    reason_of,
    refused,
    require_folder,
    require_state_file,
    require_usable_path,
    require_version,
)
from controller_service.store.sqlite.rows import read_head, read_rows, write_changes
from controller_service.store.sqlite.state_lock import StateLock, leader_of, standbys_of
from slotmesh.ids import new_id

PROBE_CHECKS: Final = 10
"""Without any other write, the file is written after this many checks, which are a second apart: quotas, limits of file
sizes and failing disks show themselves in no other way."""

ROOM_BYTES: Final = 128 * 1024
"""What has to fit on the disk beside the file for it to count as one that can be written."""


class StateFile:
    """The file of one controller."""

    def __init__(self, path: Path, lock: StateLock, connection: sqlite3.Connection, head: Head, state: Desired) -> None:
        self.path = path
        self.generation = head.generation
        self.desired = state
        self._lock = lock
        self.term = head.term
        self._lost: LeadershipLost | None = None
        self._connection: sqlite3.Connection | None = connection
        self._identity = _identity(path)
        self.problem = ""
        """Why the newest write failed; empty if it did not."""
        self._checks = 0
        """Since the newest write that went well."""

    @classmethod
    def open(cls, path: Path, make_state: Callable[[], tuple[str, Desired]] | None) -> StateFile:
        """`make_state` gives the generation and the state of a file that is not there yet; None: it has to be there.

        Raises StateRefused.
        """
        path = path.resolve()
        require_folder(path)
        lock = StateLock.take(path)
        try:
            require_usable_path(path)
            with _as_refusals(path):
                if not path.exists():
                    if make_state is None:
                        raise StateRefused(f"{path}: is gone, with all that it had: put it back, then start this again")
                    create(path, *make_state())
                require_state_file(path)
                connection = connect_to_write(path)
                try:
                    require_version(connection, path)
                    _require_whole(connection)
                    head = read_head(connection)
                    head, state = _begin_term(connection, head, read_state(head, read_rows(connection)))
                    return cls(path, lock, connection, head, state)
                except BaseException:
                    connection.close()
                    raise
        except BaseException:
            lock.release()
            raise

    def commit(self, change: ChangeSet, expected_revision: int) -> Desired:
        """Raises Conflict, StoreWriteFailed."""
        with self._noted_problem():
            return self._commit(change, expected_revision)

    def probe(self) -> str:
        """Whether the file can be written: tries it where that is in doubt, else once in `PROBE_CHECKS` calls.

        Returns `problem`. Nothing that the file holds is changed.
        """
        self._checks += 1
        if self._lost is None and (self.problem or self._checks >= PROBE_CHECKS or self._is_doubtful()):
            with suppress(StoreWriteFailed), self._noted_problem():
                self._write_nothing_new()
        return self.problem

    def _is_doubtful(self) -> bool:
        """Whether the file was moved, or its disk is full or takes no writes, as far as that shows without writing."""
        try:
            disk = os.statvfs(self.path)
            is_there = _identity(self.path) == self._identity
        except OSError:
            return True
        return not is_there or bool(disk.f_flag & os.ST_RDONLY) or disk.f_bavail * disk.f_frsize < ROOM_BYTES

    @contextmanager
    def _noted_problem(self) -> Iterator[None]:
        try:
            yield
        except LeadershipLost:
            raise
        except StoreWriteFailed as failed:
            self.problem = str(failed)
            raise
        self.problem, self._checks = "", 0

    def _write_nothing_new(self) -> None:
        """Raises StoreWriteFailed."""
        self._require_same_file()
        self._require_room()
        connection = self._connection or self._connect_again()
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("UPDATE head SET term = term WHERE id = 1")
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._disconnect()
            raise StoreWriteFailed(f"{self.path}: {reason_of(error)}", is_unwritten=True) from error

    def _require_room(self) -> None:
        """A small write may fit where the next change would not."""
        scratch = self.path.with_name(f"{self.path.name}-room")
        try:
            scratch.write_bytes(bytes(ROOM_BYTES))
        except OSError as error:
            raise StoreWriteFailed(
                f"{self.path}: there is no room for a change beside it ({error.strerror}): make room on the disk, or"
                " let this user write there",
                is_unwritten=True,
            ) from error
        finally:
            with suppress(OSError):
                scratch.unlink()

    def begin_generation(self, generation: str, desired: Desired, expected_revision: int) -> None:
        """The file has this state from now on, in a new generation; this controller leads no more.

        Raises Conflict, StoreWriteFailed.
        """
        with self._noted_problem():
            self._put(self._ready_at(expected_revision), desired, generation)
        self._lost = LeadershipLost(f"{self.path}: begins generation {generation} with the next start")

    def _commit(self, change: ChangeSet, expected_revision: int) -> Desired:
        connection = self._ready_at(expected_revision)
        self._put(connection, after := self.desired.apply(change), self.generation)
        self.desired = after
        return after

    def _ready_at(self, expected_revision: int) -> sqlite3.Connection:
        """To write what follows from that revision. Raises Conflict, StoreWriteFailed."""
        if self._lost is not None:
            raise self._lost
        self._require_same_file()
        connection = self._connection or self._connect_again()
        if expected_revision != self.desired.revision:
            raise Conflict(expected_revision, self.desired.revision)
        return connection

    def _put(self, connection: sqlite3.Connection, after: Desired, generation: str) -> None:
        """One transaction. Raises StoreWriteFailed."""
        try:
            connection.execute("BEGIN IMMEDIATE")
            write_changes(connection, self.desired, after)
            is_ours = self._write_head(connection, after, generation)
            connection.execute("COMMIT" if is_ours else "ROLLBACK")
        except BaseException as error:
            self._disconnect()
            if isinstance(error, sqlite3.Error):
                is_unwritten = code_of(error) in UNWRITTEN
                raise StoreWriteFailed(f"{self.path}: {reason_of(error)}", is_unwritten=is_unwritten) from error
            raise
        if not is_ours:
            self._disconnect()
            raise self._fenced()

    def check(self) -> tuple[str, ...]:
        """Raises LeadershipLost where another controller may write; returns `standbys_of` the file.

        A disk that cannot be read now proves nothing: it fails for all controllers of the machine.
        """
        if self._lost is None and not self._lock.keep():
            raise self._fenced()
        with suppress(sqlite3.Error, OSError, DamagedRows):
            if self._lost is None and self._connection is not None and _identity(self.path) == self._identity:
                self._require_term(read_head(self._connection))
        if self._lost is not None:
            raise self._lost
        return standbys_of(self.path)

    def serving_at(self, address: str) -> None:
        self._lock.serving_at(address)

    def close(self) -> None:
        self._disconnect()
        self._lock.release()

    def _write_head(self, connection: sqlite3.Connection, after: Desired, generation: str) -> bool:
        """Whether the file is where this controller left it."""
        head = Head(generation, after.revision, after.configured_at, after.epoch_floor, self.term)
        written = connection.execute(
            "UPDATE head SET generation = ?, revision = ?, configured_at = ?, epoch_floor = ?, checksum = ?"
            " WHERE id = 1 AND generation = ? AND term = ? AND revision = ?",
            (
                *(head.generation, head.revision, head.configured_at, head.epoch_floor, head.checksum),
                *(self.generation, self.term, self.desired.revision),
            ),
        )
        return written.rowcount == 1

    def _connect_again(self) -> sqlite3.Connection:
        """After an error: what the file has counts, be it that a change was written whose end was not seen."""
        try:
            connection = connect_to_write(self.path)
            try:
                head = read_head(connection)
                self._require_term(head)
                if head.revision != self.desired.revision:
                    self.desired = read_state(head, read_rows(connection))
            except BaseException:
                connection.close()
                raise
        except sqlite3.Error as error:
            raise StoreWriteFailed(f"{self.path}: {reason_of(error)}", is_unwritten=True) from error
        except (StateRefused, DamagedRows, BadDocument) as error:
            raise StoreWriteFailed(f"{self.path}: {error}", is_unwritten=True) from error
        self._connection = connection
        return connection

    def _require_same_file(self) -> None:
        """SQLite would go on writing to a file that was moved away or deleted."""
        try:
            is_there = _identity(self.path) == self._identity
        except OSError:
            is_there = False
        if not is_there:
            self._disconnect()
            raise StoreWriteFailed(
                f"{self.path}: was moved, deleted or replaced while this controller has it; put it back, or stop this"
                " controller before you put another one in its place",
                is_unwritten=True,
            )

    def _require_term(self, head: Head) -> None:
        """Raises LeadershipLost where the file is under another controller's term."""
        if (head.generation, head.term) != (self.generation, self.term):
            raise self._fenced()

    def _fenced(self) -> LeadershipLost:
        """From now on, whatever happens to the file."""
        self._lost = LeadershipLost(f"{self.path}: was taken over by {leader_of(self.path).name}")
        return self._lost

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()


def read_file(path: Path) -> tuple[str, Desired]:
    """The generation and the state of a file that a controller may have in use meanwhile. Raises StateRefused."""
    path = path.resolve()
    with _as_refusals(path):
        require_usable_path(path)
        if not path.exists():
            raise StateRefused(f"{path}: there is no such file; name the one that the controller has with --state")
        require_state_file(path)
        # Not for reading only: the journal that a crash has left is rolled back first.
        with closing(connect(path)) as connection:
            connection.execute("BEGIN")
            require_version(connection, path)
            head, rows = read_head(connection), read_rows(connection)
        # A controller waits for no longer than that to write.
        return head.generation, read_state(head, rows)


def create_file(path: Path, generation: str, desired: Desired) -> None:
    """A new file, which no process has open. Raises StateRefused, also if there is one."""
    path = path.resolve()
    require_usable_path(path)
    lock = StateLock.take(path)
    try:
        with _as_refusals(path):
            if path.exists():
                raise StateRefused(f"{path}: is there already; move it away, or name another file")
            create(path, generation, desired)
    finally:
        lock.release()


def _begin_term(connection: sqlite3.Connection, head: Head, state: Desired) -> tuple[Head, Desired]:
    """A controller may write from now on, and no earlier one any more."""
    begun = state.beginning(new_id())
    head = replace(head, term=head.term + 1, revision=begun.revision)
    connection.execute("BEGIN IMMEDIATE")
    write_changes(connection, state, begun)
    connection.execute(
        "UPDATE head SET term = ?, revision = ?, checksum = ? WHERE id = 1", (head.term, head.revision, head.checksum)
    )
    connection.execute("COMMIT")
    return head, begun


def _require_whole(connection: sqlite3.Connection) -> None:
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise DamagedRows(" ".join(str(found).split()))


@contextmanager
def _as_refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise refused(path, error) from error
    except BadDocument as error:
        raise StateRefused(f"{path}: {error}. Nothing was changed. Use the slotmesh that wrote it") from error
    except (DamagedRows, ValueError) as error:
        raise damaged(path, str(error)) from error


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino
