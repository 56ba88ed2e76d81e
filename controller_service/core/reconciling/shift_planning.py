"""Plans of operators' requests for shifts, checked against the configuration.

Invariants: as those of `core.desired.planning`; an endpoint has one shift at a time.
Owner: `shell.loops.shifter`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from controller_service.core.desired.planning import Plan, no_such_backend, users_of
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
class RequestedShift:
    """What an operator asks for."""

    endpoint: str
    weights: Mapping[str, float]
    """What the weights of these backends should become."""
    step: float
    every_s: float
    guards: tuple[Guard, ...]
    min_calls: int = DEFAULT_MIN_CALLS


def plan_shift(desired: Desired, requested: RequestedShift, *, who: str, time_s: float) -> Plan:
    """The first step of a shift. The endpoint is there. Raises InvalidSpec with every violation."""
    endpoint = desired.endpoints[requested.endpoint]
    before = endpoint.traffic.weights if endpoint.traffic is not None else {}
    shadows = endpoint.traffic.shadows if endpoint.traffic is not None else {}
    violations = [*_numbers(requested), *_weights(requested, desired), *_guards(requested.guards, shadows)]
    if (known := desired.shifts.get(requested.endpoint)) is not None and known.is_under_way:
        at = "it waits for a rollout" if known.is_waiting else f"step {known.number} of {known.steps}"
        text = f"{requested.endpoint} is being shifted already, {at}: end that first"
        violations.append(SpecViolation("endpoint", f"{text}, with --shift-stop where it is or with --shift-back"))
    if not before:
        violations.append(
            SpecViolation("endpoint", f"{requested.endpoint} has no weights yet that could be shifted: set some")
        )
    if violations:
        raise InvalidSpec(violations)
    target = _target(before, requested.weights)
    if target is None:
        text = f"sum to {sum(requested.weights.values()):g}, and no other backend has a weight that could have the rest"
        raise InvalidSpec([SpecViolation("weights", text)])
    shift = ShiftRecord(
        endpoint=requested.endpoint,
        before=dict(before),
        target=target,
        step=requested.step,
        every_s=requested.every_s,
        guards=requested.guards,
        min_calls=requested.min_calls,
        since_s=time_s,
        began_s=time_s,
        who=who,
    )
    if not shift.rising:
        raise InvalidSpec([SpecViolation("weights", f"{requested.endpoint} has these weights already")])
    return plan_move(desired, shift, ShiftMove(record=shift, weights=shift.weights(1)))


def plan_end(desired: Desired, name: str, *, goes_back: bool, who: str, time_s: float) -> Plan:
    """The end of a shift that is under way. Raises InvalidSpec where there is none."""
    shift = desired.shifts.get(name)
    if shift is None or not shift.is_under_way:
        raise InvalidSpec([SpecViolation("endpoint", f"no shift of {show(name)} is under way")])
    done = "gone back" if goes_back else "stopped"
    at = "before its first step" if shift.is_waiting else f"in step {shift.number} of {shift.steps}"
    why = f"{done} by {who or 'an operator'} {at}"
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
        note=f"shift of {endpoint.name}: {_note(move.record)}",
        part_of=shift.change_id,
    )


def _note(shift: ShiftRecord) -> str:
    return f"step {shift.number} of {shift.steps}" if shift.is_under_way else shift.why


def _target(before: Mapping[str, float], requested: Mapping[str, float]) -> dict[str, float] | None:
    """The weights in the end: what is left is divided among the others, as it is now. None: there are no others."""
    rest = max(0.0, 1.0 - sum(requested.values()))
    others = {name: weight for name, weight in before.items() if name not in requested and weight > 0.0}
    if rest > SAME and not others:
        return None
    among = sum(others.values())
    target = {**{name: rest * weight / among for name, weight in others.items() if rest > SAME}, **requested}
    return {name: round(weight, 12) for name, weight in target.items() if weight > 0.0}


def _numbers(requested: RequestedShift) -> Iterator[SpecViolation]:
    if not MIN_STEP <= requested.step <= 1.0:  # false for NaN, too
        yield SpecViolation("step", f"must be {MIN_STEP:g} … 1, is {requested.step:g}")
    if not MIN_EVERY_S <= requested.every_s <= MAX_EVERY_S:
        yield SpecViolation("every", f"must be 1s … 7d, is {requested.every_s:g} s")
    if not 1 <= requested.min_calls <= MAX_MIN_CALLS:
        yield SpecViolation("min_calls", f"must be 1 … {MAX_MIN_CALLS}, is {requested.min_calls}")


def _weights(requested: RequestedShift, desired: Desired) -> Iterator[SpecViolation]:
    if not requested.weights:
        yield SpecViolation("weights", "name a backend, and the weight that it should have in the end")
    for name, weight in requested.weights.items():
        if name not in desired.backends:
            yield SpecViolation(f"weights.{show(name)}", no_such_backend(name, desired.backends))
        if not 0.0 <= weight <= 1.0:
            yield SpecViolation(f"weights.{show(name)}", f"must be 0 … 1, is {weight:g}")
    total = sum(requested.weights.values())
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
