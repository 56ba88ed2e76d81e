"""A store in memory: it ends with its process.

Invariants: each start is a new generation; epoch floors begin with the wall clock in milliseconds, so that they mostly
grow from one generation to the next, and are raised where members bring newer epochs. Its content ends with the
controller: the next one learns from the tables that routers bring, and has replicas give up all that they own, to give
it anew.
Owner: the event loop that it is used on; `commit` has no await inside, and so needs no lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from controller_service.core.desired import ChangeSet, Desired
from controller_service.store.protocol import Conflict


class MemoryStore:
    """Implements `Store`."""

    def __init__(self, *, generation: str, epoch_floor: int = 0) -> None:
        self._generation = generation
        self._desired = Desired(epoch_floor=epoch_floor)
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def generation(self) -> str:
        return self._generation

    def read(self) -> Desired:
        return self._desired

    async def commit(self, change: ChangeSet, *, expected_revision: int) -> Desired:
        if self._closed:
            raise RuntimeError("the store is closed")
        if expected_revision != self._desired.revision:
            raise Conflict(expected_revision, self._desired.revision)
        self._desired = self._desired.apply(change)
        self._wake_watchers()
        return self._desired

    async def watch(self, *, after_revision: int) -> AsyncGenerator[Desired, None]:
        while True:
            changed = self._changed
            if self._desired.revision > after_revision:
                after_revision = self._desired.revision
                yield self._desired
            elif self._closed:
                return
            else:
                await changed.wait()

    async def close(self) -> None:
        self._closed = True
        self._wake_watchers()

    def _wake_watchers(self) -> None:
        """Each step has an event of its own: it need not be cleared, and no watcher can miss it."""
        self._changed.set()
        self._changed = asyncio.Event()
