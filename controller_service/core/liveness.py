"""Leases of members: which have reported, and which have been silent for too long.

Invariants: a member has one lease or none; `expire` names each silent member once, until it reports again; that a
member is silent does not mean that it is dead (`transitions` decides that).
Owner: `shell.lease_watch`. Mutable, because it changes with every report of every member; a renewal costs O(1).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field


@dataclass(slots=True)
class Leases:
    """Deadlines by member."""

    lease_s: float
    """Seconds of silence that are allowed."""
    _heard: dict[str, float] = field(default_factory=dict[str, float])
    """When each member reported last."""
    _checks: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    """When to look at each member: one entry a member, never later than its deadline."""
    _checked: set[str] = field(default_factory=set[str])
    """Members that have an entry."""

    def renew(self, member: str, now: float) -> None:
        """The member has reported."""
        self._heard[member] = now
        self._check(member, now + self.lease_s)

    def is_renewed(self, member: str, now: float) -> bool:
        """Whether the member has a lease that has not run out."""
        heard = self._heard.get(member)
        return heard is not None and now < heard + self.lease_s

    def end(self, member: str) -> None:
        """The member needs no lease any more."""
        self._heard.pop(member, None)

    def renew_all(self, now: float) -> None:
        """Nobody has listened for a while: every member gets the time of a lease to report."""
        for member in self._heard:
            self._heard[member] = now

    def expire(self, now: float) -> list[str]:
        """Drops and returns the members that have been silent for too long."""
        silent: list[str] = []
        while self._checks and self._checks[0][0] <= now:
            member = self._pop()
            heard = self._heard.get(member)
            if heard is None:
                continue
            if heard + self.lease_s <= now:
                del self._heard[member]
                silent.append(member)
            else:
                self._check(member, heard + self.lease_s)
        return silent

    def next_deadline(self) -> float | None:
        """When to call `expire` next, seconds; None where no member has a lease."""
        while self._checks and self._checks[0][1] not in self._heard:
            self._pop()
        return self._checks[0][0] if self._checks else None

    def _check(self, member: str, at: float) -> None:
        if member not in self._checked:
            self._checked.add(member)
            heapq.heappush(self._checks, (at, member))

    def _pop(self) -> str:
        _, member = heapq.heappop(self._checks)
        self._checked.discard(member)
        return member
