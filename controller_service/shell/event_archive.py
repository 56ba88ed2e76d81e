"""Stores the events of the feed, in batches, behind whatever publishes them.

Purpose: a controller that leads later shows what happened before it.
Invariants: publishing never waits for a disk; a store that cannot write is tried again ever less often, and stops
nothing else; what was not stored by then is, as far as the feed keeps it.
Owner: the app.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

from controller_service.core.kept_events import EventBounds
from controller_service.shell.events import EventFeed
from controller_service.store.protocol import EventStore, EventsUnwritten
from slotmesh.telemetry.log import get_logger

GATHER_S: Final = 0.2
"""How long the first event of a batch waits for others."""
BATCH_EVENTS: Final = 1_000
RETRY_S: Final = 1.0
"""After the first failure; twice as long after each other one."""
LONGEST_RETRY_S: Final = 60.0
LAST_BATCH_S: Final = 2.0
"""How long the end of a controller may wait for its last events to be stored."""

_log = get_logger(__name__)


class EventArchive:
    """One feed, and where its events are stored."""

    def __init__(self, feed: EventFeed, store: EventStore) -> None:
        self.feed = feed
        self._store = store
        self._stored = feed.kept.newest_number
        """Events up to this number are stored, or were there before."""
        self._retry_s = 0.0
        self._something = asyncio.Event()
        self.is_over = False
        """The store takes no events any more."""
        feed.on_published = self._something.set

    @classmethod
    async def open(cls, name: str, store: EventStore, bounds: EventBounds) -> EventArchive:
        """A feed of this name, which goes on behind the stored events."""
        return cls(EventFeed(name, kept=bounds, earlier=await store.load(bounds)), store)

    async def run(self) -> None:
        """Until it is cancelled, or the store takes no events any more."""
        while not self.is_over:
            await self._something.wait()
            await asyncio.sleep(max(GATHER_S, self._retry_s))
            self._something.clear()
            await self._store_all()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stores what is left, if that can be done in time; `run` has nothing to do any more."""
        try:
            async with asyncio.timeout(LAST_BATCH_S):
                await self._store_all()
        except TimeoutError:
            _log.warning("the last events of this controller may not be stored")

    async def _store_all(self) -> None:
        kept = self.feed.kept
        while not self.is_over and (batch := kept.newer_than(self._stored)[:BATCH_EVENTS]):
            try:
                await self._store.append(batch, dropped_through=kept.dropped_through)
            except EventsUnwritten as error:
                self._failed(error)
                return
            self._stored = batch[-1].number
            if self._retry_s:
                self._retry_s = 0.0
                _log.info("events are stored again")

    def _failed(self, error: EventsUnwritten) -> None:
        self.is_over = error.is_final
        if not self._retry_s:
            _log.warning("events cannot be stored: later controllers will not show them", why=str(error))
        self._retry_s = min(LONGEST_RETRY_S, self._retry_s * 2 or RETRY_S)
        self._something.set()
