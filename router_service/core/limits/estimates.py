"""Exponentially decaying figures: event counts, service times, and the rate at which a queue drains.

Invariants: no figure is negative. An event that is `window_s` old weighs 1/e of a current one. Decay is applied lazily,
so adding costs a comparison.
Owner: the part that counts; a backend's account owns its `ServiceTime` and `DrainRate`.
"""

from __future__ import annotations

from math import exp

_GAIN = 1 / 16


class ServiceTime:
    """Moving mean and mean deviation of a backend's recent service times, seconds.

    Purpose: under overload, a FIFO reaches calls when their deadline is near. If the router sent them then, each would
    occupy a slot and still be late, and no call would be answered in time. So a waiting call ends when the time it has
    left is too short to be of use.
    Invariants: the estimate is at most half of a call's time; 0 before the first answer.
    Source: the estimator of TCP's retransmission timeout (Jacobson, Congestion Avoidance and Control, 1988).
    """

    __slots__ = ("_deviation_s", "_mean_s")

    def __init__(self) -> None:
        self._mean_s = self._deviation_s = 0.0

    def observe(self, seconds: float, *, is_cold: bool = False) -> None:
        """A slice was answered that long after it was sent. Not counted if it may have waited for a model's load."""
        if is_cold:
            return
        off_s = seconds - self._mean_s
        if self._mean_s:
            self._mean_s += _GAIN * off_s
            self._deviation_s += _GAIN * (abs(off_s) - self._deviation_s)
        else:
            self._mean_s = seconds

    @property
    def mean_s(self) -> float:
        """The mean; 0 before the first answer."""
        return self._mean_s

    def reserve_s(self, timeout_s: float) -> float:
        """What must be left of a call's time, if it may take `timeout_s` in all."""
        return min(self._mean_s + 2.0 * self._deviation_s, timeout_s / 2)


_DECAYS_PER_WINDOW = 16


class RecentCount:
    """A count of events that decays exponentially."""

    __slots__ = ("_at", "_count", "_decay_at", "_since", "_step_s", "_window_s")

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._step_s = window_s / _DECAYS_PER_WINDOW
        self._count = 0.0
        self._at = self._since = 0.0
        self._decay_at = 0.0
        """Time at which the count must be decayed; 0 before the first event."""

    def add(self, count: float, now: float) -> None:
        """`count` more happened, at `now` (monotonic seconds)."""
        if now >= self._decay_at:
            self._decay(now)
        self._count += count

    def value(self, now: float) -> float:
        """The count, decayed."""
        self._decay(now)
        return self._count

    def rate(self, now: float) -> float:
        """How much happens a second. Right from the start: what was before the first event is not averaged in."""
        count = self.value(now)
        known_s = now - self._since + self._step_s
        return count / (self._window_s * (1.0 - exp(-known_s / self._window_s)))

    def _decay(self, now: float) -> None:
        if not self._decay_at:
            self._since = self._at = now
        elif now > self._at:
            self._count *= exp((self._at - now) / self._window_s)
            self._at = now
        self._decay_at = now + self._step_s


class DrainRate:
    """Calls sent per second while calls wait in the queue; retry delays are computed from it.

    Invariants: time in which the queue is empty does not count. Otherwise a caller that retries at a queue which ran
    empty would get a longer delay each time.
    """

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
