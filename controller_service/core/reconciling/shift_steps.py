"""The next move of a shift that is under way: it waits, takes the next step, is complete, or goes back.

Purpose: `(record, look) -> move`.
Invariants: level-triggered, so that a controller that starts again continues; at most one step per look, however long
the last look is ago; a step lasts `every_s` at least, and longer while its guards lack figures, or a backend that it
raises has no ready replica. A guard that trips restores the weights before the shift immediately. What is unknown
neither trips a guard nor lets a step begin. Calls missing to `min_calls` count as good, so that a guard trips as soon
as enough calls have failed, and never for one failed call among few.
Owner: pure functions; `shell.loops.shifter` calls them, and carries the moves out.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from types import MappingProxyType
from typing import Final

from controller_service.core.desired.shifts import Guard, GuardFigure, ShiftPhase, ShiftRecord, over
from controller_service.core.loads import NO_ENDS, CallEnds
from controller_service.core.observed.state import ObservedRouter
from slotmesh.histogram import CALL_TIMES
from slotmesh.units import format_duration

MAX_COUNTED: Final = 4_096
"""Pairs of routers and backends; the one reported least recently is dropped first."""
FRESH_S: Final = 2.5
"""A router whose newest report is older may have unreported calls. Reports are a second apart."""


class CallFlow(Enum):
    """Whether calls were made."""

    NONE = "none"
    """Every router has reported that there was none."""
    SOME = "some"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class _Counted:
    """What a router had reported of a backend."""

    run_id: str
    ends: CallEnds
    sent: int


class StepFigures:
    """The calls of some backends since a step began, or since this controller looks at it, from routers' totals.

    They are sums of differences, so that a lost report loses no calls. A difference is of one start of one router;
    totals that went back, or that are of another start, count from 0; counting begins with the first totals of a
    router, since it is not known when they came about. No figure is ever negative. At most `MAX_COUNTED` routers are
    remembered. `shell.loops.shifter` has one for each shift that is under way, for as long as this controller lives.
    """

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

    def add_reports(self, routers: Iterable[ObservedRouter]) -> None:
        """Counts the newest reports of routers; repeated reports count once."""
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
        """Whether calls were made since the step began. `NONE` requires reports of all routers."""
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


QUANTILE: Final = 0.99
NO_SHADOWS: Final[Mapping[str, CallEnds]] = MappingProxyType({})


def tripped(shift: ShiftRecord, figures: Mapping[str, CallEnds], shadows: Mapping[str, CallEnds] = NO_SHADOWS) -> str:
    """Which figure of which backend is above its limit, for a person; empty: none that is known.

    `figures` are of backends whose weight rises, `shadows` of copies of calls.
    """
    for guard in shift.guards:
        for backend, ends in _judged(guard, shift, figures, shadows):
            bad, calls = _bad_calls(guard, ends), judged_calls(guard, ends)
            most = guard.limit if guard.figure is GuardFigure.ERROR_RATE else 1.0 - QUANTILE
            if bad > most * max(calls, shift.min_calls) + 1e-9:
                kind = "shadow" if guard.shadow else "backend"
                return f"guard {guard} tripped: {kind} {backend} had {_shown(guard, ends)} in step {shift.number}"
    return ""


def still_unknown(
    shift: ShiftRecord, figures: Mapping[str, CallEnds], shadows: Mapping[str, CallEnds] = NO_SHADOWS
) -> str:
    """Which backend has ended too few calls to be judged, for a person; empty: none."""
    for guard in shift.guards:
        for backend, ends in _judged(guard, shift, figures, shadows):
            if (calls := judged_calls(guard, ends)) < shift.min_calls:
                what = "copies of calls of shadow" if guard.shadow else "calls of backend"
                return f"{calls} of {shift.min_calls} {what} {backend} have ended that {guard} is judged by"
    return ""


def _judged(
    guard: Guard, shift: ShiftRecord, figures: Mapping[str, CallEnds], shadows: Mapping[str, CallEnds]
) -> list[tuple[str, CallEnds]]:
    """The backends that a guard looks at, and their figures."""
    if guard.shadow:
        return [(guard.shadow, shadows.get(guard.shadow, NO_ENDS))]
    return [(backend, figures.get(backend, NO_ENDS)) for backend in shift.rising]


def judged_calls(guard: Guard, ends: CallEnds) -> int:
    """The calls that a guard looks at: all, or those with a time."""
    return ends.total if guard.figure is GuardFigure.ERROR_RATE else sum(ends.times) + ends.unanswered


def p99(ends: CallEnds) -> float | None:
    """The upper bound of the time within which 99 of 100 calls ended well, seconds; infinite above the last bound.

    None if no call has ended.
    """
    calls = sum(ends.times) + ends.unanswered
    if not calls:
        return None
    within, wanted = 0, math.ceil(calls * QUANTILE - 1e-9)
    for bound, count in zip(CALL_TIMES, ends.times, strict=False):
        within += count
        if within >= wanted:
            return bound
    return math.inf


def _bad_calls(guard: Guard, ends: CallEnds) -> int:
    if guard.figure is GuardFigure.ERROR_RATE:
        return ends.bad
    return ends.unanswered + sum(ends.times[bisect_right(CALL_TIMES, guard.limit) :])


def _shown(guard: Guard, ends: CallEnds) -> str:
    if guard.figure is GuardFigure.ERROR_RATE:
        return f"{ends.bad / ends.total:.3f} ({ends.bad} of {ends.total} calls)"
    bound = CALL_TIMES[max(0, bisect_right(CALL_TIMES, guard.limit) - 1)]
    time = p99(ends)
    shown = "more than 30s" if time is None or math.isinf(time) else f"up to {format_duration(timedelta(seconds=time))}"
    slow = f"{_bad_calls(guard, ends)} of {judged_calls(guard, ends)} calls took longer than"
    return f"{shown} ({slow} {format_duration(timedelta(seconds=bound))})"


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedRollout:
    """A rollout that traffic waits for."""

    waits_for: str = ""
    """Why it is not complete, for a person; empty: it is complete."""
    given_up: str = ""
    """Why it never will be, for a person: the backend has other settings by now."""


GONE: Final = AwaitedRollout(given_up="the backend was deleted")
NO_AWAITED: Final[Mapping[str, AwaitedRollout]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftLook:
    """How the calls do, in the present step."""

    is_due: bool
    """The step has lasted for `every_s`."""
    figures: Mapping[str, CallEnds]
    """Of backends whose weight rises, as far as they are known."""
    shadows: Mapping[str, CallEnds] = field(default_factory=lambda: NO_SHADOWS)
    """Of copies of calls, for shadows that guards look at."""
    flow: CallFlow
    ready: Collection[str]
    """Backends that have a ready replica."""
    rollouts: Mapping[str, AwaitedRollout] = field(default_factory=lambda: NO_AWAITED)
    """Of backends whose rollouts it waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftMove:
    """What follows."""

    record: ShiftRecord | None = None
    """What it is from now on; None: as it is."""
    weights: Mapping[str, float] | None = None
    """The weights that should be in force; None: those that are."""
    waits_for: str = ""
    """What the next step waits for, though its time has come."""
    deletes: tuple[str, ...] = ()
    """Backends that are deleted if no endpoint uses them any more."""


