"""What an operator reads where a state file cannot be used: each message names the file and the way out."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from controller_service.store.protocol import Leader

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
