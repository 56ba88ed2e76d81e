"""Settings and policies as people write them in a document. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from slotmesh.spec.model import GrpcServices
from slotmesh.spec.setting import Setting, SettingKind
from slotmesh.spec.tenants import TenantLimits, limits_settings
from slotmesh.units import format_duration, format_size

UNSET = "unset"
_DIGEST_CHARS = 12


def shown_setting(setting: Setting, value: Any) -> str:
    """The value of a backend's setting."""
    if value is None or value == "":
        return UNSET
    match setting.kind:
        case SettingKind.DURATION:
            return format_duration(timedelta(seconds=value))
        case SettingKind.SIZE:
            return format_size(value)
        case SettingKind.CHOICE:
            return str(value.name.lower())
        case SettingKind.HANDLER | SettingKind.TEXT:
            return str(value)
        case SettingKind.SECTION:
            said = ((name, each, getattr(value, each.attribute)) for name, each in setting.settings.items())
            differing = [f"{name}: {shown_setting(each, inner)}" for name, each, inner in said if inner != each.default]
            return "{" + ", ".join(differing) + "}"
        case SettingKind.INTEGER | SettingKind.NUMBER | SettingKind.FLAG | SettingKind.JSON:
            return json.dumps(value, default=dict, sort_keys=True)


def shown_shares(shares: Mapping[str, float]) -> str:
    """Weights or shadows of an endpoint."""
    if not shares:
        return UNSET
    return "{" + ", ".join(f"{name}: {share:.6g}" for name, share in sorted(shares.items())) + "}"


def shown_limits(limits: TenantLimits) -> str:
    """What each tenant of an endpoint may have."""
    settings = limits_settings(limits)
    return json.dumps(settings, ensure_ascii=False) if settings else UNSET


def shown_services(services: GrpcServices) -> str:
    """An endpoint's own services, with a digest of their descriptors: another version of a file looks another way."""
    if not services.names:
        return UNSET
    digest = hashlib.sha256(services.descriptor_set).hexdigest()[:_DIGEST_CHARS]
    return f"[{', '.join(services.names)}] ({digest})"
