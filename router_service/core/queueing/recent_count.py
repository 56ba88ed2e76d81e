"""How much happened lately: an exponentially decaying count.

Invariants: never negative; what happened `window_s` ago weighs 1/e of what happens now. Decay is put off until it
matters, so that adding costs a comparison.
Owner: the part that counts.
"""

from __future__ import annotations

from math import exp

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