STAY: Final = ShiftMove()


def follow(shift: ShiftRecord, look: ShiftLook, time_of_day_s: float) -> ShiftMove:
    """`time_of_day_s`: seconds since 1970."""
    if not shift.is_under_way:
        return STAY
    if shift.is_waiting:
        return _after_rollouts(shift, look.rollouts, time_of_day_s)
    if why := tripped(shift, look.figures, look.shadows):
        return ended(shift, ShiftPhase.ROLLED_BACK, why, time_of_day_s, goes_back=True)
    if not look.is_due:
        return STAY
    if lacking := [it for it in shift.rising if it not in look.ready]:
        return ShiftMove(waits_for=f"backend {lacking[0]} has no ready replica")
    if (
        shift.guards
        and look.flow is not CallFlow.NONE
        and (unknown := still_unknown(shift, look.figures, look.shadows))
    ):
        return ShiftMove(waits_for=unknown)
    if shift.number < shift.steps:
        number = shift.number + 1
        return ShiftMove(record=replace(shift, number=number, since_s=time_of_day_s), weights=shift.weights(number))
    return ShiftMove(
        record=over(shift, ShiftPhase.COMPLETE, "all steps were taken", time_of_day_s), weights=shift.target
    )


def _after_rollouts(shift: ShiftRecord, rollouts: Mapping[str, AwaitedRollout], time_of_day_s: float) -> ShiftMove:
    """All of the traffic moves when each rollout is complete, and stays where it is if one of them is given up."""
    for name in sorted(shift.awaits):
        if (rollout := rollouts.get(name, GONE)).given_up:
            return ended(shift, ShiftPhase.ROLLED_BACK, rollout.given_up, time_of_day_s, goes_back=True)
    if waiting := [it for name in sorted(shift.awaits) if (it := rollouts[name].waits_for)]:
        return ShiftMove(waits_for="; ".join(waiting))
    why = f"the rollout of {', '.join(sorted(shift.awaits))} is complete"
    moved = replace(over(shift, ShiftPhase.COMPLETE, why, time_of_day_s), number=1)
    return ShiftMove(record=moved, weights=shift.target, deletes=shift.deletes)


def ended(shift: ShiftRecord, phase: ShiftPhase, why: str, time_of_day_s: float, *, goes_back: bool) -> ShiftMove:
    """The shift ends where it is, or goes back."""
    weights = (
        shift.before if goes_back else {it: weight for it, weight in shift.weights(shift.number).items() if weight}
    )
    return ShiftMove(record=over(shift, phase, why, time_of_day_s), weights=weights)
