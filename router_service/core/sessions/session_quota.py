"""How many sessions each known caller has: those that are connected, and those that it has left open.

Purpose: replicas keep what they know of a session for a while after its connection has broken, so that it can go on.
Who opens sessions and leaves them without an end takes that room from others.
Invariants: a session counts from its opening until it ends in order, or until it was left alone for `KEPT_S`; once,
however often it was connected.
Owner: the servicer of streams. All times are monotonic seconds.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

from slotmesh.errors import Failure
from slotmesh.security.quotas import Quota, QuotaKind

MAX_SESSIONS: Final = 4_096
"""Sessions of one caller."""
KEPT_S: Final = 60.0
"""For how long a session counts that was left: as long as replicas keep it by default (`resume_ttl`)."""


class SessionQuota:
    """Those of all callers of one router."""

    def __init__(self, most: int = MAX_SESSIONS) -> None:
        self.quota = Quota(QuotaKind.SESSIONS, most, "max_sessions_per_caller")
        self._until: dict[tuple[str, str], float] = {}
        """By caller and session, until when it counts; infinite while it is connected."""
        self._left: deque[tuple[float, tuple[str, str]]] = deque()
        """Those that were left, by age; some may be connected again, or have ended."""

    def opened(self, who: str, session_id: str, now: float) -> Failure | None:
        """The caller connects a session, new or not; or why it may not."""
        self._forget(now)
        if not who:
            return None
        key = (who, session_id)
        if key not in self._until:
            if (failure := self.quota.refusal(who)) is not None:
                return failure
            self.quota.take(who)
        self._until[key] = inf
        return None

    def ended(self, who: str, session_id: str, now: float, *, in_order: bool) -> None:
        """The newest connection of the session is gone. `in_order`: its client has ended it."""
        self._forget(now)
        key = (who, session_id)
        if key not in self._until:
            return
        if in_order:
            del self._until[key]
            self.quota.give(who)
        else:
            until = self._until[key] = now + KEPT_S
            self._left.append((until, key))

    def _forget(self, now: float) -> None:
        left = self._left
        while left and left[0][0] <= now:
            until, key = left.popleft()
            if self._until.get(key) == until:
                del self._until[key]
                self.quota.give(key[0])
