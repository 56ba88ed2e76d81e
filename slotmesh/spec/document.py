"""`mesh.yaml`: from text to the model, with all violations in one error.

Purpose: one reader for `slotmesh apply` and for the controller's `--spec`.
Invariants: a file with any violation yields no mesh; each violation has its path in the document; unknown and repeated
keys are violations. The controller checks whether the backends that a policy names exist.

    backends:
      digits-v1: {handler: "examples.digits.app:Digits", num_replicas: 2, max_queue_time: 30s, max_queued_bytes: 256MiB}
    endpoints:
      digits: {traffic: {digits-v1: 1.0}}
    routes:
      /classify: {endpoint: digits, method: classify, methods: [POST]}
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, create_model
from pydantic_core import ErrorDetails

from slotmesh.names import did_you_mean
from slotmesh.spec.descriptor_sets import (
    BadDescriptors,
    read_services,
    services_of_descriptor_file,
    services_of_proto_files,
)
from slotmesh.spec.environment import value_of
from slotmesh.spec.model import (
    DOCUMENT_SETTINGS,
    NO_SERVICES,
    RENAMED,
    Backend,
    Endpoint,
    GrpcServices,
    InvalidSpec,
    Mesh,
    SpecViolation,
    TrafficPolicy,
)
from slotmesh.spec.routes import DEFAULT_METHODS, Route
from slotmesh.spec.rules import mesh_violations, number, show
from slotmesh.spec.safe_yaml import UniqueKeyLoader, read_with, surprises
from slotmesh.spec.sections import MAX_SPEC_BYTES, SECTIONS, Names
from slotmesh.spec.setting import FOREIGN, Setting, SettingKind, choices
from slotmesh.spec.tenants import limits_of
from slotmesh.units import parse_duration, parse_size


class ServicesDocument(BaseModel):
    """The `grpc_services` of an endpoint in a document. The endpoint gets each service of the files, or `services`.

    - `{protos: [greeter.proto]}`: compiled by grpcio-tools where the document is read
    - `{descriptor_set: greeter.binpb}`: as protoc --include_imports --descriptor_set_out writes it
    - `{descriptor_set_base64: "…"}`: the descriptor set inside the document, as `slotmesh get` prints it
    - `{}`: removes the services
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    protos: list[str] | None = None
    descriptor_set: str | None = None
    descriptor_set_base64: str | None = None
    services: list[str] | None = None


def read_services_document(document: ServicesDocument, base: Path) -> GrpcServices:
    """The services. Relative paths start at `base`. Raises ValueError."""
    sources = ("protos", "descriptor_set", "descriptor_set_base64")
    given = [name for name in sources if getattr(document, name)]
    if not given:
        if document.services:
            raise ValueError(f"services: one of {', '.join(sources)} has to declare them")
        return NO_SERVICES
    if len(given) > 1:
        raise ValueError(f"{given[0]} and {given[1]} contradict each other: leave one of them out")
    names = document.services
    if document.protos:
        return services_of_proto_files([base / file for file in document.protos], base, names)
    if document.descriptor_set:
        return services_of_descriptor_file(base / document.descriptor_set, names)
    try:
        return read_services(base64.b64decode(document.descriptor_set_base64 or "", validate=True), names)
    except binascii.Error as error:
        raise ValueError(f"descriptor_set_base64: is no base64: {error}") from None
    except BadDescriptors as bad:
        raise ValueError(f"descriptor_set_base64: {bad}") from None


def _written(parse: Callable[[str], Any], example: str) -> BeforeValidator:
    def read(value: object) -> Any:
        if not isinstance(value, str):
            raise ValueError(f"write it with its unit, as {example}")  # noqa: TRY004 - pydantic collects ValueErrors
        return parse(value)

    return BeforeValidator(read)


