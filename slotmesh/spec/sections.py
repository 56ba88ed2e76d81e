"""The sections of a mesh document, and the keys that their maps may have.

Apart from the reader of documents (`slotmesh.spec.document`), which loads pydantic: a controller looks only at the keys
to know which files of a project are meshes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from slotmesh.spec.model import DOCUMENT_SETTINGS
from slotmesh.spec.tenants import LIMITS, OVERRIDES

MAX_SPEC_BYTES: Final = 4 * 2**20
"""The longest document."""

Names = Mapping[str, Any]
"""The keys that a map of the document may have, with those of the maps below."""


def _plain(*names: str) -> Names:
    return {name: {} for name in names}


SECTIONS: Final[Mapping[str, Names]] = {
    "backends": {name: each.settings for name, each in DOCUMENT_SETTINGS.items()},
    "endpoints": {
        **_plain("traffic", "shadows"),
        "grpc_services": _plain("protos", "descriptor_set", "descriptor_set_base64", "services"),
        "tenants": {**_plain(*LIMITS), OVERRIDES: _plain(*LIMITS)},
    },
    "routes": _plain("endpoint", "method", "methods"),
}
