"""The limits of one tenant of an endpoint: calls per second by a token bucket, and calls without an outcome.

Purpose: the limits apply to one tenant of one caller at one endpoint.
Owner: `TenantBook` makes the accounts; submissions and outcomes count in them. Times are monotonic seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from router_service.core.limits.estimates import RecentCount
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
