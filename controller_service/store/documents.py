"""The parts of the desired state as JSON documents, and back: rows of a state file, and `state export`.

Purpose: each part is declared once, and both directions follow; `SECTIONS` has the parts of `Desired`.
Invariants: as those of `forms`; settings stand by their names in Python, each with its value, so that a later default
does not change what was stored.
"""

from __future__ import annotations

import binascii
import sys
import zlib
from array import array
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from controller_service.core.desired.revisions import ChangeOrigin, Resource, ResourceChange, RevisionRecord
from controller_service.core.desired.shifts import ShiftRecord
from controller_service.core.desired.state import OF_SPEC, AnsweredRequest, Desired, ReplicaOrder, RolloutRecord
from controller_service.core.partition_owners import NO_OWNER, Incarnation, PartitionOwnership
from controller_service.core.roster import IncarnationRoster, LeaderTerm, ListedIncarnation
from controller_service.store.forms import (
    FORMS,
    BadDocument,
    Document,
    Form,
    RecordForm,
    many,
    member_of,
    object_of,
    plain,
    within,
)
from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.spec.environment import EnvironmentValue, value_of, written_environment
from slotmesh.spec.model import SETTINGS, Backend, Endpoint, GrpcServices, TrafficPolicy, plain_json
from slotmesh.spec.routes import Route, route_path
from slotmesh.spec.setting import Setting, SettingKind
from slotmesh.spec.tenants import TenantLimits, limits_of, limits_settings


class Stored(NamedTuple):
    """Documents of values whose names stand outside."""

    write: Callable[[Any], Document]
    read: Callable[[str, object], Any]
    """Of a name and a document. Raises BadDocument."""


def _stored(what: str, record: RecordForm, key: str = "name") -> Stored:
    return Stored(record.write, lambda name, document: within(f"{what} {name}", record.read, document, **{key: name}))


# -- backends, endpoints, routes --------------------------------------------------------------------------------------

_TYPES: Final[Mapping[SettingKind, tuple[type, ...]]] = {
    SettingKind.HANDLER: (str,),
    SettingKind.BALANCER: (str,),
    SettingKind.TEXT: (str,),
    SettingKind.INTEGER: (int,),
    SettingKind.NUMBER: (int, float),
    SettingKind.SIZE: (int,),
    SettingKind.DURATION: (int, float),
    SettingKind.FLAG: (bool,),
    SettingKind.JSON: (dict,),
    SettingKind.AMOUNTS: (dict,),
}


def _settings(kind: Callable[..., Any], settings: Mapping[str, Setting], *, outside: Iterable[str] = ()) -> RecordForm:
    forms = {it.attribute: _setting(it) for it in settings.values()}
    newer = [it.attribute for it in settings.values() if it.is_newer]
    return RecordForm(kind, outside=outside, absent=forms, newer=newer, forms=forms, named="setting ")


def _setting(setting: Setting) -> Form:
    if setting.section is not None:
        return _settings(setting.section, setting.settings).form
    if setting.kind is SettingKind.CHOICE:
        return member_of(type(setting.default))
    if setting.kind is SettingKind.ENVIRONMENT:
        return Form(written_environment, _environment)
    form = plain(setting.kind.name.lower(), *_TYPES[setting.kind])
    return form._replace(write=plain_json) if setting.kind in {SettingKind.JSON, SettingKind.AMOUNTS} else form


def _environment(document: Any) -> dict[str, EnvironmentValue]:
    try:
        return {name: value_of(it) for name, it in object_of(document).items()}
    except ValueError as error:
        raise BadDocument(str(error)) from None


def _limits(document: Any) -> TenantLimits:
    try:
        return limits_of(document)
    except ValueError as error:
        raise BadDocument(str(error)) from None


_BACKEND: Final = _settings(Backend, SETTINGS, outside=("name",))
BACKEND: Final = _stored("backend", _BACKEND)
_ENDPOINT_FORMS: Final = {
    "traffic": RecordForm(TrafficPolicy, absent=("shadows",)).form,
    "grpc_services": RecordForm(GrpcServices, keys={"names": "services"}).form,
    "tenants": Form(limits_settings, _limits),
}
ENDPOINT: Final = _stored(
    "endpoint", RecordForm(Endpoint, outside=("name",), absent=_ENDPOINT_FORMS, forms=_ENDPOINT_FORMS)
)
ROUTE: Final = _stored("route", RecordForm(Route, outside=("path",)), "path")


def _resource_document(resource: Resource) -> Document:
    if isinstance(resource, Route):
        return ROUTE.write(resource)
    return BACKEND.write(resource) if isinstance(resource, Backend) else ENDPOINT.write(resource)


