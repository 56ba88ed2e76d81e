"""A store in memory: it ends with its process.

Invariants: each start is a new generation; epoch floors begin with the wall clock in milliseconds, so that they mostly
grow from one generation to the next, and are raised when members report newer epochs. Its content ends with the
controller: the next one learns from the tables that routers send, and has replicas give up all that they own, to give
it anew.
Owner: the event loop that it is used on; `commit` has no await inside, and so needs no lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.events import EventBounds, FeedEvent
from controller_service.core.lineage import LeaderTerm
from controller_service.store.protocol import (
    Conflict,
    Leader,
    NewestRevision,
    OnCommitted,
    Standing,
    Store,
    StoreWriteFailed,
)


class MemoryEvents:
    """Implements `EventStore`: the feed of this controller has them, and there is no later one that could read them."""

    async def load(self, bounds: EventBounds) -> list[FeedEvent]:  # noqa: ARG002 - there are none
        return []

    async def append(self, events: Sequence[FeedEvent], *, dropped_through: int) -> None:
        """They end with this process."""

    async def close(self) -> None:
        """There is nothing to release."""


class MemoryStore:
    """Implements `Store`."""

    def __init__(self, *, generation: str, epoch_floor: int = 0) -> None:
        self._generation = generation
        self._newest = NewestRevision(Desired(epoch_floor=epoch_floor, terms=(LeaderTerm(generation, 0),)))
        self._closed = asyncio.Event()
        self.events = MemoryEvents()

    @property
    def generation(self) -> str:
        return self._generation

    @property
    def term(self) -> int:
        """No other controller can have it."""
        return 1

    async def standing(self) -> AsyncGenerator[Standing, None]:
        yield Standing(self.term)
        await self._closed.wait()

    def read(self) -> Desired:
        return self._newest.value

    async def commit(self, change: ChangeSet, *, expected_revision: int) -> Desired:
        if self._closed.is_set():
            raise RuntimeError("the store is closed")
        before = self._newest.value
        if expected_revision != before.revision:
            raise Conflict(expected_revision, before.revision)
        self._newest.set(before.apply(change), change.origin)
        return self._newest.value

    async def begin_generation(self, generation: str, desired: Desired, *, expected_revision: int) -> None:  # noqa: ARG002 - no other can have it
        raise StoreWriteFailed("the state is in memory: it ends with its controller", is_unwritten=True)

    def listen(self, listener: OnCommitted) -> None:
        self._newest.listen(listener)

    def watch(self, *, after_revision: int) -> AsyncGenerator[Desired, None]:
        return self._newest.watch(after_revision=after_revision)

    def serving_at(self, address: str) -> None:
        """Unused: no other controller can find this store."""

    async def close(self) -> None:
        self._closed.set()
        self._newest.close()


class MemoryCandidacy:
    """Implements `Candidacy` for a store that no other controller can have."""

    def __init__(self, *, generation: str, epoch_floor: int = 0) -> None:
        self._store = MemoryStore(generation=generation, epoch_floor=epoch_floor)

    @property
    def leader(self) -> Leader:
        return Leader("", "this controller")

    async def try_to_lead(self) -> Store | None:
        return self._store

    async def wait_to_lead(self, address: str) -> Store:  # noqa: ARG002 - no other controller needs it
        return self._store
