"""Opens state files: creates a missing one, refuses files of another kind, and migrates older ones.

Invariants: a file is this user's alone, of mode 600 whatever the umask is: databases are created here, before SQLite
opens them, and an older file with another mode is corrected when it is opened; neither follows symbolic links, which
another user may have put there. A file is created under another name and appears as a whole; a present file that cannot
be used is refused, and never begun anew, an empty one and one whose main part is missing included. Migrations go
forward only, after a backup that is whole and a state file itself; each step is one transaction with its version.
Owner: the thread of the store.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from controller_service.core.desired.state import Desired
from controller_service.store.protocol import Leader
from controller_service.store.sqlite.rows import (
    APPLICATION_ID,
    CREATE,
    MIGRATIONS,
    VERSION,
    Head,
    Migrations,
    write_changes,
)
from slotmesh.logs import get_logger

PRIVATE: Final = 0o600
_BESIDE: Final = ("", "-wal", "-shm")
"""What SQLite has of one database."""

_log = get_logger(__name__)


def create_private(path: Path) -> None:
    """An empty file, which was not there. Raises OSError."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE))


def shut_from_others(path: Path) -> None:
    """Takes a database, its log and backups from others who can read or write them, with a warning. Never raises."""
    backups = (it for it in path.parent.iterdir() if it.name.startswith(f"{path.name}.backup-v"))
    for beside in (*(path.with_name(f"{path.name}{suffix}") for suffix in _BESIDE), *backups):
        with suppress(OSError):  # it is missing, or another user's, who decides on it
            descriptor = os.open(beside, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                shut_descriptor(descriptor, beside)
            finally:
                os.close(descriptor)


def shut_descriptor(descriptor: int, path: Path) -> None:
    """The same of one file that is open. Raises OSError if it belongs to another user."""
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if mode & ~PRIVATE:
        os.fchmod(descriptor, mode & PRIVATE)
        _log.warning("others could read or write a state file; now they cannot", path=str(path), mode=f"{mode:03o}")


_OTHER_FILE: Final = "or name another file with --state"
_BY_CODE: Final = {
    sqlite3.SQLITE_FULL: "the disk is full: make room on it",
    sqlite3.SQLITE_READONLY: "it cannot be written: make the file and its directory writable for this user",
    sqlite3.SQLITE_PERM: "it cannot be written: make the file and its directory writable for this user",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: make the file and its directory readable and writable for this user",
    sqlite3.SQLITE_IOERR: "the disk reports an error: look at the disk, and at quotas and limits of file sizes",
    sqlite3.SQLITE_BUSY: "another program holds it locked: end that one",
    sqlite3.SQLITE_LOCKED: "another program holds it locked: end that one",
}
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
UNWRITTEN: Final = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
)
"""Errors after which a transaction is certainly not in the file: its end was not written."""


class StateRefused(Exception):
    """A state file that cannot be used. Nothing of it was changed."""


class StateInUse(StateRefused):
    """Another controller has the file."""

    def __init__(self, path: Path, leader: Leader) -> None:
        super().__init__(
            f"{path}: is in use by {leader.name}: stop that one, or give this one another file with --state"
        )
        self.leader = leader


def damaged(path: Path, what: str) -> StateRefused:
    """The file is there, and is not what was written. It is never begun anew by itself."""
    return StateRefused(
        f"{path}: the state file is damaged ({what}). Nothing was changed. Move it away, with"
        f" {path.name}-wal beside it, and begin anew from an export (`slotmesh state import`), or with an empty state"
    )


def refused(path: Path, error: sqlite3.Error | OSError) -> StateRefused:
    """An error while a state file was opened, in an operator's words."""
    if isinstance(error, OSError):
        return StateRefused(f"{path}: {error.strerror or error}: mend that, {_OTHER_FILE}")
    if code_of(error) in _DAMAGED:
        return damaged(path, str(error))
    return StateRefused(f"{path}: {reason_of(error)}, {_OTHER_FILE}")


def reason_of(error: sqlite3.Error) -> str:
    """What is wrong, and the way out."""
    words = _BY_CODE.get(code_of(error))
    return f"{words} ({error})" if words is not None else str(error)


