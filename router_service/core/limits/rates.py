"""How much happened lately: an exponentially decaying count.

Invariants: never negative; what happened `window_s` ago weighs 1/e of what happens now. Decay is put off until it
matters, so that adding costs a comparison.
Owner: the part that counts.
"""

from __future__ import annotations

from math import exp

# How long replicas of a backend take for a call, lately: what must be left of its time for sending it to be of use.
#
# Purpose: under overload a FIFO works off calls when their time is nearly up. Sent then, each would keep a slot and
# still
# be late: nothing would ever be answered in time. So a call that waits ends when its time left is too short.
# Invariants: never more than half of a call's time; 0 before anything was answered.
# Source: the estimate is that of TCP's timeout (Jacobson, Congestion avoidance and control, 1988): mean and deviation.
# Owner: the backend's account.

_GAIN = 1 / 16


class ServiceTime:
    """Moving mean and mean deviation, in seconds."""

    __slots__ = ("_deviation_s", "_mean_s")

    def __init__(self) -> None:
        self._mean_s = self._deviation_s = 0.0

    def observe(self, seconds: float) -> None:
        """A slice was answered that long after it was sent."""
        off_s = seconds - self._mean_s
        if self._mean_s:
            self._mean_s += _GAIN * off_s
            self._deviation_s += _GAIN * (abs(off_s) - self._deviation_s)
        else:
            self._mean_s = seconds

    def reserve_s(self, timeout_s: float) -> float:
        """What must be left of a call's time, if it may take `timeout_s` in all."""
        return min(self._mean_s + 2.0 * self._deviation_s, timeout_s / 2)


_DECAYS_PER_WINDOW = 16


class RecentCount:
    """A count that forgets."""

    __slots__ = ("_at", "_count", "_decay_at", "_since", "_step_s", "_window_s")

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._step_s = window_s / _DECAYS_PER_WINDOW
        self._count = 0.0
        self._at = self._since = 0.0
        self._decay_at = 0.0
        """When the count must be brought up to date; 0 before the first."""

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


# How fast a queue drains while something waits in it: what retry delays are computed from.
#
# Invariants: time in which nothing waits does not count. Otherwise a caller that retries at a queue that ran empty
# meanwhile would get a longer delay each time.
# Owner: the queue's account.


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
