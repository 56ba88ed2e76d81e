"""What the process launcher keeps on disk: a record of each replica that it has started, and what replicas write.

Purpose: a controller that comes back finds the processes that an earlier life of it has started.
Invariants: one controller at a time has a directory, by a lock that ends with its process; only this user can read it;
a record is there before its process is, so that none is forgotten, and goes when the process was reaped; the output of
ended replicas is kept for the newest `ENDED_KEPT` of them.
Owner: the process launcher.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slotmesh.runtime.exits import CannotStart
from slotmesh.telemetry.log import get_logger

ENDED_KEPT: Final = 64
LOG_SUFFIX: Final = ".log"
_RECORD_SUFFIX: Final = ".json"
_LOCK: Final = "lock"

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRecord:
    """A replica that was about to be started, and its process once it was."""

    replica_id: str
    backend: str
    handler: str
    template: str
    fixed: str
    code: str = ""
    pid: int = 0
    process: str = ""
    directory: str = ""
    """The identity of the directory that it was written to; empty: by an older version."""
    controller: str = ""
    """Where the controller served that started it, for people."""
    generation: str = ""
    """Of the state by which it was started; so are the next two."""
    revision: int = 0
    term_id: str = ""


class LaunchDirectoryInUse(CannotStart):
    """Another controller has it."""


class LaunchDirectory:
    """Open from `open` to `close`."""

    def __init__(self, path: Path, lock: int, *, is_temporary: bool) -> None:
        self.path = path
        self._lock = lock
        self._is_temporary = is_temporary
        status = path.stat()
        self.identity = f"{status.st_dev}:{status.st_ino}"
        """A copy of the directory has another one."""

    @classmethod
    def open(cls, path: Path, *, is_temporary: bool = False) -> LaunchDirectory:
        """Makes it where there is none. `is_temporary`: it goes with the last replica.

        Raises:
            LaunchDirectoryInUse: another controller has it.
            CannotStart: it cannot be used; the message says what to do.
        """
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = path.stat()
            owners = {found.st_uid, path.lstat().st_uid}  # of a link, and of what it leads to
            if owners != {os.geteuid()} or stat.S_IMODE(found.st_mode) & 0o022:
                raise CannotStart(f"{path}: others can write there: name another directory with --launch-dir")
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            reason = error.strerror or error
            raise CannotStart(f"{path}: {reason}: name a directory to write to with --launch-dir") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise LaunchDirectoryInUse(
                f"{path}: another controller keeps its replicas there: stop it, or name another --launch-dir"
            ) from None
        return cls(path, lock, is_temporary=is_temporary)

    def log_of(self, replica_id: str) -> Path:
        """Where the replica's output goes."""
        return self.path / f"{replica_id}{LOG_SUFFIX}"

    def write(self, record: LaunchRecord) -> None:
        """Raises OSError."""
        path = self.path / f"{record.replica_id}{_RECORD_SUFFIX}"
        new = path.with_suffix(".new")
        said = {name: getattr(record, name) for name in LaunchRecord.__slots__}
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(said, file)
        new.replace(path)

    def remove(self, replica_id: str) -> None:
        """The replica's process was reaped, or never was."""
        (self.path / f"{replica_id}{_RECORD_SUFFIX}").unlink(missing_ok=True)
        ended = [path for path in self.logs() if not path.with_suffix(_RECORD_SUFFIX).exists()]
        for path in ended[:-ENDED_KEPT]:
            path.unlink(missing_ok=True)
            path.with_suffix(f"{LOG_SUFFIX}.1").unlink(missing_ok=True)

    def records(self) -> list[LaunchRecord]:
        """Those that are there, oldest first. One that cannot be read is left out, with a warning."""
        found: list[tuple[float, LaunchRecord]] = []
        for path in self.path.glob(f"*{_RECORD_SUFFIX}"):
            try:
                said = json.loads(path.read_text("utf-8"))
                known = {name: said[name] for name in LaunchRecord.__slots__ if name in said}  # a newer one has more
                found.append((path.stat().st_mtime, LaunchRecord(**known)))
            except (OSError, ValueError, TypeError) as error:
                _log.warning("record of a launched replica cannot be read; left out", path=str(path), error=str(error))
        return [record for _, record in sorted(found, key=lambda it: it[0])]

    def logs(self) -> list[Path]:
        """What replicas have written, those that were written to last at the end."""
        return sorted(self.path.glob(f"*{LOG_SUFFIX}"), key=lambda path: path.stat().st_mtime)

    def close(self) -> None:
        """Another controller may have it now. May be called again."""
        if self._lock < 0:
            return
        if self._is_temporary and not self.records():
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1


def default_directory(address: str, state: Path | None) -> Path:
    """Where a controller keeps its replicas unless it is told otherwise.

    By its state file, so that the next one that leads with it finds them; where it has none, by its address,
    `HOST:PORT`.
    """
    name = re.sub(r"[^0-9A-Za-z.]+", "-", address).strip("-")
    if state is not None:
        digest = hashlib.sha256(os.fsencode(state.resolve())).hexdigest()[:12]
        name = f"{re.sub(r'[^0-9A-Za-z.]+', '-', state.name)[:64]}-{digest}"
    return Path(tempfile.gettempdir(), f"slotmesh-{os.geteuid()}-{name}")


def code_directory(address: str, state: Path | None, launch_dir: Path | None) -> Path:
    """Where a controller keeps snapshots of code: beside the state file, which names them, else with its replicas."""
    if state is not None:
        return state.absolute().with_name(f"{state.name}.code")
    return (launch_dir or default_directory(address, None)).absolute() / "code"
