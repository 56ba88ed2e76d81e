"""Whether a file is one that `slotmesh apply` takes, whatever its name: such a file is no part of a handler's code.

Invariants: almost every other file is told from one by its first line, without being parsed. What cannot be read as
YAML is no mesh. A mesh that is being edited stays one: unknown settings and wrong values do not count.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from typing import Final

from slotmesh.spec.sections import MAX_SPEC_BYTES, SECTIONS

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

    from slotmesh.config.safe_yaml import read_yaml  # noqa: PLC0415 - likewise

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
