"""Notes beside a state file of the controllers that wait to lead with it, for the one that leads.

Invariants: a note counts as long as its writer has it open and locked, so not beyond the end of its process; it appears
locked, so that nobody takes the note of a living one for one that was left behind.
Owner: a standby writes its own, the leader reads all and removes what was left behind.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from controller_service.store.sqlite.refusals import refused
from slotmesh.ids import new_id

MOST_READ: Final = 16
"""Standbys that members are told of."""
_INFIX: Final = ".standby-"
_UNFINISHED: Final = ".new"
_NOTE_BYTES: Final = 4_096


class StandbyNote:
    """The note of this process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def write(cls, state: Path, address: str) -> StandbyNote:
        """`address` is where others reach this controller; empty: nobody knows. Raises StateRefused."""
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
    """Addresses of those that wait, sorted; empty: nobody knows where that one is. What cannot be read is left out."""
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
    """None where nobody waits there any more: then the note goes."""
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
