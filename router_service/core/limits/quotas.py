"""Limits for each identified caller: calls, bytes, keys, sessions.

Purpose: a caller's quotas span all of its streams and unary rpcs at this router.
Invariants: a share is given back when the outcomes of its calls have left, or when its stream or rpc ends. Callers
without an identity have no share. Quotas are checked once per batch, never per call.
Owner: the edge makes shares, callers take and return them; the servicer of streams owns the `SessionQuota`. Times are
monotonic seconds.
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
    """The number of open sessions of each identified caller of one router, connected or not.

    Purpose: replicas keep the state of a session for a while after its connection breaks, so that it can resume. A
    caller that opens sessions and abandons them takes that room from other callers.
    Invariants: a session counts once, however often it connects, from its opening until it ends in order or has been
    without a connection for `KEPT_S`.
    """

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


MAX_CALLS = 131_072
"""Unanswered calls of one caller: the windows of sixteen streams."""
MAX_BYTES = 256 * 1024 * 1024
"""Payload bytes of these."""
MAX_KEYS = 65_536
"""Ordering keys of one caller of which it is known where they have stopped."""


class CallQuotas:
    """The quotas of calls, of one router."""

    def __init__(self, max_calls: int = MAX_CALLS, max_bytes: int = MAX_BYTES) -> None:
        self.calls = Quota(QuotaKind.CALLS, max_calls, "max_calls_per_caller")
        self.bytes = Quota(QuotaKind.BYTES, max_bytes, "max_bytes_per_caller")
        self.keys = Quota(QuotaKind.KEYS, MAX_KEYS, "fixed")

    def share_of(self, who: str) -> CallerShare | None:
        """The share of the caller of this name; None if it has none: nothing is counted."""
        return CallerShare(self, who) if who else None


class CallerShare:
    """The share of one caller's quotas that one stream or rpc holds."""

    __slots__ = ("_quotas", "_who")

    def __init__(self, quotas: CallQuotas, who: str) -> None:
        self._quotas = quotas
        self._who = who

    @property
    def who(self) -> str:
        """The name of the caller."""
        return self._who

    def refusal(self, calls: int, size: int) -> Failure | None:
        """Why the caller may not add `calls` calls with `size` payload bytes; None if it may."""
        quotas, who = self._quotas, self._who
        return quotas.calls.refusal(who, calls) or quotas.bytes.refusal(who, size)

    def take(self, calls: int, size: int) -> None:
        """It has them."""
        self._quotas.calls.take(self._who, calls)
        self._quotas.bytes.take(self._who, size)

    def give(self, calls: int, size: int) -> None:
        """It has them no longer."""
        self._quotas.calls.give(self._who, calls)
        self._quotas.bytes.give(self._who, size)

    @property
    def has_room_for_key(self) -> bool:
        """Whether of one more ordering key it may be remembered that it has stopped."""
        return not self._quotas.keys.is_full(self._who)

    def take_key(self) -> None:
        """Of one more it is remembered."""
        self._quotas.keys.take(self._who)

    def give_keys(self, count: int) -> None:
        """Returns `count` keys to the quota."""
        self._quotas.keys.give(self._who, count)


class CallerQuotas:
    """The quotas of one router for each caller, except for the number of streams, which each server counts itself."""

    def __init__(self, calls: CallQuotas | None = None, sessions: SessionQuota | None = None) -> None:
        self.calls = calls or CallQuotas()
        self.sessions = sessions or SessionQuota()

    @property
    def all(self) -> tuple[Quota, ...]:
        """Each of them."""
        return self.calls.calls, self.calls.bytes, self.calls.keys, self.sessions.quota
