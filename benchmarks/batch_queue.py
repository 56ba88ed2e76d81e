"""Two ways to make batches of calls that arrive one by one, simulated without anything around them. Pure.

Purpose: what a mesh is measured against, over the very arrivals that it had. Both have one station, which takes a batch
at a time.
Invariants: calls keep their order; a batch has 1 … `most_calls` calls, all of them there when it was cut; a station
never runs two.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """What a batch costs."""

    most_calls: int
    """In a batch."""
    batch_s: float
    """Of any batch."""
    call_s: float
    """More for each call in it."""

    def takes_s(self, calls: int) -> float:
        """Time that a batch of so many calls takes."""
        return self.batch_s + calls * self.call_s

    @property
    def capacity(self) -> float:
        """Calls a second, if all batches are full."""
        return self.most_calls / self.takes_s(self.most_calls)


@dataclass(frozen=True, slots=True)
class FinishedBatch:
    """One that ran."""

    calls: int
    start_s: float


def work_conserving(arrivals_s: Sequence[float], station: Station) -> list[FinishedBatch]:
    """A batch is cut when the station is free, of all that is there: it idles only while nothing waits.

    `arrivals_s` ascend.
    """
    batches = []
    first, free_s = 0, -inf
    while first < len(arrivals_s):
        start_s = max(free_s, arrivals_s[first])
        behind = bisect_right(arrivals_s, start_s, first, min(first + station.most_calls, len(arrivals_s)))
        batches.append(FinishedBatch(behind - first, start_s))
        free_s = start_s + station.takes_s(behind - first)
        first = behind
    return batches


def cut_on_timer(arrivals_s: Sequence[float], station: Station, wait_s: float) -> list[FinishedBatch]:
    """A batch is cut when it is full or its first call has waited for `wait_s`, and queues as it is.

    `arrivals_s` ascend.
    """
    batches = []
    first, free_s = 0, -inf
    while first < len(arrivals_s):
        end = min(first + station.most_calls, len(arrivals_s))
        full_s = arrivals_s[end - 1] if end - first == station.most_calls else inf
        cut_s = min(full_s, arrivals_s[first] + wait_s)
        behind = bisect_right(arrivals_s, cut_s, first, end)
        start_s = max(cut_s, free_s)
        batches.append(FinishedBatch(behind - first, start_s))
        free_s = start_s + station.takes_s(behind - first)
        first = behind
    return batches


def waits_s(arrivals_s: Sequence[float], batches: Sequence[FinishedBatch]) -> list[float]:
    """From each call's arrival to the start of its batch, in the order of arrival.

    Raises:
        ValueError: the batches hold more or fewer calls than arrived.
    """
    starts_s = [batch.start_s for batch in batches for _ in range(batch.calls)]
    return [start_s - arrived_s for arrived_s, start_s in zip(arrivals_s, starts_s, strict=True)]
