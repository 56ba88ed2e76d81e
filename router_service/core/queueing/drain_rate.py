"""How fast a queue drains while something waits in it: what retry delays are computed from.

Invariants: time in which nothing waits does not count. Otherwise a caller that retries at a queue that ran empty
meanwhile would get a longer delay each time.
Owner: the queue's account.
"""

from __future__ import annotations

from router_service.core.queueing.recent_count import RecentCount


class DrainRate:
    """Calls sent a second of waiting."""

    __slots__ = ("_drained", "_seen_at", "_since", "_waited_s")

    def __init__(self, window_s: float) -> None:
        self._drained = RecentCount(window_s)
        """On a clock of its own, which stands still while nothing waits."""
        self._waited_s = 0.0
        """That clock, at `_seen_at`."""
        self._seen_at: float | None = None
        """Monotonic seconds; None while nothing waits."""
        self._since = 0.0
        """Since when something has been waiting, on that clock."""

    def waits(self, now: float) -> bool:
        """Something waits, at the latest from `now` on. Returns whether nothing has waited before."""
        if self._seen_at is not None:
            return False
        self._seen_at = now
        self._since = self._waited_s
        return True

    def sent(self, count: int, now: float) -> None:
        """`count` calls that waited were sent."""
        self._drained.add(count, self._clock(now))

    def empty(self) -> None:
        """Nothing waits any more."""
        self._seen_at = None

    def per_s(self, now: float) -> float:
        """0 where nothing was ever sent."""
        return self._drained.rate(self._clock(now))

    def waiting_s(self, now: float) -> float:
        """How long something has been waiting without a pause."""
        return self._clock(now) - self._since

    def _clock(self, now: float) -> float:
        if self._seen_at is not None and now > self._seen_at:
            self._waited_s += now - self._seen_at
            self._seen_at = now
        return self._waited_s
