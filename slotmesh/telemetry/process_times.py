"""How late the event loop is: the time that a timer waits beyond what it asked for.

Whatever keeps the loop busy, keeps frames waiting: a handler that blocks, a large table, a garbage collection, or other
processes that have the processors.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any, Final

from slotmesh.histogram import Histogram
from slotmesh.status import name_of

EVERY_S: Final = 0.25


class LoopLag:
    """Looks at the loop that runs, until it is stopped."""

    def __init__(self) -> None:
        self.times = Histogram()
        """Seconds."""
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + EVERY_S
        self._timer = self._loop.call_at(self._due, self._look)

    def stop(self) -> None:
        """May be called again."""
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        self.times.observe(max(0.0, now - self._due), 1)
        self._due = now + EVERY_S
        self._timer = self._loop.call_at(self._due, self._look)


# How long the rpcs of a server take, counted in plain integers where each ends.
#
# Invariants: once an rpc, never once a message; labels come from closed sets: the methods that are registered, and the
# statuses of gRPC.
# Owner: the server; a scrape reads it.

SYSTEM: Final = "grpc"
_OK: Final = 0
_CANCELLED: Final = 1
_UNKNOWN: Final = 2


class RpcTimes:
    """Of all rpcs that have ended."""

    def __init__(self) -> None:
        self.by_status: dict[tuple[str, str, str], Histogram] = {}
        """By system, method (`PACKAGE.SERVICE/METHOD`) and status."""

    def ended(self, method: str, context: Any, began: float, *, well: bool) -> None:
        """An rpc has ended that began then; `well`: its handler has returned."""
        said = context.code()
        code = said if isinstance(said, int) else said.value[0] if said is not None else _OK
        if not well and code == _OK:
            code = _CANCELLED if context.cancelled() else _UNKNOWN
        key = (SYSTEM, method, name_of(code))
        times = self.by_status.get(key)
        if times is None:
            times = self.by_status[key] = Histogram()
        times.observe(perf_counter() - began, 1)
