"""What the process launcher keeps on disk, a record of each replica and its output, and the processes themselves.

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
import select
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Protocol, Self

from controller_service.shell.launchers.protocol import Exit
from slotmesh.config.etcd import EtcdPlace
from slotmesh.logs import get_logger
from slotmesh.runtime.exits import CannotStart
from slotmesh.runtime.process_identity import has_ended, pid_of, process_of

ENDED_UNSEEN = "ended; it was no child of this controller, which does not know how"
NO_DESCRIPTOR: Final = -1
LOOK_EVERY_S: Final = 0.2
"""Interval at which a process is looked at whose end no descriptor reports."""


class LaunchedProcess(Protocol):
    """A process of a replica: a child of this controller, or one that an earlier life of it has started.

    It has a session and a group of its own, whose id is its own. `wait` returns when nothing of the process runs any
    more: what it has started in its group is killed with it. A signal reaches this process or none: a child keeps its
    id until it is reaped, and another process is held by a descriptor that was opened while it was the right one. Where
    there are no such descriptors (Linux before 5.3, some sandboxes), its identity is looked at just before.
    """

    @property
    def pid(self) -> int: ...

    def wait(self) -> Exit:
        """Blocks until it has ended. Call it once, in a thread. The end has no replica's id and no output."""

    def terminate(self) -> None:
        """Asks it to end."""

    def kill(self) -> None:
        """Ends it, and all of its group."""


class ChildProcess:
    """A child."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._reaping = threading.Lock()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> Exit:
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            _kill_group(self.pid)  # it still has its id: no other process can be hit
        else:
            self._process.wait()
        with self._reaping:
            status = self._process.wait()
        _await_group(self.pid)
        return Exit(how=_how(status), failed=status != 0, was_killed=status == -signal.SIGKILL)

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL, to_group=True)

    def _send(self, number: signal.Signals, *, to_group: bool = False) -> None:
        """Not by `Popen`, which looks first whether the child has ended, and so reaps one that `wait` is about to."""
        with self._reaping, suppress(ProcessLookupError):
            if self._process.returncode is None:
                if to_group:
                    _kill_group(self.pid)
                os.kill(self.pid, number)


class FoundProcess:
    """A process that is not a child: init, or another process, reaps it."""

    def __init__(self, pid: int, process: str, pidfd: int) -> None:
        self._pid = pid
        self._process = process
        self._pidfd = pidfd
        self._is_closed = False
        self._closing = threading.Lock()

    @classmethod
    def open(cls, pid: int, process: str) -> Self | None:
        """The process with this identity; None if it has ended."""
        try:
            pidfd = os.pidfd_open(pid)
        except (OSError, AttributeError):
            pidfd = NO_DESCRIPTOR
        # Looked at after the descriptor was there: an id that was given to another process shows by its start time.
        found = cls(pid, process, pidfd)
        if process_of(pid) == process and not has_ended(process):
            return found
        found.close()
        return None

    @property
    def pid(self) -> int:
        return self._pid

    def wait(self) -> Exit:
        if self._pidfd == NO_DESCRIPTOR:
            while not has_ended(self._process):
                time.sleep(LOOK_EVERY_S)
        else:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            poll.poll()
        # Of a group whose first process is gone, the id is not given to others while anything of the group is left.
        if process_of(self._pid) in {"", self._process}:
            _kill_group(self._pid)
            _await_group(self._pid)
        self.close()
        return Exit(how=ENDED_UNSEEN, failed=True)

    def close(self) -> None:
        """It is not watched any more."""
        with self._closing:
            self._is_closed = True
            if self._pidfd != NO_DESCRIPTOR:
                os.close(self._pidfd)

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        if not has_ended(self._process):
            _kill_group(self._pid)
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        with self._closing, suppress(ProcessLookupError):
            if self._is_closed:
                return
            if self._pidfd != NO_DESCRIPTOR:
                signal.pidfd_send_signal(self._pidfd, number)
            elif not has_ended(self._process):
                os.kill(self._pid, number)


def end_left_behind(process: str, output: Path) -> None:
    """Ends what a process that has ended, unseen, has left in its group: it may use a device. Blocks.

    Once the process is reaped its id may name another group. The group is its own while one in it writes to `output`.
    """
    if not has_ended(process):
        return
    group = pid_of(process)
    now = process_of(group)
    if now == process or (not now and any(_writes(it, output) for it in _members(group))):
        _kill_group(group)
        _await_group(group)


def _writes(pid: int, path: Path) -> bool:
    """Whether its output, or its error output, is this file."""
    for descriptor in (1, 2):
        with suppress(OSError):  # it has just ended
            if Path(f"/proc/{pid}/fd/{descriptor}").samefile(path):
                return True
    return False


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


GROUP_ENDS_WITHIN_S: Final = 10.0
"""A process that hangs in the kernel survives even SIGKILL: its group is not waited for any longer."""


def _await_group(group: int) -> None:
    """Returns once nothing of a killed group runs any more: until then it may use a device, or write. Blocks."""
    deadline = time.monotonic() + GROUP_ENDS_WITHIN_S
    while any(_members(group)) and time.monotonic() < deadline:
        time.sleep(0.01)


def _members(group: int) -> Iterator[int]:
    """The ids of the group's processes that run: a zombie is a member, too, and uses nothing."""
    try:
        os.killpg(group, 0)
    except OSError:
        return
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            state, _, found = path.read_text("utf-8", errors="replace").rpartition(")")[2].split()[:3]
            if int(found) == group and state not in {"Z", "X"}:
                yield int(path.parent.name)


