"""A file that is applied again: what it has changed since it was applied last is merged into the configuration.

Purpose: the file and the operators' commands own the same fields, as the traffic of an endpoint. A field that the file
did not change keeps its live value; one that only the file changed is taken over; one that both have changed is a
conflict.
Invariants: pure; a resource that was never applied is taken from the file as it is; fields are merged one by one: each
setting of a backend, and of an endpoint its weights, its shadows and its own services. An endpoint without a policy in
the file keeps its own. With `force` the file wins, and there is no conflict.
Owner: `shell.changes.configurator`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from controller_service.core.desired.revisions import NO_TRAFFIC, ROUTE_FIELDS, Resource, subject_of
from controller_service.core.desired.shifts import intended_endpoints
from controller_service.core.desired.state import Desired
from slotmesh.spec.model import NO_SERVICES, SETTINGS, Backend, Endpoint, Mesh, TrafficPolicy
from slotmesh.spec.routes import Route
from slotmesh.spec.tenants import NO_LIMITS
from slotmesh.spec.writing import UNSET, shown_limits, shown_services, shown_setting, shown_shares


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """A field of a backend or endpoint that differs. Values are as people write them."""

    subject: str
    """As `backend/digits-v1`."""
    field: str
    """Its name in documents."""
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldConflict:
    """A field that both the file and an operator have changed since the file was applied last."""

    subject: str
    field: str
    applied: str
    """The value in the file when it was applied last."""
    live: str
    """What is there."""
    wanted: str
    """The value in the file now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedMesh:
    """What a file comes to, merged into what is there."""

    mesh: Mesh
    conflicts: tuple[FieldConflict, ...] = ()
    applied: tuple[Resource, ...] = ()
    """Resources of the file that differ from when it was applied last."""


def merge_mesh(desired: Desired, mesh: Mesh, *, force: bool) -> MergedMesh:
    """`mesh` is the content of the file."""
    conflicts: list[FieldConflict] = []

    def choose(subject: str, field: str, values: tuple[Any, ...], show: Callable[[Any], str]) -> Any:
        base, live, wanted = values
        if wanted == base:
            return live
        if force or live in (base, wanted):
            return wanted
        conflicts.append(
            FieldConflict(subject=subject, field=field, applied=show(base), live=show(live), wanted=show(wanted))
        )
        return live

    applied = desired.applied
    intended = intended_endpoints(desired.endpoints, desired.shifts)
    backends = [
        _merged_backend(applied.get(subject_of(it)), desired.backends.get(it.name), it, choose) for it in mesh.backends
    ]
    endpoints = [
        _merged_endpoint(applied.get(subject_of(it)), intended.get(it.name), it, choose) for it in mesh.endpoints
    ]
    routes = [_merged_route(applied.get(subject_of(it)), desired.routes.get(it.path), it, choose) for it in mesh.routes]
    resources: list[Resource] = [*mesh.backends, *mesh.endpoints, *mesh.routes]
    return MergedMesh(
        mesh=Mesh(backends=tuple(backends), endpoints=tuple(endpoints), routes=tuple(routes)),
        conflicts=tuple(conflicts),
        applied=tuple(it for it in resources if applied.get(subject_of(it)) != it),
    )


def field_changes(before: Mapping[str, Resource], after: Mapping[str, Resource]) -> Iterator[FieldChange]:
    """The fields that differ between resources of one kind; of those that come or go, the ones that are set."""
    for name in sorted({**before, **after}):
        old, new = before.get(name), after.get(name)
        if old == new or (known := new or old) is None:
            continue
        was, becomes = _texts(old, known), _texts(new, known)
        for field in was:
            if was[field] != becomes[field] and not (field == "code" and was["version"] != becomes["version"]):
                yield FieldChange(subject=subject_of(known), field=field, before=was[field], after=becomes[field])


Choose = Callable[[str, str, tuple[Any, ...], Callable[[Any], str]], Any]
"""The value of a field: of subject and field, what it was when applied last, is, and should be, and how it is shown."""


def _merged_backend(base: Resource | None, live: Backend | None, wanted: Backend, choose: Choose) -> Backend:
    if live is None or not isinstance(base, Backend):
        return wanted
    merged: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        values = tuple(getattr(it, setting.attribute) for it in (base, live, wanted))
        merged[setting.attribute] = choose(subject_of(wanted), name, values, partial(shown_setting, setting))
    return replace(wanted, **merged)


def _merged_endpoint(base: Resource | None, live: Endpoint | None, wanted: Endpoint, choose: Choose) -> Endpoint:
    if live is None or not isinstance(base, Endpoint):
        return wanted
    subject = subject_of(wanted)
    services = tuple(it.grpc_services or NO_SERVICES for it in (base, live, wanted))
    wanted = replace(wanted, grpc_services=choose(subject, "grpc_services", services, shown_services))
    limits = tuple(it.tenants or NO_LIMITS for it in (base, live, wanted))
    wanted = replace(wanted, tenants=choose(subject, "tenants", limits, shown_limits))
    if base.traffic is None or wanted.traffic is None:
        return wanted
    policies = [it.traffic or NO_TRAFFIC for it in (base, live, wanted)]
    weights = choose(subject, "traffic", tuple(it.weights for it in policies), shown_shares)
    shadows = choose(subject, "shadows", tuple(it.shadows for it in policies), shown_shares)
    return replace(wanted, traffic=TrafficPolicy(weights=weights, shadows=shadows) if weights or shadows else None)


def _merged_route(base: Resource | None, live: Route | None, wanted: Route, choose: Choose) -> Route:
    if live is None or not isinstance(base, Route):
        return wanted
    merged = {
        name: choose(subject_of(wanted), name, tuple(getattr(it, name) for it in (base, live, wanted)), _shown)
        for name in ROUTE_FIELDS
    }
    return replace(wanted, **merged)


def _shown(value: str | tuple[str, ...]) -> str:
    """A field of a route."""
    return value if isinstance(value, str) else f"[{', '.join(value)}]"


def _texts(resource: Resource | None, known: Resource) -> dict[str, str]:
    """The fields of a resource as people write them; those of one that is not there, of the kind of `known`."""
    if isinstance(known, Backend):
        backend = resource if isinstance(resource, Backend) else Backend(name=known.name)
        return {name: shown_setting(it, getattr(backend, it.attribute)) for name, it in SETTINGS.items()}
    if isinstance(known, Route):
        route = resource if isinstance(resource, Route) else None
        return {name: UNSET if route is None else _shown(getattr(route, name)) for name in ROUTE_FIELDS}
    endpoint = resource if isinstance(resource, Endpoint) else Endpoint(name=known.name)
    policy = endpoint.traffic or NO_TRAFFIC
    return {
        "traffic": shown_shares(policy.weights),
        "shadows": shown_shares(policy.shadows),
        "grpc_services": shown_services(endpoint.grpc_services or NO_SERVICES),
        "tenants": shown_limits(endpoint.tenants or NO_LIMITS),
    }
