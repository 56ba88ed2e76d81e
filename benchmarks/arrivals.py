"""Calls that arrive at times which do not depend on how the mesh does: an open loop.

Invariant: a call is made at its time, or as soon after as the event loop gets to it; when it was made is what counts.
Times of calls are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

TICK_S: Final = 0.001
"""Calls that are due within so long are made together: event loops have no finer timers, only busy ones."""


def poisson(rate: float, seconds: float, seed: int) -> list[float]:
    """Times from 0 on at which calls arrive independently of each other, `rate` a second in the mean."""
    draw = random.Random(seed)
    times_s: list[float] = []
    at = draw.expovariate(rate)
    while at < seconds:
        times_s.append(at)
        at += draw.expovariate(rate)
    return times_s


def evenly(calls: int, seconds: float) -> list[float]:
    """Times from 0 on at which so many calls arrive, all equally far apart."""
    return [index * seconds / calls for index in range(calls)]


class Arrivals:
    """The calls of one load, a column for each thing that is known of them."""

    def __init__(self) -> None:
        self.made_s = array("d")
        """When each was made, ascending."""
        self.settled_s = array("d")
        """When whoever awaits it would have its outcome; 0 until then."""
        self.results: list[bytes] = []
        """Empty where a call failed."""
        self.failures: list[BaseException] = []
        self._left = 0
        self._all_settled = asyncio.Event()

    @property
    def latencies_s(self) -> list[float]:
        """From making a call to its outcome, in the order of making."""
        return [settled_s - made_s for made_s, settled_s in zip(self.made_s, self.settled_s, strict=True)]

    async def make(self, call: Callable[[], asyncio.Future[bytes]], times_s: Sequence[float]) -> None:
        """Makes a call at each of these times from now on, ascending; returns when all have their outcomes."""
        self._left += len(times_s)
        self._all_settled.clear()
        began_s = time.monotonic()
        for at in times_s:
            if (early_s := began_s + at - time.monotonic()) > 0:
                await asyncio.sleep(max(early_s, TICK_S))
            index = len(self.made_s)
            self.made_s.append(time.monotonic())
            self.settled_s.append(0.0)
            self.results.append(b"")
            call().add_done_callback(partial(self._settled, index))
        if self._left:
            await self._all_settled.wait()

    def _settled(self, index: int, future: asyncio.Future[bytes]) -> None:
        self.settled_s[index] = time.monotonic()
        failure = future.exception()
        if failure is None:
            self.results[index] = future.result()
        else:
            self.failures.append(failure)
        self._left -= 1
        if not self._left:
            self._all_settled.set()
