"""What the ingress counts, as plain integers that a scrape reads. Pure.

Invariant: labels are of closed sets: paths of routes that there are or were, one for all default routes, classes of
statuses. What belongs to no route is counted under `_none`.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Final

from slotmesh.histogram import Histogram

NO_ROUTE: Final = "_none"
MAX_LABELS: Final = 1_000
OTHER: Final = "_other"


class ConnectionCut(StrEnum):
    """Why the ingress has closed a connection, or not taken it."""

    CONNECTIONS = "too many connections"
    HEADERS = "headers too large"
    HEADER_TIME = "headers too slow"
    BODY_TIME = "body too slow"
    READ_TIME = "response not read"
    NONSENSE = "no HTTP"
    AHEAD = "too much sent ahead"


class Counters:
    """Since the start of the process."""

    __slots__ = ("cuts", "in_flight", "left", "requests", "times", "values")

    def __init__(self) -> None:
        self.requests = Counter[tuple[str, int]]()
        """Answered requests, by route and status."""
        self.times: dict[str, Histogram] = {}
        """Seconds from a request's headers to its answer, by route."""
        self.values = Counter[str]()
        """Values that were sent one by one, by route."""
        self.left = Counter[str]()
        """Requests whose clients left before the answer, by route."""
        self.cuts = Counter[ConnectionCut]()
        self.in_flight = 0

    def answered(self, label: str, status: int, seconds: float) -> None:
        times = self.times.get(label)
        if times is None:
            if len(self.times) >= MAX_LABELS:
                label = OTHER
            times = self.times.setdefault(label, Histogram())
        self.requests[label, status] += 1
        times.observe(seconds, 1)
