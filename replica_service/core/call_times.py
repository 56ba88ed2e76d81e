"""How long calls take: `ServiceTimes` by method, for routers; `ReplicaCallTimes` as histograms, for operators.

Service times: one figure per method, by which routers decide how many calls they send together. For calls that are
executed in sequence or in a batch, it is the handler time per call; for concurrent calls that wait, the time from start
to end. Neither the time in queues nor the fixed cost of a frame is included. A figure is a mean over the latest
`WINDOW_ENDS` ends, so that one slow call soon has no weight, and it is reported again only when it is twice or half the
reported one. Source: the service demand of operational analysis, busy time over completions (Denning and Buzen, The
Operational Analysis of Queueing Network Models, 1978).

Histograms: `waits` from a call's arrival to its start, `runs` from its start to its end; they show which replica of a
backend is slow. A call starts when it gets its permit, and a call of a batch method when its batch is cut. Calls of one
ordering key run in sequence, so each counts with its share of the turn's time. A call that yields values runs until its
generator is closed: a slow reader makes it longer. Each call counts once, when it has ended; the cost is per piece of
work, not per call.

Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from replica_service.core.batch_gathering import Batcher
from replica_service.core.runs import ReplicaRun, StartTurn
from replica_service.core.work import StartBatch
from slotmesh.histogram import CALL_TIMES, Histogram
from slotmesh.streams.pacing import QUICK_S

LEAST_S = 1e-6
"""Shorter times are reported as this, since the rest of a frame costs as much."""
FRAME_S = 0.00025
"""The time from start to end of the shortest calls, mostly turns of the event loop. At most half of a measured time is
discounted as that, and nothing if calls of the method have ended since the start."""
WINDOW_ENDS = 8
"""About the number of ends that a mean is taken over. Calls that end together are one end."""
_KEEP = 1 - 1 / WINDOW_ENDS


class ReplicaCallTimes:
    """Histograms of all calls since the start. Totals only grow."""

    __slots__ = ("runs", "waits")

    def __init__(self) -> None:
        self.waits = Histogram(CALL_TIMES)
        self.runs = Histogram(CALL_TIMES)

    def calls_ended(self, run: ReplicaRun, count: int, now: float) -> None:
        """Adds `count` ended calls of the run."""
        self.waits.observe(run.started_at - run.arrived, count)
        self.runs.observe(now - run.started_at, count)

    def batch_ended(self, batch: StartBatch, now: float) -> None:
        """Adds the calls of an ended batch."""
        self.runs.observe(now - batch.started_at, batch.count)
        for run, lo, hi in batch.parts:
            self.waits.observe(batch.started_at - run.arrived, hi - lo)

    def turn_ended(self, turn: StartTurn, count: int, now: float) -> None:
        """Adds `count` calls that an ended turn has executed in sequence."""
        if count:
            self.waits.observe(turn.started_at - turn.run.arrived, count)
            self.runs.observe((now - turn.started_at) / count, count)


class ReportedTime(NamedTuple):
    """The figures of one method that are reported to routers."""

    method: str
    service_s: float
    """Seconds."""
    batch_size: int
    """The most calls of one batch; 0 for a method that is no batch method."""


class _Mean:
    """The means of the latest calls of one method, and the reported figures."""

    __slots__ = ("batch_size", "busy_s", "calls", "ended_at", "gathered", "high_s", "low_s")

    def __init__(self, batcher: Batcher | None) -> None:
        self.busy_s = 0.0
        self.calls = 0.0
        """Both are sums with exponentially decreasing weights."""
        self.low_s = self.high_s = 0.0
        """A mean between these bounds, both exclusive, is not reported again."""
        self.batch_size = 0
        self.gathered = None if batcher is None else batcher.gathered
        self.ended_at = -inf
        """When calls of the method that are executed in sequence ended last."""


class ServiceTimes:
    """Moving means, and the reported figures."""

    __slots__ = ("_batchers", "_latest_s", "_means", "_reported", "version")

    def __init__(self, batchers: Mapping[str, Batcher]) -> None:
        """`batchers`: those of the batch methods, by name."""
        self._batchers = batchers
        self._means: dict[str, _Mean] = {}
        self._reported: dict[str, ReportedTime] = {}
        self._latest_s = inf
        """The mean of the method whose calls ended last."""
        self.version = 0
        """Counts changes of the reported figures; 0 before the first measurement."""

    def ended(self, method: str, calls: int, started_at: float, now: float) -> None:
        """Adds calls that were started together, executed in sequence, and ended together.

        Calls of the method that ended since their start were executed before them.
        """
        mean = self._means.get(method) or self._begin(method)
        latest_at = mean.ended_at
        mean.ended_at = now
        if started_at < latest_at:
            self.took(method, calls, now - latest_at)
        else:
            took_s = now - started_at
            self.took(method, calls, took_s - FRAME_S if took_s > 2 * FRAME_S else took_s / 2)

    def took(self, method: str, calls: int, seconds: float) -> None:
        """Adds calls that have taken this time in total."""
        if not calls:
            return
        mean = self._means.get(method) or self._begin(method)
        mean.busy_s = busy_s = mean.busy_s * _KEEP + seconds
        mean.calls = weight = mean.calls * _KEEP + calls
        mean_s = busy_s / weight
        mean_s = max(mean_s, LEAST_S)
        self._latest_s = mean_s
        size = 0 if mean.gathered is None else mean.gathered.size
        if not mean.low_s < mean_s < mean.high_s or size != mean.batch_size:
            mean.low_s, mean.high_s, mean.batch_size = mean_s / 2, mean_s * 2, size
            self._reported[method] = ReportedTime(method, mean_s, size)
            self.version += 1

    def _begin(self, method: str) -> _Mean:
        mean = self._means[method] = _Mean(self._batchers.get(method))
        return mean

    @property
    def reported(self) -> list[ReportedTime]:
        """The figures to report, as of `version`."""
        return list(self._reported.values())

    @property
    def are_quick(self) -> bool:
        """Whether the calls that ended last were quick, so that others are likely to end soon."""
        return self._latest_s < QUICK_S