_TYPES: Mapping[SettingKind, Any] = {
    SettingKind.HANDLER: str,
    SettingKind.BALANCER: str | None,
    SettingKind.TEXT: str | None,
    SettingKind.INTEGER: int | None,
    SettingKind.NUMBER: float | None,
    SettingKind.SIZE: Annotated[int, _written(parse_size, "64KiB or 256MiB")] | None,
    SettingKind.DURATION: Annotated[timedelta, _written(parse_duration, "250ms, 30s or 2m")] | None,
    SettingKind.FLAG: bool | None,
    SettingKind.AMOUNTS: dict[str, float] | None,
    SettingKind.JSON: dict[str, Any],  # the rules check that it is JSON
    SettingKind.ENVIRONMENT: dict[str, Annotated[Any, BeforeValidator(value_of)]] | None,
}
"""The type of each kind of setting in a document; None is an empty value."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _type_of(setting: Setting) -> Any:
    match setting.kind:
        case SettingKind.CHOICE:
            return Literal[choices(setting)] | None
        case SettingKind.SECTION:
            fields: dict[str, Any] = {name: (_type_of(each), None) for name, each in setting.settings.items()}
            return create_model(f"_{setting.name.title()}Document", __base__=_Strict, **fields) | None
        case _:
            return _TYPES[setting.kind]


_FIELDS: dict[str, Any] = {name: (_type_of(each), None) for name, each in DOCUMENT_SETTINGS.items()}
_BackendDocument = create_model("_BackendDocument", __base__=_Strict, **_FIELDS)


def _given(settings: Mapping[str, Setting], document: BaseModel) -> dict[str, Any]:
    """The settings that the document has, by their names in Python."""
    given = {key: value for key in document.model_fields_set if (value := getattr(document, key)) is not None}
    return {settings[key].attribute: _value(settings[key], given[key]) for key in given}


def _value(setting: Setting, content: Any) -> Any:
    match setting.kind:
        case SettingKind.DURATION:
            return content.total_seconds()
        case SettingKind.CHOICE:
            return type(setting.default)[content.upper()]
        case SettingKind.SECTION if setting.section is not None:
            return setting.section(**_given(setting.settings, content))
        case SettingKind.NUMBER:
            return float(content)
        case _:
            return content


class _LimitDocument(_Strict):
    max_calls_per_s: int | None = None
    burst: int | None = None
    max_in_flight: int | None = None


class _TenantsDocument(_LimitDocument):
    overrides: dict[str, _LimitDocument] = {}


class _EndpointDocument(_Strict):
    traffic: dict[str, float] | None = None
    shadows: dict[str, float] = {}
    grpc_services: ServicesDocument | None = None
    tenants: _TenantsDocument | None = None


def _endpoint(name: str, document: _EndpointDocument, base: Path, violations: list[SpecViolation]) -> Endpoint:
    services = None
    if document.grpc_services is not None:
        try:
            services = read_services_document(document.grpc_services, base)
        except ValueError as error:
            violations.append(SpecViolation(f"endpoints.{show(name)}.grpc_services", str(error)))
    traffic = None
    if document.traffic is not None or document.shadows:
        traffic = TrafficPolicy(weights=document.traffic or {}, shadows=document.shadows)
    tenants = None if document.tenants is None else limits_of(document.tenants.model_dump(exclude_none=True))
    return Endpoint(name=name, traffic=traffic, grpc_services=services, tenants=tenants)


class _RouteDocument(_Strict):
    endpoint: str | None = None  # optional here: the rules report a missing endpoint, and an unreadable one only once
    method: str | None = None
    methods: list[str] = list(DEFAULT_METHODS)


def _route(path: str, document: _RouteDocument) -> Route:
    return Route(
        path=path,
        endpoint=document.endpoint or "",
        method=document.method or "",
        methods=tuple(sorted(document.methods)),
    )


DocumentT = TypeVar("DocumentT", bound=BaseModel)

log = logging.getLogger(__name__)


MoreRules = Callable[[Mesh], Iterable[SpecViolation]]
"""Further rules for a mesh, whose violations are reported with the others."""


def load_mesh(path: Path, more: MoreRules | None = None) -> Mesh:
    """Reads a file. Raises InvalidSpec with every violation."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_SPEC_BYTES + 1)
    except OSError as error:
        raise InvalidSpec([SpecViolation(str(path), f"cannot be read: {error.strerror or error}")]) from error
    if len(text) > MAX_SPEC_BYTES:
        raise InvalidSpec([SpecViolation(str(path), f"is larger than {MAX_SPEC_BYTES:,} bytes")])
    return parse_mesh(text, path.parent, more)


def parse_mesh(text: str | bytes, base: Path = Path(), more: MoreRules | None = None) -> Mesh:
    """Reads YAML. Relative paths of files that it names start at `base`. Raises InvalidSpec with every violation.

    Logs a warning for each value that YAML may read differently than its author meant.
    """
    content = _yaml(text)
    violations: list[SpecViolation] = []
    sections = _map("", {} if content is None else content, violations)
    violations += [
        SpecViolation(show(name), f"there are `backends`, `endpoints` and `routes` only{_meant(name, SECTIONS)}")
        for name in sections.keys() - SECTIONS.keys()
    ]
    backends = _resources(_BackendDocument, "backends", sections.get("backends"), violations)
    endpoints = _resources(_EndpointDocument, "endpoints", sections.get("endpoints"), violations)
    routes = _resources(_RouteDocument, "routes", sections.get("routes"), violations)
    mesh = Mesh(
        backends=tuple(Backend(name=name, **_given(DOCUMENT_SETTINGS, each)) for name, each in backends.items()),
        endpoints=tuple(_endpoint(name, document, base, violations) for name, document in endpoints.items()),
        routes=tuple(_route(path, document) for path, document in routes.items()),
    )
    reported = {violation.path for violation in violations}
    rules = [*mesh_violations(mesh), *(more(mesh) if more is not None else ())]
    violations += [violation for violation in rules if violation.path not in reported]
    if violations:
        raise InvalidSpec(violations)
    return mesh


