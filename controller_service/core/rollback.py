"""What brings an earlier configuration back: a revision that is named, or what was before the newest change.

Invariants: pure; a change is undone as a whole: all steps of a shift, and a deployment with what took it back. One that
is undone already is not made again: that is refused, with the revision that undoes the change before.
Owner: `shell.configurator`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from controller_service.core.desired import Desired
from controller_service.core.planning import Plan, plan_mesh
from controller_service.core.revisions import History, configuration_at, is_take_back, newest_change
from slotmesh.spec.model import NO_SERVICES, Endpoint, InvalidSpec, Mesh, Mistake, TrafficPolicy
from slotmesh.spec.tenants import NO_LIMITS


def plan_rollback(desired: Desired, revision: int | None, *, launches: bool) -> Plan:
    """Brings back the configuration as of a revision; None: the one before the newest change. Raises InvalidSpec."""
    history = desired.history
    if not history:
        raise InvalidSpec([Mistake("revision", "there is no change that could be undone: none is kept")])
    oldest = history[0].base
    if revision is None:
        newest = newest_change(history)
        if is_take_back(newest[0]):
            raise _undone_already(desired, newest)
        if _stands_alone(desired, newest):
            plan = _plan_as_of(desired, newest[0].base, launches=launches)
        else:
            plan = _plan_without_shift(desired, newest, launches=launches)
        if plan.changes_nothing and not _is_under_way(desired, newest):
            raise _undone_already(desired, newest)
        return plan
    if not oldest <= revision <= desired.revision:
        text = f"must be {oldest} … {desired.revision}, the revisions that are kept, is {revision}"
        raise InvalidSpec([Mistake("revision", text)])
    return _plan_as_of(desired, revision, launches=launches)


def _plan_as_of(desired: Desired, revision: int, *, launches: bool) -> Plan:
    """Brings the configuration as of a revision that is kept back."""
    mesh = configuration_at(desired.backends, desired.endpoints, desired.routes, desired.history, revision)
    whole = (
        replace(it, grpc_services=it.grpc_services or NO_SERVICES, tenants=it.tenants or NO_LIMITS)
        for it in mesh.endpoints
    )
    without_policy = [endpoint.name for endpoint in mesh.endpoints if endpoint.traffic is None]
    mesh = replace(mesh, endpoints=tuple(whole))
    plan = plan_mesh(desired, mesh, prune=True, launches=launches, clear_traffic=without_policy)
    return replace(plan, note=f"rollback to revision {revision}", restores=revision)


def _is_under_way(desired: Desired, change: History) -> bool:
    """Whether a change is a shift that goes on."""
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
            return InvalidSpec([Mistake("revision", f"{text}; {before[0].base} undoes the change before that")])
        change = (*before, *change)
    return InvalidSpec([Mistake("revision", f"{text}; the history has the revisions that can be gone back to")])


def _stands_alone(desired: Desired, change: History) -> bool:
    """Whether the revision before a change has the configuration without it: nothing was changed in between."""
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
