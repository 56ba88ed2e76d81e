"""The newest revision of a store, and those who wait for the next one.

Invariants: revisions that are set ascend; listeners are called for each, in order; a watcher gets levels, not every
step, and misses no newest one.
Owner: the event loop; every store has one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from controller_service.core.desired import Desired
from controller_service.core.revisions import UNKNOWN_ORIGIN, ChangeOrigin
from controller_service.store.protocol import OnCommitted


class NewestRevision:
    """A value that is replaced, with watchers."""

    def __init__(self, value: Desired) -> None:
        self.value = value
        self._listeners: list[OnCommitted] = []
        self._changed = asyncio.Event()
        self._closed = False

    def listen(self, listener: OnCommitted) -> None:
        """Has it called for each revision that is set from now on."""
        self._listeners.append(listener)

    def set(self, value: Desired, origin: ChangeOrigin = UNKNOWN_ORIGIN) -> None:
        """The next revision, and who asked for it, where that is known."""
        before, self.value = self.value, value
        self._wake()
        for listener in self._listeners:
            listener(before, value, origin)

    async def watch(self, *, after_revision: int) -> AsyncGenerator[Desired, None]:
        """Yields the newest revision whenever it is newer than what was yielded last, until it is closed."""
        while True:
            changed = self._changed
            if self.value.revision > after_revision:
                after_revision = self.value.revision
                yield self.value
            elif self._closed:
                return
            else:
                await changed.wait()

    def close(self) -> None:
        """Ends watches."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        """Each step has an event of its own: it need not be cleared, and no watcher can miss it."""
        self._changed.set()
        self._changed = asyncio.Event()
