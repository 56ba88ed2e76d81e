"""Plans of operators' requests, checked against the configuration: what is created, updated, unchanged, deleted.

Invariants: a plan holds for the revision it was made of only; an invalid request changes nothing; what is there
already, unchanged, is not written again; an endpoint without a policy in the request keeps its own.
Owner: `shell.changes.configurator`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from controller_service.core.desired.handler_code import (
    NO_CODE,
    Code,
    CodeChange,
    is_rolled_back,
    template_of,
    with_code,
)
from controller_service.core.desired.merging import FieldChange, FieldConflict, field_changes, merge_mesh
from controller_service.core.desired.revisions import UNKNOWN_ORIGIN, ChangeOrigin, by_subject, mesh_of
from controller_service.core.desired.shifts import intended_endpoints
from controller_service.core.desired.state import ChangeSet, Desired, RolloutRecord, deleted_subjects
from slotmesh.names import did_you_mean
from slotmesh.spec.model import DOCUMENT_SETTINGS, NO_SERVICES, Backend, Endpoint, InvalidSpec, Mesh, SpecViolation
from slotmesh.spec.rules import clash_violations, mesh_violations, show
from slotmesh.spec.setting import Change
from slotmesh.spec.tenants import NO_LIMITS

MAX_LISTED_CHARS: Final = 2**20
"""Of fields that differ, in a response: a change may be of thousands of resources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficWaits:
    """Traffic of an endpoint that moves when rollouts are complete."""

    endpoint: str
    backends: tuple[str, ...]
    """Whose rollouts these are, by name."""
    deleted_afterwards: tuple[str, ...] = ()
    """Backends that have this traffic until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBackSettings:
    """Settings of a file that were rolled back, and that applying the unchanged file does not bring back."""

    backend: str
    reason: str
    fields: tuple[str, ...]
    """Those that differ from what is in force."""


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
    """The revision whose configuration it brings back, if there is one."""
    fields: tuple[FieldChange, ...] = ()
    """What differs."""
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
    rolled_back: tuple[RolledBackSettings, ...] = ()
    """Of a merged file only."""

    @property
    def changes_nothing(self) -> bool:
        return self.change == ChangeSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTerms:
    """On what terms a change is wanted."""

    validate_only: bool = False
    """It is planned, and not made."""
    expected_revision: int | None = None
    """It is refused where the configuration has changed since this revision. None: it is never."""
    etags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """By subject: it is refused where a resource has another etag."""
    origin: ChangeOrigin = UNKNOWN_ORIGIN
    """Who wants it."""


ALWAYS: Final = ChangeTerms()


def plan_mesh(
    desired: Desired,
    mesh: Mesh,
    *,
    prune: bool,
    launches: bool,
    replaces: Collection[str] = (),
    found: Collection[SpecViolation] = (),
) -> Plan:
    """Creates and updates what `mesh` has; `prune` deletes what it lacks. Raises InvalidSpec with every violation.

    `replaces` names endpoints of `mesh` that should have nothing but what it has; others keep what is not in it.
    `found` are violations that were found before, and that the mesh does not show any more.
    """
    intended = intended_endpoints(desired.endpoints, desired.shifts)
    mesh = replace(
        mesh, endpoints=tuple(_completed(it, intended.get(it.name), it.name in replaces) for it in mesh.endpoints)
    )
    backends = {it.name: it for it in mesh.backends}
    known = backends.keys() if prune else {**desired.backends, **backends}.keys()
    violations = [*found, *mesh_violations(mesh), *_unknown_backends(mesh.endpoints, known)]
    if not prune:
        violations += clash_violations({**desired.routes, **{it.path: it for it in mesh.routes}}.values())
    if launches:
        text = "is required, as MODULE:NAME: this controller launches the replicas"
        without = (it.name for it in mesh.backends if not it.handler)
        violations += [SpecViolation(f"backends.{show(name)}.handler", text) for name in without]
    if violations:
        raise InvalidSpec(violations)

    there = by_subject(desired.backends.values(), intended.values(), desired.routes.values())
    wanted = by_subject(mesh.backends, mesh.endpoints, mesh.routes)
    missing = sorted(there.keys() - wanted.keys()) if prune else []
    deleted = sorted(missing, key=lambda it: it.partition("/")[0], reverse=True)  # routes, endpoints, backends
    put, gone = (
        mesh_of([it for at, it in wanted.items() if there.get(at) != it]),
        mesh_of([there[it] for it in deleted]),
    )
    return Plan(
        change=ChangeSet(
            put_backends=put.backends,
            put_endpoints=put.endpoints,
            put_routes=put.routes,
            delete_backends=tuple(it.name for it in gone.backends),
            delete_endpoints=tuple(it.name for it in gone.endpoints),
            delete_routes=tuple(it.path for it in gone.routes),
        ),
        created=tuple(it for it in wanted if it not in there),
        updated=tuple(it for it in wanted if it in there and there[it] != wanted[it]),
        unchanged=tuple(it for it in wanted if there.get(it) == wanted[it]),
        deleted=tuple(deleted),
    )


def plan_file(
    desired: Desired,
    mesh: Mesh,
    *,
    prune: bool,
    launches: bool,
    force: bool,
    found: Collection[SpecViolation] = (),
    code: Code = NO_CODE,
    is_spec: bool = False,
) -> Plan:
    """A file that may have been applied before, merged into what is there. Raises InvalidSpec.

    `code` has what handlers' code is now, as far as it is found. `is_spec`: it is the file of `--spec`.

    Where there are conflicts, those fields stay as they are. When the file is applied, the conflicts will be there
    again; `--spec` has stated its values then, and does not repeat them.
    """
    merged = merge_mesh(desired, mesh, force=force, is_spec=is_spec)
    filled, violations = with_code(desired, merged.mesh, code)
    if tried := _tried_by_code(desired, filled.backends):
        merged = merge_mesh(desired, mesh, force=force, tried=tried, is_spec=is_spec)
        filled, violations = with_code(desired, merged.mesh, code)
    plan = plan_mesh(desired, filled, prune=prune, launches=launches, found=[*found, *violations])
    change = replace(plan.change, put_applied=merged.applied, put_specified=merged.specified)
    as_written, _ = with_code(desired, mesh, code)
    change = replace(change, put_rollouts=confirmed_rollouts(desired, as_written.backends))
    after = desired.apply(change)
    return replace(
        plan,
        change=change,
        conflicts=merged.conflicts,
        rolled_back=tuple(rolled_back_settings(after, mesh.backends)),
    )


def _tried_by_code(desired: Desired, backends: Iterable[Backend]) -> set[str]:
    """Backends that were rolled back, and get other code: replicas are replaced."""
    pairs = ((desired.backends.get(it.name), it) for it in backends)
    return {
        it.name
        for live, it in pairs
        if live is not None and it.code != live.code and is_rolled_back(desired.rollouts.get(it.name), live)
    }


def with_effects(desired: Desired, plan: Plan, *, launches: bool) -> Plan:
    """The plan, with the fields that differ after it, and the backends whose replicas are started or replaced.

    Traffic that waits for a rollout differs by what it waits to become. `launches`: whether this controller rolls out.
    """
    change = plan.change
    shifts = {it.endpoint: it for it in change.put_shifts}
    endpoints = {name: desired.endpoints[name] for name in shifts} | {it.name: it for it in change.put_endpoints}
    after = by_subject(change.put_backends, intended_endpoints(endpoints, shifts).values(), change.put_routes)
    before = {it: there for it in (*after, *deleted_subjects(change)) if (there := desired.resource(it)) is not None}
    rolling = rolling_backends(desired, change.put_backends) if launches else {}
    return replace(
        plan,
        fields=tuple(_listed_fields(field_changes(before, after))),
        rolling=tuple(sorted(it.name for it in change.put_backends if it.name in rolling and it.num_replicas != 0)),
    )


def _listed_fields(changes: Iterable[FieldChange]) -> Iterator[FieldChange]:
    """Those that fit a response."""
    left = MAX_LISTED_CHARS
    for it in changes:
        left -= len(it.resource) + len(it.field) + len(it.before) + len(it.after)
        if left < 0:
            return
        yield it


def rolling_backends(desired: Desired, backends: Iterable[Backend]) -> dict[str, str]:
    """Backends whose replicas are started with something else than before, with the templates of that."""
    templates = {it.name: template_of(it) for it in backends}
    live = {name: template_of(it) for name, it in desired.backends.items() if name in templates}
    return {name: it for name, it in templates.items() if it != live.get(name)}


def rolled_back_settings(after: Desired, wanted: Iterable[Backend]) -> Iterator[RolledBackSettings]:
    """What was rolled back of these backends of a file. A version that the file does not name is not compared."""
    for it in wanted:
        live, record = after.backends.get(it.name), after.rollouts.get(it.name)
        if live is None or record is None or not record.why or record.template != template_of(live):
            continue
        fields = [
            name
            for name, setting in DOCUMENT_SETTINGS.items()
            if setting.change is not Change.TAKEN_OVER
            and getattr(it, setting.attribute) != getattr(live, setting.attribute)
            and not (name == "version" and not it.version)
        ]
        if fields:
            yield RolledBackSettings(backend=it.name, reason=record.why, fields=tuple(fields))


def confirmed_rollouts(desired: Desired, wanted: Iterable[Backend]) -> tuple[RolloutRecord, ...]:
    """Rollouts that were rolled back, of backends that are wanted as they are now: their failure is over."""
    records = ((desired.rollouts.get(it.name), template_of(it)) for it in wanted)
    return tuple(
        replace(record, why="", failed_at_s=0.0)
        for record, template in records
        if record is not None and record.why and record.is_complete and record.template == template
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


def _completed(endpoint: Endpoint, there: Endpoint | None, is_whole: bool) -> Endpoint:
    """The desired endpoint: what the request does not have is as it is, and what is empty there is taken away.

    `is_whole`: what the request does not have is taken away, too.
    """
    traffic, services, tenants = endpoint.traffic, endpoint.grpc_services, endpoint.tenants
    if there is not None and not is_whole:
        traffic = there.traffic if traffic is None else traffic
        services = there.grpc_services if services is None else services
        tenants = there.tenants if tenants is None else tenants
    return replace(
        endpoint,
        traffic=traffic,
        grpc_services=None if services == NO_SERVICES else services,
        tenants=None if tenants == NO_LIMITS else tenants,
    )


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


def lacking(
    desired: Desired, mesh: Mesh, policies: Collection[str], of_launcher: Callable[[Backend], Iterable[SpecViolation]]
) -> Iterator[SpecViolation]:
    """What backends want that this controller, or its launcher, does not have.

    What the launcher lacks for a backend as it is already, as on a machine that now has fewer CPUs, is no violation.
    """
    yield from unknown_policies(mesh, policies)
    for backend in mesh.backends:
        live = desired.backends.get(backend.name)
        before = () if live is None else frozenset(of_launcher(live))
        yield from (it for it in of_launcher(backend) if it not in before)


def unknown_policies(mesh: Mesh, known: Collection[str]) -> Iterator[SpecViolation]:
    """Backends whose number of replicas should be chosen by a function that this controller was not given."""
    for backend in mesh.backends:
        name = backend.autoscale.policy if backend.autoscale is not None else ""
        if name and name not in known:
            there = f"there are {', '.join(sorted(known))}" if known else "there is none"
            text = f"{show(name)!r} is none of this controller's --autoscale-policies ({there})"
            yield SpecViolation(f"backends.{show(backend.name)}.autoscale.policy", text)
