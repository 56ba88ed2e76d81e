"""A mesh as a document for `slotmesh.spec.document`, and settings as text for people; defaults are omitted. Pure.

Invariant: reading the document gives an equal mesh, durations to the microsecond.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from slotmesh.spec.devices import shown_amounts
from slotmesh.spec.environment import written_environment
from slotmesh.spec.model import DOCUMENT_SETTINGS, Backend, Endpoint, GrpcServices, Mesh, is_named_by_code, plain_json
from slotmesh.spec.routes import DEFAULT_METHODS, Route
from slotmesh.spec.setting import Setting, SettingKind
from slotmesh.spec.tenants import TenantLimits, limits_settings
from slotmesh.units import format_duration, format_size

UNSET = "unset"
_DIGEST_CHARS = 12


def shown_setting(setting: Setting, value: Any) -> str:
    """The value of a backend's setting, as a document has it."""
    if value is None or value == "":
        return UNSET
    match setting.kind:
        case SettingKind.SECTION:
            pairs = ((name, each, getattr(value, each.attribute)) for name, each in setting.settings.items())
            differing = [
                f"{name}: {shown_setting(each, inner)}" for name, each, inner in pairs if inner != each.default
            ]
            return "{" + ", ".join(differing) + "}"
        case SettingKind.INTEGER | SettingKind.NUMBER | SettingKind.FLAG | SettingKind.JSON:
            return json.dumps(value, default=dict, sort_keys=True)
        case SettingKind.ENVIRONMENT:
            return json.dumps(written_environment(value)) if value else UNSET
        case SettingKind.AMOUNTS:
            return "{" + shown_amounts(value) + "}" if value else UNSET
        case _:
            return str(_written(setting, value))


def shown_shares(shares: Mapping[str, float]) -> str:
    """Weights or shadows of an endpoint, as a document has them."""
    if not shares:
        return UNSET
    return "{" + ", ".join(f"{name}: {share:.6g}" for name, share in sorted(shares.items())) + "}"


def shown_limits(limits: TenantLimits) -> str:
    """The limits per tenant of an endpoint, as a document has them."""
    settings = limits_settings(limits)
    return json.dumps(settings, ensure_ascii=False) if settings else UNSET


def shown_services(services: GrpcServices) -> str:
    """An endpoint's own services, with a digest of their descriptors that shows a changed file."""
    if not services.names:
        return UNSET
    digest = hashlib.sha256(services.descriptor_set).hexdigest()[:_DIGEST_CHARS]
    return f"[{', '.join(services.names)}] ({digest})"


def mesh_document(mesh: Mesh) -> dict[str, dict[str, Any]]:
    """The mesh as maps of plain values, for YAML or JSON."""
    document = {
        "backends": {it.name: backend_settings(it) for it in mesh.backends},
        "endpoints": {it.name: endpoint_settings(it) for it in mesh.endpoints},
    }
    return {**document, "routes": {it.path: route_settings(it) for it in mesh.routes}} if mesh.routes else document


def backend_settings(backend: Backend) -> dict[str, Any]:
    """The settings that differ from the default, by name; a version derived from the code is omitted."""
    if is_named_by_code(backend.version):
        backend = replace(backend, version="")
    return _settings(backend, DOCUMENT_SETTINGS)


def endpoint_settings(endpoint: Endpoint) -> dict[str, Any]:
    """The policy, the gRPC services and the tenant limits, if set."""
    settings: dict[str, Any] = {}
    if (traffic := endpoint.traffic) is not None:
        parts = (("traffic", traffic.weights), ("shadows", traffic.shadows))
        settings |= {name: dict(sorted(shares.items())) for name, shares in parts if shares}
    if (services := endpoint.grpc_services) is not None and services.names:
        descriptors = base64.b64encode(services.descriptor_set).decode()
        settings["grpc_services"] = {"services": list(services.names), "descriptor_set_base64": descriptors}
    if limits := limits_settings(endpoint.tenants):
        settings["tenants"] = limits
    return settings


def route_settings(route: Route) -> dict[str, Any]:
    """The endpoint and method; HTTP methods unless they are the default."""
    methods = {} if route.methods == DEFAULT_METHODS else {"methods": list(route.methods)}
    return {"endpoint": route.endpoint, "method": route.method, **methods}


def _settings(model: object, settings: Mapping[str, Setting]) -> dict[str, Any]:
    values = ((name, each, getattr(model, each.attribute)) for name, each in settings.items())
    return {name: _written(each, value) for name, each, value in values if value is not None and value != each.default}


def _written(setting: Setting, value: Any) -> Any:
    match setting.kind:
        case SettingKind.DURATION:
            return format_duration(timedelta(seconds=value))
        case SettingKind.SIZE:
            return format_size(value)
        case SettingKind.CHOICE:
            return value.name.lower()
        case SettingKind.AMOUNTS:
            return {name: int(amount) if amount >= 1 else amount for name, amount in sorted(value.items())}
        case SettingKind.JSON:
            return plain_json(value)
        case SettingKind.ENVIRONMENT:
            return written_environment(value)
        case SettingKind.SECTION:
            return _settings(value, setting.settings)
        case _:
            return value
