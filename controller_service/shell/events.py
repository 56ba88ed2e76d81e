"""The feed of events for people who watch: kept for a while, bounded for each watcher, with the number of missed ones.

Invariants: publishing never waits; a watcher that reads too slowly loses the oldest events, and the next one it gets
says how many. A cursor names a place in this feed's sequence; one of another feed is known as such.
Owner: the event loop.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final

from controller_service.core.notices import EventKind, Notice

UNKNOWN: Final = -1
"""Some events were missed; their number is not known."""
_CURSOR: Final = re.compile(r"([0-9a-f]{1,64})-([0-9]{1,18})", re.ASCII)


class NoCursor(Exception):
    """The text is no cursor of any feed."""


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """A notice, its time in seconds since 1970, and its number in the feed, from 1 on."""

    number: int
    time_s: float
    notice: Notice


class Watcher:
    """One reader of the feed."""

    def __init__(self, bound: int, missed: int) -> None:
        self._bound = bound
        self._events: deque[FeedEvent] = deque()
        self._missed = missed
        self._something = asyncio.Event()

    @property
    def unread(self) -> int:
        """Events that `next` returns at once."""
        return len(self._events)

    def offer(self, event: FeedEvent) -> None:
        if len(self._events) >= self._bound:
            self._events.popleft()
            if self._missed != UNKNOWN:
                self._missed += 1
        self._events.append(event)
        self._something.set()

    async def next(self) -> tuple[FeedEvent, int]:
        """The next event, and how many were missed before it."""
        await self._something.wait()
        event, missed = self._events.popleft(), self._missed
        self._missed = 0
        if not self._events:
            self._something.clear()
        return event, missed


class EventFeed:
    """Hands each event to every watcher, and keeps the newest for those that come later."""

    def __init__(self, name: str, *, bound: int = 1_000, kept: int = 10_000) -> None:
        """`name`: 1 to 64 hexadecimal digits that no other feed has.

        `bound`: events kept for a watcher that does not read, beside those that it asked for at its start. `kept`:
        events kept for watchers that come later.
        """
        self._name = name
        self._bound = bound
        self._kept: deque[FeedEvent] = deque(maxlen=kept)
        self._published = 0
        self.counts = Counter[EventKind]()
        """Events of each kind, since the start."""
        self._watchers: set[Watcher] = set()

    def publish(self, time_s: float, notice: Notice) -> None:
        """Something has happened, `time_s` seconds since 1970."""
        self._published += 1
        self.counts[notice.kind] += 1
        event = FeedEvent(self._published, time_s, notice)
        self._kept.append(event)
        for watcher in self._watchers:
            watcher.offer(event)

    def cursor(self, event: FeedEvent) -> str:
        """Names the event's place: what `watch` takes as `after`."""
        return f"{self._name}-{event.number}"

    def watch(self, *, after: str = "", from_oldest: bool = False) -> AbstractContextManager[Watcher]:
        """A watcher of all events from now on, and before these of the kept ones: those after a cursor, or all.

        Raises:
            NoCursor: `after` is none.
        """
        events, missed = self._since(after, from_oldest=from_oldest)
        watcher = Watcher(self._bound + len(events), missed)
        for event in events:
            watcher.offer(event)
        return self._watching(watcher)

    @contextmanager
    def _watching(self, watcher: Watcher) -> Iterator[Watcher]:
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

    def _since(self, after: str, *, from_oldest: bool) -> tuple[list[FeedEvent], int]:
        """The events that are kept and wanted, and how many that were wanted are not."""
        dropped = self._published - len(self._kept)
        if from_oldest:
            return list(self._kept), dropped
        if not after:
            return [], 0
        if (found := _CURSOR.fullmatch(after)) is None:
            raise NoCursor(after)
        number = int(found[2])
        if found[1] != self._name or number > self._published:
            return list(self._kept), UNKNOWN
        return [event for event in self._kept if event.number > number], max(0, dropped - number)
