"""The counters of the replica: plain integers, read at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from slotmesh.errors import Reason

REFUSED_HERE: Final = (Reason.METHOD_NOT_FOUND, Reason.BAD_ARGUMENTS)
"""Failures of calls that the handler could not take: they count as ended, though nothing was executed."""
FAULTS: Final = (*REFUSED_HERE, Reason.HANDLER_ERROR, Reason.DEADLINE_RUNNING, Reason.BATCH_SIZE_MISMATCH)
"""Failures that another version of the handler may have, or not have."""


class ReplicaCounters:
    """Totals since the start."""

    __slots__ = ("batched_calls", "batches", "blocked_s", "blocks", "calls", "failures", "on_batch")

    def __init__(self) -> None:
        self.calls = 0
        """Calls executed to their end, well or not."""
        self.failures: Counter[Reason] = Counter()
        """Calls that ended in a failure here."""
        self.batches = 0
        self.batched_calls = 0
        """Calls in these."""
        self.blocks = 0
        """Times that the handler has blocked its event loop."""
        self.blocked_s = 0.0
        """For how long, those that have ended."""
        self.on_batch: Callable[[int], None] | None = None
        """Called with each batch's number of calls."""

    @property
    def ended_calls(self) -> int:
        """Calls that came to the handler, and have ended."""
        return self.calls + sum(self.failures[reason] for reason in REFUSED_HERE)

    @property
    def failed_calls(self) -> int:
        """Those of them that have failed for what the handler is."""
        return min(self.ended_calls, sum(self.failures[reason] for reason in FAULTS))

    def batch(self, calls: int) -> None:
        """A batch of so many calls was handed to an executor."""
        self.batches += 1
        self.batched_calls += calls
        if self.on_batch is not None:
            self.on_batch(calls)


NOTHING_COUNTED: Final = ReplicaCounters()
"""Of a replica that has no handler yet; to be read."""