def _resource_of(subject: str, document: object) -> Any:
    subject = subject.removesuffix(OF_SPEC)
    kind, _, name = subject.partition("/")
    if kind == "route":
        return ROUTE.read(route_path(subject), document)
    if kind not in {"backend", "endpoint"} or not name:
        raise BadDocument(f"{subject!r} is no backend, endpoint or route")
    return (BACKEND if kind == "backend" else ENDPOINT).read(name, document)


RESOURCE: Final = Stored(_resource_document, _resource_of)
"""By subject, as `backend/NAME`, or by `of_spec` of one."""


# -- owners of partitions ---------------------------------------------------------------------------------------------

_PACKED_BYTES: Final = PARTITIONS * (2 + 8 + 1 + 1)
"""Of each partition the index of its owner, its epoch above the base, and a byte for each of two sets."""
_OWNERS: Final = many(FORMS[Incarnation])


def _ownership_document(ownership: PartitionOwnership) -> Document:
    """Little-endian numbers, compressed, in base64."""
    base = min(ownership.epochs, default=0)
    numbers = array("h", ownership.partition_owners), array("q", [epoch - base for epoch in ownership.epochs])
    if sys.byteorder != "little":
        for each in numbers:
            each.byteswap()
    sets = (frozenset(ownership.leaving), ownership.inherited)
    flags = (bytes(number in members for number in range(PARTITIONS)) for members in sets)
    packed = b64encode(zlib.compress(b"".join([*(each.tobytes() for each in numbers), *flags]), 1)).decode()
    return {"owners": _OWNERS.write(ownership.owners), "base_epoch": base, "packed": packed}


def _unpacked(text: object) -> tuple[tuple[int, ...], ...]:
    try:
        raw = zlib.decompressobj().decompress(b64decode(str(text), validate=True), _PACKED_BYTES + 1)
    except (binascii.Error, zlib.error) as error:
        raise BadDocument(f"`packed` cannot be read: {error}") from error
    if len(raw) != _PACKED_BYTES:
        raise BadDocument(f"`packed` must have {_PACKED_BYTES} bytes, has {len(raw)} or more")
    owners, epochs = array("h", raw[: 2 * PARTITIONS]), array("q", raw[2 * PARTITIONS : 10 * PARTITIONS])
    if sys.byteorder != "little":
        owners.byteswap()
        epochs.byteswap()
    sets = (raw[10 * PARTITIONS : 11 * PARTITIONS], raw[11 * PARTITIONS :])
    return tuple(owners), tuple(epochs), *(tuple(at for at, is_in in enumerate(each) if is_in) for each in sets)


def _ownership_of(document: object) -> PartitionOwnership:
    given = object_of(document)
    owners = within("owners", _OWNERS.read, given.get("owners"))
    of, epochs, leaving, inherited = _unpacked(given.get("packed"))
    base = within("base_epoch", FORMS[int].read, given.get("base_epoch"))
    if not all(NO_OWNER <= index < len(owners) for index in of):
        raise BadDocument("an index in `partition_owners` is of no owner")
    return PartitionOwnership(
        owners=owners,
        partition_owners=of,
        epochs=tuple(base + epoch for epoch in epochs),
        leaving=leaving,
        inherited=frozenset(inherited),
    )


OWNERSHIP: Final = Stored(
    _ownership_document, lambda name, document: within(f"owners of endpoint {name}", _ownership_of, document)
)


# -- history, rollouts, shifts ----------------------------------------------------------------------------------------

_ORIGIN: Final = RecordForm(ChangeOrigin, is_open=True)
_CHANGES: Final = many(
    Form(
        lambda it: {"subject": it.subject, "before": _side(it.before), "after": _side(it.after)},
        lambda document: _change_of(object_of(document)),
    )
)


def _side(resource: Resource | None) -> Document | None:
    return None if resource is None else RESOURCE.write(resource)


def _change_of(given: Mapping[str, Any]) -> ResourceChange:
    subject = str(given.get("subject"))
    sides = (given.get(it) for it in ("before", "after"))
    before, after = (None if it is None else RESOURCE.read(subject, it) for it in sides)
    if before is None and after is None:
        raise BadDocument(f"{subject} has neither `before` nor `after`")
    return ResourceChange(before=before, after=after)


def _revision_of(name: str, document: object) -> RevisionRecord:
    given = object_of(document)
    return RevisionRecord(
        revision=int(name),
        base=within("base", FORMS[int].read, given.get("base")),
        origin=_ORIGIN.read(document),
        changes=within("changes", _CHANGES.read, given.get("changes", [])),
    )


