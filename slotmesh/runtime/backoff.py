"""Exponential back-off with full jitter, so that clients that lost the same peer do not return at the same moment.

Also for log messages: an absent peer produces one line a minute, not one per attempt.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from slotmesh.user_code import described, type_name

FORGOTTEN_AFTER_S: Final = 120.0
"""A failure that has not occurred for this long is reported as a new one: twice the longest interval."""


class Backoff:
    """The delay before each retry: random between 0 and a ceiling that doubles up to `max_s`."""

    def __init__(
        self,
        *,
        initial_s: float = 0.1,
        max_s: float = 1.0,
        factor: float = 2.0,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`draw` returns numbers in [0, 1)."""
        if not (0 < initial_s <= max_s and factor >= 1):
            raise ValueError(f"need 0 < initial_s <= max_s and factor >= 1, got {initial_s}, {max_s}, {factor}")
        self._initial_s = initial_s
        self._max_s = max_s
        self._factor = factor
        self._draw = draw
        self._ceiling_s = initial_s

    def next_delay_s(self) -> float:
        """Seconds to wait before the next attempt."""
        delay_s = self._ceiling_s * self._draw()
        self._ceiling_s = min(self._max_s, self._ceiling_s * self._factor)
        return delay_s

    def reset(self) -> None:
        """Call after a success: the next failure starts with the first delay."""
        self._ceiling_s = self._initial_s


class WarningBackoff:
    """Decides whether a repeated warning is logged: the first one, then with growing intervals."""

    def __init__(self, *, initial_s: float = 2.0, max_s: float = 60.0) -> None:
        """The interval after the first warning, which doubles up to `max_s`."""
        self._initial_s = initial_s
        self._max_s = max_s
        self._rest_s = initial_s
        self._due_at = -inf
        self._left_out = 0

    def take(self, now: float) -> int | None:
        """If a warning is due at that time, the number suppressed since the last one; otherwise None."""
        if now < self._due_at:
            self._left_out += 1
            return None
        self._due_at = now + self._rest_s
        self._rest_s = min(self._max_s, self._rest_s * 2)
        left_out, self._left_out = self._left_out, 0
        return left_out

    def reset(self) -> None:
        """Call after a success: the next failure is logged immediately."""
        self._rest_s, self._due_at, self._left_out = self._initial_s, -inf, 0


@dataclass(slots=True)
class _KnownFailure:
    """The failures of one class of exceptions."""

    warnings: WarningBackoff = field(default_factory=WarningBackoff)
    failed_at: float = -inf
    reported: str = ""
    """The text that was logged last."""


@dataclass(frozen=True, slots=True)
class DueReport:
    """A failure that should be logged."""

    what: str
    """The class and the text of the exception."""
    times_before: int
    """The number of failures of this class that were not logged since the last one that was."""
    traceback: Exception | None
    """The exception, if its traceback should be logged: None if the same failure was logged before."""


class FailureReports:
    """Decides which failures of work that is tried again are logged: each class of exceptions backs off by itself."""

    def __init__(self) -> None:
        self._known: dict[str, _KnownFailure] = {}

    def take(self, error: Exception, now: float) -> DueReport | None:
        """Call at each failure. None: it is not logged."""
        kind, what = type_name(error), described(error)
        known = self._known.get(kind)
        if known is None or now - known.failed_at >= FORGOTTEN_AFTER_S:
            known = self._known[kind] = _KnownFailure()
        known.failed_at = now
        if (times_before := known.warnings.take(now)) is None:
            return None
        is_same, known.reported = known.reported == what, what
        return DueReport(what, times_before, None if is_same else error)
