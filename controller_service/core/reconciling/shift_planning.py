"""Plans of operators' requests for shifts, checked against the configuration.

Invariants: as those of `core.desired.planning`; an endpoint has one shift at a time.
Traffic that waits: a change of code and weights together, by a file or a rollback, is divided. The code is rolled out
immediately. The weights of each endpoint that raises a backend with new code follow, by a shift of one step, when these
rollouts are complete. Until then the endpoint keeps its weights, and backends that have this traffic are not deleted.
Each waiting shift awaits the templates that its change, or a later one, rolls out: where a backend goes to another one
without an operator's change, the traffic stays where it is. A change of weights alone never waits.
Owner: `shell.loops.shifter`; `shell.changes.configurator` calls `hold_back`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from controller_service.core.desired.handler_code import template_of
from controller_service.core.desired.planning import Plan, TrafficWaits, no_such_backend, rolling_backends, users_of
from controller_service.core.desired.shifts import (
    SAME,
    Guard,
    GuardFigure,
    ShiftPhase,
    ShiftRecord,
    intended_endpoints,
    overtaken_by,
    waiting_change_id,
)
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.observed.state import Observed, wanted_replicas
from controller_service.core.reconciling.rollouts import is_rolled_out
from controller_service.core.reconciling.shift_steps import GONE, AwaitedRollout, ShiftMove, ended
from slotmesh.histogram import CALL_TIMES
from slotmesh.spec.model import Endpoint, InvalidSpec, SpecViolation, TrafficPolicy
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
    violations = [*_numbers(requested), *_weight_violations(requested, desired), *_guards(requested.guards, shadows)]
    if (known := desired.shifts.get(requested.endpoint)) is not None and known.is_under_way:
        at = "it waits for a rollout" if known.is_waiting else f"step {known.number} of {known.steps}"
        text = (
            f"{requested.endpoint} is being shifted already, {at}: end that first, with --shift-stop where it is or"
            " with --shift-back (in requests: SetTraffic with the present weights, or Rollback)"
        )
        violations.append(SpecViolation("endpoint", text))
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
    done = "rolled back" if goes_back else "stopped"
    at = "before its first step" if shift.is_waiting else f"in step {shift.number} of {shift.steps}"
    why = f"{done} by {who or 'an operator'} {at}"
    goes_back = goes_back or shift.is_waiting  # no weight has changed yet
    return plan_move(desired, shift, ended(shift, ShiftPhase.STOPPED, why, time_s, goes_back=goes_back))


def with_stopped_shift(desired: Desired, plan: Plan, name: str, *, who: str, time_s: float) -> Plan:
    """The plan, which also ends the shift of an endpoint at its present weights, if one is under way."""
    shift = desired.shifts.get(name)
    if shift is None or not shift.is_under_way or shift.is_waiting:
        return plan
    stopped = plan_end(desired, name, goes_back=False, who=who, time_s=time_s)
    if plan.changes_nothing:
        return stopped
    return replace(plan, change=replace(plan.change, put_shifts=(*plan.change.put_shifts, *stopped.change.put_shifts)))


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
    if shift.is_under_way:
        return f"step {shift.number} of {shift.steps}"
    without = [it for it in shift.backends if it not in shift.target] if shift.phase is ShiftPhase.COMPLETE else []
    return f"{shift.why}; {', '.join(without)} removed from the policy, with weight 0" if without else shift.why


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


def _weight_violations(requested: RequestedShift, desired: Desired) -> Iterator[SpecViolation]:
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
    for at, guard in enumerate(guards):
        path, is_rate = f"guards[{at}]", guard.figure is GuardFigure.ERROR_RATE
        limit = f"{path}.max_error_rate" if is_rate else f"{path}.max_time"
        if (guard.figure, guard.shadow) in seen:
            yield SpecViolation(path, f"{guard.figure.name.lower()} is given twice")
        seen.add((guard.figure, guard.shadow))
        if guard.shadow and guard.shadow not in shadows:
            known = f"there are {', '.join(sorted(shadows))}" if shadows else "there is none"
            yield SpecViolation(f"{path}.shadow", f"{show(guard.shadow)} is no shadow of the endpoint; {known}")
        if is_rate and not 0.0 <= guard.limit < 1.0:
            yield SpecViolation(limit, f"must be 0 or more and below 1, is {guard.limit:g}")
        if guard.figure is GuardFigure.P99 and not CALL_TIMES[0] <= guard.limit <= CALL_TIMES[-1]:
            yield SpecViolation(limit, f"p99 must be 1ms … 30s, is {guard.limit:g} s")


_NO_TRAFFIC: Final = TrafficPolicy(weights={})


def hold_back(
    desired: Desired, plan: Plan, *, launches: bool, who: str, time_s: float, immediately: Collection[str] = ()
) -> Plan:
    """The plan, without weights that have to wait for a rollout: a shift of one step brings them.

    `launches`: whether this controller rolls code out. `time_s`: seconds since 1970. `immediately`: endpoints whose
    weights are in force with the change all the same.
    """
    change = plan.change
    rolling = rolling_backends(desired, change.put_backends) if launches else {}
    puts = {it.name: it for it in change.put_endpoints}
    named = {subject for some in (plan.created, plan.updated, plan.unchanged) for subject in some}
    shifts: dict[str, ShiftRecord] = {}
    for name, endpoint in intended_endpoints(desired.endpoints, desired.shifts).items():
        waiting = shift if (shift := desired.shifts.get(name)) is not None and shift.is_waiting else None
        if name in change.delete_endpoints or (name not in puts and waiting is None):
            continue
        live, wanted = desired.endpoints[name], puts.get(name, endpoint)
        held = None if name in immediately else _held(live, wanted, waiting, rolling, who=who, time_s=time_s)
        if held is not None:
            stays = [it for it in held.deletes if f"backend/{it}" not in named]
            gone = [it for it in change.delete_backends if it in held.before and it not in stays]
            shifts[name] = replace(held, deletes=(*stays, *gone))
            _put(puts, live, replace(wanted, traffic=replace(wanted.traffic or _NO_TRAFFIC, weights=held.before)))
        elif waiting is not None:
            shifts[name] = overtaken_by(waiting, who=who, time_s=time_s)
            _put(puts, live, wanted)
    kept = {it for shift in shifts.values() if shift.is_waiting for it in shift.deletes}
    new = tuple(it for name, it in shifts.items() if it != desired.shifts.get(name))
    change = replace(
        change,
        put_endpoints=tuple(puts.values()),
        delete_backends=tuple(it for it in change.delete_backends if it not in kept),
        put_shifts=(*change.put_shifts, *new),
    )
    plan = replace(plan, change=change)
    begun = [it for it in new if it.is_waiting]
    waits = [it for it in shifts.values() if it.is_waiting and (it in begun or f"endpoint/{it.endpoint}" in named)]
    return _noted(replace(plan, waits=tuple(map(_waits_of, waits))), [_waits_of(it) for it in begun], time_s)


def _waits_of(shift: ShiftRecord) -> TrafficWaits:
    return TrafficWaits(endpoint=shift.endpoint, backends=tuple(sorted(shift.awaits)), deleted_afterwards=shift.deletes)


def _noted(plan: Plan, begun: Collection[TrafficWaits], time_s: float) -> Plan:
    """The plan, as the first part of a change that continues when rollouts are complete; unchanged if none is begun."""
    if not begun:
        return plan
    notes = [plan.note] if plan.note else []
    notes += [f"traffic of {it.endpoint} moves after the rollout of {', '.join(it.backends)}" for it in begun]
    return replace(plan, note="; ".join(notes), part_of=waiting_change_id(time_s))


def rollouts_of(shift: ShiftRecord, desired: Desired, observed: Observed) -> Mapping[str, AwaitedRollout]:
    """How far the rollouts are that a shift waits for."""
    return {name: _rollout_of(name, template, desired, observed) for name, template in shift.awaits.items()}


def _rollout_of(name: str, template: str, desired: Desired, observed: Observed) -> AwaitedRollout:
    backend, record = desired.backends.get(name), desired.rollouts.get(name)
    if backend is None:
        return GONE
    if template_of(backend) != template:
        why = f": {record.why}" if record is not None and record.why else ""
        return AwaitedRollout(given_up=f"the rollout of {name} was rolled back{why}")
    wanted = wanted_replicas(backend, observed)
    if is_rolled_out(record, backend) or (record is None and not wanted):
        return AwaitedRollout()
    replicas = [*observed.replicas(name)]
    current = sum(it.takes_calls and it.template == template for it in replicas)
    held = ", which is paused" if record is not None and record.is_paused else ""
    return AwaitedRollout(waits_for=f"the rollout of {name}{held}: {current} of {wanted} new replicas are ready")


def _held(
    live: Endpoint,
    wanted: Endpoint,
    waiting: ShiftRecord | None,
    rolling: Mapping[str, str],
    *,
    who: str,
    time_s: float,
) -> ShiftRecord | None:
    """The shift that brings the weights of an endpoint; None if they are in force immediately."""
    before, target = _weights(live), _weights(wanted)
    if not any(weight > 0.0 for weight in before.values()):
        return None  # its calls wait for the new replicas anyway
    rising = [it for it, weight in target.items() if weight - before.get(it, 0.0) > SAME]
    earlier = {} if waiting is None else waiting.awaits
    awaits = {it: template for it in rising if (template := rolling.get(it) or earlier.get(it))}
    if not awaits:
        return None
    if waiting is not None and waiting.target == target:
        if waiting.awaits == awaits:
            return waiting
        return replace(waiting, awaits=awaits, began_s=time_s, since_s=time_s, who=who)
    return ShiftRecord(
        endpoint=live.name,
        before=before,
        target=target,
        step=1.0,
        every_s=0.0,
        guards=(),
        min_calls=0,
        number=0,
        since_s=time_s,
        began_s=time_s,
        who=who,
        awaits=awaits,
        deletes=() if waiting is None else waiting.deletes,
    )


def _weights(endpoint: Endpoint) -> Mapping[str, float]:
    return dict((endpoint.traffic or _NO_TRAFFIC).weights)


def _put(puts: dict[str, Endpoint], live: Endpoint, endpoint: Endpoint) -> None:
    """What the change makes of the endpoint: nothing if it is that already."""
    if endpoint == live:
        puts.pop(live.name, None)
    else:
        puts[live.name] = endpoint
