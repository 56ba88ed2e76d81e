"""Limits for each identified caller (calls, bytes, keys, sessions) and for each tenant (calls in flight, call rate).

Purpose: a caller's quotas span all of its streams and unary rpcs at this router; a tenant's limits apply to one tenant
of one caller at one endpoint.
Invariants: a share is given back when the outcomes of its calls have left, or when its stream or rpc ends. Callers
without an identity have no share. Quotas are checked once per batch, never per call.
Owner: the edge makes shares, callers take and return them; `TenantBook` makes tenant accounts, submissions and outcomes
count in them; the servicer of streams owns the `SessionQuota`. Times are monotonic seconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import Final

from router_service.core.limits.rates import RecentCount
from slotmesh.errors import Failure
from slotmesh.security.quotas import Quota, QuotaKind
from slotmesh.spec.rules import show
from slotmesh.spec.tenants import TenantLimit

RECENT_S: Final = 10.0
"""The time over which the busiest tenants are chosen."""
IN_FLIGHT_RETRY_S: Final = 0.1
"""When to try again what waits for other calls of the tenant to end."""


@dataclass(slots=True, eq=False)
class TenantFigures:
    """Totals since the tenant was named. They only grow."""

    accepted: int = 0
    """Calls accepted, those refused by a limit included."""
    refused: int = 0
    """Calls refused: by a limit of the tenant, or as a queue had no room for them."""
    failed: int = 0
    """Calls that ended in a failure, those refused included."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why some calls of a tenant are not admitted."""

    limit: str
    """The setting that they would pass."""
    most: int
    """Its value."""
    retry_delay_s: float


class TenantAccount:
    """One tenant of one caller at one endpoint: its unanswered calls, and how many more it may make.

    Compared by identity. The rate limit is a token bucket kept as one number: the time at which the bucket is full
    again.
    Invariants: `unanswered` is the number of calls without an outcome in the runs of this tenant, never negative.
    Source: the generic cell rate algorithm, https://en.wikipedia.org/wiki/Generic_cell_rate_algorithm.
    """

    __slots__ = ("caller", "endpoint", "figures", "full_at", "is_named", "name", "recent", "refused", "unanswered")

    def __init__(self, endpoint: str, caller: str, name: str, figures: TenantFigures) -> None:
        """`caller`: who states the tenant, empty where that is not known. `figures`: where its calls are counted."""
        self.endpoint = endpoint
        self.caller = caller
        self.name = name
        """Empty: all tenants for which there is no account of their own."""
        self.figures = figures
        self.is_named = False
        """Whether metrics name it."""
        self.unanswered = 0
        """Calls without an outcome."""
        self.full_at = 0.0
        """When its bucket has all of its calls again, monotonic seconds."""
        self.recent = RecentCount(RECENT_S)
        """Calls accepted lately."""
        self.refused = RecentCount(RECENT_S)
        """Calls refused lately, likewise."""

    @property
    def whose(self) -> str:
        """The tenant, in messages for people."""
        return f"tenant {show(self.name)!r}" if self.name else "tenants for which this router has no account left"

    def refuse(self, calls: int, now: float) -> None:
        """Counts calls that were refused: by a limit of the tenant, or as a queue had no room for them."""
        self.figures.refused += calls
        self.refused.add(calls, now)

    def is_idle(self, now: float) -> bool:
        """Whether a new account would be as good as this one."""
        return not self.unanswered and self.full_at <= now

    def admit(self, calls: int, limit: TenantLimit, now: float) -> tuple[int, Refused | None]:
        """Takes as many of the calls as the limit allows. Returns how many, and why not more.

        Call it before the calls are counted in `unanswered`.
        """
        refused: Refused | None = None
        admitted = calls
        if limit.max_in_flight is not None and (room := max(0, limit.max_in_flight - self.unanswered)) < admitted:
            admitted = room
            refused = Refused("max_in_flight", limit.max_in_flight, IN_FLIGHT_RETRY_S)
        if (rate := limit.max_calls_per_s) is None:
            return admitted, refused
        burst = limit.burst_or_default
        missing = max(0.0, self.full_at - now) * rate
        # A call is there once its whole token is. The tolerance is for times that were computed from one another.
        room = max(0, int(burst - missing + 1e-6))
        if room < admitted:
            admitted = room
            # Each refused call may be repeated when there is a token for it, or when the bucket is full.
            wanted = min(calls - admitted, burst)
            refused = Refused("max_calls_per_s", rate, (wanted - (burst - missing - admitted)) / rate)
        self.full_at = max(self.full_at, now) + admitted / rate
        return admitted, refused


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
