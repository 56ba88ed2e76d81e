"""The history of the configuration: which backends and endpoints each revision changed, when, and who asked for it.

Invariants: immutable; a revision that changed no backend and no endpoint has no record; the newest records are kept, at
most `MAX_RECORDS` of them and about `MAX_RECORDED_CHARS` of text, the newest one always. Records follow each other
without a gap, so that the configuration as of any of them, and as of the revision before the oldest, can be computed
from the present one.
Owner: the store, by `Desired`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from hashlib import blake2b
from typing import Any, Final, TypeAlias

from slotmesh.spec.model import NO_SERVICES, SETTINGS, Backend, Endpoint, JsonValue, Mesh, TrafficPolicy
from slotmesh.spec.routes import Route, route_subject
from slotmesh.spec.tenants import NO_LIMITS

Resource: TypeAlias = "Backend | Endpoint | Route"

MAX_RECORDS: Final = 200
"""Revisions that are kept."""
MAX_RECORDED_CHARS: Final = 4 * 2**20
"""Roughly the text of all resources in all records: a `user_config` may be large."""


def subject_of(resource: Resource) -> str:
    """As `backend/digits-v1`, `endpoint/digits`, `route/users/{name}`."""
    if isinstance(resource, Route):
        return route_subject(resource.path)
    return f"{'backend' if isinstance(resource, Backend) else 'endpoint'}/{resource.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOrigin:
    """Where a change of the configuration came from."""

    who: str = ""
    """For a person: `slotmesh at 127.0.0.1:52114`; empty if unknown."""
    time_s: float = 0.0
    """When, seconds since 1970; 0 if unknown."""
    note: str = ""
    """Why, for a person: `rollback to revision 12`."""
    identity: str = ""
    """The identity that asked for it, for the audit log; empty where callers have none."""
    method: str = ""
    """The full name of the rpc that asked for it, likewise; empty where none did."""
    part_of: str = ""
    """The change that is made in several revisions, of which this is one: a shift. Empty if the revision is a whole."""


BY_CONTROLLER: Final = "controller"
"""The author of changes that the controller makes by itself."""
ROUTE_FIELDS: Final = ("endpoint", "method", "methods")
"""What of a route may differ."""
NO_TRAFFIC: Final = TrafficPolicy(weights={})
UNKNOWN_ORIGIN: Final = ChangeOrigin()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceChange:
    """One backend, endpoint or route, before and after. None: it was not there, or is there no more."""

    before: Resource | None
    after: Resource | None

    @property
    def subject(self) -> str:
        """As `backend/digits-v1`."""
        resource = self.after or self.before
        if resource is None:
            raise ValueError("a change from nothing to nothing")
        return subject_of(resource)

    @property
    def verb(self) -> str:
        """What became of it: created, updated or deleted."""
        if self.before is None:
            return "created"
        return "deleted" if self.after is None else "updated"


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionRecord:
    """What one revision changed of the configuration."""

    revision: int
    origin: ChangeOrigin
    changes: tuple[ResourceChange, ...]
    """By subject; each resource once."""
    base: int
    """The configuration's revision before it."""


History: TypeAlias = tuple[RevisionRecord, ...]
"""Oldest first."""


def recorded(history: History, record: RevisionRecord) -> History:
    """With one more record, and without those that there is no room for."""
    kept: list[RevisionRecord] = []
    chars = 0
    for each in reversed((*history, record)):
        chars += sum(_size(it) for change in each.changes for it in (change.before, change.after))
        if kept and (len(kept) == MAX_RECORDS or chars > MAX_RECORDED_CHARS):
            break
        kept.append(each)
    return tuple(reversed(kept))


def stored_roll_back_note(backend: str) -> str:
    """The note of the revision by which the controller rolls a rollout back, as it is stored: 0.2.0 reads it, too."""
    return f"rollout of {backend} taken back"


def is_roll_back(record: RevisionRecord) -> bool:
    """Whether the controller has rolled a rollout back by it."""
    notes = [stored_roll_back_note(it.after.name) for it in record.changes if isinstance(it.after, Backend)]
    origin = record.origin
    return origin.who == BY_CONTROLLER and not origin.method and origin.note in notes


def rolled_back_from(history: History, subject: str) -> Resource | None:
    """What the controller has replaced by the newest roll-back of a resource. None: that is not known any more."""
    for record in filter(is_roll_back, reversed(history)):
        for change in record.changes:
            if change.subject == subject:
                return change.before
    return None


