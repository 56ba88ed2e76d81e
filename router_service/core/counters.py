"""What the router counts: plain integers that a scrape reads, so that counting costs nothing worth measuring.

Invariants: totals only grow; labels come from the routing table and the reasons, never from callers' input.
Owner: the scheduler.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotmesh.errors import Failure

UNKNOWN = ""
"""Label of an endpoint that the table does not name."""


class Counters:
    """Totals since the start of the process."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, ...]] = Counter()
        """Calls accepted, by endpoint."""
        self.failures: Counter[tuple[str, ...]] = Counter()
        """Calls failed, by endpoint, backend and reason."""
        self.refusals: Counter[tuple[str, ...]] = Counter()
        """Calls that a replica handed back, by backend and reason."""
        self.link_failures: Counter[tuple[str, ...]] = Counter()
        """Links to replicas that broke, by backend."""
        self.frames: Counter[tuple[str, ...]] = Counter()
        """Frames with calls and with results of clients, by direction."""
        self.streams = 0
        """Client streams open now."""

    def failed(self, endpoint: str, failure: Failure, count: int) -> None:
        """`count` calls failed alike."""
        self.failures[endpoint, failure.metadata.get("backend", ""), failure.reason.value] += count
