"""The feed of events for people who watch: kept for a while, bounded for each watcher, with the number of missed ones.

Invariants: publishing never waits; a watcher that reads too slowly loses the oldest events, and the next one it gets
says how many. A cursor names a place in the sequence of the feed that published the event; the events of earlier feeds
that were stored are part of the sequence.
Owner: the event loop.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from controller_service.core.kept_events import UNKNOWN, EventBounds, FeedEvent, KeptEvents
from controller_service.core.notices import EventKind, Notice

_CURSOR: Final = re.compile(r"([0-9a-f]{1,64})-([0-9]{1,18})", re.ASCII)

_BOUNDS: Final = EventBounds()


class NoCursor(Exception):
    """The text is no cursor of any feed."""


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

    def __init__(
        self, name: str, *, bound: int = 1_000, kept: EventBounds = _BOUNDS, earlier: Iterable[FeedEvent] = ()
    ) -> None:
        """`name`: 1 to 64 hexadecimal digits that no other feed has.

        `bound`: events kept for a watcher that does not read, beside those that it asked for at its start. `kept`:
        what is kept for watchers that come later. `earlier`: events of earlier controllers, oldest first.
        """
        self._name = name
        self._bound = bound
        self.kept = KeptEvents(kept, earlier)
        self._number = self.kept.newest_number
        self.on_published: Callable[[], None] = lambda: None
        """Called after each event."""
        self.counts = Counter[EventKind]()
        """Events of each kind, since the start."""
        self._watchers: set[Watcher] = set()

    def publish(self, time_s: float, notice: Notice) -> None:
        """Something has happened, `time_s` seconds since 1970."""
        self._number += 1
        self.counts[notice.kind] += 1
        event = FeedEvent(self._name, self._number, time_s, notice)
        self.kept.add(event)
        self.on_published()
        for watcher in self._watchers:
            watcher.offer(event)

    def cursor(self, event: FeedEvent) -> str:
        """Names the event's place: what `watch` takes as `after`."""
        return f"{event.feed}-{event.number}"

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
        if from_oldest:
            return list(self.kept), self.kept.dropped_through
        if not after:
            return [], 0
        if (found := _CURSOR.fullmatch(after)) is None:
            raise NoCursor(after)
        feed, number = found[1], int(found[2])
        if feed == self._name and number > self._number:
            return list(self.kept), UNKNOWN
        return self.kept.after(feed, number)
