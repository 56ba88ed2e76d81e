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
from typing import Final

from controller_service.core.backend_load import NO_ENDS, CallEnds
from controller_service.core.shifting.record import Guard, GuardFigure, ShiftRecord
from slotmesh.histogram import CALL_TIMES
from slotmesh.units import format_duration

QUANTILE: Final = 0.99


def tripped(shift: ShiftRecord, figures: Mapping[str, CallEnds]) -> str:
    """Which figure of which backend is above its limit, for a person; empty: none that is known."""
    for backend in shift.rising:
        ends = figures.get(backend, NO_ENDS)
        for guard in shift.guards:
            bad, calls = _bad_calls(guard, ends), judged_calls(guard, ends)
            most = guard.limit if guard.figure is GuardFigure.ERROR_RATE else 1.0 - QUANTILE
            if bad > most * max(calls, shift.min_calls) + 1e-9:
                return f"guard {guard} tripped: backend {backend} had {_said(guard, ends)} in step {shift.number}"
    return ""


def still_unknown(shift: ShiftRecord, figures: Mapping[str, CallEnds]) -> str:
    """Which backend has ended too few calls to be judged, for a person; empty: none."""
    for backend in shift.rising:
        ends = figures.get(backend, NO_ENDS)
        for guard in shift.guards:
            if (calls := judged_calls(guard, ends)) < shift.min_calls:
                return f"{calls} of {shift.min_calls} calls of backend {backend} have ended that {guard} is judged by"
    return ""


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
