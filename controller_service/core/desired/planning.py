"""Plans of operators' requests, checked against the configuration: what is created, updated, unchanged, deleted.

Invariants: a plan holds for the revision it was made of only; an invalid request changes nothing; what is there
already, unchanged, is not written again; an endpoint without a policy in the request keeps its own.
Owner: `shell.changes.configurator`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from controller_service.core.desired.handler_code import (
    NO_CODE,
    Code,
    CodeChange,
    template_of,
    with_code,
    without_code,
)
from controller_service.core.desired.merging import FieldChange, FieldConflict, field_changes, merge_mesh
from controller_service.core.desired.revisions import (
    UNKNOWN_ORIGIN,
    ChangeOrigin,
    Resource,
    subject_of,
)
from controller_service.core.desired.shifts import intended_endpoints
from controller_service.core.desired.state import ChangeSet, Desired, RolloutRecord, restored
from slotmesh.names import did_you_mean
from slotmesh.spec.model import NO_SERVICES, Backend, Endpoint, InvalidSpec, Mesh, SpecViolation, TrafficPolicy
from slotmesh.spec.routes import route_subject
from slotmesh.spec.rules import clash_violations, mesh_violations, show
from slotmesh.spec.tenants import NO_LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficWaits:
    """Traffic of an endpoint that moves when rollouts are complete."""

    endpoint: str
    backends: tuple[str, ...]
    """Whose rollouts these are, by name."""
    deleted_afterwards: tuple[str, ...] = ()
    """Backends that have this traffic until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A change and its summary. Names are `backend/NAME`, `endpoint/NAME` or `route/PATH`."""

    change: ChangeSet
    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    note: str = ""
    """Why, for the history."""
    part_of: str = ""
    """The change that is made in several revisions, of which this is one; empty if it is a whole."""
    restores: int | None = None
    """The revision whose configuration it brings back; 0: that of no earlier one."""
    fields: tuple[FieldChange, ...] = ()
    """What differs; of a merged file only."""
    conflicts: tuple[FieldConflict, ...] = ()
    """Fields that both the file and an operator have changed."""
    rolling: tuple[str, ...] = ()
    """Backends whose replicas are started or replaced because of it, by name."""
    waits: tuple[TrafficWaits, ...] = ()
    """Traffic that moves later."""
    warnings: tuple[str, ...] = ()
    """What takes effect in another way than the request may suggest, for a person."""
    code: tuple[CodeChange, ...] = ()
    """The snapshots that it brings."""

    @property
    def changes_nothing(self) -> bool:
        return self.change == ChangeSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTerms:
    """On what terms a change is wanted."""

    dry_run: bool = False
    """It is planned, and not made."""
    expected_revision: int | None = None
    """It is refused where the configuration has changed since this revision. None: it is never."""
    origin: ChangeOrigin = UNKNOWN_ORIGIN
    """Who wants it."""


ALWAYS: Final = ChangeTerms()


def plan_mesh(
    desired: Desired,
    mesh: Mesh,
    *,
    prune: bool,
    launches: bool,
    clear_traffic: Collection[str] = (),
    found: Collection[SpecViolation] = (),
) -> Plan:
    """Creates and updates what `mesh` has; `prune` deletes what it lacks. Raises InvalidSpec with every violation.

    `clear_traffic` names endpoints of `mesh` without a policy that should have none. `found` are violations that were
    found before, and that the mesh does not show any more.
    """
    with_policy = (_with_policy(desired, each, clear_traffic) for each in mesh.endpoints)
    with_services = (_with_services(desired, each) for each in with_policy)
    mesh = replace(mesh, endpoints=tuple(_with_limits(desired, each) for each in with_services))
    backends = {backend.name: backend for backend in mesh.backends}
    endpoints = {endpoint.name: endpoint for endpoint in mesh.endpoints}
    known = backends.keys() if prune else {**desired.backends, **backends}.keys()
    routes = {route.path: route for route in mesh.routes}
    violations = [*found, *mesh_violations(mesh), *_unknown_backends(mesh.endpoints, known)]
    if not prune:
        violations += clash_violations({**desired.routes, **routes}.values())
    if launches:
        text = "required, as MODULE:NAME: this controller launches the replicas"
        without = (name for name, backend in backends.items() if not backend.handler)
        violations += [SpecViolation(f"backends.{show(name)}.handler", text) for name in without]
    if violations:
        raise InvalidSpec(violations)

    intended = intended_endpoints(desired.endpoints, desired.shifts)
    there: list[Resource] = [*desired.backends.values(), *intended.values(), *desired.routes.values()]
    wanted: list[Resource] = [*backends.values(), *endpoints.values(), *routes.values()]
    created, updated, unchanged = _sorted_out(_by_subject(there), _by_subject(wanted))
    gone_backends = tuple(sorted(desired.backends.keys() - backends.keys())) if prune else ()
    gone_endpoints = tuple(sorted(desired.endpoints.keys() - endpoints.keys())) if prune else ()
    gone_routes = tuple(sorted(desired.routes.keys() - routes.keys())) if prune else ()
    same = set(unchanged)
    return Plan(
        change=ChangeSet(
            put_backends=tuple(it for it in backends.values() if subject_of(it) not in same),
            put_endpoints=tuple(it for it in endpoints.values() if subject_of(it) not in same),
            delete_backends=gone_backends,
            delete_endpoints=gone_endpoints,
            put_routes=tuple(it for it in routes.values() if subject_of(it) not in same),
            delete_routes=gone_routes,
        ),
        created=created,
        updated=updated,
        unchanged=unchanged,
        deleted=(
            *map(route_subject, gone_routes),
            *(f"endpoint/{name}" for name in gone_endpoints),
            *(f"backend/{name}" for name in gone_backends),
        ),
    )


def _by_subject(resources: Iterable[Resource]) -> dict[str, Resource]:
    return {subject_of(it): it for it in resources}


def _sorted_out(there: Mapping[str, Resource], wanted: Mapping[str, Resource]) -> tuple[tuple[str, ...], ...]:
    """Subjects of what is wanted: those to create, to update, and to leave as they are."""
    created = tuple(it for it in wanted if it not in there)
    unchanged = tuple(it for it in wanted if there.get(it) == wanted[it])
    return created, tuple(it for it in wanted if it in there and there[it] != wanted[it]), unchanged


def plan_file(
    desired: Desired,
    mesh: Mesh,
    *,
    prune: bool,
    launches: bool,
    force: bool,
    found: Collection[SpecViolation] = (),
    code: Code = NO_CODE,
) -> Plan:
    """A file that may have been applied before, merged into what is there. Raises InvalidSpec.

    `code` has what handlers' code is now, as far as it is found.

    Where there are conflicts, those fields stay as they are, and the conflicts will be there again the next time.
    """
    merged = merge_mesh(without_code(desired), mesh, force=force)
    filled, violations = with_code(desired, merged.mesh, code)
    plan = plan_mesh(desired, filled, prune=prune, launches=launches, found=[*found, *violations])
    contested = {conflict.subject for conflict in merged.conflicts}
    change = replace(plan.change, put_applied=tuple(it for it in merged.applied if subject_of(it) not in contested))
    as_written, _ = with_code(desired, mesh, code)
    change = replace(change, put_rollouts=confirmed_rollouts(desired, as_written.backends))
    after = desired.apply(change)
    fields = (
        *field_changes(desired.backends, after.backends),
        *field_changes(desired.endpoints, after.endpoints),
        *field_changes(desired.routes, after.routes),
    )
    return replace(plan, change=change, fields=fields, conflicts=merged.conflicts)


def confirmed_rollouts(desired: Desired, wanted: Iterable[Backend]) -> tuple[RolloutRecord, ...]:
    """Rollouts that were taken back, of backends that are wanted as they are now: the failure is reported no longer."""
    records = ((desired.rollouts.get(it.name), template_of(it)) for it in wanted)
    return tuple(
        replace(record, why="", failed_at_s=0.0)
        for record, template in records
        if record is not None and record.why and record.is_complete and record.template == template
    )


def plan_undo(desired: Desired, name: str) -> Plan:
    """Brings back what replicas of a backend were started with before. Raises InvalidSpec."""
    record, backend = desired.rollouts.get(name), desired.backends[name]
    settings = None
    if record is not None:
        is_done = record.template == template_of(backend) and record.is_complete
        settings = record.previous if is_done else record.good
    if record is None or settings is None or template_of(settings) == template_of(backend):
        raise InvalidSpec([SpecViolation("backend", f"there is nothing that {show(name)} could go back to")])
    return Plan(
        change=ChangeSet(put_backends=(restored(backend, settings),), put_rollouts=(replace(record, is_paused=False),)),
        updated=(f"backend/{name}",),
        note=f"rollout of {name} undone",
    )


def changed_policy(current: TrafficPolicy | None, requested: TrafficPolicy, *, clear_shadows: bool) -> TrafficPolicy:
    """The policy of an endpoint: weights and shadows of the request, and the present ones where it has none."""
    before = current or TrafficPolicy(weights={})
    return TrafficPolicy(
        weights=requested.weights or before.weights,
        shadows={} if clear_shadows else requested.shadows or before.shadows,
    )


def users_of(desired: Desired, backend: str) -> list[str]:
    """The endpoints whose policies name a backend, or will: it must not be deleted while they do."""
    policies = (*desired.endpoints.values(), *intended_endpoints(desired.endpoints, desired.shifts).values())
    return sorted(
        {
            endpoint.name
            for endpoint in policies
            if endpoint.traffic is not None and backend in {*endpoint.traffic.weights, *endpoint.traffic.shadows}
        }
    )


def _with_policy(desired: Desired, endpoint: Endpoint, clear_traffic: Collection[str]) -> Endpoint:
    """The desired endpoint: with its present policy, where the request has none."""
    there = intended_endpoints(desired.endpoints, desired.shifts).get(endpoint.name)
    if endpoint.traffic is not None or there is None or endpoint.name in clear_traffic:
        return endpoint
    return replace(endpoint, traffic=there.traffic)


def _with_services(desired: Desired, endpoint: Endpoint) -> Endpoint:
    """The desired endpoint with its services: those of the request, the present ones if it has none, None to clear."""
    services, there = endpoint.grpc_services, desired.endpoints.get(endpoint.name)
    if services is None:
        return endpoint if there is None else replace(endpoint, grpc_services=there.grpc_services)
    return replace(endpoint, grpc_services=None) if services == NO_SERVICES else endpoint


def _with_limits(desired: Desired, endpoint: Endpoint) -> Endpoint:
    """The desired endpoint: with its present limits by tenant if the request has none, and with None for no limits."""
    limits, there = endpoint.tenants, desired.endpoints.get(endpoint.name)
    if limits is None:
        return endpoint if there is None else replace(endpoint, tenants=there.tenants)
    return replace(endpoint, tenants=None) if limits == NO_LIMITS else endpoint


def _unknown_backends(endpoints: Collection[Endpoint], known: Collection[str]) -> Iterator[SpecViolation]:
    for endpoint in endpoints:
        if endpoint.traffic is None:
            continue
        named: Mapping[str, str] = {
            **dict.fromkeys(endpoint.traffic.weights, "traffic"),
            **dict.fromkeys(endpoint.traffic.shadows, "shadows"),
        }
        for name, part in named.items():
            if name not in known:
                yield SpecViolation(
                    f"endpoints.{show(endpoint.name)}.{part}.{show(name)}",
                    no_such_backend(name, known),
                )


def no_such_backend(name: str, known: Collection[str]) -> str:
    """With the names that were probably meant, and some of those that there are."""
    return f"no backend has this name{did_you_mean(name, known)} ({_listed(known)})"


def _listed(names: Collection[str], most: int = 8) -> str:
    shown = sorted(names)[:most]
    rest = len(names) - len(shown)
    return "there is none" if not shown else "there are " + ", ".join(shown) + (f" and {rest} more" if rest else "")


def unknown_policies(mesh: Mesh, known: Collection[str]) -> Iterator[SpecViolation]:
    """Backends whose number of replicas should be chosen by a function that this controller was not given."""
    for backend in mesh.backends:
        name = backend.autoscale.policy if backend.autoscale is not None else ""
        if name and name not in known:
            there = f"there are {', '.join(sorted(known))}" if known else "there is none"
            text = f"{show(name)!r} is none of this controller's --autoscale-policies ({there})"
            yield SpecViolation(f"backends.{show(backend.name)}.autoscale.policy", text)
