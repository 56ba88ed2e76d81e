"""The model of `slotmesh.spec` from and to the messages of `slotmesh.v1`.

Invariants: reading never raises on what a peer sent: errors are returned beside the value. Unset fields become the
model's defaults; unknown enum values are errors, never silently a default. protobuf carries every JSON number as a
double: integral ones up to 2^53 become `int`. The rules of the specification are not checked here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from google.protobuf import duration_pb2, struct_pb2
from google.protobuf.message import Message

from slotmesh.spec.descriptor_sets import services_violations
from slotmesh.spec.environment import Environment, EnvironmentValue
from slotmesh.spec.model import (
    SETTINGS,
    Backend,
    Endpoint,
    GrpcServices,
    JsonValue,
    Mesh,
    SpecViolation,
    TrafficPolicy,
    plain_json,
)
from slotmesh.spec.routes import DEFAULT_METHODS, Route
from slotmesh.spec.rules import show
from slotmesh.spec.setting import Setting, SettingKind
from slotmesh.spec.tenants import LIMITS, OVERRIDES, TenantLimit, TenantLimits, limits_settings
from slotmesh.units import MAX_DURATION_S
from slotmesh.v1 import mesh_pb2

_EXACT: Final = 2.0**53
"""Above it a double cannot distinguish adjacent integers."""


def value_from_wire(wire: struct_pb2.Value) -> Any:
    """The value as a Python object; None if unset."""
    match wire.WhichOneof("kind"):
        case "bool_value":
            return wire.bool_value
        case "number_value":
            number = wire.number_value
            whole = math.isfinite(number) and number == math.floor(number) and abs(number) <= _EXACT
            return int(number) if whole else number
        case "string_value":
            return wire.string_value
        case "list_value":
            return [value_from_wire(value) for value in wire.list_value.values]
        case "struct_value":
            return struct_from_wire(wire.struct_value)
        case _:
            return None


def struct_from_wire(wire: struct_pb2.Struct) -> dict[str, Any]:
    """The struct as a dict."""
    return {name: value_from_wire(value) for name, value in wire.fields.items()}


def mesh_to_wire(mesh: Mesh) -> mesh_pb2.Mesh:
    return mesh_pb2.Mesh(
        backends=map(backend_to_wire, mesh.backends),
        endpoints=map(endpoint_to_wire, mesh.endpoints),
        routes=map(route_to_wire, mesh.routes),
    )


def backend_to_wire(backend: Backend, settings: Mapping[str, Setting] = SETTINGS) -> mesh_pb2.Backend:
    """The backend as a message, with the fields of these settings."""
    wire = mesh_pb2.Backend(name=backend.name)
    _write(wire, backend, settings)
    return wire


def endpoint_to_wire(endpoint: Endpoint) -> mesh_pb2.Endpoint:
    return mesh_pb2.Endpoint(
        name=endpoint.name,
        traffic=None if endpoint.traffic is None else traffic_to_wire(endpoint.traffic),
        grpc_services=None if endpoint.grpc_services is None else services_to_wire(endpoint.grpc_services),
        tenants=None if endpoint.tenants is None else tenants_to_wire(endpoint.tenants),
    )


def tenants_to_wire(limits: TenantLimits) -> mesh_pb2.TenantLimits:
    settings = limits_settings(limits)
    overrides = {name: mesh_pb2.TenantLimit(**limit) for name, limit in settings.pop(OVERRIDES, {}).items()}
    return mesh_pb2.TenantLimits(**settings, overrides=overrides)


def tenants_from_wire(wire: mesh_pb2.TenantLimits) -> TenantLimits:
    """The limits that a peer sent, not yet checked by the rules."""
    overrides = {name: TenantLimit(**_limits(limit)) for name, limit in wire.overrides.items()}
    return TenantLimits(**_limits(wire), overrides=overrides)


def _limits(wire: mesh_pb2.TenantLimits | mesh_pb2.TenantLimit) -> dict[str, int]:
    return {name: value for name in LIMITS if (value := getattr(wire, name))}


def services_to_wire(services: GrpcServices) -> mesh_pb2.GrpcServices:
    return mesh_pb2.GrpcServices(services=services.names, descriptor_set=services.descriptor_set)


def route_to_wire(route: Route) -> mesh_pb2.HttpRoute:
    return mesh_pb2.HttpRoute(name=route.path, endpoint=route.endpoint, method=route.method, methods=route.methods)


def traffic_to_wire(traffic: TrafficPolicy) -> mesh_pb2.TrafficPolicy:
    return mesh_pb2.TrafficPolicy(weights=traffic.weights, shadows=traffic.shadows)


def duration_to_wire(seconds: float) -> duration_pb2.Duration:
    wire = duration_pb2.Duration()
    wire.FromNanoseconds(round(seconds * 1e9))
    return wire


def struct_to_wire(config: Mapping[str, JsonValue]) -> struct_pb2.Struct:
    wire = struct_pb2.Struct()
    wire.update({name: plain_json(value) for name, value in config.items()})
    return wire


def mesh_from_wire(wire: mesh_pb2.Mesh) -> tuple[Mesh, list[SpecViolation]]:
    """The mesh that a peer sent, not yet checked by the rules, and its values that the model does not have."""
    errors: list[SpecViolation] = []
    mesh = Mesh(
        backends=tuple(_backend(backend, errors) for backend in wire.backends),
        endpoints=tuple(endpoint_from_wire(endpoint) for endpoint in wire.endpoints),
        routes=tuple(map(route_from_wire, wire.routes)),
    )
    for endpoint in mesh.endpoints:
        errors += services_violations(f"endpoints.{show(endpoint.name)}", endpoint.grpc_services)
    return mesh, errors


def backend_from_wire(wire: mesh_pb2.Backend) -> tuple[Backend, list[SpecViolation]]:
    """The backend that a peer sent, not yet checked by the rules, and its values that the model does not have."""
    errors: list[SpecViolation] = []
    return _backend(wire, errors), errors


def endpoint_from_wire(wire: mesh_pb2.Endpoint) -> Endpoint:
    """The endpoint that a peer sent, not yet checked by the rules."""
    return Endpoint(
        name=wire.name,
        traffic=traffic_from_wire(wire.traffic) if wire.HasField("traffic") else None,
        grpc_services=services_from_wire(wire.grpc_services) if wire.HasField("grpc_services") else None,
        tenants=tenants_from_wire(wire.tenants) if wire.HasField("tenants") else None,
    )


def services_from_wire(wire: mesh_pb2.GrpcServices) -> GrpcServices:
    return GrpcServices(names=tuple(wire.services), descriptor_set=wire.descriptor_set)


def route_from_wire(wire: mesh_pb2.HttpRoute) -> Route:
    """The route that a peer sent, not yet checked by the rules."""
    methods = tuple(sorted(wire.methods)) or DEFAULT_METHODS
    return Route(path=wire.name, endpoint=wire.endpoint, method=wire.method, methods=methods)


def traffic_from_wire(wire: mesh_pb2.TrafficPolicy) -> TrafficPolicy:
    return TrafficPolicy(weights=dict(wire.weights), shadows=dict(wire.shadows))


def _write(wire: Message, values: object, settings: Mapping[str, Setting]) -> None:
    """Sets the message's fields of these settings to the attributes of `values`."""
    for name, setting in settings.items():
        if (value := getattr(values, setting.attribute)) is not None:
            if setting.kind is SettingKind.SECTION:
                section = getattr(wire, name)
                section.SetInParent()
                _write(section, value, setting.settings)
            elif (write := _WRITE.get(setting.kind)) is not None:
                write(wire, name, value)
            else:
                setattr(wire, name, value)


