"""The services of users' own protos of an endpoint, and its limits by tenant, in its JSON document, and back."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from controller_service.store.bad_document import BadDocument
from slotmesh.spec.model import GrpcServices
from slotmesh.spec.tenants import TenantLimits, limits_of

_KEY: Final = "grpc_services"
_PARTS: Final = {"services", "descriptor_set"}


def services_document(services: GrpcServices | None) -> dict[str, Any]:
    """The part of the endpoint's document that has them: names, and the descriptors as base64; empty: none."""
    if services is None:
        return {}
    descriptors = base64.b64encode(services.descriptor_set).decode()
    return {_KEY: {"services": list(services.names), "descriptor_set": descriptors}}


def services_from(where: str, endpoint: Mapping[str, Any]) -> GrpcServices | None:
    """Those that an endpoint's document has; None: it has none. `where` is the document. Raises BadDocument."""
    if _KEY not in endpoint:
        return None
    where, document = f"{where}: {_KEY}", endpoint[_KEY]
    if not isinstance(document, dict) or document.keys() != _PARTS:
        raise BadDocument(f"{where}: must be a JSON object with {' and '.join(sorted(_PARTS))}")
    names, descriptors = document["services"], document["descriptor_set"]
    if not isinstance(names, list) or not all(isinstance(it, str) for it in names) or not isinstance(descriptors, str):
        raise BadDocument(f"{where}: `services` must be a list of names, `descriptor_set` a text")
    try:
        return GrpcServices(names=tuple(names), descriptor_set=base64.b64decode(descriptors, validate=True))
    except ValueError as error:
        raise BadDocument(f"{where}: `descriptor_set` is no base64: {error}") from None


def limits_from(where: str, endpoint: Mapping[str, Any]) -> TenantLimits | None:
    """The limits by tenant of an endpoint's document; None if it has none. Raises BadDocument."""
    try:
        return limits_of(endpoint["tenants"]) if "tenants" in endpoint else None
    except ValueError as error:
        raise BadDocument(f"{where}: tenants: {error}") from None
