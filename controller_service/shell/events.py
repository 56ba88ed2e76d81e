"""What happens, for people who watch: bounded for each watcher, and honest about what it missed.

Invariants: publishing never waits; a watcher that reads too slowly loses the oldest events, and the next one it gets
says how many.
Owner: the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from controller_service.core.transitions import Notice


@dataclass(frozen=True, slots=True)
class Event:
    """A notice and its time, seconds since 1970."""

    time_s: float
    notice: Notice


class Watcher:
    """One reader of the feed."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._events: deque[Event] = deque()
        self._missed = 0
        self._something = asyncio.Event()

    def offer(self, event: Event) -> None:
        if len(self._events) >= self._bound:
            self._events.popleft()
            self._missed += 1
        self._events.append(event)
        self._something.set()

    async def next(self) -> tuple[Event, int]:
        """The next event, and how many were missed before it."""
        await self._something.wait()
        event, missed = self._events.popleft(), self._missed
        self._missed = 0
        if not self._events:
            self._something.clear()
        return event, missed


class EventFeed:
    """Hands each event to every watcher."""

    def __init__(self, *, bound: int = 1_000) -> None:
        """`bound`: events kept for a watcher that does not read."""
        self._bound = bound
        self._watchers: set[Watcher] = set()

    def publish(self, event: Event) -> None:
        for watcher in self._watchers:
            watcher.offer(event)

    @contextmanager
    def watch(self) -> Iterator[Watcher]:
        """A watcher of what happens from now on."""
        watcher = Watcher(self._bound)
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)
