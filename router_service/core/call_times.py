"""How long calls take, by endpoint and method: in the queue, and from arrival to outcome.

Purpose: what callers wait for, where the times of a backend are those of all its methods together.
Invariants: labels are bounded, whatever callers send: a method has one of its own once a call of it was executed, and
at most `MAX_METHODS` of an endpoint do; all others share `OTHER`.
Owner: the scheduler's outcomes.
"""

from __future__ import annotations

from typing import Final

from slotmesh.histogram import Histogram

MAX_METHODS: Final = 32
OTHER: Final = "_other"


class MethodTimes:
    """Of calls that were executed, in seconds."""

    __slots__ = ("queue_time", "total_time")

    def __init__(self) -> None:
        self.queue_time = Histogram()
        """From arrival to the replica's outbox, once a slice of answers."""
        self.total_time = Histogram()
        """From arrival to the outcome, once a slice of answers."""


class CallTimes:
    """Of all endpoints."""

    def __init__(self) -> None:
        self.by_method: dict[tuple[str, str], MethodTimes] = {}
        """By endpoint and method."""
        self._methods: dict[str, int] = {}
        """How many of each endpoint there are."""

    def executed(self, endpoint: str, method: str, waited_s: float, total_s: float, count: int) -> None:
        """So many calls were executed alike."""
        times = self.by_method.get((endpoint, method)) or self._add(endpoint, method)
        times.queue_time.observe(waited_s, count)
        times.total_time.observe(total_s, count)

    def _add(self, endpoint: str, method: str) -> MethodTimes:
        known = self._methods.get(endpoint, 0)
        if known >= MAX_METHODS:
            return self.by_method.setdefault((endpoint, OTHER), MethodTimes())
        self._methods[endpoint] = known + 1
        return self.by_method.setdefault((endpoint, method), MethodTimes())
