"""The counters of the replica: plain integers, read at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from slotmesh.errors import Reason


class ReplicaCounters:
    """Totals since the start."""

    __slots__ = ("batches", "blocked_s", "blocks", "calls", "failures", "on_batch")

    def __init__(self) -> None:
        self.calls = 0
        """Calls executed to their end, well or not."""
        self.failures: Counter[Reason] = Counter()
        """Calls that ended in a failure here."""
        self.batches = 0
        self.blocks = 0
        """Times that the handler has blocked its event loop."""
        self.blocked_s = 0.0
        """For how long, those that have ended."""
        self.on_batch: Callable[[int], None] | None = None
        """Called with each batch's number of calls."""

    def batch(self, calls: int) -> None:
        """A batch of so many calls was handed to an executor."""
        self.batches += 1
        if self.on_batch is not None:
            self.on_batch(calls)
