"""Opens state files: creates a missing one, refuses files of another kind or version.

Invariants: a file is this user's alone, of mode 600 whatever the umask is: databases are created here, before SQLite
opens them, and a file with another mode is corrected when it is opened; neither follows symbolic links, which
another user may have put there. A file is created under another name and appears as a whole; a present file that cannot
be used is refused, and never begun anew, an empty one and one whose main part is missing included.
Owner: the thread of the store.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import struct
from contextlib import closing, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from controller_service.core.desired.state import Desired
from controller_service.store.protocol import StateRefused
from controller_service.store.rows import Head
from controller_service.store.sqlite.rows import APPLICATION_ID, CREATE, VERSION, write_changes
from slotmesh.logs import get_logger
from slotmesh.names import is_utf8

PRIVATE: Final = 0o600
_LOGS: Final = ("-wal", "-journal")
"""What SQLite has beside a database, and reads with it after a crash."""
_BESIDE: Final = ("", *_LOGS, "-shm")
"""What SQLite has of one database."""

_log = get_logger(__name__)


def create_private(path: Path) -> None:
    """An empty file, which was not there. Raises OSError."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE))


def shut_from_others(path: Path) -> None:
    """Takes a database and its log from others who can read or write them, with a warning. Never raises."""
    for beside in (path.with_name(f"{path.name}{suffix}") for suffix in _BESIDE):
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


def damaged(path: Path, what: str) -> StateRefused:
    """The file is there, and is not what was written. It is never begun anew by itself."""
    return StateRefused(
        f"{path}: the state file is damaged ({what}). Nothing was changed. Move it away, with {path.name}-journal or"
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


def connect(path: Path) -> sqlite3.Connection:
    """A connection to a file that is there."""
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode=rw", uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S
    )
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_write(path: Path) -> sqlite3.Connection:
    """Each commit is in the file itself when it returns, and on the disk. Raises what SQLite raises.

    The state is small and seldom written, so there is no write-ahead log: it would hold what the file lacks, so that
    neither is worth anything without the other, and a copy of the file alone may be nearly empty.
    """
    shut_from_others(path)
    connection = connect(path)
    try:
        with suppress(sqlite3.OperationalError):  # another program has made a log, and has it open: it stays
            connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA fullfsync = ON")
        # The journal has the first page of the file, by which `_differing_journal` distinguishes it, before any other.
        connection.execute("PRAGMA cache_spill = OFF")
    except BaseException:
        connection.close()
        raise
    return connection


def require_folder(path: Path) -> None:
    """Raises StateRefused where there can be no state file, nor anything beside it."""
    if not is_utf8(str(path)):
        raise StateRefused(f"{str(path)!a}: the path is no text in UTF-8: rename it, {_OTHER_FILE}")
    if path.is_dir():
        raise StateRefused(f"{path}: is a directory; name a file in it, as {path / 'mesh.state'}")
    if not path.parent.is_dir():
        raise StateRefused(f"{path}: there is no directory {path.parent}; make it with: mkdir -p {path.parent}")


def require_usable_path(path: Path) -> None:
    """Raises StateRefused where there can be no state file."""
    require_folder(path)
    if path.exists():
        return
    for log in (path.with_name(f"{path.name}{suffix}") for suffix in _LOGS):
        if log.exists():
            raise StateRefused(
                f"{path}: is missing, but {log} is there, a part of it: put the file back beside it, or delete that"
                " one to begin with an empty state"
            )


def require_state_file(path: Path) -> None:
    """Raises StateRefused for what is no state file. It reads the header only, and changes nothing."""
    header = _header_of(path)
    if not header:
        raise damaged(path, "it is empty")
    if header[: len(_MAGIC)] != _MAGIC or len(header) < _HEADER_BYTES:
        raise StateRefused(f"{path}: is no state file of slotmesh; name another file with --state")
    if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise StateRefused(f"{path}: is a SQLite database of another program; name another file with --state")
    _require_own_logs(path)


def _header_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEADER_BYTES)


_JOURNAL: Final = struct.Struct(">8s5I")
"""The head of a rollback journal: its mark; records, a random number, pages of the file before; sizes of its own and
of pages."""
_JOURNAL_MARK: Final = bytes.fromhex("d9d505f920a163d7")


_LOOKS: Final = 8
"""How often a file and its journal are looked at, as long as they change."""


def _require_own_logs(path: Path) -> None:
    """Raises StateRefused where SQLite would read another file's log into this one, as after a copy over it."""
    wal, journal = (path.with_name(f"{path.name}{suffix}") for suffix in _LOGS)
    seen: object = None
    for _ in range(_LOOKS):
        header = _header_of(path)
        # SQLite deletes a write-ahead log before it writes a header that names none.
        if header[19:20] == b"\1" and wal.exists() and wal.stat().st_size:
            raise _not_its_own(path, wal)
        if (differing := _differing_journal(path, header, journal)) is None:
            return
        if differing == seen:  # no controller writes meanwhile, which would change both, one after the other
            raise _not_its_own(path, journal)
        seen = differing


def _differing_journal(path: Path, header: bytes, journal: Path) -> object:
    """What shows that a rollback journal is not this file's; None: nothing does.

    It has the first page as it was before the change that it takes back, and a change adds 1 to the page's counter. One
    without pages, of a change that had not begun to write the file, has the file's length.
    """
    try:
        with journal.open("rb") as file:
            head = file.read(_JOURNAL.size)
            if len(head) < _JOURNAL.size or not head.startswith(_JOURNAL_MARK):
                return None  # SQLite ignores it
            _, records, _, pages, start, page_size = _JOURNAL.unpack(head)
            size = path.stat().st_size
            if not records:
                return None if size == pages * page_size else (head, header, size)
            file.seek(start)
            for _ in range(records):
                record = file.read(page_size + 8)
                if len(record) < page_size + 8:
                    break
                if record[:4] == b"\0\0\0\1":
                    counters = [int.from_bytes(each, "big") for each in (header[24:28], record[28:32])]
                    return None if counters[0] - counters[1] in {0, 1} else (head, header, size)
    except FileNotFoundError:
        pass
    return None


def _not_its_own(path: Path, log: Path) -> StateRefused:
    return StateRefused(
        f"{path}: {log} belongs to another state file, which was here before. Nothing was changed. Move {log.name} away"
        f" to start with the file as it is, or put the file back that it belongs to"
    )


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


def require_version(connection: sqlite3.Connection, path: Path) -> None:
    """Raises StateRefused for a file of another schema."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != VERSION:
        raise StateRefused(
            f"{path}: was written by another version of slotmesh (schema {version}; this version reads {VERSION})."
            " Nothing was changed: start the version that wrote it"
        )


def sync_directory(folder: Path) -> None:
    """What was created or renamed in it is there after a power failure, too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
