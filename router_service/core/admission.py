"""How much may wait: calls and bytes, for each backend.

Purpose: bounds of the queues. Only what waits is charged; what can be sent at once passes without.
Invariants: `calls` and `size` are the sums over the waiting parts of the runs charged here, and never negative.
Owner: the scheduler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotmesh.errors import Failure, Reason

if TYPE_CHECKING:
    from router_service.core.calls import Run

RETRY_DELAY_S = 0.1
"""When a refused caller may try again."""


class Account:
    """What waits for one backend (or for an endpoint that has none yet)."""

    __slots__ = ("calls", "max_bytes", "max_calls", "max_queue_time_s", "name", "size")

    def __init__(self, name: str, max_calls: int, max_bytes: int, max_queue_time_s: float) -> None:
        self.name = name
        self.max_calls = max_calls
        self.max_bytes = max_bytes
        self.max_queue_time_s = max_queue_time_s
        self.calls = 0
        self.size = 0

    def charge(self, run: Run) -> int:
        """Charges the first waiting calls of the run that fit; returns how many of the waiting calls do."""
        waiting = run.waiting
        fits = min(waiting, max(0, self.max_calls - self.calls))
        payloads = run.payloads[run.cursor : run.cursor + fits]
        size = sum(map(len, payloads))
        while fits and self.size + size > self.max_bytes:
            fits -= 1
            size -= len(payloads[fits])
        self.calls += fits
        self.size += size
        run.account = self
        return fits

    def charge_all(self, run: Run) -> None:
        """Charges all waiting calls of a run that was admitted before, over the bounds if need be."""
        self.calls += run.waiting
        self.size += sum(map(len, run.payloads[run.cursor :]))
        run.account = self

    def release(self, run: Run, count: int) -> None:
        """The next `count` waiting calls of the run no longer wait."""
        self.calls -= count
        self.size -= sum(map(len, run.payloads[run.cursor : run.cursor + count]))

    def full(self) -> Failure:
        """What a caller hears whose calls do not fit."""
        return Failure(
            reason=Reason.QUEUE_FULL,
            message=(
                f"the queue of {self.name} is full: {self.calls} of {self.max_calls} calls and {self.size} of "
                f"{self.max_bytes} bytes wait; try again later, or raise max_queued_calls or max_queued_bytes"
            ),
            retry_delay_s=RETRY_DELAY_S,
            metadata={"backend": self.name},
        )
