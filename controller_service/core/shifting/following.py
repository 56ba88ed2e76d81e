"""What becomes of a shift that is under way: it waits, takes the next step, is complete, or goes back.

Purpose: `(record, look) -> move`.
Invariants: level-triggered, so that a controller that starts again goes on; at most one step at a time, however long
nobody has looked; a step lasts `every_s` at least, and longer while its guards do not know enough, or a backend that it
raises has no ready replica. A guard that trips brings the weights before the shift back at once.
Owner: pure functions; `shell.shifter` calls them, and carries the moves out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from controller_service.core.backend_load import CallEnds
from controller_service.core.shifting.figures import CallFlow
from controller_service.core.shifting.judgement import NO_SHADOWS, still_unknown, tripped
from controller_service.core.shifting.record import ShiftPhase, ShiftRecord, over
from controller_service.core.shifting.waiting import GONE, NO_AWAITED, AwaitedRollout


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
        return ended(shift, ShiftPhase.TAKEN_BACK, why, time_of_day_s, goes_back=True)
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
            return ended(shift, ShiftPhase.TAKEN_BACK, rollout.given_up, time_of_day_s, goes_back=True)
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
