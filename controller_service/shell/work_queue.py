"""Keys of what has to be looked at, now or later.

Invariants: a key waits at most once, however often it is added; of two times the earlier counts; taking waits, without
polling, until something is due.
Owner: the event loop that it was made on; one consumer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)


class WorkQueue(Generic[KeyT]):
    """A set of keys that the reconcile loop takes one by one."""

    def __init__(self) -> None:
        self._due: dict[KeyT, None] = {}
        self._later: dict[KeyT, asyncio.TimerHandle] = {}
        self._something = asyncio.Event()

    def add(self, key: KeyT) -> None:
        """The key is due now."""
        if timer := self._later.pop(key, None):
            timer.cancel()
        self._due[key] = None
        self._something.set()

    def add_after(self, key: KeyT, delay_s: float) -> None:
        """The key is due in `delay_s` seconds, unless it is earlier."""
        if key in self._due:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + delay_s
        if waiting := self._later.get(key):
            if waiting.when() <= at:
                return
            waiting.cancel()
        self._later[key] = loop.call_at(at, self.add, key)

    async def take(self) -> list[KeyT]:
        """Everything that is due, in the order in which it came; waits for the first."""
        await self._something.wait()
        self._something.clear()
        keys = [*self._due]
        self._due.clear()
        return keys

    def close(self) -> None:
        """Forgets everything."""
        for timer in self._later.values():
            timer.cancel()
        self._later.clear()
        self._due.clear()
