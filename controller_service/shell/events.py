"""The feed of events for people who watch, and the archive that stores them for the controllers that lead later.

Invariants: publishing never waits, neither for a watcher nor for a disk; a watcher that reads too slowly loses the
oldest events, and the next one it gets has their number. A cursor names a place in the sequence of the feed that
published the event; the stored events of earlier feeds are part of the sequence. A store that cannot write is tried
again with growing delays, and stops nothing else; events not stored until then are, as far as the feed keeps them.
Nothing is stored before the events of earlier controllers were read, which is tried again likewise: unread events are
not deleted.
Owner: the event loop; the app has the archive.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Self

from controller_service.core.event_log import (
    FIRST_BY_CLOCK,
    UNKNOWN,
    EventBounds,
    EventKind,
    FeedEvent,
    KeptEvents,
    Notice,
)
from controller_service.store.protocol import EventStore, EventsUnwritten
from slotmesh.logs import get_logger

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
        """Events that `next` returns without waiting."""
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
        self,
        name: str,
        *,
        bound: int = 1_000,
        kept: EventBounds = _BOUNDS,
        earlier: Iterable[FeedEvent] = (),
        after_number: int = 0,
    ) -> None:
        """`name`: 1 to 64 hexadecimal digits that no other feed has.

        `bound`: events kept for a watcher that does not read, beside those that it asked for at its start. `kept`:
        what is kept for watchers that come later. `earlier`: events of earlier controllers, oldest first.
        `after_number`: numbers are above this.
        """
        self._name = name
        self._bound = bound
        self.kept = KeptEvents(kept, earlier)
        self._number = max(after_number, self.kept.newest_number)
        self.on_published: Callable[[], None] = lambda: None
        """Called after each event."""
        self.counts = Counter[EventKind]()
        """Events of each kind, since the start."""
        self._watchers: set[Watcher] = set()

    @property
    def newest_number(self) -> int:
        """Of the newest event; later ones have larger numbers."""
        return self._number

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
            return list(self.kept), self.kept.missed_before
        if not after:
            return [], 0
        if (found := _CURSOR.fullmatch(after)) is None:
            raise NoCursor(after)
        feed, number = found[1], int(found[2])
        if feed == self._name and number > self._number:
            return list(self.kept), UNKNOWN
        return self.kept.after(feed, number)


GATHER_S: Final = 0.2
"""How long the first event of a batch waits for others."""
BATCH_EVENTS: Final = 1_000
RETRY_S: Final = 1.0
"""After the first failure; twice as long after each other one."""
LONGEST_RETRY_S: Final = 60.0
LAST_BATCH_S: Final = 2.0
"""How long the end of a controller may wait for its last events to be stored."""

_UNSTORED: Final = "events cannot be stored: later controllers will not show them"
_UNREAD: Final = "events of earlier controllers cannot be read, and none are stored before that: it is tried again"

_log = get_logger(__name__)


class EventArchive:
    """One feed, and where its events are stored."""

    def __init__(self, feed: EventFeed, store: EventStore, bounds: EventBounds, *, is_loaded: bool = True) -> None:
        """`is_loaded`: the feed has the events of earlier controllers that are within the bounds."""
        self.feed = feed
        self._store = store
        self._bounds = bounds
        self._is_loaded = is_loaded
        self._stored = feed.newest_number
        """Events up to this number are stored, or were there before."""
        self._retry_s = 0.0
        self._something = asyncio.Event()
        self.is_over = False
        """The store takes no events any more."""
        feed.on_published = self._something.set

    @classmethod
    async def open(cls, name: str, store: EventStore, bounds: EventBounds, time_s: float) -> EventArchive:
        """A feed of this name, which continues the stored events. `time_s`: now, seconds since 1970."""
        try:
            return cls(EventFeed(name, kept=bounds, earlier=await store.load(bounds)), store, bounds)
        except EventsUnwritten as error:
            # Above whatever numbers the stored events have.
            feed = EventFeed(name, kept=bounds, after_number=max(FIRST_BY_CLOCK, int(time_s * 1e3)))
            archive = cls(feed, store, bounds, is_loaded=False)
            archive._failed(error, _UNREAD)
            return archive

    async def run(self) -> None:
        """Until it is cancelled, or the store takes no events any more."""
        while not self.is_over:
            await self._something.wait()
            await asyncio.sleep(max(GATHER_S, self._retry_s))
            self._something.clear()
            await self._store_all()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stores what is left, if that can be done in time; `run` has nothing to do any more."""
        try:
            async with asyncio.timeout(LAST_BATCH_S):
                await self._store_all()
        except TimeoutError:
            _log.warning("the last events of this controller may not be stored")

    async def _store_all(self) -> None:
        kept = self.feed.kept
        if not self.is_over and not self._is_loaded:
            try:
                kept.put_before(await self._store.load(self._bounds))
            except EventsUnwritten as error:
                self._failed(error, _UNREAD)
                return
            self._is_loaded = True
        while not self.is_over and (batch := kept.newer_than(self._stored)[:BATCH_EVENTS]):
            try:
                await self._store.append(batch, dropped_through=kept.dropped_through)
            except EventsUnwritten as error:
                self._failed(error, _UNSTORED)
                return
            self._stored = batch[-1].number
            if self._retry_s:
                self._retry_s = 0.0
                _log.info("events are stored again")

    def _failed(self, error: EventsUnwritten, what: str) -> None:
        self.is_over = error.is_final
        if not self._retry_s:
            _log.warning(what, why=str(error))
        self._retry_s = min(LONGEST_RETRY_S, self._retry_s * 2 or RETRY_S)
        self._something.set()