def code_of(error: sqlite3.Error) -> int:
    """The primary result code; SQLITE_ERROR where there is none."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


BUSY_TIMEOUT_S: Final = 5.0
"""Wait for others that read the file, as an export does."""
_MAGIC: Final = b"SQLite format 3\0"
_HEADER_BYTES: Final = 100


def connect(path: Path, *, mode: str = "rw") -> sqlite3.Connection:
    """A connection to a file that is there; `mode` is that of SQLite's URIs."""
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}", uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S
    )
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_write(path: Path) -> sqlite3.Connection:
    """With a write-ahead log that is synced at each commit. Raises StateRefused, or what SQLite raises."""
    shut_from_others(path)
    connection = connect(path)
    try:
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StateRefused(
                f"{path}: its file system cannot have a write-ahead log, as over a network; name a file on a local disk"
            )
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def require_folder(path: Path) -> None:
    """Raises StateRefused where there can be no state file, nor anything beside it."""
    if path.is_dir():
        raise StateRefused(f"{path}: is a directory; name a file in it, as {path / 'mesh.state'}")
    if not path.parent.is_dir():
        raise StateRefused(f"{path}: there is no directory {path.parent}; make it with: mkdir -p {path.parent}")


def require_usable_path(path: Path) -> None:
    """Raises StateRefused where there can be no state file."""
    require_folder(path)
    if path.exists():
        return
    log = path.with_name(f"{path.name}-wal")
    if log.exists():
        raise StateRefused(
            f"{path}: is missing, but its write-ahead log {log} is there: put the file back beside it, or delete the"
            " log to begin with an empty state"
        )


def require_state_file(path: Path) -> None:
    """Raises StateRefused for what is no state file. It reads the header only, and changes nothing."""
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if not header:
        raise damaged(path, "it is empty")
    if header[: len(_MAGIC)] != _MAGIC or len(header) < _HEADER_BYTES:
        raise StateRefused(f"{path}: is no state file of slotmesh; name another file with --state")
    if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise StateRefused(f"{path}: is a SQLite database of another program; name another file with --state")


def create(path: Path, generation: str, desired: Desired) -> None:
    """A new state file, which is there as a whole or not at all."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    for left in (unfinished, path.with_name(f"{unfinished.name}-journal")):
        left.unlink(missing_ok=True)
    create_private(unfinished)
    with closing(sqlite3.connect(unfinished, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("BEGIN IMMEDIATE")
        for statement in CREATE:
            connection.execute(statement)
        head = Head(generation, desired.revision, desired.configured_at, desired.epoch_floor, 0)
        connection.execute(
            "INSERT INTO head (id, generation, revision, configured_at, epoch_floor, term, checksum)"
            " VALUES (1, ?, ?, ?, ?, ?, ?)",
            (head.generation, head.revision, head.configured_at, head.epoch_floor, head.term, head.checksum),
        )
        write_changes(connection, Desired(), desired)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    unfinished.replace(path)
    sync_directory(path.parent)


def migrate(
    connection: sqlite3.Connection, path: Path, *, to: int = VERSION, migrations: Migrations = MIGRATIONS
) -> Path | None:
    """Returns where the backup is, if there was anything to do. Raises StateRefused for a newer version."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == to:
        return None
    if version > to:
        raise StateRefused(
            f"{path}: was written by a newer slotmesh (schema {version}; this version knows {to}). Nothing was changed."
            f" Use the newer version again, or go back to {backup_path(path, to)} if there is one: what changed since"
            " is not in there"
        )
    if version < 1 or any(each not in migrations for each in range(version, to)):
        raise StateRefused(f"{path}: has schema {version}, which this version of slotmesh cannot bring to {to}")
    backup = back_up(connection, backup_path(path, version))
    for each in range(version, to):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in migrations[each]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {each + 1}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
    return backup


def backup_path(path: Path, version: int) -> Path:
    return path.with_name(f"{path.name}.backup-v{version}")


def back_up(connection: sqlite3.Connection, backup: Path) -> Path:
    """A copy of the database, which is there as a whole or not at all."""
    unfinished = backup.with_name(f"{backup.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    create_private(unfinished)
    copy = sqlite3.connect(unfinished, isolation_level=None)
    try:
        connection.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")
    finally:
        copy.close()
    unfinished.replace(backup)
    sync_directory(backup.parent)
    return backup


def sync_directory(folder: Path) -> None:
    """What was created or renamed in it is there after a power failure, too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