def note_of(record: RevisionRecord) -> str:
    """Why it was made, for a person."""
    note = record.origin.note
    return note.replace("taken back", "rolled back") if is_roll_back(record) else note


def newest_change(history: History) -> History:
    """The records of the newest change, oldest first. `history` has records.

    All revisions of a shift are one change, and so are a deployment and what follows it to roll it back.
    """
    newest = history[-1]
    if newest.origin.part_of:
        return tuple(it for it in history if it.origin.part_of == newest.origin.part_of)
    back: set[str] = set()
    for count, record in enumerate(reversed(history), 1):
        subjects = {it.subject for it in record.changes}
        if not is_roll_back(record):
            return history[-count:] if back <= subjects else (newest,)
        back |= subjects
    return (newest,)


def changes_between(before: Mapping[str, Resource], after: Mapping[str, Resource]) -> tuple[ResourceChange, ...]:
    """The resources of one kind that differ, by name."""
    if before is after:
        return ()
    names = sorted({**before, **after})
    pairs = ((before.get(name), after.get(name)) for name in names)
    return tuple(ResourceChange(before=one, after=other) for one, other in pairs if one != other)


def fields_of(resource: Resource) -> dict[str, Any]:
    """What of a resource may differ, by the names of fields in documents."""
    if isinstance(resource, Backend):
        return {name: getattr(resource, it.attribute) for name, it in SETTINGS.items()}
    if isinstance(resource, Route):
        return {name: getattr(resource, name) for name in ROUTE_FIELDS}
    policy = resource.traffic or NO_TRAFFIC
    return {
        "traffic": policy.weights,
        "shadows": policy.shadows,
        "grpc_services": resource.grpc_services or NO_SERVICES,
        "tenants": resource.tenants or NO_LIMITS,
    }


def changed_fields(change: ResourceChange) -> list[str]:
    """Of a resource that was updated: the fields that differ."""
    if change.before is None or change.after is None:
        return []
    before, after = fields_of(change.before), fields_of(change.after)
    return [name for name in before if before[name] != after[name]]


def etag_of(resource: Resource) -> str:
    """A digest of what is configured: resources with equal etags are equal."""
    content = json.dumps([subject_of(resource), fields_of(resource)], sort_keys=True, default=_plain)
    return blake2b(content.encode(), digest_size=8).hexdigest()


def _plain(value: Any) -> Any:
    """Of values that JSON does not have: mappings, sections of settings, members of enums, bytes."""
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(value):
        return {it.name: getattr(value, it.name) for it in fields(value)}
    return value.name if isinstance(value, Enum) else value.hex()


def by_subject(*kinds: Iterable[Resource]) -> dict[str, Resource]:
    """Resources by subject."""
    return {subject_of(it): it for resources in kinds for it in resources}


def mesh_of(resources: Collection[Resource]) -> Mesh:
    """Resources by kind, each kind in the order given."""
    return Mesh(
        backends=tuple(it for it in resources if isinstance(it, Backend)),
        endpoints=tuple(it for it in resources if isinstance(it, Endpoint)),
        routes=tuple(it for it in resources if isinstance(it, Route)),
    )


def configuration_before(resources: Mapping[str, Resource], records: Sequence[RevisionRecord]) -> Mesh:
    """The present configuration, by subject, without what these revisions have changed. Oldest first."""
    known = dict(resources)
    for record in reversed(records):
        for change in record.changes:
            known.pop(change.subject, None)
            if change.before is not None:
                known[change.subject] = change.before
    return mesh_of(known.values())


def _size(resource: Resource | None) -> int:
    """Roughly its text, characters."""
    if resource is None:
        return 0
    if isinstance(resource, Backend):
        return 500 + _json_size(resource.user_config)
    if isinstance(resource, Route):
        return 500
    policy, services = resource.traffic, resource.grpc_services
    limits = resource.tenants
    chars = 0 if limits is None else 100 + 400 * len(limits.overrides)
    chars += 100 if policy is None else 100 + 80 * (len(policy.weights) + len(policy.shadows))
    return chars if services is None else chars + 100 + 4 * len(services.descriptor_set) // 3


def _json_size(value: JsonValue) -> int:
    if isinstance(value, str):
        return len(value) + 2
    if isinstance(value, Mapping):
        return sum(len(name) + 4 + _json_size(inner) for name, inner in value.items())
    if isinstance(value, Sequence):
        return sum(2 + _json_size(inner) for inner in value)
    return 8
