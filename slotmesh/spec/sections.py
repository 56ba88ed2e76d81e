"""The sections of a mesh document, and the keys that their maps may have.

Apart from the reader of documents (`slotmesh.spec.document`), which loads pydantic: a controller looks only at the keys
to know which files of a project are meshes.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
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


# Whether a file is one that `slotmesh apply` takes, whatever its name: such a file is no part of a handler's code.
#
# Invariants: almost every other file is told from one by its first line, without being parsed. What cannot be read as
# YAML is no mesh. A mesh that is being edited stays one: unknown settings and wrong values do not count.

_NAMES: Final = b"|".join(name.encode() for name in SECTIONS)
_BEGINS: Final = re.compile(
    rb"(?:[ \t]*(?:#[^\n]*|---[^\n]*|%[^\n]*)?\r?\n)*+(?:[\"']?(?:" + _NAMES + rb")[\"']?[ \t]*:|\{)"
)
"""The first line that is neither empty nor a comment: a section, or a map in braces."""
_OTHER_SECTION: Final = re.compile(
    rb"^(?!(?:[\"']?(?:" + _NAMES + rb")[\"']?[ \t]*:|[\s#{}\]]|---|\.\.\.|%))", re.MULTILINE
)
"""A line that begins with something else."""


def is_mesh_file(content: bytes) -> bool:
    """Whether the sections are those of a mesh, and each resource that has settings has one that is known."""
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
