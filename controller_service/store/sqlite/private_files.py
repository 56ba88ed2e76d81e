"""State files are for their user alone: files of mode 600, whatever the umask says.

Purpose: SQLite makes files as the umask says, and gives a write-ahead log the mode of its database: so databases are
made here, before SQLite opens them.
Invariants: no file is readable for others before it has content; one that was left so by an older version is shut when
it is opened. Neither follows a symbolic link that somebody else may have put there.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from slotmesh.telemetry.log import get_logger

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
        with suppress(OSError):  # there is none, or it is somebody else's, who decides
            descriptor = os.open(beside, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                shut_descriptor(descriptor, beside)
            finally:
                os.close(descriptor)


def shut_descriptor(descriptor: int, path: Path) -> None:
    """The same of one file that is open. Raises OSError where it belongs to somebody else."""
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if mode & ~PRIVATE:
        os.fchmod(descriptor, mode & PRIVATE)
        _log.warning("others could read or write a state file; now they cannot", path=str(path), mode=f"{mode:03o}")