def _how(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


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
    handler_version: str = ""
    """Empty: the handler has none."""
    devices: str = ""
    """What the replica holds until its process was reaped, as in `LaunchOrder.devices`."""
    pid: int = 0
    process: str = ""
    directory: str = ""
    """The identity of the directory that it was written to."""
    controller: str = ""
    """Where the controller served that started it, for people."""
    generation: str = ""
    """Of the state by which it was started; so are the next two."""
    revision: int = 0
    term_id: str = ""
    cpus: float | None = None
    """The CPUs of its order."""
    memory: int | None = None
    """The bound of its memory, in bytes."""


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
            CannotStart: it cannot be used; the message has the way out.
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
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(asdict(record), file)
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
                fields = json.loads(path.read_text("utf-8"))
                known = {
                    name: fields[name] for name in LaunchRecord.__slots__ if name in fields
                }  # a newer one has more
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


def default_directory(address: str, state: Path | EtcdPlace | None) -> Path:
    """Where a controller keeps its replicas by default.

    By its state, so that the next one that leads with it finds them; where it has none, by its address, `HOST:PORT`.
    Raises CannotStart if there is no folder for temporary files.
    """
    name = re.sub(r"[^0-9A-Za-z.]+", "-", address).strip("-")
    if state is not None:
        if isinstance(state, Path):
            label, identity = state.name, os.fsencode(state.resolve())
        else:
            label, identity = f"etcd-{state.mesh}", ",".join([*sorted(state.members), state.mesh]).encode()
        name = f"{re.sub(r'[^0-9A-Za-z.]+', '-', label)[:64]}-{hashlib.sha256(identity).hexdigest()[:12]}"
    try:
        temporary = tempfile.gettempdir()
    except FileNotFoundError as error:
        raise CannotStart(
            f"{error.strerror}: set TMPDIR, or name a folder for replicas and their logs by --launch-dir"
        ) from None
    return Path(temporary, f"slotmesh-{os.geteuid()}-{name}")


def code_directory(address: str, state: Path | EtcdPlace | None, launch_dir: Path | None) -> Path:
    """Where a controller keeps snapshots of code: beside the state file, which names them, else with its replicas."""
    if isinstance(state, Path):
        return state.absolute().with_name(f"{state.name}.code")
    return (launch_dir or default_directory(address, state)).absolute() / "code"
