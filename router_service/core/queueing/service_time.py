"""How long replicas of a backend take for a call, lately: what must be left of its time for sending it to be of use.

Purpose: under overload a FIFO works off calls when their time is nearly up. Sent then, each would keep a slot and still
be late: nothing would ever be answered in time. So a call that waits ends when its time left is too short.
Invariants: never more than half of a call's time; 0 before anything was answered.
Source: the estimate is that of TCP's timeout (Jacobson, Congestion avoidance and control, 1988): mean and deviation.
Owner: the backend's account.
"""

from __future__ import annotations

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
