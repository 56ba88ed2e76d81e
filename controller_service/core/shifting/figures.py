"""What has become of calls in the present step of a shift, from the totals that routers report.

Purpose: sums of differences, so that a report that was lost loses nothing.
Invariants: a difference is of one start of one router; totals that went back, or that are of another start, count from
0; the first totals that are heard of a router are where counting begins, since it is not known when they came about.
No figure is ever negative. At most `MAX_COUNTED` routers are remembered.
Owner: `shell.shifter`, one for each shift that is under way, for as long as this controller lives.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from controller_service.core.backend_load import NO_ENDS, CallEnds
from controller_service.core.observed import ObservedRouter

MAX_COUNTED: Final = 4_096
"""Pairs of routers and backends; the one that was heard of least lately goes first."""
FRESH_S: Final = 2.5
"""A router whose newest report is older may have calls of which nobody knows. They come each second."""


class CallFlow(Enum):
    """Whether calls were made."""

    NONE = "none"
    """Every router says that there was none."""
    SOME = "some"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class _Counted:
    """What a router had said of a backend."""

    run_id: str
    ends: CallEnds
    sent: int


class StepFigures:
    """The calls of some backends since a step began, or since this controller looks at it."""

    def __init__(self, backends: Collection[str], *, of_shadows: bool = False) -> None:
        """`of_shadows`: copies of calls that they get are counted, and not calls."""
        self._backends = frozenset(backends)
        self._of_shadows = of_shadows
        self._counted: dict[tuple[str, str], _Counted] = {}
        self._ends: dict[str, CallEnds] = {}
        self._flows = False

    def begin_step(self) -> None:
        """What comes from now on is of the next step."""
        self._ends = {}
        self._flows = False

    def hear(self, routers: Iterable[ObservedRouter]) -> None:
        """The newest reports of routers; the same one may be heard again."""
        for router in routers:
            for load in router.loads:
                if load.backend in self._backends:
                    self._flows = self._flows or bool(load.queued or load.ongoing)
                    ended = load.shadow_ended if self._of_shadows else load.ended
                    if ended is not None and router.run_id:
                        self._count(router.router_id, load.backend, _Counted(router.run_id, ended, load.sent))

    def of(self, backend: str) -> CallEnds:
        """What is known of its calls."""
        return self._ends.get(backend, NO_ENDS)

    def flow(self, routers: Mapping[str, ObservedRouter], now: float) -> CallFlow:
        """Whether calls were made since the step began. That there were none every router has to say."""
        if self._flows:
            return CallFlow.SOME
        for router in routers.values():
            if router.reported_at is None or now - router.reported_at > FRESH_S or not router.run_id:
                return CallFlow.UNKNOWN
            if any(load.ended is None for load in router.loads if load.backend in self._backends):
                return CallFlow.UNKNOWN
        return CallFlow.NONE if routers else CallFlow.UNKNOWN

    def _count(self, router_id: str, backend: str, now: _Counted) -> None:
        before = self._counted.pop((router_id, backend), None)
        self._counted[router_id, backend] = now
        if before is None:
            while len(self._counted) > MAX_COUNTED:
                del self._counted[next(iter(self._counted))]
            return
        goes_on = now.run_id == before.run_id and now.sent >= before.sent and now.ends.is_since(before.ends)
        fresh = now.ends.since(before.ends) if goes_on else now.ends
        self._flows = self._flows or bool(fresh.total) or now.sent != before.sent
        if fresh.total:
            self._ends[backend] = self.of(backend).plus(fresh)