def _backend(wire: mesh_pb2.Backend, errors: list[SpecViolation]) -> Backend:
    return Backend(name=wire.name, **_read(wire, SETTINGS, f"backends.{show(wire.name)}", errors))


def _read(wire: Message, settings: Mapping[str, Setting], path: str, errors: list[SpecViolation]) -> dict[str, Any]:
    """The values of these settings that are set, by their names in Python; adds unknown values to `errors`."""
    given: dict[str, Any] = {}
    for field, value in wire.ListFields():
        if (setting := settings.get(field.name)) is None:
            continue
        if setting.section is not None:
            inner = _read(value, setting.settings, f"{path}.{setting.name}", errors)
            given[setting.attribute] = setting.section(**inner)
            continue
        read = _READ.get(setting.kind)
        if (found := value if read is None else read(setting, value)) is not None:
            given[setting.attribute] = found
        else:
            by_name = isinstance(value, str)
            known = (it.name.lower() if by_name else f"{it.name.lower()} ({it.value})" for it in type(setting.default))
            shown = repr(show(value)) if by_name else value
            text = f"{shown} is no value that this version knows; there are {', '.join(known)}"
            errors.append(SpecViolation(f"{path}.{setting.name}", text))
    return given


def _nanoseconds(seconds_: float) -> int:
    """Limited to the range of a Duration: a value that a peer sent is not checked yet, and may be larger."""
    return round(min(max(seconds_, -MAX_DURATION_S), MAX_DURATION_S) * 1e9)


