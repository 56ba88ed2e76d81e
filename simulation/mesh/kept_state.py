"""A store that outlives its controller, as a file does: what was written is there at the next start.

A commit takes time before it is written and after it: a controller that is killed in between has either not changed
anything, or has changed what nobody heard of.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.store.protocol import Conflict, EventStore, Standing, Store

WRITE_S: Final = 0.002
"""Half of what a commit takes, seconds of virtual time."""
MOST_COPIES: Final = 64
"""Of earlier states."""


class KeptState:
    """What is on the disk."""

    def __init__(self) -> None:
        self.generation = ""
        self.desired = Desired()
        self.term = 0
        self._starts = 0
        self._copies = deque[tuple[str, Desired, int]](maxlen=MOST_COPIES)
        """What it was before: generation, revision and term. Newest last."""

    async def open(self, generation: str, epoch_floor: int) -> KeptStore:
        """For a controller that starts; its predecessor is gone."""
        if not self.generation:
            self.generation, self.desired = generation, Desired(epoch_floor=epoch_floor)
        self.term += 1
        self._starts += 1
        self.write(self.desired.beginning(f"term-{self._starts}"))
        return KeptStore(self)

    def write(self, desired: Desired) -> None:
        """The next revision."""
        self._copies.append((self.generation, self.desired, self.term))
        self.desired = desired

    def put_back(self, writes: int) -> None:
        """A copy takes its place that was made so many writes ago, or the oldest one. The controller is down."""
        if self._copies:
            self.generation, self.desired, self.term = self._copies[-min(max(1, writes), len(self._copies))]


class KeptStore(Store):
    """The state of a controller that may end and start again."""

    def __init__(self, kept: KeptState) -> None:
        super().__init__(kept.generation, kept.term, kept.desired, EventStore())
        self._kept = kept
        self._closed = asyncio.Event()

    async def standing(self) -> AsyncGenerator[Standing, None]:
        yield Standing(self.term)
        await self._closed.wait()

    async def _check(self) -> tuple[Sequence[str], str]:
        return (), ""  # `standing` never asks

    async def commit(self, change: ChangeSet, *, expected_revision: int) -> Desired:
        await asyncio.sleep(WRITE_S)
        before = self._kept.desired
        if expected_revision == before.revision:
            self._kept.write(before.apply(change))
        written = self._kept.desired
        await asyncio.sleep(WRITE_S)
        if written.revision > self._desired.revision:
            self._set(written, change.origin)
        if written is before:
            raise Conflict(expected_revision, before.revision)
        return written

    async def begin_generation(self, generation: str, desired: Desired, *, expected_revision: int) -> None:
        if expected_revision != self._kept.desired.revision:
            raise Conflict(expected_revision, self._kept.desired.revision)
        self._kept.generation, self._kept.desired = generation, desired

    async def close(self) -> None:
        self._closed.set()
        self._end()
