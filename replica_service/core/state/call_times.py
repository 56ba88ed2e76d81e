"""How long calls take, by method. Routers decide by it how many calls travel together.

Purpose: one figure a method, the time of a call. Of calls that are executed one after another, and of those in a batch,
it is what each takes of the handler; of calls that wait, beside others, their time from start to end. The time that
calls wait in queues is not in it, nor the fixed cost of a frame.
Invariants: a figure is a mean over what has ended the latest `WINDOW_ENDS` times, so that one slow call, as the first
one or one that the machine interrupted, soon has no weight; a figure is reported again only where it is twice or half
of the one that was reported.
Source: the service demand of operational analysis, busy time over completions (Denning and Buzen, The Operational
Analysis of Queueing Network Models, 1978).
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from replica_service.core.calls.commands import StartBatch
from replica_service.core.calls.runs import ReplicaRun, StartTurn
from replica_service.core.state.batcher import Batcher
from slotmesh.histogram import CALL_TIMES, Histogram
from slotmesh.streams.pacing import QUICK_S

# How long calls wait at the replica, and how long they run there.
#
# Purpose: shows which replica of a backend is slow. Two histograms in plain integers: `waits` from the arrival of a
# call
# until it starts, `runs` from its start to its end.
# A call starts when it gets its permit, and a call of a batch method when its batch is cut. Calls of one ordering key
# run
# one after another, so each counts with its share of the time of their turn. A call that yields values runs until its
# generator is closed: a slow reader makes it longer.
# Invariants: totals only grow; each call counts once, when it has ended; the cost is per piece of work, however many
# calls are in it.
# Owner: the scheduler.


class ReplicaCallTimes:
    """Of all calls since the start."""

    __slots__ = ("runs", "waits")

    def __init__(self) -> None:
        self.waits = Histogram(CALL_TIMES)
        self.runs = Histogram(CALL_TIMES)

    def calls_ended(self, run: ReplicaRun, count: int, now: float) -> None:
        """This number of calls of the run have ended."""
        self.waits.observe(run.started_at - run.arrived, count)
        self.runs.observe(now - run.started_at, count)

    def batch_ended(self, batch: StartBatch, now: float) -> None:
        """A batch has ended."""
        self.runs.observe(now - batch.started_at, batch.count)
        for run, lo, hi in batch.parts:
            self.waits.observe(batch.started_at - run.arrived, hi - lo)

    def turn_ended(self, turn: StartTurn, count: int, now: float) -> None:
        """A turn has ended, with this number of its calls, one after another."""
        if count:
            self.waits.observe(turn.started_at - turn.run.arrived, count)
            self.runs.observe((now - turn.started_at) / count, count)


LEAST_S = 1e-6
"""Shorter times are reported as this: the rest of a frame costs as much."""
FRAME_S = 0.00025
"""What goes by from the start of calls to their end however few and quick they are: turns of the event loop, mostly. At
most half of their time counts as that, and nothing where calls of the method have ended since they were started."""
WINDOW_ENDS = 8
"""Ends that a mean is taken over, about. Of calls that end together it is one."""
_KEEP = 1 - 1 / WINDOW_ENDS


class ToldTime(NamedTuple):
    """What is reported to routers of one method."""

    method: str
    service_s: float
    """Seconds."""
    batch_size: int
    """Calls that it takes at once, at most; 0 where it takes one."""


class _Mean:
    """The means of the latest calls of one method, and the reported figures."""

    __slots__ = ("batch_size", "busy_s", "calls", "high_s", "low_s")

    def __init__(self) -> None:
        self.busy_s = 0.0
        self.calls = 0.0
        """Both are sums in which what is older weighs less."""
        self.low_s = self.high_s = 0.0
        """A mean between these, both excluded, is not reported again."""
        self.batch_size = 0


class ServiceTimes:
    """Moving means, and the figures that were reported."""

    __slots__ = ("_batchers", "_ended_at", "_latest_s", "_means", "_told", "version")

    def __init__(self, batchers: Mapping[str, Batcher]) -> None:
        """`batchers`: those of the batch methods, by name."""
        self._batchers = batchers
        self._means: dict[str, _Mean] = {}
        self._ended_at: dict[str, float] = {}
        """When calls of a method that are executed one after another have ended last."""
        self._told: dict[str, ToldTime] = {}
        self._latest_s = inf
        """Mean of the method of which calls have ended last."""
        self.version = 0
        """Counts what is worth telling; 0 where nothing was measured."""

    def ended(self, method: str, calls: int, started_at: float, now: float) -> None:
        """Calls that were started together, to be executed one after another, have ended together.

        Calls of the method that ended since then were executed before them.
        """
        latest_at = self._ended_at.get(method, -inf)
        self._ended_at[method] = now
        took_s = now - started_at
        self.took(method, calls, now - latest_at if started_at < latest_at else max(took_s - FRAME_S, took_s / 2))

    def took(self, method: str, calls: int, seconds: float) -> None:
        """Adds calls that have taken so many seconds in all."""
        if not calls:
            return
        mean = self._means.get(method)
        if mean is None:
            mean = self._means[method] = _Mean()
        mean.busy_s = mean.busy_s * _KEEP + seconds
        mean.calls = mean.calls * _KEEP + calls
        self._latest_s = mean_s = max(mean.busy_s / mean.calls, LEAST_S)
        size = 0 if (batcher := self._batchers.get(method)) is None else batcher.gathered.size
        if not mean.low_s < mean_s < mean.high_s or size != mean.batch_size:
            mean.low_s, mean.high_s, mean.batch_size = mean_s / 2, mean_s * 2, size
            self._told[method] = ToldTime(method, mean_s, size)
            self.version += 1

    @property
    def told(self) -> list[ToldTime]:
        """The figures to report, as of `version`."""
        return list(self._told.values())

    @property
    def are_quick(self) -> bool:
        """Whether calls are quick, going by those that have ended last: others will end soon, too."""
        return self._latest_s < QUICK_S
