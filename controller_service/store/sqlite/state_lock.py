"""One controller writes a state file: a lock on a file beside it, which the kernel releases when its process ends.

Purpose: the holder leads; other controllers learn its pid and its address, and leave notes of their own addresses.
Invariants: the lock is held by the open file, not by its content: that is a note for others, and may be missing. The
lock file stays when its holder ends. A deleted lock file is created anew by its holder, unless another process was
faster: then that one leads, which is why each commit is fenced as well (`state_file`).
Owner: the thread of the store.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from controller_service.store.protocol import UNKNOWN_LEADER, Leader, StateInUse
from controller_service.store.sqlite.connecting import PRIVATE, refused, shut_descriptor
from slotmesh.ids import new_id

_NOTE_BYTES: Final = 4_096
_ATTEMPTS: Final = 8
"""How often a lock file may be deleted between the moments in which it is opened and locked."""


class StateLock:
    """A lock that is held."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._address = ""
        self.serving_at("")

    @classmethod
    def take(cls, state: Path) -> StateLock:
        """Raises StateInUse where another process holds it, StateRefused where it cannot be made."""
        path = lock_path(state)
        try:
            return cls(path, _locked(path))
        except BlockingIOError as error:
            raise StateInUse(state, leader_of(state)) from error
        except OSError as error:
            raise refused(path, error) from error

    def keep(self) -> bool:
        """Whether no other process can hold it. True also if this cannot be determined now."""
        try:
            if _is_at(self._path, self._descriptor):
                return True
            descriptor = _locked(self._path)
        except BlockingIOError:
            return False
        except OSError:
            return True
        os.close(self._descriptor)
        self._descriptor = descriptor
        self.serving_at(self._address)
        return True

    def serving_at(self, address: str) -> None:
        """Notes who holds it, and where others reach that controller."""
        self._address = address
        note = json.dumps({"pid": os.getpid(), "address": address}).encode()
        with suppress(OSError):  # on a full disk the lock counts all the same
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, note, 0)

    def release(self) -> None:
        """Another process may take it."""
        os.close(self._descriptor)


def lock_path(state: Path) -> Path:
    return state.with_name(f"{state.name}.lock")


def leader_of(state: Path) -> Leader:
    """Who holds the lock, or held it last."""
    note: Any = None
    with suppress(OSError, ValueError), lock_path(state).open("rb") as file:
        note = json.loads(file.read(_NOTE_BYTES))
    if not isinstance(note, dict):
        return UNKNOWN_LEADER
    address = str(note.get("address") or "")
    return Leader(address, f"the controller{address and f' at {address}'} (pid {note.get('pid')})")


def _locked(path: Path) -> int:
    """A descriptor that holds the lock of the file that is at the path. Raises OSError, as BlockingIOError."""
    for _ in range(_ATTEMPTS):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, descriptor):
                with suppress(OSError):  # it is another user's, who decides who may read it
                    shut_descriptor(descriptor, path)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise FileNotFoundError(2, "it is deleted again and again", str(path))


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(descriptor))


MOST_READ: Final = 16
"""Standbys whose addresses members get."""
_INFIX: Final = ".standby-"
_UNFINISHED: Final = ".new"


class StandbyNote:
    """The note of this process: a standby's address beside the state file, for the leader.

    A note counts while its writer has it open and locked, so not beyond the end of its process. It appears locked, so
    that no reader takes it for one that was left behind. The leader reads all notes, and removes what was left behind.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def write(cls, state: Path, address: str) -> StandbyNote:
        """`address` is where others reach this controller; empty if unknown. Raises StateRefused."""
        path = state.with_name(f"{state.name}{_INFIX}{new_id(8)}")
        unfinished = path.with_name(f"{path.name}{_UNFINISHED}")
        try:
            descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.write(descriptor, json.dumps({"pid": os.getpid(), "address": address}).encode())
                unfinished.rename(path)
            except BaseException:
                os.close(descriptor)
                unfinished.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise refused(path, error) from error
        return cls(path, descriptor)

    def remove(self) -> None:
        """It waits no longer."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def standbys_of(state: Path) -> tuple[str, ...]:
    """Addresses of waiting controllers, sorted; empty for one that is unknown. Unreadable notes are left out."""
    found: list[str] = []
    with suppress(OSError):
        names = [
            it
            for it in os.listdir(state.parent)  # noqa: PTH208 - names only
            if it.startswith(f"{state.name}{_INFIX}") and not it.endswith(_UNFINISHED)
        ]
        addresses = [_address_in(state.with_name(name)) for name in sorted(names)[:MOST_READ]]
        found.extend(it for it in addresses if it is not None)
    return tuple(sorted(found))


def _address_in(path: Path) -> str | None:
    """The address in a note; None if its writer has ended: then the note is removed."""
    with suppress(OSError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            with suppress(ValueError):
                note = json.loads(file.read(_NOTE_BYTES))
                return str(note.get("address", "")) if isinstance(note, dict) else ""
            return ""
        path.unlink(missing_ok=True)
    return None
