"""The parts of the desired state as JSON documents, and back.

Purpose: the one form in which state is kept outside of a process: the rows of a state file, and `state export`.
Invariants: what is read equals what was written, number types included; settings stand by their names in Python, each
with its value, so that a later default does not change what was stored; what cannot be read is a `BadDocument` that
names the place, never a default instead. A setting, or a value, of a newer version is such a document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Final, TypeAlias, TypeVar

from controller_service.core.desired.revisions import ChangeOrigin, Resource, ResourceChange, RevisionRecord
from controller_service.core.partitions import NO_OWNER, Incarnation, PartitionOwnership
from controller_service.core.roster import CoveredTables, DepartedIncarnation, IncarnationRoster, ListedIncarnation
from controller_service.store.document_fields import (
    BadDocument,
    limits_from,
    pack_partitions,
    services_document,
    services_from,
    unpack_partitions,
)
from slotmesh.calls.partitions import PARTITIONS
from slotmesh.spec.model import SETTINGS, Backend, Endpoint, TrafficPolicy
from slotmesh.spec.routes import Route, route_path
from slotmesh.spec.setting import Setting, SettingKind
from slotmesh.spec.tenants import limits_settings

Document: TypeAlias = "dict[str, Any]"
"""A JSON object."""
ValueT = TypeVar("ValueT")

_OFTEN_EMPTY: Final = frozenset({"identity", "method", "part_of"})
"""Of the origin of a change: left out where empty."""
_MEMBER_FIELDS: Final = tuple(each.name for each in fields(ListedIncarnation))
_SETTING_OF: Final = {each.attribute: each for each in SETTINGS.values()}


# -- backends and endpoints -------------------------------------------------------------------------------------------


def backend_document(backend: Backend) -> Document:
    """The backend, with all its settings that have a value; the name stands outside."""
    return _settings_document(backend, _SETTING_OF)


def backend_of(name: str, document: object) -> Backend:
    """The backend of that name. Raises BadDocument."""
    return Backend(name=name, **_settings_from(f"backend {name}", document, _SETTING_OF))


def endpoint_document(endpoint: Endpoint) -> Document:
    """The endpoint; the name stands outside."""
    document = services_document(endpoint.grpc_services)
    if endpoint.tenants is not None:
        document["tenants"] = limits_settings(endpoint.tenants)
    if (traffic := endpoint.traffic) is not None:
        document["traffic"] = {"weights": dict(traffic.weights), "shadows": dict(traffic.shadows)}
    return document


def endpoint_of(name: str, document: object) -> Endpoint:
    """The endpoint of that name. Raises BadDocument."""
    where = f"endpoint {name}"
    given = object_of(where, document, known={"traffic", "grpc_services", "tenants"})
    services = services_from(where, given)
    tenants = limits_from(where, given)
    if "traffic" not in given:
        return Endpoint(name=name, grpc_services=services, tenants=tenants)
    traffic = object_of(f"{where}: traffic", given["traffic"], known={"weights", "shadows"})
    weights, shadows = (_shares(f"{where}: {part}", traffic.get(part)) for part in ("weights", "shadows"))
    policy = TrafficPolicy(weights=weights, shadows=shadows)
    return Endpoint(name=name, traffic=policy, grpc_services=services, tenants=tenants)


def route_document(route: Route) -> Document:
    """The route; its path stands outside."""
    return {"endpoint": route.endpoint, "method": route.method, "methods": list(route.methods)}


def route_of(path: str, document: object) -> Route:
    """The route of that path. Raises BadDocument."""
    where = f"route {path}"
    given = object_of(where, document, known={"endpoint", "method", "methods"})
    methods = _list(where, given, "methods", lambda it: it)
    if not all(isinstance(it, str) for it in (given.get("endpoint"), given.get("method"), *methods)):
        raise BadDocument(f"{where}: `endpoint` and `method` must be texts, `methods` a list of texts")
    return Route(path=path, endpoint=given["endpoint"], method=given["method"], methods=methods)


# -- resources of either kind -----------------------------------------------------------------------------------------


def resource_document(resource: Resource) -> Document:
    """The backend, endpoint or route; its subject, as `backend/NAME`, stands outside."""
    if isinstance(resource, Route):
        return route_document(resource)
    return backend_document(resource) if isinstance(resource, Backend) else endpoint_document(resource)


def resource_of(subject: str, document: object) -> Resource:
    """The backend, endpoint or route of that subject. Raises BadDocument."""
    kind, _, name = subject.partition("/")
    if kind == "route":
        return route_of(route_path(subject), document)
    if kind not in {"backend", "endpoint"} or not name:
        raise BadDocument(f"{subject!r} is no backend, endpoint or route")
    return backend_of(name, document) if kind == "backend" else endpoint_of(name, document)


# -- owners and roster ------------------------------------------------------------------------------------------------


def ownership_document(ownership: PartitionOwnership) -> Document:
    """The owners of an endpoint's partitions; the endpoint's name stands outside."""
    base = min(ownership.epochs, default=0)
    epochs = [epoch - base for epoch in ownership.epochs]
    packed = pack_partitions(ownership.partition_owners, epochs, ownership.leaving, ownership.inherited)
    return {"owners": [_pair(it) for it in ownership.owners], "base_epoch": base, "packed": packed}


def ownership_from(endpoint: str, document: object) -> PartitionOwnership:
    """Raises BadDocument."""
    where = f"owners of endpoint {endpoint}"
    given = object_of(where, document)
    owners = _list(where, given, "owners", _incarnation)
    if "packed" in given:
        of, epochs, leaving, inherited = unpack_partitions(where, given["packed"])
    else:  # of an older version
        of, epochs, leaving, inherited = (
            _list(where, given, part, _integer) for part in ("partition_owners", "epochs", "leaving", "inherited")
        )
    base = _integer(given.get("base_epoch"))
    if len(of) != PARTITIONS or len(epochs) != PARTITIONS:
        raise BadDocument(f"{where}: must be of {PARTITIONS} partitions, are of {len(of)} and {len(epochs)}")
    if not all(NO_OWNER <= index < len(owners) for index in of):
        raise BadDocument(f"{where}: an index in `partition_owners` is of no owner")
    if not all(0 <= number < PARTITIONS for number in (*leaving, *inherited)):
        raise BadDocument(f"{where}: a number in `leaving` or `inherited` is of no partition")
    return PartitionOwnership(
        owners=owners,
        partition_owners=of,
        epochs=tuple(base + epoch for epoch in epochs),
        leaving=leaving,
        inherited=frozenset(inherited),
    )


def member_document(member: ListedIncarnation) -> Document:
    """One member of the roster."""
    fields = {name: getattr(member, name) for name in _MEMBER_FIELDS}
    if not member.fenced_after_s:
        del fields["fenced_after_s"]  # earlier versions, which do not know it, read the file
    return {**fields, "owner": _pair(member.owner)}


def member_from(document: object) -> ListedIncarnation:
    """Raises BadDocument."""
    return _listed(ListedIncarnation, document)


def roster_document(roster: IncarnationRoster) -> Document:
    """The roster without its members: there may be thousands."""
    return {
        "revision": roster.revision,
        "departed": [
            {"owner": _pair(it.owner), "generation": it.generation, "revision": it.revision, "left_at": it.left_at}
            for it in roster.departed
        ],
        "departed_since": roster.departed_since,
        "covers": [asdict(it) for it in roster.covers],
    }


def roster_from(document: object, members: Iterable[ListedIncarnation]) -> IncarnationRoster:
    """Raises BadDocument."""
    where = "roster"
    given = object_of(where, document)
    return IncarnationRoster(
        revision=_integer(given.get("revision")),
        members=tuple(sorted(members, key=lambda member: member.owner)),
        departed=_list(where, given, "departed", lambda it: _listed(DepartedIncarnation, it)),
        departed_since=_integer(given.get("departed_since")),
        covers=_list(where, given, "covers", lambda it: _made(CoveredTables, object_of(where, it))),
    )


# -- history ----------------------------------------------------------------------------------------------------------


def record_document(record: RevisionRecord) -> Document:
    """One revision of the configuration; its number stands outside."""
    return {
        "base": record.base,
        **{name: value for name, value in asdict(record.origin).items() if value or name not in _OFTEN_EMPTY},
        "changes": [
            {
                "subject": it.subject,
                "before": None if it.before is None else resource_document(it.before),
                "after": None if it.after is None else resource_document(it.after),
            }
            for it in record.changes
        ],
    }


def record_from(revision: int, document: object) -> RevisionRecord:
    """Raises BadDocument."""
    where = f"revision {revision} of the history"
    given = object_of(where, document)
    origin = {key: given.get(key) for key in ("who", "time_s", "note")} | {
        key: given.get(key, "") for key in _OFTEN_EMPTY
    }
    texts = ("who", "note", *sorted(_OFTEN_EMPTY))
    if not isinstance(origin["time_s"], int | float) or not all(isinstance(origin[it], str) for it in texts):
        raise BadDocument(f"{where}: `who` and `note` must be texts, `time_s` a number")
    return RevisionRecord(
        revision=revision,
        base=_integer(given.get("base")),
        origin=_made(ChangeOrigin, origin),
        changes=_list(where, given, "changes", lambda it: _change(object_of(where, it))),
    )


def _change(given: Mapping[str, Any]) -> ResourceChange:
    subject = str(given.get("subject"))
    before, after = (None if given.get(it) is None else resource_of(subject, given[it]) for it in ("before", "after"))
    if before is None and after is None:
        raise BadDocument(f"history: {subject} has neither `before` nor `after`")
    return ResourceChange(before=before, after=after)


# -- parts of documents -----------------------------------------------------------------------------------------------


def _settings_document(resource: object, settings: Mapping[str, Setting]) -> Document:
    """The settings that have a value; `settings` by their names in Python."""
    values = {attribute: getattr(resource, attribute) for attribute in settings}
    return {attribute: _plain(value, settings[attribute]) for attribute, value in values.items() if value is not None}


def _settings_from(where: str, document: object, settings: Mapping[str, Setting]) -> Document:
    """Values by the names of settings in Python. Raises BadDocument."""
    given = dict(object_of(where, document))
    if unknown := sorted(given.keys() - settings.keys()):
        raise BadDocument(f"{where}: this version of slotmesh knows no setting {', '.join(unknown)}")
    return {key: _setting(f"{where}: {key}", settings[key], it) for key, it in given.items()}


def _by_attribute(settings: Mapping[str, Setting]) -> Mapping[str, Setting]:
    return {each.attribute: each for each in settings.values()}


def _plain(value: Any, setting: Setting) -> Any:
    """A setting's value as JSON has it."""
    match setting.kind:
        case SettingKind.CHOICE:
            return value.name.lower()
        case SettingKind.JSON:
            return _json(value)
        case SettingKind.SECTION:
            return _settings_document(value, _by_attribute(setting.settings))
        case _:
            return value


