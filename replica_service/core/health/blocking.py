"""Whether a handler blocks its event loop, judged by how long the loop takes to give a sign of life.

Purpose: distinguishes a loop that is blocked from one whose thread did not get a processor.
Invariants: what the machine does to the loop's thread does not count: while it waits for a processor, and while the
watch could not look, as when the whole process was stopped, unless the thread has computed meanwhile. Each time that
the loop is blocked for too long is reported once, and its end once.
Owner: the loop watch, in its thread.
"""

from __future__ import annotations

from typing import Final, NamedTuple

LOOKS: Final = 4
"""Looks within the time that a loop may be kept."""
MIN_INTERVAL_S: Final = 0.02
LATE: Final = 1.5
"""A look may be late by half its interval; time beyond that was not observed."""


class Look(NamedTuple):
    """What is to be seen of the loop's thread at one moment. Only differences mean something."""

    now: float
    """Monotonic seconds."""
    cpu_s: float
    """Seconds of a processor that the thread has had."""
    queued_s: float
    """Seconds for which the thread was ready and others had the processors; 0 throughout where that is unknown."""


class Blocking:
    """How long the loop has been kept, since a sign of life was asked for."""

    def __init__(self, after_s: float) -> None:
        """A loop that is kept for longer than `after_s` is blocked."""
        self.interval_s = max(after_s / LOOKS, MIN_INTERVAL_S)
        """How often the watch should look."""
        self._after_s = after_s
        self._last = Look(0.0, 0.0, 0.0)
        self._kept_s = 0.0
        self._is_told = False

    def asked(self, look: Look) -> None:
        """The loop was asked for a sign of life, or it is idle and will give it."""
        self._last = look
        self._kept_s = 0.0
        self._is_told = False

    def silent(self, look: Look) -> float | None:
        """It has given none yet. Returns for how long it has been kept when that is too long, once."""
        self._count(look)
        if self._is_told or self._kept_s < self._after_s:
            return None
        self._is_told = True
        return self._kept_s

    def answered(self, look: Look) -> float | None:
        """The loop gave a sign of life by this look. Returns for how long it was blocked, where that was reported."""
        self._count(look)
        return self._kept_s if self._is_told else None

    def _count(self, look: Look) -> None:
        last, self._last = self._last, look
        seen_s = min(look.now - last.now, LATE * self.interval_s)
        self._kept_s += max(seen_s - (look.queued_s - last.queued_s), look.cpu_s - last.cpu_s, 0.0)
