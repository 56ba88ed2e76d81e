"""How quickly calls are got through, by method: what routers choose by how many of them travel together.

Purpose: one figure a method, the time that the replica needs for one call more: of quick calls and of batches what each
takes of the handler, of calls that wait beside one another their time divided by how many do, of a call alone its time.
How long calls stand in a queue is not in it, nor what a frame costs whatever is in it.
Invariants: a figure is a mean over what has ended the latest `WINDOW_ENDS` times, so that a call that took long, as the
first one does or one that the machine interrupted, is soon forgotten; routers are told again only where it is twice or
half of what they were told.
Source: the service demand of operational analysis, busy time over completions (Denning and Buzen, The Operational
Analysis of Queueing Network Models, 1978).
Owner: the scheduler.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

from slotmesh.pacing import QUICK_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replica_service.core.batcher import Batcher

LEAST_S = 1e-6
"""What is shorter is told as this: in a frame, other things cost as much."""
FRAME_S = 0.00025
"""What goes by from the start of calls to their end however few and quick they are: turns of the event loop, mostly.
Not where they follow others."""
WINDOW_ENDS = 8
"""Ends that a mean is taken over, about. Of calls that end together it is one."""
_KEEP = 1 - 1 / WINDOW_ENDS


class MethodTime(NamedTuple):
    """What a router is told of one method."""

    method: str
    service_s: float
    """Seconds."""
    batch_size: int
    """Calls that it takes at once, at most; 0 where it takes one."""


class _Mean:
    """Busy time over completions, of the latest calls."""

    __slots__ = ("busy_s", "calls")

    def __init__(self) -> None:
        self.busy_s = 0.0
        self.calls = 0.0

    def add(self, calls: int, seconds: float) -> float:
        """Returns the mean."""
        self.busy_s = self.busy_s * _KEEP + seconds
        self.calls = self.calls * _KEEP + calls
        return max(self.busy_s / self.calls, LEAST_S)


class ServiceTimes:
    """Moving means, and what was told of them."""

    __slots__ = ("_batchers", "_ended_at", "_latest_s", "_means", "_told", "version")

    def __init__(self, batchers: Mapping[str, Batcher]) -> None:
        """`batchers`: those of the batch methods, by name."""
        self._batchers = batchers
        self._means: dict[str, _Mean] = {}
        self._told: dict[str, MethodTime] = {}
        self._ended_at = -inf
        """When calls, of whatever method, have ended last."""
        self._latest_s = inf
        """Mean of the method of which they were."""
        self.version = 0
        """Counts what is worth telling; 0 where nothing was measured."""

    def ended(self, method: str, calls: int, started_at: float, now: float) -> None:
        """So many calls have ended together, that were started together."""
        if not calls:
            return
        mean = self._means.get(method)
        if mean is None:
            mean = self._means[method] = _Mean()
        is_first = started_at >= self._ended_at
        seconds = max(0.0, now - started_at - FRAME_S) if is_first else now - self._ended_at
        self._latest_s = mean_s = mean.add(calls, seconds)
        self._ended_at = now
        batcher = self._batchers.get(method)
        size = 0 if batcher is None else batcher.size
        told = self._told.get(method)
        if told is None or told.batch_size != size or not told.service_s / 2 < mean_s < told.service_s * 2:
            self._told[method] = MethodTime(method, mean_s, size)
            self.version += 1

    @property
    def told(self) -> list[MethodTime]:
        """What routers are to know, as of `version`."""
        return list(self._told.values())

    @property
    def are_quick(self) -> bool:
        """Whether calls are quick, going by those that have ended last: others will end soon, too."""
        return self._latest_s < QUICK_S
