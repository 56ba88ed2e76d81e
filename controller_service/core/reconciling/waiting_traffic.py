"""Traffic that moves only when the code that it moves to runs: which it is, and what it waits for.

Purpose: a change of code and weights together, by a file or a rollback, is divided. The code is rolled out immediately.
The weights of each endpoint that raises a backend with new code follow, by a shift of one step, when these rollouts are
complete. Until then the endpoint keeps its weights, and backends that have this traffic are not deleted.
Invariants: pure. Each waiting shift awaits the templates that its change, or a later one, rolls out: where a backend
goes to another one without an operator's change, the traffic stays where it is. A change of weights alone never waits.
Owner: `shell.changes.configurator` calls `hold_back`, `shell.loops.shifter` calls `rollouts_of`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from controller_service.core.desired.handler_code import template_of
from controller_service.core.desired.planning import Plan, TrafficWaits
from controller_service.core.desired.shifts import (
    SAME,
    ShiftRecord,
    intended_endpoints,
    overtaken_by,
    waiting_change_id,
)
from controller_service.core.desired.state import Desired
from controller_service.core.observed.state import Observed, wanted_replicas
from controller_service.core.reconciling.rollouts import is_rolled_out
from slotmesh.spec.model import Backend, Endpoint, TrafficPolicy

_NO_TRAFFIC: Final = TrafficPolicy(weights={})


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedRollout:
    """A rollout that traffic waits for."""

    waits_for: str = ""
    """Why it is not complete, for a person; empty: it is complete."""
    given_up: str = ""
    """Why it never will be, for a person: the backend has other settings by now."""


GONE: Final = AwaitedRollout(given_up="the backend was deleted")
NO_AWAITED: Final[Mapping[str, AwaitedRollout]] = MappingProxyType({})


def hold_back(
    desired: Desired, plan: Plan, *, launches: bool, who: str, time_s: float, immediately: Collection[str] = ()
) -> Plan:
    """The plan, without weights that have to wait for a rollout: a shift of one step brings them.

    `launches`: whether this controller rolls code out. `time_s`: seconds since 1970. `immediately`: endpoints whose
    weights are in force with the change all the same.
    """
    change = plan.change
    rolling = _rolling(desired, change.put_backends) if launches else {}
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
            _put(puts, live, replace(wanted, traffic=_weighed(wanted, held.before)))
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
    started = sorted(it.name for it in change.put_backends if it.name in rolling and it.num_replicas != 0)
    plan = replace(plan, change=change, rolling=tuple(started))
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
        return AwaitedRollout(given_up=f"the rollout of {name} was taken back{why}")
    wanted = wanted_replicas(backend, observed)
    if is_rolled_out(record, backend) or (record is None and not wanted):
        return AwaitedRollout()
    replicas = [*observed.replicas(name)]
    current = sum(it.takes_calls and it.template == template for it in replicas)
    held = ", which is paused" if record is not None and record.is_paused else ""
    return AwaitedRollout(waits_for=f"the rollout of {name}{held}: {current} of {wanted} new replicas are ready")


def _rolling(desired: Desired, backends: Iterable[Backend]) -> dict[str, str]:
    """Backends whose replicas are started with something else than before, with the templates of that."""
    templates = {it.name: template_of(it) for it in backends}
    live = {name: template_of(it) for name, it in desired.backends.items() if name in templates}
    return {name: it for name, it in templates.items() if it != live.get(name)}


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


def _weighed(endpoint: Endpoint, weights: Mapping[str, float]) -> TrafficPolicy:
    return replace(endpoint.traffic or _NO_TRAFFIC, weights=weights)


def _put(puts: dict[str, Endpoint], live: Endpoint, endpoint: Endpoint) -> None:
    """What the change makes of the endpoint: nothing if it is that already."""
    if endpoint == live:
        puts.pop(live.name, None)
    else:
        puts[live.name] = endpoint
