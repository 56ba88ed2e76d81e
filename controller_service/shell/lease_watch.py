"""Sleeps until the next lease could run out.

Invariants: one timer at most; it fires at the earliest deadline, not at a beat; a member that ended has no lease; a
controller that stood still itself suspects nobody for what it could not hear.
Owner: the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from controller_service.core.liveness import Leases
from slotmesh.runtime.clock import Clock

STOOD_STILL_S: Final = 1.0
"""A timer that fires so much too late tells that this process did not run."""


class LeaseWatch:
    """Leases of one kind of members."""

    def __init__(self, clock: Clock, *, lease_s: float, on_silent: Callable[[str], None]) -> None:
        self.lease_s = lease_s
        self._clock = clock
        self._leases = Leases(lease_s=lease_s)
        self._on_silent = on_silent
        self._timer: asyncio.TimerHandle | None = None

    def heard(self, member: str) -> None:
        """The member has reported."""
        self._leases.renew(member, self._clock.now())
        if self._timer is None:
            self._sleep()

    def is_heard(self, member: str) -> bool:
        """Whether the member's lease has not run out."""
        return self._leases.is_renewed(member, self._clock.now())

    def end(self, member: str) -> None:
        """The member needs no lease any more."""
        self._leases.end(member)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _sleep(self) -> None:
        deadline = self._leases.next_deadline()
        if deadline is None:
            self._timer = None
            return
        delay_s = max(0.0, deadline - self._clock.now())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._look, deadline)

    def _look(self, deadline: float) -> None:
        now = self._clock.now()
        if now - deadline > STOOD_STILL_S:
            self._leases.renew_all(now)
        for member in self._leases.expire(now):
            self._on_silent(member)
        self._sleep()
