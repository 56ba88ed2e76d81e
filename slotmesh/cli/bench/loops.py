"""The two ways of putting load on something: so many calls at once, or so many a second.

Invariants: calls under way are bounded; in an open loop a call's time begins when it should have begun, so that a
system that falls behind is not asked less and found quicker than it is (no coordinated omission); calls that are under
way at the end are waited for, and count.
Owner: the command `bench` runs one of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from slotmesh.cli.latencies import CallTally
from slotmesh.errors import Reason, SlotmeshError

MAX_IN_FLIGHT: Final = 10_000

_ROUNDING_S: Final = 1e-6
_FINAL: Final = frozenset(
    {
        Reason.ENDPOINT_NOT_FOUND,
        Reason.METHOD_NOT_FOUND,
        Reason.BAD_REQUEST,
        Reason.BAD_ARGUMENTS,
        Reason.PAYLOAD_TOO_LARGE,
        Reason.NOT_IMPLEMENTED,
    }
)
"""Failures that follow from what is called, and with what."""

MakeCall = Callable[[int], Awaitable[object]]
"""Makes a call; which of the callers it is, from 0. Raises SlotmeshError."""


class BenchRun:
    """What a loop has measured."""

    def __init__(self, warm_up_s: float, duration_s: float) -> None:
        """Calls that begin, or should have begun, in the warm-up are made and not counted."""
        self.tally = CallTally()
        self.planned_s = warm_up_s + duration_s
        """From the first call to when none begins any more."""
        self.counted_from = time.monotonic() + warm_up_s
        self.until = self.counted_from + duration_s
        self.ended_at = self.until
        """When the last call that counts has ended."""
        self.unstarted = 0
        """Of an open loop: calls that should have begun and could not, as too many were under way."""

    @property
    def elapsed_s(self) -> float:
        """From the first call that counts to the end of the last."""
        return self.ended_at - self.counted_from

    async def measure(self, call: Awaitable[object], began: float) -> None:
        """Counts a call that began, or should have begun, then."""
        reason = ""
        try:
            await call
        except SlotmeshError as failure:
            reason = failure.reason.value
        now = time.monotonic()
        # Sums of seconds are exact to less than that.
        if began >= self.counted_from - _ROUNDING_S:
            self.tally.add(now - began, reason)
            self.ended_at = max(self.ended_at, now)


async def try_one(call: Awaitable[object]) -> None:
    """A call before all others. Raises SlotmeshError where each of them would fail the same way, whatever the load."""
    try:
        await call
    except SlotmeshError as failure:
        if failure.reason in _FINAL:
            raise


async def closed_loop(run: BenchRun, make_call: MakeCall, in_flight: int) -> None:
    """So many callers, each of which makes its next call when it has the outcome of the one before."""

    async def caller(number: int) -> None:
        while (now := time.monotonic()) < run.until:
            await run.measure(make_call(number), now)
            # Calls that fail at once would keep the loop from everything else.
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for number in range(in_flight):
            tasks.create_task(caller(number))


async def open_loop(run: BenchRun, make_call: MakeCall, rate: float, callers: int) -> None:
    """So many calls a second, whatever becomes of them; `callers` take turns, and may have several under way."""
    began = run.until - run.planned_s
    total = round(run.planned_s * rate)
    room = asyncio.Semaphore(MAX_IN_FLIGHT)

    async def one(number: int, due: float) -> None:
        try:
            await run.measure(make_call(number % callers), due)
        finally:
            room.release()

    async with asyncio.TaskGroup() as tasks:
        for number in range(total):
            due = began + number / rate
            if (early := due - time.monotonic()) > 0:
                await asyncio.sleep(early)
            try:
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + run.until - time.monotonic()):
                    await room.acquire()
            except TimeoutError:
                run.unstarted = total - number
                return
            tasks.create_task(one(number, due))
