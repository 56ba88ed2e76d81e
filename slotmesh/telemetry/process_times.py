"""Latency of the event loop, and durations of rpcs, counted in plain integers.

The loop's lag is the delay of a timer. Whatever blocks the loop delays frames: a handler, a large table, a garbage
collection, or other processes that use the processors. Rpcs are counted once each, when they end; labels have closed
sets of values: registered methods, and gRPC's status codes.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any, Final

from slotmesh.histogram import Histogram
from slotmesh.status import name_of

EVERY_S: Final = 0.25


class LoopLag:
    """Measures the lag of the present event loop, until it is stopped."""

    def __init__(self) -> None:
        self.times = Histogram()
        """Seconds."""
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + EVERY_S
        self._timer = self._loop.call_at(self._due, self._look)

    def stop(self) -> None:
        """Stops measuring. May be called again."""
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        self.times.observe(max(0.0, now - self._due), 1)
        self._due = now + EVERY_S
        self._timer = self._loop.call_at(self._due, self._look)


SYSTEM: Final = "grpc"
_OK: Final = 0
_CANCELLED: Final = 1
_UNKNOWN: Final = 2


class RpcTimes:
    """Durations of all rpcs that have ended. Owned by the server; scrapes read it."""

    def __init__(self) -> None:
        self.by_status: dict[tuple[str, str, str], Histogram] = {}
        """By system, method (`PACKAGE.SERVICE/METHOD`) and status."""

    def ended(self, method: str, context: Any, began: float, *, well: bool) -> None:
        """Counts an rpc that began at `began`; `well`: its handler returned."""
        status = context.code()
        code = status if isinstance(status, int) else status.value[0] if status is not None else _OK
        if not well and code == _OK:
            code = _CANCELLED if context.cancelled() else _UNKNOWN
        key = (SYSTEM, method, name_of(code))
        times = self.by_status.get(key)
        if times is None:
            times = self.by_status[key] = Histogram()
        times.observe(perf_counter() - began, 1)