def _write_json(wire: Any, name: str, value: Mapping[str, JsonValue]) -> None:
    if value:
        getattr(wire, name).CopyFrom(struct_to_wire(value))


def _write_environment(wire: Any, name: str, value: Environment) -> None:
    for variable, it in value.items():
        source = getattr(wire, name)[variable]
        if it.file:
            source.file = it.file
        elif it.inherit:
            source.inherit = True
        else:
            source.value = it.value or ""


def _environment(wire: Mapping[str, mesh_pb2.EnvironmentValue]) -> dict[str, EnvironmentValue]:
    """A source that this version does not know makes a value without any, which the rules refuse."""
    return {name: _environment_value(it) for name, it in wire.items()}


def _environment_value(wire: mesh_pb2.EnvironmentValue) -> EnvironmentValue:
    value = wire.value if wire.WhichOneof("source") == "value" else None
    return EnvironmentValue(value=value, inherit=wire.inherit, file=wire.file)


def _choice(setting: Setting, value: int | str) -> Any:
    """The member of the enum, by its number, or by its name in lower case; None if this version does not have it."""
    return next((each for each in type(setting.default) if value in {each.value, each.name.lower()}), None)


def _write_choice(wire: Any, name: str, value: Any) -> None:
    by_name = wire.DESCRIPTOR.fields_by_name[name].enum_type is None
    setattr(wire, name, value.name.lower() if by_name else value.value)


_WRITE: Final[dict[SettingKind, Callable[[Any, str, Any], object]]] = {
    SettingKind.DURATION: lambda wire, name, value: getattr(wire, name).FromNanoseconds(_nanoseconds(value)),
    SettingKind.CHOICE: _write_choice,
    SettingKind.JSON: _write_json,
    SettingKind.ENVIRONMENT: _write_environment,
    SettingKind.AMOUNTS: lambda wire, name, value: getattr(wire, name).update(value),
}
_READ: Final[dict[SettingKind, Callable[[Setting, Any], Any]]] = {
    SettingKind.DURATION: lambda _, value: seconds(value),
    SettingKind.CHOICE: _choice,
    SettingKind.JSON: lambda _, value: struct_from_wire(value),
    SettingKind.ENVIRONMENT: lambda _, value: _environment(value),
    SettingKind.AMOUNTS: lambda _, value: dict(value),
}


def seconds(wire: duration_pb2.Duration) -> float:
    """Seconds of a duration; unlike `ToTimedelta` it takes any value that a peer sent: the rules check it."""
    return (wire.seconds * 10**9 + wire.nanos) / 10**9  # in integers, so that the value sent is the value returned
