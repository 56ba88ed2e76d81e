"""How many calls may be executed again: a retry budget.

Purpose: a lost `idempotent` call is sent anew, but a backend that keeps failing is not hit harder for it.
Invariants: within `WINDOW_S`, decaying, there are at most `SHARE` retries for each call that ended well, but `FLOOR`
always may be. What was never sent, or was handed back untouched, is no retry.
Owner: the backend.
"""

from __future__ import annotations

from router_service.core.queueing.recent_count import RecentCount

SHARE = 0.2
FLOOR = 3
WINDOW_S = 10.0


class RetryBudget:
    """What is left for retries."""

    __slots__ = ("_calls", "_retries")

    def __init__(self) -> None:
        self._calls = RecentCount(WINDOW_S)
        self._retries = RecentCount(WINDOW_S)

    def answered(self, count: int, now: float) -> None:
        """Calls ended well."""
        self._calls.add(count, now)

    def take(self, count: int, now: float) -> int:
        """Takes up to `count` retries out of the budget; returns how many there were."""
        # Rounded, because 15.000000001 are 15.
        allowed = round(max(FLOOR, SHARE * self._calls.value(now)) - self._retries.value(now), 6)
        granted = min(count, max(0, int(allowed)))
        self._retries.add(granted, now)
        return granted
