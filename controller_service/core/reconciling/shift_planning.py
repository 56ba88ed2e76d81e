"""Plans of what operators ask of shifts, checked against the configuration.

Invariants: as those of `core.planning`; an endpoint has one shift at a time.
Owner: `shell.loops.shifter`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from controller_service.core.desired.planning import Plan, users_of
from controller_service.core.desired.shifts import SAME, Guard, GuardFigure, ShiftPhase, ShiftRecord
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.reconciling.shift_steps import ShiftMove, ended
from slotmesh.histogram import CALL_TIMES
from slotmesh.spec.model import InvalidSpec, SpecViolation, TrafficPolicy
from slotmesh.spec.rules import show

NO_PLAN: Final = Plan(change=ChangeSet())
"""It stays as it is."""
MIN_STEP: Final = 0.01
"""A hundred steps: each is a revision, of which the history has room for 200."""
MIN_EVERY_S: Final = 1.0
"""As often as routers report."""
MAX_EVERY_S: Final = 7 * 86_400.0
DEFAULT_MIN_CALLS: Final = 100
MAX_MIN_CALLS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidShift:
    """What an operator asks for."""

    endpoint: str
    weights: Mapping[str, float]
    """What the weights of these backends should become."""
    step: float
    every_s: float
    guards: tuple[Guard, ...]
    min_calls: int = DEFAULT_MIN_CALLS


def plan_shift(desired: Desired, said: SaidShift, *, who: str, time_s: float) -> Plan:
    """The first step of a shift. The endpoint is there. Raises InvalidSpec with every mistake."""
    endpoint = desired.endpoints[said.endpoint]
    before = endpoint.traffic.weights if endpoint.traffic is not None else {}
    shadows = endpoint.traffic.shadows if endpoint.traffic is not None else {}
    mistakes = [*_numbers(said), *_weights(said, desired), *_guards(said.guards, shadows)]
    if (known := desired.shifts.get(said.endpoint)) is not None and known.is_under_way:
        at = "it waits for a rollout" if known.is_waiting else f"step {known.number} of {known.steps}"
        text = f"{said.endpoint} is being shifted already, {at}: end that first"
        mistakes.append(SpecViolation("endpoint", f"{text}, with --shift-stop where it is or with --shift-back"))
    if not before:
        mistakes.append(
            SpecViolation("endpoint", f"{said.endpoint} has no weights yet that could be shifted: set some")
        )
    if mistakes:
        raise InvalidSpec(mistakes)
    target = _target(before, said.weights)
    if target is None:
        text = f"sum to {sum(said.weights.values()):g}, and no other backend has a weight that could have the rest"
        raise InvalidSpec([SpecViolation("weights", text)])
    shift = ShiftRecord(
        endpoint=said.endpoint,
        before=dict(before),
        target=target,
        step=said.step,
        every_s=said.every_s,
        guards=said.guards,
        min_calls=said.min_calls,
        since_s=time_s,
        began_s=time_s,
        who=who,
    )
    if not shift.rising:
        raise InvalidSpec([SpecViolation("weights", f"{said.endpoint} has these weights already")])
    return plan_move(desired, shift, ShiftMove(record=shift, weights=shift.weights(1)))


def plan_end(desired: Desired, name: str, *, goes_back: bool, who: str, time_s: float) -> Plan:
    """The end of a shift that is under way. Raises InvalidSpec where there is none."""
    shift = desired.shifts.get(name)
    if shift is None or not shift.is_under_way:
        raise InvalidSpec([SpecViolation("endpoint", f"no shift of {show(name)} is under way")])
    done = "gone back" if goes_back else "stopped"
    at = "before its first step" if shift.is_waiting else f"in step {shift.number} of {shift.steps}"
    why = f"{done} by {who or 'somebody'} {at}"
    goes_back = goes_back or shift.is_waiting  # no weight has changed yet
    return plan_move(desired, shift, ended(shift, ShiftPhase.STOPPED, why, time_s, goes_back=goes_back))


def plan_move(desired: Desired, shift: ShiftRecord, move: ShiftMove) -> Plan:
    """What a move changes: the shift, and the weights of its endpoint, whose shadows stay."""
    if move.record is None:
        return NO_PLAN
    endpoint = desired.endpoints[shift.endpoint]
    policy = endpoint.traffic or TrafficPolicy(weights={})
    change = ChangeSet(put_shifts=(move.record,))
    if move.weights is None or dict(move.weights) == dict(policy.weights):
        return Plan(change=change)
    changed = replace(endpoint, traffic=TrafficPolicy(weights=move.weights, shadows=policy.shadows))
    change = replace(change, put_endpoints=(changed,))
    after = desired.apply(change)
    deleted = tuple(it for it in move.deletes if it in desired.backends and not users_of(after, it))
    return Plan(
        change=replace(change, delete_backends=deleted),
        updated=(f"endpoint/{endpoint.name}",),
        deleted=tuple(f"backend/{it}" for it in deleted),
        note=f"shift of {endpoint.name}: {_told(move.record)}",
        part_of=shift.change_id,
    )


def _told(shift: ShiftRecord) -> str:
    return f"step {shift.number} of {shift.steps}" if shift.is_under_way else shift.why


def _target(before: Mapping[str, float], said: Mapping[str, float]) -> dict[str, float] | None:
    """The weights in the end: what is left is divided among the others, as it is now. None: there are no others."""
    rest = max(0.0, 1.0 - sum(said.values()))
    others = {name: weight for name, weight in before.items() if name not in said and weight > 0.0}
    if rest > SAME and not others:
        return None
    among = sum(others.values())
    target = {**{name: rest * weight / among for name, weight in others.items() if rest > SAME}, **said}
    return {name: round(weight, 12) for name, weight in target.items() if weight > 0.0}


def _numbers(said: SaidShift) -> Iterator[SpecViolation]:
    if not MIN_STEP <= said.step <= 1.0:  # false for NaN, too
        yield SpecViolation("step", f"must be {MIN_STEP:g} … 1, is {said.step:g}")
    if not MIN_EVERY_S <= said.every_s <= MAX_EVERY_S:
        yield SpecViolation("every", f"must be 1s … 7d, is {said.every_s:g} s")
    if not 1 <= said.min_calls <= MAX_MIN_CALLS:
        yield SpecViolation("min_calls", f"must be 1 … {MAX_MIN_CALLS}, is {said.min_calls}")


def _weights(said: SaidShift, desired: Desired) -> Iterator[SpecViolation]:
    if not said.weights:
        yield SpecViolation("weights", "name a backend, and the weight that it should have in the end")
    for name, weight in said.weights.items():
        if name not in desired.backends:
            yield SpecViolation(f"weights.{show(name)}", "no backend has this name")
        if not 0.0 <= weight <= 1.0:
            yield SpecViolation(f"weights.{show(name)}", f"must be 0 … 1, is {weight:g}")
    total = sum(said.weights.values())
    if math.isfinite(total) and total > 1.0 + 1e-8:
        yield SpecViolation("weights", f"sum to {total:g}, must be 1 at most")


def _guards(guards: Collection[Guard], shadows: Collection[str]) -> Iterator[SpecViolation]:
    seen: set[tuple[GuardFigure, str]] = set()
    for guard in guards:
        path = f"guards.{guard.figure.name.lower()}"
        if (guard.figure, guard.shadow) in seen:
            yield SpecViolation(path, "is given twice")
        seen.add((guard.figure, guard.shadow))
        if guard.shadow and guard.shadow not in shadows:
            known = f"there are {', '.join(sorted(shadows))}" if shadows else "there is none"
            yield SpecViolation(path, f"{show(guard.shadow)} is no shadow of the endpoint; {known}")
        if guard.figure is GuardFigure.ERROR_RATE and not 0.0 <= guard.limit < 1.0:
            yield SpecViolation(path, f"must be 0 or more and below 1, is {guard.limit:g}")
        if guard.figure is GuardFigure.P99 and not CALL_TIMES[0] <= guard.limit <= CALL_TIMES[-1]:
            yield SpecViolation(path, f"must be 1ms … 30s, is {guard.limit:g} s")