def _json(value: Any) -> Any:
    """Lists and dicts, where configurations may have read-only mappings and tuples."""
    if isinstance(value, Mapping):
        return {name: _json(inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_json(inner) for inner in value]
    return value


_TYPES: Final[Mapping[SettingKind, tuple[type, ...]]] = {
    SettingKind.HANDLER: (str,),
    SettingKind.TEXT: (str,),
    SettingKind.INTEGER: (int,),
    SettingKind.NUMBER: (int, float),
    SettingKind.SIZE: (int,),
    SettingKind.DURATION: (int, float),
    SettingKind.FLAG: (bool,),
    SettingKind.JSON: (dict,),
}


def _setting(where: str, setting: Setting, value: Any) -> Any:
    if setting.section is not None:
        return setting.section(**_settings_from(where, value, _by_attribute(setting.settings)))
    if setting.kind is SettingKind.CHOICE:
        for each in type(setting.default):
            if value == each.name.lower():
                return each
        raise BadDocument(f"{where}: this version of slotmesh knows no {value!r}")
    is_flag = setting.kind is SettingKind.FLAG
    if not isinstance(value, _TYPES[setting.kind]) or isinstance(value, bool) is not is_flag:
        raise BadDocument(f"{where}: {value!r} is no {setting.kind.name.lower()}")
    return value


def _shares(where: str, value: object) -> dict[str, float]:
    shares = object_of(where, {} if value is None else value)
    for name, share in shares.items():
        if isinstance(share, bool) or not isinstance(share, int | float):
            raise BadDocument(f"{where}: the share of {name} is no number")
    return dict(shares)


def object_of(where: str, document: object, *, known: set[str] | None = None) -> Mapping[str, Any]:
    """A JSON object with no keys but the known ones; None: any. Raises BadDocument."""
    if not isinstance(document, dict):
        raise BadDocument(f"{where}: must be a JSON object")
    if known is not None and (unknown := sorted(document.keys() - known)):
        raise BadDocument(f"{where}: this version of slotmesh knows no {', '.join(unknown)}")
    return document


def _list(where: str, given: Mapping[str, Any], part: str, read: Callable[[Any], ValueT]) -> tuple[ValueT, ...]:
    values = given.get(part, [])
    if not isinstance(values, list | tuple):
        raise BadDocument(f"{where}: `{part}` must be a list")
    return tuple(read(value) for value in values)


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadDocument(f"{value!r} is no integer")
    return value


def _pair(owner: Incarnation) -> list[str]:
    return [owner.replica_id, owner.incarnation]


def _incarnation(pair: object) -> Incarnation:
    if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(it, str) for it in pair):
        raise BadDocument(f"{pair!r} is no incarnation: a replica's id and 32 digits")
    return Incarnation(*pair)


def _listed(kind: Callable[..., ValueT], document: object) -> ValueT:
    given = object_of("roster", document)
    return _made(kind, {**given, "owner": _incarnation(given.get("owner"))})


def _made(kind: Callable[..., ValueT], given: Mapping[str, Any]) -> ValueT:
    """A dataclass of plain values."""
    try:
        return kind(**given)
    except TypeError as error:
        raise BadDocument(f"{getattr(kind, '__name__', kind)}: {error}") from error
