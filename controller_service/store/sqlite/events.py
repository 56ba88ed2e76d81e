"""The events beside a state file, for the event loop.

Invariants: one thread reads and writes their file, another than that of the state: a change of the state never waits
for events. The event loop never waits for a disk.
Owner: the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from controller_service.core.kept_events import EventBounds, FeedEvent
from controller_service.store.protocol import EventsUnwritten
from controller_service.store.sqlite.event_file import EventFile
from slotmesh.telemetry.log import get_logger

_log = get_logger(__name__)


def events_path(state: Path) -> Path:
    """Where the events of a state file are."""
    return state.with_name(f"{state.name}.events")


class SqliteEvents:
    """Implements `EventStore`."""

    def __init__(self, path: Path, leader: str) -> None:
        """`leader`: no other controller that leads has this name."""
        self._file = EventFile(path, leader)
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="events")
        self._is_closed = False

    async def load(self, bounds: EventBounds) -> list[FeedEvent]:
        try:
            return await asyncio.wrap_future(self._writer.submit(self._file.load, bounds))
        except EventsUnwritten as error:
            _log.warning("events of earlier controllers cannot be read", why=str(error))
            return []

    async def append(self, events: Sequence[FeedEvent], *, dropped_through: int) -> None:
        if self._is_closed:
            raise EventsUnwritten("the store is closed", is_final=True)
        await asyncio.wrap_future(self._writer.submit(self._file.append, events, dropped_through))

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        closing = self._writer.submit(self._file.close)
        self._writer.shutdown(wait=False)
        await asyncio.wrap_future(closing)
