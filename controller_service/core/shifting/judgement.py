"""Whether the guards of a shift have tripped, or let the next step begin.

Invariants: what is not known neither trips a guard nor lets a step begin. Calls that are missing to `min_calls` are
taken for good ones, so that a guard trips as soon as enough calls went wrong, and never for one bad call among few.
Owner: pure functions, for `core.shifting.following`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Final

from controller_service.core.backend_load import NO_ENDS, CallEnds
from controller_service.core.shifting.record import Guard, GuardFigure, ShiftRecord
from slotmesh.histogram import CALL_TIMES
from slotmesh.units import format_duration

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
                return f"guard {guard} tripped: {kind} {backend} had {_said(guard, ends)} in step {shift.number}"
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

    None where no call has ended.
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


def _said(guard: Guard, ends: CallEnds) -> str:
    if guard.figure is GuardFigure.ERROR_RATE:
        return f"{ends.bad / ends.total:.3f} ({ends.bad} of {ends.total} calls)"
    bound = CALL_TIMES[max(0, bisect_right(CALL_TIMES, guard.limit) - 1)]
    time = p99(ends)
    shown = "more than 30s" if time is None or math.isinf(time) else f"up to {format_duration(timedelta(seconds=time))}"
    slow = f"{_bad_calls(guard, ends)} of {judged_calls(guard, ends)} calls took longer than"
    return f"{shown} ({slow} {format_duration(timedelta(seconds=bound))})"
