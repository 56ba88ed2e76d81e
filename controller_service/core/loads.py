"""The load that routers and replicas report, and their reports of the last seconds.

Invariants: immutable, but for `RecentReports`; totals count from the start of the router or replica, so that
differences are of one start only. A replica's load is not observed state: it changes each second, and nothing is
reconciled for it.
Owner: the links to members have the newest; loads of backends are in the observed router as well.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from slotmesh.histogram import CALL_TIMES


@dataclass(frozen=True, slots=True)
class CallEnds:
    """How calls of a backend have ended for their callers: totals, or differences of totals."""

    total: int = 0
    failed: int = 0
    """For what the backend is."""
    unanswered: int = 0
    times: tuple[int, ...] = (0,) * (len(CALL_TIMES) + 1)
    """Those that ended well, by `slotmesh.histogram.CALL_TIMES`; the last one has all above."""

    def is_since(self, before: CallEnds) -> bool:
        """Whether no total is below what it was: else counting has begun anew."""
        return all(now >= then for now, then in zip(self._figures, before._figures, strict=True))

    def since(self, before: CallEnds) -> CallEnds:
        """What has come since. Only of totals that are since these."""
        return CallEnds(
            self.total - before.total,
            self.failed - before.failed,
            self.unanswered - before.unanswered,
            tuple(now - then for now, then in zip(self.times, before.times, strict=True)),
        )

    def plus(self, other: CallEnds) -> CallEnds:
        """The sum."""
        return CallEnds(
            self.total + other.total,
            self.failed + other.failed,
            self.unanswered + other.unanswered,
            tuple(one + another for one, another in zip(self.times, other.times, strict=True)),
        )

    @property
    def bad(self) -> int:
        """Calls that failed or were not answered."""
        return self.failed + self.unanswered

    @property
    def _figures(self) -> tuple[int, ...]:
        return (self.total, self.failed, self.unanswered, *self.times)


NO_ENDS: Final = CallEnds()


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendLoad:
    """Calls of one backend at one router."""

    backend: str
    queued: int
    ongoing: int
    slot_calls: int = 0
    sampled_at: float | None = None
    """By the router's clock, seconds since 1970; None if not reported."""
    queue_time_s: float = 0.0
    """How long what waits will have to wait until all of it was sent."""
    sent: int = 0
    """Calls sent to replicas since the router's start."""
    shadow_copies: int = 0
    """Copies for it as a shadow that have ended since then, dropped ones included."""
    shadow_drops: int = 0
    """Those that were dropped: no slot was free."""
    ended: CallEnds | None = None
    """Since the router's start; None: it does not count them."""
    shadow_ended: CallEnds | None = None
    """The same of copies of calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointLoad:
    """Calls of one endpoint at one router. Totals are of the time since its start."""

    endpoint: str
    accepted: int
    failed: int
    """In whatever failure."""
    waiting: int
    """Calls that belong to no backend yet."""
    ends: tuple[tuple[str, CallEnds], ...] = ()
    """By backend, where the router counts as this version does."""
    sampled_at: float | None = None
    """As in `BackendLoad`."""
    tenants: tuple[tuple[str, float, float, int], ...] = ()
    """The busiest: name, calls a second, those refused a second, and calls without an outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterLoad:
    """The load in one report of a router."""

    run_id: str
    """Which start of the router counts."""
    backends: tuple[BackendLoad, ...] = ()
    endpoints: tuple[EndpointLoad, ...] = ()

    def is_since(self, before: RouterLoad) -> bool:
        """Whether both are of one start, and nothing counts less than before: else counting has begun anew."""
        if self.run_id != before.run_id:
            return False
        sent = {it.backend: it.sent for it in before.backends}
        accepted = {it.endpoint: it.accepted for it in before.endpoints}
        return all(it.sent >= sent.get(it.backend, 0) for it in self.backends) and all(
            it.accepted >= accepted.get(it.endpoint, 0) for it in self.endpoints
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedCalls:
    """What one incarnation has done since its start."""

    calls: int
    """Executed to their end, well or not."""
    failed: int
    """Ended in a failure, executed or not."""
    batches: int
    batched_calls: int
    """Calls in these."""
    times: tuple[int, ...] = ()
    """Calls that have ended, by the time that they ran, in the buckets of `CALL_TIMES`; empty: not reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModels:
    """Models that the handler of a replica has loaded, for display."""

    count: int
    most: int
    """That it keeps loaded at most."""
    ids: tuple[str, ...]
    """Of the first ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledLoad:
    """Load of one replica at one time."""

    ongoing: int
    """Permits in use: calls, lanes that have their turn, slots."""
    slots: int
    """Of these, slots that are reserved and not used, and those of direct streams."""
    waiting: int
    """What waits for a permit, or in a lane."""
    sampled_at: float | None
    """By the replica's clock, seconds since 1970; None if not reported."""
    totals: ExecutedCalls | None = None
    """None if not reported."""
    models: LoadedModels | None = None
    """None if the handler loads none by id."""


SPAN_S: Final = 2.0
"""The age of the earlier report, at least; younger only if no report is that old."""
SPACING_S: Final = 0.5
"""Reports that follow more quickly take the place of the one before them."""

ReportT = TypeVar("ReportT")


class RecentReports(Generic[ReportT]):
    """What a member has reported in the last seconds, oldest first: rates are differences of the newest and the first.

    Invariants: all reports are of one start of the member, since its totals begin anew with each start; a few are kept,
    however often it reports.
    Owner: the link to the member.
    """

    def __init__(self) -> None:
        self._kept: deque[tuple[float, ReportT]] = deque()
        """When each came, seconds (monotonic)."""

    def add(self, report: ReportT, now: float) -> None:
        """The newest report."""
        kept = self._kept
        if len(kept) > 1 and kept[-1][0] - kept[-2][0] < SPACING_S:
            kept.pop()
        kept.append((now, report))
        while len(kept) > 1 and now - kept[1][0] >= SPAN_S:
            kept.popleft()

    @property
    def newest(self) -> ReportT | None:
        """None before the first."""
        return self._kept[-1][1] if self._kept else None

    @property
    def newest_at(self) -> float | None:
        """When it came."""
        return self._kept[-1][0] if self._kept else None

    @property
    def earlier(self) -> ReportT | None:
        """None if there is only one."""
        return self._kept[0][1] if len(self._kept) > 1 else None
