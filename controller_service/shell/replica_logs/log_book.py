"""The newest lines that each launched replica has written, for operators and for this process's own log.

Invariants: each replica has a bound of bytes (`core.log_lines`), and of those that have ended the newest `ENDED_KEPT`
are kept; reading takes a bounded piece of each file a turn, so that one that writes without end holds up no other; a
reader that is slow misses lines, and hears how many.
Owner: the event loop. The process launcher says which replicas there are.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from controller_service.core.log_lines import KEPT_BYTES, LogLines
from controller_service.shell.replica_logs.log_tail import LogTail
from slotmesh.telemetry.log import get_logger

LOOK_EVERY_S: Final = 0.1
"""How often files are looked at; with more than a hundred of them, 1 ms later for each."""
ENDED_KEPT: Final = 64
LAST_LINES: Final = 20
LAST_BYTES: Final = 4_096
"""Of what a replica wrote last, this much is told with its end."""
LAST_PIECES: Final = 16
"""Read at a replica's end at most, of what was not read before."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LogPage:
    """Lines of one replica, oldest first."""

    replica_id: str
    lines: list[str]
    missed: int = 0
    """Lines before these that were not read in time."""


@dataclass(slots=True)
class _Entry:
    """What is known of one replica's output."""

    replica_id: str
    backend: str
    tail: LogTail | None
    """None: the replica has ended."""
    lines: LogLines = field(default_factory=LogLines)
    unechoed: bytes = b""
    """A line that has no end yet."""


class LogBook:
    """Follows the files of replicas."""

    def __init__(self, *, max_bytes: int, echo: Callable[[bytes], object] | None = None) -> None:
        """`max_bytes`: of one file, before it is rotated. `echo` gets all that replicas write, in whole lines."""
        self._max_bytes = max_bytes
        self._echo = echo
        self._entries: dict[str, _Entry] = {}
        self._changed = asyncio.Event()
        """Replaced whenever there are new lines or ends."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(max(LOOK_EVERY_S, len(self._entries) * 1e-3))

    def look(self) -> None:
        """Reads a piece of each file that has more."""
        is_new = False
        for entry in self._entries.values():
            if entry.tail is not None:
                is_new |= self._read(entry, entry.tail)
        if is_new:
            self._wake()

    def follow(self, replica_id: str, backend: str, path: Path, *, is_older: bool = False) -> None:
        """A replica writes to this file. `is_older`: it has for a while, and was echoed then. Raises OSError."""
        begin = max(0, path.stat().st_size - KEPT_BYTES) if is_older else 0
        entry = _Entry(replica_id, backend, LogTail(path, max_bytes=self._max_bytes, begin=begin))
        self._entries[replica_id] = entry
        if is_older:
            self._read_all(entry, echo=False)
        self._wake()

    def remember(self, replica_id: str, backend: str, path: Path) -> None:
        """A replica has ended that wrote to this file. Raises OSError."""
        self.follow(replica_id, backend, path, is_older=True)
        self._close(self._entries[replica_id])

    def finish(self, replica_id: str) -> str:
        """A replica has ended; returns the last lines that it has written."""
        entry = self._entries.get(replica_id)
        if entry is None:
            return ""
        self._read_all(entry, echo=True)
        self._close(entry)
        return "\n".join(entry.lines.tail(LAST_LINES))[-LAST_BYTES:]

    async def close(self) -> None:
        """Nothing is followed any more."""
        for entry in self._entries.values():
            if entry.tail is not None:
                await entry.tail.close()

    def knows(self, name: str) -> bool:
        """Whether it has lines of a replica, or of replicas of a backend, of this name."""
        return any(True for _ in self._named(name))

    def names(self) -> list[str]:
        """What `read` knows: backends, then replicas."""
        return [*sorted({entry.backend for entry in self._entries.values()}), *sorted(self._entries)]

    async def read(self, name: str, *, count: int, follow: bool) -> AsyncGenerator[LogPage, None]:
        """The newest `count` lines of a replica, or of each of a backend's, and with `follow` all that come.

        Ends when all was read; with `follow`, when the replica has ended, and never for a backend.
        """
        read: dict[str, int] = {}
        for entry in [*self._named(name)]:
            yield LogPage(entry.replica_id, entry.lines.tail(count))
            read[entry.replica_id] = entry.lines.end_number
        while follow:
            changed = self._changed
            for entry in [*self._named(name)]:
                missed, lines = entry.lines.since(read.get(entry.replica_id, 0))
                read[entry.replica_id] = entry.lines.end_number
                if lines:
                    yield LogPage(entry.replica_id, lines, missed)
            if name in self._entries and self._entries[name].tail is None:
                return
            await changed.wait()

    def _named(self, name: str) -> Iterator[_Entry]:
        if name in self._entries:
            yield self._entries[name]
        else:
            yield from (entry for entry in self._entries.values() if entry.backend == name)

    def _read(self, entry: _Entry, tail: LogTail, *, echo: bool = True) -> bool:
        try:
            piece = tail.read()
        except OSError as error:
            _log.warning("output of a replica cannot be read", replica=entry.replica_id, error=str(error))
            self._close(entry)
            return True
        if not piece:
            return False
        entry.lines.feed(piece)
        if echo and self._echo is not None:
            whole, newline, entry.unechoed = (entry.unechoed + piece).rpartition(b"\n")
            if newline:
                self._echo(whole + newline)
        return True

    def _read_all(self, entry: _Entry, *, echo: bool) -> None:
        for _ in range(LAST_PIECES):
            if entry.tail is None or not self._read(entry, entry.tail, echo=echo):
                return

    def _close(self, entry: _Entry) -> None:
        entry.lines.end()
        if entry.unechoed and self._echo is not None:
            self._echo(entry.unechoed + b"\n")
            entry.unechoed = b""
        if entry.tail is not None:
            entry.tail.drop()
            entry.tail = None
        ended = [it.replica_id for it in self._entries.values() if it.tail is None]
        for replica_id in ended[:-ENDED_KEPT]:
            del self._entries[replica_id]
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def echo_output(output: bytes) -> None:
    """Writes what replicas have written to this process's stderr, as long as there is one."""
    try:
        sys.stderr.buffer.write(output)
        sys.stderr.buffer.flush()
    except (OSError, ValueError):
        pass  # whoever read it is gone: it is in the files
