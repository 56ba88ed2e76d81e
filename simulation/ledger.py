"""What happened to each call, and to queues and slots in all.

Purpose: the figures' raw material, and the check that no call is lost or repeated.
Invariants: a call arrives once, starts at most once, in a slot that is idle, and has exactly one outcome; anything else
raises `Violation`. Calls are numbered from 0 in order of arrival. Times are in mean service times.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass


class Violation(AssertionError):
    """A core broke a promise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Sums over the time that was measured."""

    time: float
    refusals: int
    """Calls that came back to their router, unexecuted."""
    pushes: int
    """Capacity frames: those that bring neither results nor refusals."""
    idle_while_queued: float
    """Slots × time: idle ones, while any call waited in any router."""
    queued: float
    """Calls × time: those that waited in routers."""
    wasted: float
    """Calls × time: those that waited in routers, as far as there was an idle slot for each."""


class SimulationLedger:
    """Books of one simulation."""

    def __init__(self, slots: int) -> None:
        """`slots`: those of all replicas together."""
        self.arrived = array("d")
        self.waited = array("d")
        """From arrival to start, less the last way to the replica; -1 for those that have not started."""
        self.failed = 0
        """Calls whose outcome is a failure."""
        self.refusals = 0
        self.pushes = 0
        self._outcomes = bytearray()
        self._queued = 0
        self._idle = slots
        self._idle_while_queued = self._queued_time = self._wasted = 0.0
        self._began = self._since = 0.0

    def measure_from(self, now: float) -> int:
        """Counts from now on. Returns the number of the next call."""
        self.refusals = self.pushes = 0
        self._idle_while_queued = self._queued_time = self._wasted = 0.0
        self._began = self._since = now
        return len(self.arrived)

    def counted(self, now: float) -> Counted:
        """What was counted until now."""
        self._integrate(now)
        return Counted(
            time=now - self._began,
            refusals=self.refusals,
            pushes=self.pushes,
            idle_while_queued=self._idle_while_queued,
            queued=self._queued_time,
            wasted=self._wasted,
        )

    def check(self) -> None:
        """All is over.

        Raises:
            Violation: a call has no outcome, or something is still queued or running.
        """
        if missing := self._outcomes.count(0):
            raise Violation(f"{missing} of {len(self._outcomes)} calls have no outcome")
        if self._queued:
            raise Violation(f"{self._queued} calls are queued after the end")

    # -- events ----------------------------------------------------------------------------------------------------

    def arrive(self, count: int, now: float) -> range:
        """Calls come into being and are queued; returns their numbers."""
        first = len(self.arrived)
        self.arrived.extend([now] * count)
        self.waited.extend([-1.0] * count)
        self._outcomes.extend(bytes(count))
        self._queue(count, now)
        return range(first, first + count)

    def sent(self, count: int, now: float) -> None:
        """Calls leave their router for a replica."""
        self._queue(-count, now)

    def refused(self, count: int, now: float) -> None:
        """Calls are back in the queue of their router, unexecuted."""
        self.refusals += count
        self._queue(count, now)

    def started(self, call: int, now: float, travel: float) -> None:
        """A call starts, `travel` after it left its router."""
        if self.waited[call] >= 0.0:
            raise Violation(f"call {call} started twice")
        self.waited[call] = max(0.0, now - travel - self.arrived[call])
        self._integrate(now)
        self._idle -= 1
        if self._idle < 0:
            raise Violation("more calls run than there are slots")

    def ended(self, now: float) -> None:
        """A call ends, and its slot is idle."""
        self._integrate(now)
        self._idle += 1

    def settled(self, call: int, now: float, *, failed: bool) -> None:
        """The caller has the outcome. What fails without having started fails in the queue."""
        if self._outcomes[call]:
            raise Violation(f"call {call} has two outcomes")
        self._outcomes[call] = 1
        if failed:
            self.failed += 1
            if self.waited[call] < 0.0:
                self._queue(-1, now)

    # -- books -----------------------------------------------------------------------------------------------------

    def _queue(self, change: int, now: float) -> None:
        self._integrate(now)
        self._queued += change

    def _integrate(self, now: float) -> None:
        queued = self._queued
        if queued:
            time, idle = now - self._since, self._idle
            self._idle_while_queued += idle * time
            self._queued_time += queued * time
            self._wasted += min(queued, idle) * time
        self._since = now


class NotifyingLedger(SimulationLedger):
    """Calls a function when a call has its outcome."""

    def __init__(self, slots: int, on_settled: Callable[[int], None]) -> None:
        super().__init__(slots)
        self._on_settled = on_settled

    def settled(self, call: int, now: float, *, failed: bool) -> None:
        super().settled(call, now, failed=failed)
        self._on_settled(call)
