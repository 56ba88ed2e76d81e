"""One process of a replica: a child of this controller, or one that an earlier life of it has started.

Invariants: `wait` blocks, in a thread of its own, and returns when nothing of the process runs any more: what it has
started in its group is killed with it. A signal reaches this process or none: a child keeps its id until it is reaped,
and a process that is no child is known by a descriptor that was opened while it was the right one.
Owner: the process launcher, which starts one thread for each.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, Self

from slotmesh.runtime.process_identity import has_ended, process_of

ENDED_UNSEEN = "ended; it was no child of this controller, which does not know how"


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a process has ended."""

    how: str
    """For a person."""
    failed: bool
    was_killed: bool = False


class LaunchedProcess(Protocol):
    """A process in a session and a group of its own, whose id is that of its group."""

    @property
    def pid(self) -> int: ...

    def wait(self) -> ProcessEnd:
        """Blocks until it has ended. Call it once, in a thread."""

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

    def wait(self) -> ProcessEnd:
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            _kill_group(self.pid)  # it still has its id: nobody else can be hit
        else:
            self._process.wait()
        with self._reaping:
            status = self._process.wait()
        return ProcessEnd(_how(status), failed=status != 0, was_killed=status == -signal.SIGKILL)

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
    """A process that is not a child: init, or somebody else, reaps it."""

    def __init__(self, pid: int, process: str, pidfd: int) -> None:
        self._pid = pid
        self._process = process
        self._pidfd = pidfd
        self._closing = threading.Lock()

    @classmethod
    def open(cls, pid: int, process: str) -> Self | None:
        """The process with this identity; None where it has ended, or cannot be watched."""
        try:
            pidfd = os.pidfd_open(pid)
        except (OSError, AttributeError):
            return None
        # Looked at after the descriptor was there: an id that was given to another process shows by its start time.
        if process_of(pid) != process or has_ended(process):
            os.close(pidfd)
            return None
        return cls(pid, process, pidfd)

    @property
    def pid(self) -> int:
        return self._pid

    def wait(self) -> ProcessEnd:
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        poll.poll()
        # Of a group whose first process is gone, the id is not given to others while anything of the group is left.
        if process_of(self._pid) in {"", self._process}:
            _kill_group(self._pid)
        with self._closing:
            os.close(self._pidfd)
            self._pidfd = -1
        return ProcessEnd(ENDED_UNSEEN, failed=True)

    def close(self) -> None:
        """It is not watched."""
        os.close(self._pidfd)
        self._pidfd = -1

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        if not has_ended(self._process):
            _kill_group(self._pid)
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        with self._closing, suppress(ProcessLookupError):
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, number)


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _how(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
