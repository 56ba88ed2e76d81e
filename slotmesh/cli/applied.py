"""The effects of a change of the configuration, from the controller's response."""

from __future__ import annotations

from dataclasses import dataclass

from slotmesh.v1 import controller_service_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldDifference:
    """A field of a backend or endpoint, as people write it, before and after."""

    subject: str
    field: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contested:
    """A field that both a file and another client have changed."""

    subject: str
    field: str
    applied: str
    live: str
    wanted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTraffic:
    """Traffic of an endpoint that moves when rollouts are complete."""

    endpoint: str
    backends: tuple[str, ...]
    """Whose rollouts these are."""
    deleted_afterwards: tuple[str, ...]
    """Backends that have this traffic until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What applying a mesh came to: names as `backend/NAME` or `endpoint/NAME`."""

    revision: int
    created: tuple[str, ...]
    updated: tuple[str, ...]
    unchanged: tuple[str, ...]
    deleted: tuple[str, ...]
    fields: tuple[FieldDifference, ...] = ()
    """Of a merged file: what differs."""
    conflicts: tuple[Contested, ...] = ()
    """Of a dry run: why it would be refused."""
    rolling: tuple[str, ...] = ()
    """Names of backends whose replicas the change starts or replaces."""
    waits: tuple[WaitingTraffic, ...] = ()
    """Traffic that moves later."""
    warnings: tuple[str, ...] = ()
    """What takes effect in another way than the file may suggest, a line each."""


def applied_from_wire(wire: pb.ApplyMeshResponse) -> Applied:
    return Applied(
        revision=wire.revision,
        created=tuple(wire.created),
        updated=tuple(wire.updated),
        unchanged=tuple(wire.unchanged),
        deleted=tuple(wire.deleted),
        fields=tuple(map(_field, wire.fields)),
        conflicts=tuple(
            Contested(subject=it.subject, field=it.field, applied=it.applied, live=it.live, wanted=it.wanted)
            for it in wire.conflicts
        ),
        rolling=tuple(wire.rolling),
        waits=tuple(map(_wait, wire.waits)),
        warnings=tuple(wire.warnings),
    )


def rolled_back_from_wire(wire: pb.RollbackResponse) -> Applied:
    return Applied(
        revision=wire.revision,
        created=tuple(wire.created),
        updated=tuple(wire.updated),
        unchanged=(),
        deleted=tuple(wire.deleted),
        fields=tuple(map(_field, wire.fields)),
        rolling=tuple(wire.rolling),
        waits=tuple(map(_wait, wire.waits)),
    )


def _field(wire: pb.FieldChange) -> FieldDifference:
    return FieldDifference(subject=wire.subject, field=wire.field, before=wire.before, after=wire.after)


def _wait(wire: pb.TrafficWait) -> WaitingTraffic:
    return WaitingTraffic(
        endpoint=wire.endpoint, backends=tuple(wire.backends), deleted_afterwards=tuple(wire.deleted_afterwards)
    )
