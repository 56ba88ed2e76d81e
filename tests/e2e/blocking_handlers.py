"""Handlers that keep their event loop."""

from __future__ import annotations

import asyncio
import threading
import time

import slotmesh


@slotmesh.deployment(max_ongoing=16)
class Blocker:
    """On the replica's event loop, unless its backend says otherwise."""

    def __init__(self) -> None:
        self.constructed_in = threading.current_thread().name

    async def block(self, seconds: float) -> float:
        time.sleep(seconds)  # noqa: ASYNC251 - what must not be done
        return seconds

    async def places(self) -> list[str]:
        """The threads in which it was constructed and called."""
        await asyncio.sleep(0)
        return [self.constructed_in, threading.current_thread().name]

    def thread(self, number: int) -> int:
        return number


@slotmesh.deployment(max_ongoing=16, own_loop=True)
class Isolated(Blocker):
    """On a loop of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()

    async def places(self) -> list[str]:
        assert asyncio.get_running_loop() is self.loop
        return await super().places()
