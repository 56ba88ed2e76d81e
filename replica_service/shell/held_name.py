"""The name of a replica as one of a numbered set: `BACKEND-0`, `BACKEND-1` and so on, the lowest that is free.

Purpose: container engines give each new container another name, and a replica whose name never comes back keeps its
ordering keys for ever. With n replicas the names 0 to n - 1 are in use, so the process in place of one that has ended
takes its name, by which the controller knows that it has ended.
Invariants: a name is held by a lock on a file of a directory that the processes share, on one machine: the kernel lets
go of it when the process has ended, however it ended, and no earlier. Files stay; they are empty.
Owner: the process, for as long as it runs.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from slotmesh.runtime.exits import CannotStart

MAX_NAMES: Final = 4_096
"""Replicas of one backend that share a directory, at most."""


class HeldName:
    """A name that no other process on this machine has."""

    def __init__(self, name: str, lock: int) -> None:
        self.name = name
        self._lock = lock

    @classmethod
    def take(cls, directory: Path, backend: str) -> HeldName:
        """The lowest free name of the backend. Raises CannotStart."""
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for number in range(MAX_NAMES):
                name = f"{backend}-{number}"
                lock = os.open(directory / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(lock)
                    continue
                except BaseException:
                    os.close(lock)
                    raise
                return cls(name, lock)
        except OSError as error:
            reason = error.strerror or error
            raise CannotStart(f"{directory}: {reason}: name a directory to write to with --replica-names") from error
        raise CannotStart(f"{directory}: all {MAX_NAMES} names of backend {backend} are in use")

    def release(self) -> None:
        """Another process may have it now."""
        os.close(self._lock)
