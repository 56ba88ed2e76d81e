"""The newest lines that each launched replica has written, for operators and for this process's own log.

Invariants: each replica has a bound of bytes, and of those that have ended the newest `ENDED_KEPT` are kept; reading
takes a bounded piece of each file a turn, so that one that writes without end holds up no other; a reader that is slow
misses lines, and gets their number.
Owner: the event loop. The process launcher reports which replicas there are.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final

from controller_service.core.pods.log_lines import end_of_character
from controller_service.shell.log_tail import LogTail
from slotmesh.logs import get_logger

MAX_LINE_BYTES: Final = 8_192
KEPT_BYTES: Final = 256 * 1024
"""Of each replica."""
_LINE_COST: Final = 64
"""What a line takes in memory besides its text."""


class LogLines:
    """The newest lines of what one replica has written, numbered, within a bound of bytes.

    Numbers ascend from 0 on, without gaps; the oldest lines go first; a line longer than `MAX_LINE_BYTES` becomes
    several; text without a line break yet is no line before `end`.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._lines: deque[str] = deque()
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self._begun = b""
        """A line without an end."""
        self.end_number = 0
        """The number that the next line will have."""

    def feed(self, data: bytes) -> None:
        """More was written."""
        *whole, rest = (self._begun + data).split(b"\n")
        for line in whole:
            self._add(line)
        while len(rest) > MAX_LINE_BYTES:
            cut = end_of_character(rest, MAX_LINE_BYTES)
            self._add(rest[:cut])
            rest = rest[cut:]
        self._begun = rest

    def end(self) -> None:
        """Nothing more will be written to the line that has begun."""
        if self._begun:
            begun, self._begun = self._begun, b""
            self._add(begun)

    def tail(self, count: int) -> list[str]:
        """The newest lines, at most `count`."""
        skipped = max(0, len(self._lines) - count)
        return [*islice(self._lines, skipped, None)]

    def since(self, number: int) -> tuple[int, list[str]]:
        """The lines from this number on; and how many of them are not kept any more."""
        first = self.end_number - len(self._lines)
        return max(0, first - number), [*islice(self._lines, max(0, number - first), None)]

    def _add(self, line: bytes) -> None:
        while True:
            cut = len(line) if len(line) <= MAX_LINE_BYTES else end_of_character(line, MAX_LINE_BYTES)
            text, line = line[:cut].decode(errors="replace").rstrip("\r"), line[cut:]
            size = len(text) + _LINE_COST
            self._lines.append(text)
            self._sizes.append(size)
            self._bytes += size
            self.end_number += 1
            if not line:
                break
        while self._bytes > self._kept_bytes and len(self._lines) > 1:
            self._lines.popleft()
            self._bytes -= self._sizes.popleft()


LOOK_EVERY_S: Final = 0.1
"""How often files are looked at; with more than a hundred of them, 1 ms later for each."""
ENDED_KEPT: Final = 64
LAST_LINES: Final = 20
LAST_BYTES: Final = 4_096
"""Of what a replica wrote last, this much is reported with its end."""
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
    left_out: tuple[str, ...] = ()
    """Replicas of the backend that have ended, and are not read: of the first page."""


class RunningLogs:
    """Output that another system keeps while a replica is there, such as that of pods. This one has none."""

    def replicas(self) -> Mapping[str, str]:
        """The backends of those that there are, by replica id."""
        return {}

    async def read(self, name: str, *, count: int) -> AsyncGenerator[LogPage, None]:  # noqa: ARG002 - this one has none
        """The newest lines of a replica, or of each of a backend's."""
        return
        yield

    async def follow(self, name: str, *, count: int) -> AsyncGenerator[LogPage, None]:  # noqa: ARG002 - as above
        """The same, and all that are written: of a replica until it has ended, of a backend without end."""
        return
        yield


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
        self.running: RunningLogs | None = None
        """None: replicas write to files."""
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

    def keep(self, replica_id: str, backend: str, lines: LogLines) -> None:
        """A replica has ended that wrote to no file; these were its last lines."""
        entry = self._entries[replica_id] = _Entry(replica_id, backend, None, lines)
        self._close(entry)

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

    def knows(self, name: str, *, of_backend: bool) -> bool:
        """Whether it has lines of a replica of this name, or of replicas of a backend."""
        running = self._running()
        known = [*({*running.values()} if of_backend else running)]
        return name in known or any(of_backend is not (it.replica_id == name) for it in self._named(name))

    def names(self) -> list[str]:
        """What `read` knows: backends, then replicas."""
        replicas = {**self._running(), **{it.replica_id: it.backend for it in self._entries.values()}}
        return [*sorted({*replicas.values()}), *sorted(replicas)]

    async def read(
        self, name: str, *, count: int, follow: bool, max_ended: int | None = None
    ) -> AsyncGenerator[LogPage, None]:
        """The newest `count` lines of a replica, or of each of a backend's, and with `follow` all that come.

        Of a backend those that run go first, and of those that have ended only the newest `max_ended` are read.
        Ends when all was read; with `follow`, when the replica has ended, and never for a backend.
        """
        if self.running is not None:
            async with aclosing(self._read_running(self.running, name, count, max_ended, follow=follow)) as running:
                async for page in running:
                    yield page
            return
        read = {it.replica_id: it.lines.end_number for it in self._named(name)}
        for page in self._kept(name, count, max_ended):
            yield page
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

    async def _read_running(
        self, running: RunningLogs, name: str, count: int, max_ended: int | None, *, follow: bool
    ) -> AsyncGenerator[LogPage, None]:
        """As `read`. A replica whose last lines are kept may still be there."""
        kept = self._kept(name, count, max_ended)
        if name in self._entries:
            yield kept[0]
            return
        if kept and (left_out := kept[0].left_out):
            kept[0] = replace(kept[0], left_out=())
            yield LogPage("", [], left_out=left_out)
        if follow:  # those that run go on
            for page in kept:
                yield page
        async with aclosing((running.follow if follow else running.read)(name, count=count)) as pages:
            async for page in pages:
                yield page
        for page in () if follow else kept:
            yield page

    def _kept(self, name: str, count: int, max_ended: int | None) -> list[LogPage]:
        """The newest lines of those that write to files, or have ended."""
        newest_first = reversed([*self._named(name)])
        named = sorted(newest_first, key=lambda it: it.tail is None)
        ended = [it.replica_id for it in named if it.tail is None]
        left_out = tuple(ended[max_ended:]) if max_ended is not None and name not in self._entries else ()
        pages = [LogPage(it.replica_id, it.lines.tail(count)) for it in named if it.replica_id not in left_out]
        if left_out:
            first = pages[0] if pages else LogPage("", [])
            pages = [replace(first, left_out=left_out), *pages[1:]]
        return pages

    def _running(self) -> Mapping[str, str]:
        return {} if self.running is None else self.running.replicas()

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
        pass  # the reader has closed it: the output is in the files