REVISION: Final = Stored(
    lambda it: {"base": it.base, **_ORIGIN.write(it.origin), "changes": _CHANGES.write(it.changes)},
    lambda name, document: within(f"revision {name} of the history", _revision_of, name, document),
)
"""One revision of the configuration."""


def _rollout_of(name: str, document: object) -> RolloutRecord:
    record: RolloutRecord = _ROLLOUT.read(name, document)
    good, previous = (it and replace(it, name=name) for it in (record.good, record.previous))
    return replace(record, good=good, previous=previous)


_OF_ROLLOUT: Final = Form(_BACKEND.write, lambda document: _BACKEND.read(document, name=""))
_FORMER: Final = {"good": _OF_ROLLOUT, "previous": _OF_ROLLOUT}
_ROLLOUT: Final = _stored(
    "rollout of backend", RecordForm(RolloutRecord, outside=("backend",), forms=_FORMER), "backend"
)
ROLLOUT: Final = Stored(lambda record: {**dict.fromkeys(_FORMER), **_ROLLOUT.write(record)}, _rollout_of)
SHIFT: Final = _stored(
    "shift of endpoint",
    RecordForm(
        ShiftRecord,
        outside=("endpoint",),
    ),
    "endpoint",
)
ANSWER: Final = _stored("answered request", RecordForm(AnsweredRequest, outside=("key",)), "key")
_ORDER: Final = RecordForm(ReplicaOrder)
ORDER: Final = Stored(_ORDER.write, lambda name, document: within(f"order for replica {name}", _ORDER.read, document))
TERM: Final = _stored("term", RecordForm(LeaderTerm, outside=("term_id",)), "term_id")

# -- the roster, and the whole state ----------------------------------------------------------------------------------

MEMBER: Final = RecordForm(ListedIncarnation, outside=("suspect", "rank", "zone"), newer=("pod_uid", "devices")).form
ROSTER: Final = RecordForm(IncarnationRoster, outside=("members",))
"""Without its members: there may be thousands."""


class RowKind(StrEnum):
    """What a row of a state file has. The values are in files."""

    BACKEND = "backend"
    ENDPOINT = "endpoint"
    ROUTE = "route"
    OWNERSHIP = "ownership"
    MEMBER = "member"
    ROSTER = "roster"
    REVISION = "revision"
    ROLLOUT = "rollout"
    SHIFT = "shift"
    APPLIED = "applied"
    TERM = "term"
    ANSWER = "answer"
    ORDER = "order"


class StoredSection(NamedTuple):
    """An attribute of the desired state, whose values are documents of their own."""

    attribute: str
    stored: Stored
    key: str = ""
    """Of values in a tuple: the attribute that is their name. Empty: the section is a mapping."""
    order: Callable[[Any], Any] | None = None
    """Of the values, if it is not that of their names."""
    are_nameless: bool = False
    """A value does not contain its name: of one document, under several names, there is one value."""

    def values(self, desired: Desired) -> Mapping[str, Any]:
        """By name."""
        values = getattr(desired, self.attribute)
        return {str(getattr(it, self.key)): it for it in values} if self.key else values

    def read(self, documents: Mapping[str, object]) -> Any:
        """The attribute, of documents by name. Raises BadDocument."""
        known: dict[int, Any] = {}
        found: dict[str, Any] = {}
        for name in sorted(documents):
            at = id(documents[name])
            if not self.are_nameless or at not in known:
                known[at] = self.stored.read(name, documents[name])
            found[name] = known[at]
        if self.order is not None:
            order = self.order
            found = dict(sorted(found.items(), key=lambda it: order(it[1])))
        return tuple(found.values()) if self.key else MappingProxyType(found)


SECTIONS: Final[Mapping[RowKind, StoredSection]] = {
    RowKind.BACKEND: StoredSection("backends", BACKEND),
    RowKind.ENDPOINT: StoredSection("endpoints", ENDPOINT),
    RowKind.ROUTE: StoredSection("routes", ROUTE),
    RowKind.APPLIED: StoredSection("applied", RESOURCE),
    RowKind.REVISION: StoredSection("history", REVISION, "revision", attrgetter("revision")),
    RowKind.ROLLOUT: StoredSection("rollouts", ROLLOUT),
    RowKind.SHIFT: StoredSection("shifts", SHIFT),
    RowKind.ANSWER: StoredSection("answers", ANSWER, order=attrgetter("time_s")),
    RowKind.ORDER: StoredSection("orders", ORDER, order=attrgetter("time_s")),
    RowKind.TERM: StoredSection("terms", TERM, "term_id", attrgetter("first_revision", "term_id")),
    RowKind.OWNERSHIP: StoredSection("ownership", OWNERSHIP, are_nameless=True),
}
"""All of the desired state but the roster and its numbers."""
