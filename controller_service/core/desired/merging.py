"""A file that is applied again: what it has changed since it was applied last is merged into the configuration.

Purpose: the file and the operators' commands own the same fields, as the traffic of an endpoint. A field that the file
did not change keeps its live value; one that only the file changed is taken over; one that both have changed is a
conflict.
Invariants: pure; a resource that was never applied is taken from the file as it is; fields are merged one by one: each
setting of a backend, and of an endpoint its weights, its shadows and its own services. An endpoint without a policy in
the file keeps its own. A rollout that the controller rolled back is no operator's change: the same file does not repeat
it; one with another value for replicas is the next try, and then has all that was rolled back of it, never a part. With
`force` the file wins, there is no conflict, and what was rolled back is tried again.
Two records: `applied` has for each field what any file stated last; another has what `--spec` itself stated last, so
that a start with the same content changes nothing, whatever was applied meanwhile.
Owner: `shell.changes.configurator`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from controller_service.core.desired.handler_code import as_written, is_rolled_back, without_code
from controller_service.core.desired.revisions import ROUTE_FIELDS, Resource, fields_of, rolled_back_from, subject_of
from controller_service.core.desired.shifts import intended_endpoints
from controller_service.core.desired.state import RESTART_SETTINGS, Desired, of_spec
from slotmesh.spec.model import SETTINGS, Backend, Endpoint, Mesh, TrafficPolicy
from slotmesh.spec.routes import Route
from slotmesh.spec.writing import UNSET, shown_limits, shown_services, shown_setting, shown_shares

ResourceT = TypeVar("ResourceT", bound=Resource)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """A field of a backend or endpoint that differs. Values are as people write them."""

    resource: str
    """As `backend/digits-v1`."""
    field: str
    """Its name in documents."""
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldConflict:
    """A field that both the file and an operator have changed since the file was applied last."""

    resource: str
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
    """What files have stated last, of resources where that is something else now."""
    specified: tuple[Resource, ...] = ()
    """Resources of `--spec` that differ from what it had at the start before."""


def merge_mesh(
    desired: Desired, mesh: Mesh, *, force: bool, tried: Collection[str] = (), is_spec: bool = False
) -> MergedMesh:
    """`mesh` is the content of the file. `tried` names backends that get other code, by name.

    `is_spec`: the file is `--spec`, and only what it has changed since it was last read counts as changed.
    """
    conflicts: list[FieldConflict] = []
    resources: list[Resource] = [*mesh.backends, *mesh.endpoints, *mesh.routes]
    specified = {at: desired.applied.get(of_spec(at)) for it in resources if is_spec and (at := subject_of(it))}

    backends = [it for it in desired.backends.values() if is_rolled_back(desired.rollouts.get(it.name), it)]
    rolled_back = {subject_of(it): _taken_back(desired, it) for it in backends}
    desired = without_code(desired)
    applied = {at: _base(desired.applied.get(at), specified.get(at), it) for it in resources if (at := subject_of(it))}
    next_tries = {
        subject
        for it in mesh.backends
        if (subject := subject_of(it)) in rolled_back
        and (force or it.name in tried or _starts_otherwise(applied.get(subject), it))
    }

    def choose(subject: str, field: str, values: tuple[Any, ...], show: Callable[[Any], str]) -> Any:
        base, live, wanted = values
        if wanted == base:
            return wanted if subject in next_tries and field in rolled_back[subject] else live
        if (
            force
            or live in (base, wanted)
            or (subject in rolled_back and SETTINGS[field].attribute in RESTART_SETTINGS)
        ):
            return wanted
        conflicts.append(
            FieldConflict(resource=subject, field=field, applied=show(base), live=show(live), wanted=show(wanted))
        )
        return live

    intended = intended_endpoints(desired.endpoints, desired.shifts)

    def merged(wanted: Iterable[ResourceT], there: Mapping[str, ResourceT]) -> tuple[ResourceT, ...]:
        return tuple(_merged(applied.get(subject_of(it)), there.get(it.name), it, choose) for it in wanted)

    whole = Mesh(
        backends=merged(mesh.backends, desired.backends),
        endpoints=merged(mesh.endpoints, intended),
        routes=merged(mesh.routes, desired.routes),
    )
    contested = {(it.resource, it.field) for it in conflicts}
    return MergedMesh(
        mesh=whole,
        conflicts=tuple(conflicts),
        applied=tuple(
            stated
            for it in resources
            if (at := subject_of(it))
            and (stated := _stated(desired.applied.get(at), specified.get(at), it, contested)) is not None
        ),
        specified=tuple(it for it in resources if is_spec and specified[subject_of(it)] != it),
    )


def field_changes(before: Mapping[str, Resource], after: Mapping[str, Resource]) -> Iterator[FieldChange]:
    """The fields of resources, by subject, that differ; of those that come or go, the ones that are set."""
    for subject in sorted({**before, **after}):
        old, new = before.get(subject), after.get(subject)
        if old == new or (known := new or old) is None:
            continue
        was, becomes = _texts(old, known), _texts(new, known)
        for field in was:
            if was[field] != becomes[field] and not (field == "code" and was["version"] != becomes["version"]):
                yield FieldChange(resource=subject, field=field, before=was[field], after=becomes[field])


Choose = Callable[[str, str, tuple[Any, ...], Callable[[Any], str]], Any]
"""The value of a field: of subject and field, what it was when applied last, is, and should be, and how it is shown."""


def _taken_back(desired: Desired, live: Backend) -> Collection[str]:
    """The fields that the newest roll-back of a backend has changed; all that one may, if it is not known any more."""
    restored = [name for name, it in SETTINGS.items() if it.attribute in RESTART_SETTINGS]
    failed = rolled_back_from(desired.history, subject_of(live))
    if not isinstance(failed, Backend):
        return restored
    was, now = fields_of(as_written(failed)), fields_of(as_written(live))
    return [name for name in restored if was[name] != now[name]]


def _starts_otherwise(base: Resource | None, wanted: Backend) -> bool:
    """Whether the file has other settings that replicas are started with than when it was applied last."""
    return any(getattr(base, name, None) != getattr(wanted, name) for name in RESTART_SETTINGS)


def _base(applied: Resource | None, specified: Resource | None, wanted: Resource) -> Resource | None:
    """What the fields were when they were stated last. Those that `--spec` has not changed are what it states."""
    if applied is None or specified is None:
        return applied
    last, own, fields = fields_of(applied), fields_of(specified), fields_of(wanted)
    return _with_fields(wanted, {name: it if own[name] == it else last[name] for name, it in fields.items()})


def _stated(
    applied: Resource | None, specified: Resource | None, wanted: Resource, contested: Collection[tuple[str, str]]
) -> Resource | None:
    """What files have stated last once this one is merged; None if that is what it was before."""
    if applied is None:
        return wanted
    last, fields, subject = fields_of(applied), fields_of(wanted), subject_of(wanted)
    own = {} if specified is None else fields_of(specified)
    kept = {name for name, it in fields.items() if (name in own and own[name] == it) or (subject, name) in contested}
    stated = {name: last[name] if name in kept else it for name, it in fields.items()}
    return None if stated == last else _with_fields(wanted, stated)


def _with_fields(resource: ResourceT, fields: dict[str, Any]) -> ResourceT:
    if isinstance(resource, Backend):
        return replace(resource, **{SETTINGS[name].attribute: value for name, value in fields.items()})
    if isinstance(resource, Endpoint) and "traffic" in fields:
        weights, shadows = fields.pop("traffic"), fields.pop("shadows")
        fields["traffic"] = TrafficPolicy(weights=weights, shadows=shadows) if weights or shadows else None
    return replace(resource, **fields)


def _merged(base: Resource | None, live: Resource | None, wanted: ResourceT, choose: Choose) -> ResourceT:
    if live is None or base is None:
        return wanted
    before, there, fields = fields_of(base), fields_of(live), fields_of(wanted)
    subject = subject_of(wanted)
    if isinstance(wanted, Endpoint) and isinstance(base, Endpoint) and (base.traffic is None or wanted.traffic is None):
        del fields["traffic"], fields["shadows"]  # an endpoint without a policy in the file keeps its own
    for name in fields:
        values = before[name], there[name], fields[name]
        fields[name] = choose(subject, name, values, partial(_shown, wanted, name))
    return _with_fields(wanted, fields)


def _shown(resource: Resource, name: str, value: Any) -> str:
    """The value of a field, as people write it."""
    if isinstance(resource, Backend):
        return shown_setting(SETTINGS[name], value)
    if isinstance(resource, Route):
        return value if isinstance(value, str) else f"[{', '.join(value)}]"
    if name == "grpc_services":
        return shown_services(value)
    return shown_limits(value) if name == "tenants" else shown_shares(value)


def _texts(resource: Resource | None, known: Resource) -> dict[str, str]:
    """The fields of a resource as people write them; those of one that is not there, of the kind of `known`."""
    if resource is None and isinstance(known, Route):
        return dict.fromkeys(ROUTE_FIELDS, UNSET)
    resource = resource or (Backend(name=known.name) if isinstance(known, Backend) else Endpoint(name=known.name))
    return {name: _shown(resource, name, value) for name, value in fields_of(resource).items()}
