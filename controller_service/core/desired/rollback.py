"""Plans that restore an earlier configuration: that of a revision, or the one before the newest change.

Invariants: pure; a change is undone as a whole: all steps of a shift, and a deployment with its take-back. A change
that is undone already is refused, with the revision that undoes the change before.
Owner: `shell.changes.configurator`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from controller_service.core.desired.handler_code import is_rolled_back, template_of
from controller_service.core.desired.planning import Plan, confirmed_rollouts, plan_mesh
from controller_service.core.desired.revisions import (
    History,
    configuration_before,
    is_roll_back,
    newest_change,
    note_of,
)
from controller_service.core.desired.shifts import is_waiting_change
from controller_service.core.desired.state import ChangeSet, Desired, restored
from slotmesh.spec.model import Backend, Endpoint, InvalidSpec, Mesh, SpecViolation, TrafficPolicy
from slotmesh.spec.rules import show


def plan_rollback(desired: Desired, revision: int, *, launches: bool) -> Plan:
    """Brings back the configuration as of a revision. Raises InvalidSpec."""
    history = _kept(desired, "revision")
    if revision not in {history[0].base, *(it.revision for it in history)}:
        text = (
            f"{revision} is no revision of the configuration that is kept: take one from ListRevisions"
            f" (`slotmesh history`), from {history[0].base} to {desired.configured_at}"
        )
        raise InvalidSpec([SpecViolation("revision", text)])
    plan = _plan_as_of(desired, revision, launches=launches)
    confirmed = confirmed_rollouts(desired, desired.apply(plan.change).backends.values())
    return replace(plan, change=replace(plan.change, put_rollouts=confirmed))


def plan_undo_of_change(desired: Desired, revision: int, *, launches: bool) -> Plan:
    """Undoes the change of a revision, which must be the newest change. Raises InvalidSpec."""
    newest = newest_change(_kept(desired, "change"))
    if revision not in {it.revision for it in newest}:
        text = f"must be {newest[-1].revision}, the revision of the newest change, is {revision}: list revisions again"
        raise InvalidSpec([SpecViolation("change", text)])
    if is_roll_back(newest[0]):
        raise _undone_already(desired, newest)
    if _stands_alone(desired, newest):
        plan = _plan_as_of(desired, newest[0].base, launches=launches)
    elif is_waiting_change(newest[0].origin.part_of):
        plan = _plan_without(desired, newest, launches=launches)
    else:
        plan = _plan_without_shift(desired, newest, launches=launches)
    if plan.changes_nothing and not _is_under_way(desired, newest):
        raise _undone_already(desired, newest)
    return plan if plan.restores is not None else restoring(desired, plan)


def plan_undo_of_rollout(desired: Desired, name: str) -> Plan:
    """Brings back what replicas of a backend were started with before.

    Raises InvalidSpec, also for a rollout that was rolled back: what it replaced is in force already.
    """
    record, backend = desired.rollouts.get(name), desired.backends[name]
    settings, undone = None, None
    if record is not None:
        is_present = record.template == template_of(backend)
        if is_rolled_back(record, backend):
            text = (
                "was rolled back already; to go back further, name a revision: `slotmesh rollback REVISION` (in a"
                " request: Rollback with revision)"
            )
            raise InvalidSpec([SpecViolation("backend", f"the newest rollout of {show(name)} {text}")])
        if is_present and (record.is_complete or (record.good and template_of(record.good) == record.template)):
            settings, undone = record.previous, record.previous
        else:
            settings, undone = record.good, backend
    if record is None or settings is None or template_of(settings) == template_of(backend):
        raise InvalidSpec([SpecViolation("backend", f"there is nothing that {show(name)} could go back to")])
    change = ChangeSet(
        put_backends=(restored(backend, settings),),
        put_rollouts=(replace(record, is_paused=False, previous=undone),),
    )
    plan = Plan(change=change, updated=(f"backend/{name}",), note=f"rollout of {name} undone")
    return restoring(desired, plan)


def restoring(desired: Desired, plan: Plan) -> Plan:
    """The plan, with the newest revision that is kept and has the configuration to which it leads."""
    after = desired.apply(plan.change).resources
    differing = {it for it in {**after, **desired.resources} if after.get(it) != desired.resources.get(it)}
    revision = desired.configured_at
    for record in desired.history[::-1]:
        if not differing:
            break
        for change in record.changes:
            (differing.discard if change.before == after.get(change.subject) else differing.add)(change.subject)
        revision = record.base
    return plan if differing else replace(plan, restores=revision)


def _kept(desired: Desired, field: str) -> History:
    if not desired.history:
        raise InvalidSpec([SpecViolation(field, "there is no change that could be undone: none is kept")])
    return desired.history


def _plan_as_of(desired: Desired, revision: int, *, launches: bool) -> Plan:
    """Brings the configuration as of a revision that is kept back."""
    mesh = configuration_before(desired.resources, [it for it in desired.history if it.revision > revision])
    plan = _plan_whole(desired, _with_traffic_that_followed(desired, mesh, revision), launches=launches)
    return replace(plan, note=f"rollback to revision {revision}", restores=revision)


def _with_traffic_that_followed(desired: Desired, mesh: Mesh, revision: int) -> Mesh:
    """The configuration as of a revision, with the traffic that waited for rollouts then: that is a part of it."""
    begun = {it.origin.part_of for it in desired.history if it.revision <= revision}
    backends = {it.name: it for it in mesh.backends}
    endpoints = {it.name: it for it in mesh.endpoints}
    for record in desired.history:
        part_of = record.origin.part_of
        if record.revision <= revision or not is_waiting_change(part_of) or part_of not in begun:
            continue
        for change in record.changes:
            if change.after is None and isinstance(change.before, Backend):
                backends.pop(change.before.name, None)
            elif isinstance(change.after, Endpoint) and change.after.traffic and change.after.name in endpoints:
                _weigh(endpoints, change.after.name, change.after.traffic.weights)
    for shift in desired.shifts.values():
        if shift.is_waiting and shift.change_id in begun and shift.endpoint in endpoints:
            _weigh(endpoints, shift.endpoint, shift.target)
            for name in shift.deletes:
                backends.pop(name, None)
    return replace(mesh, backends=tuple(backends.values()), endpoints=tuple(endpoints.values()))


def _weigh(endpoints: dict[str, Endpoint], name: str, weights: Mapping[str, float]) -> None:
    policy = endpoints[name].traffic or TrafficPolicy(weights={})
    endpoints[name] = replace(endpoints[name], traffic=replace(policy, weights=weights))


def _plan_without(desired: Desired, change: History, *, launches: bool) -> Plan:
    """Brings back what a change has changed, and leaves everything else that others have changed since as it is."""
    mesh = configuration_before(desired.resources, change)
    return replace(_plan_whole(desired, mesh, launches=launches), note=f"revision {change[0].revision} undone")


def _plan_whole(desired: Desired, mesh: Mesh, *, launches: bool) -> Plan:
    """Makes the configuration what the mesh has, and nothing else."""
    replaced = [endpoint.name for endpoint in mesh.endpoints]
    return plan_mesh(desired, mesh, prune=True, launches=launches, replaces=replaced)


def _is_under_way(desired: Desired, change: History) -> bool:
    """Whether a change is a shift that has not ended."""
    return any(it.is_under_way and it.change_id == change[0].origin.part_of for it in desired.shifts.values())


def _undone_already(desired: Desired, change: History) -> InvalidSpec:
    """The refusal to undo a change that has been rolled back, or has gone back; it names what can be gone back to."""
    newest = change[-1]
    text = f"the newest change is undone already (revision {newest.revision}, {note_of(newest)})"
    while change == desired.history[-len(change) :] and not is_roll_back(change[0]):
        earlier = desired.history[: -len(change)]
        if not earlier:
            break
        before = newest_change(earlier)
        if before != earlier[-len(before) :] or is_roll_back(before[0]):
            break
        if not _plan_as_of(desired, before[0].base, launches=False).changes_nothing:
            return InvalidSpec([SpecViolation("revision", f"{text}; {before[0].base} undoes the change before that")])
        change = (*before, *change)
    return InvalidSpec([SpecViolation("revision", f"{text}; the history has the revisions that can be gone back to")])


def _stands_alone(desired: Desired, change: History) -> bool:
    """Whether the revision before a change has the configuration without it: nothing was changed in between."""
    if is_waiting_change(change[0].origin.part_of):
        return change == desired.history[-len(change) :]
    if not change[0].origin.part_of:
        return True
    endpoint = _shifted(change)
    policy = endpoint.traffic
    weights = {} if policy is None else dict(policy.weights)
    return change == desired.history[-len(change) :] and weights == dict(_weights_before(desired, change))


def _plan_without_shift(desired: Desired, change: History, *, launches: bool) -> Plan:
    """Brings back the weights before a shift, and leaves what others have changed meanwhile as it is."""
    endpoint = desired.endpoints[_shifted(change).name]
    policy = endpoint.traffic or TrafficPolicy(weights={})
    undone = replace(endpoint, traffic=replace(policy, weights=_weights_before(desired, change)))
    plan = plan_mesh(desired, Mesh(endpoints=(undone,)), prune=False, launches=launches)
    return replace(plan, unchanged=(), note=f"shift of {endpoint.name} undone")


def _weights_before(desired: Desired, change: History) -> Mapping[str, float]:
    """Those before a shift, also where its first revisions are not kept any more."""
    endpoint = _shifted(change)
    shift = desired.shifts.get(endpoint.name)
    if shift is not None and shift.change_id == change[0].origin.part_of:
        return shift.before
    return {} if endpoint.traffic is None else endpoint.traffic.weights


def _shifted(change: History) -> Endpoint:
    """The endpoint of a shift, as it was before the oldest of its revisions that is kept."""
    (endpoint,) = (it.before for it in change[0].changes if isinstance(it.before, Endpoint))
    return endpoint
