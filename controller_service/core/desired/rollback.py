"""Plans that restore an earlier configuration: that of a revision, or the one before the newest change.

Invariants: pure; a change is undone as a whole: all steps of a shift, and a deployment with its take-back. A change
that is undone already is refused, with the revision that undoes the change before.
Owner: `shell.changes.configurator`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from controller_service.core.desired.merging import field_changes
from controller_service.core.desired.planning import Plan, confirmed_rollouts, plan_mesh
from controller_service.core.desired.revisions import (
    History,
    configuration_before,
    is_take_back,
    newest_change,
)
from controller_service.core.desired.shifts import is_waiting_change
from controller_service.core.desired.state import Desired
from slotmesh.spec.model import Backend, Endpoint, InvalidSpec, Mesh, SpecViolation, TrafficPolicy


def plan_rollback(desired: Desired, revision: int, *, launches: bool) -> Plan:
    """Brings back the configuration as of a revision. Raises InvalidSpec."""
    oldest = _kept(desired, "revision")[0].base
    if not oldest <= revision <= desired.revision:
        text = f"must be {oldest} … {desired.revision}, the revisions that are kept, is {revision}"
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
    if is_take_back(newest[0]):
        raise _undone_already(desired, newest)
    if _stands_alone(desired, newest):
        plan = _plan_as_of(desired, newest[0].base, launches=launches)
    elif is_waiting_change(newest[0].origin.part_of):
        plan = _plan_without(desired, newest, launches=launches)
    else:
        plan = _plan_without_shift(desired, newest, launches=launches)
    if plan.changes_nothing and not _is_under_way(desired, newest):
        raise _undone_already(desired, newest)
    return plan


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
    plan = plan_mesh(desired, mesh, prune=True, launches=launches, replaces=replaced)
    return replace(plan, fields=tuple(field_changes(desired, desired.apply(plan.change))))


def _is_under_way(desired: Desired, change: History) -> bool:
    """Whether a change is a shift that has not ended."""
    return any(it.is_under_way and it.change_id == change[0].origin.part_of for it in desired.shifts.values())


def _undone_already(desired: Desired, change: History) -> InvalidSpec:
    """The refusal to undo a change that has been taken back, or has gone back; it names what can be gone back to."""
    newest = change[-1]
    text = f"required: the newest change is undone already (revision {newest.revision}, {newest.origin.note})"
    while change == desired.history[-len(change) :] and not is_take_back(change[0]):
        earlier = desired.history[: -len(change)]
        if not earlier:
            break
        before = newest_change(earlier)
        if before != earlier[-len(before) :] or is_take_back(before[0]):
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
