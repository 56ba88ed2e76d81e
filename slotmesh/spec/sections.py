"""The sections of a mesh document, and the keys that their maps may have.

Separate from the reader of documents (`slotmesh.spec.document`), which imports pydantic: the controller needs only the
keys to find out which files of a project are mesh documents.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Mapping
from typing import Any, Final

from slotmesh.spec.model import DOCUMENT_SETTINGS
from slotmesh.spec.tenants import LIMITS, OVERRIDES

MAX_SPEC_BYTES: Final = 4 * 2**20
"""The size limit of a document."""

Names = Mapping[str, Any]
"""The keys of a map of the document, each with the keys of the map below it."""


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


_NAMES: Final = b"|".join(name.encode() for name in SECTIONS)
_BEGINS: Final = re.compile(
    rb"(?:[ \t]*(?:#[^\n]*|---[^\n]*|%[^\n]*)?\r?\n)*+(?:[\"']?(?:" + _NAMES + rb")[\"']?[ \t]*:|\{)"
)
"""A line with a section, or with a map in braces."""
_OTHER_SECTION: Final = re.compile(
    rb"^(?!(?:[\"']?(?:" + _NAMES + rb")[\"']?[ \t]*:|[\s#{}\]]|---|\.\.\.|%))", re.MULTILINE
)
"""An unindented line with anything else."""


def is_mesh_file(content: bytes) -> bool:
    """Whether the file is a mesh document, by its sections and known settings, whatever its name.

    Such a file is not part of a handler's code. Most other files are rejected by their first line, without parsing.
    Unreadable YAML is no mesh document. Unknown settings and invalid values do not matter: a file that is being edited
    stays a mesh document.
    """
    content = content.removeprefix(BOM_UTF8)
    if len(content) > MAX_SPEC_BYTES or _BEGINS.match(content) is None or _OTHER_SECTION.search(content.rstrip()):
        return False
    import yaml  # noqa: PLC0415 - almost no file comes this far

    from slotmesh.spec.safe_yaml import read_yaml  # noqa: PLC0415 - likewise

    try:
        document = read_yaml(content)
    except yaml.YAMLError:
        return False
    if not isinstance(document, dict) or not document.keys() <= SECTIONS.keys():
        return False
    resources = [(name, each) for name, section in document.items() for each in _values(section)]
    known = [any(key in SECTIONS[name] for key in each) for name, each in resources if isinstance(each, dict) and each]
    return bool(known) and all(known) and all(isinstance(each, dict | None) for _, each in resources)


def _values(section: object) -> list[object]:
    return [*section.values()] if isinstance(section, dict) else []