def _resources(
    model: type[DocumentT], section: str, content: object, violations: list[SpecViolation]
) -> dict[str, DocumentT]:
    """The resources of a section. A field that cannot be read is a violation, and keeps its default."""
    documents: dict[str, DocumentT] = {}
    for name, fields in _map(section, {} if content is None else content, violations).items():
        path = f"{section}.{show(name)}"
        given = dict(_map(path, {} if fields is None else fields, violations))
        try:
            documents[name] = model.model_validate(given)
        except ValidationError as error:
            details = error.errors(include_url=False)
            violations += [_violation(path, detail, SECTIONS[section]) for detail in details]
            for detail in details:
                given.pop(str(detail["loc"][0]), None)
            documents[name] = model.model_validate(given)
    return documents


def _map(path: str, content: object, violations: list[SpecViolation]) -> dict[str, object]:
    """The entries of a map whose keys are names; anything else is a violation."""
    if not isinstance(content, dict):
        violations.append(SpecViolation(path, f"must be a map, is {_kind(content)}"))
        return {}
    violations += [
        SpecViolation(path, f"{show(str(key))} is {_kind(key)}, not a name: quote it")
        for key in content
        if not isinstance(key, str)
    ]
    return {key: value for key, value in content.items() if isinstance(key, str)}


def _violation(path: str, detail: ErrorDetails, known: Names) -> SpecViolation:
    """The violation of a pydantic error. It does not repeat values of `user_config` and `env`, which may be secret."""
    where = ".".join([path, *(show(str(step)) for step in detail["loc"] if step != "[key]")])
    match detail["type"]:
        case "extra_forbidden":
            *outer, name = (str(step) for step in detail["loc"])
            for step in outer:
                known = known.get(step, known)  # steps whose names the file chooses (overrides) keep the settings
            renamed = RENAMED.get(name)
            text = f"is called {renamed} now" if renamed else f"there is no such setting{_meant(name, known)}"
            return SpecViolation(where, text)
        case "value_error":
            return SpecViolation(where, str(detail["ctx"]["error"]))
        case "model_type" | "dict_type":
            return SpecViolation(where, f"must be a map{_value_given(detail)}")
        case "string_type" | "invalid_key" if detail["type"] == "invalid_key" or detail["loc"][-1] == "[key]":
            key = show(str(detail["input"]))
            return SpecViolation(
                where.removesuffix(f".{key}"), f"{key} is {_kind(detail['input'])}, not a name: quote it"
            )
        case "literal_error":
            return SpecViolation(where, f"must be {detail['ctx']['expected']}")
        case _:
            message = detail["msg"].removeprefix("Input should be ")
            is_unquoted = detail["type"] == "string_type" and not isinstance(detail["input"], dict | list | None)
            fix = ": quote it" if is_unquoted else ""
            return SpecViolation(where, f"must be {message}{_value_given(detail)}{fix}")


def _value_given(detail: ErrorDetails) -> str:
    """The end of a message: the value in the file, unless it may be a secret."""
    setting = DOCUMENT_SETTINGS.get(str(detail["loc"][0]))
    is_secret = setting is not None and setting.kind in {SettingKind.JSON, SettingKind.ENVIRONMENT}
    return "" if is_secret else f", is {_kind(detail['input'])}"


def _meant(name: str, known: Names) -> str:
    """The setting that another framework calls by this name, or the most similar setting. Empty if there is none."""
    for place in FOREIGN.get(name, ()):
        if place.partition(":")[0] in known:
            return f"; here it is `{place}`"
    return did_you_mean(name, known)


def _yaml(text: str | bytes) -> object:
    try:
        return read_with(UniqueKeyLoader, text, _warn_of_surprises)
    except yaml.MarkedYAMLError as error:
        where = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        raise InvalidSpec([SpecViolation("", f"{where}{error.problem or error}")]) from error
    except yaml.YAMLError as error:
        raise InvalidSpec([SpecViolation("", f"is no YAML: {str(error).splitlines()[0]}")]) from error


def _warn_of_surprises(document: yaml.Node) -> None:
    for surprise in surprises(document):
        log.warning("%s", surprise)


def _kind(value: object) -> str:
    match value:
        case None:
            return "empty"
        case bool():
            return "a boolean"
        case int() | float():
            return f"the number {number(value)}"
        case str():
            return f"{show(value)!r}"
        case dict():
            return "a map"
        case list():
            return "a list"
        case _:
            return f"a {type(value).__name__}"
