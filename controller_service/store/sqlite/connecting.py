"""Opens state files: creates one that is not there, and refuses what is none.

Invariants: a file is this user's alone; it is created under another name and appears as a whole; one that is there and
cannot be used is refused, and never begun anew, an empty one and one whose main part is missing included.
Owner: the thread of the store.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import quote

from controller_service.core.desired import Desired
from controller_service.store.sqlite.migration import sync_directory
from controller_service.store.sqlite.private_files import create_private, shut_from_others
from controller_service.store.sqlite.refusals import StateRefused, damaged
from controller_service.store.sqlite.rows import Head, write_changes
from controller_service.store.sqlite.schema import APPLICATION_ID, CREATE, VERSION

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
