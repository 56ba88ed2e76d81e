"""Plain words of a mesh file that YAML 1.1 reads as another value than a person may mean: `no`, `0644`, `12:30`.

Purpose: a warning for each, below `user_config`, where any JSON value is right and so no rule can find the error.
Invariants: a warning has the path and what is read, never the value: it may be secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import yaml

from slotmesh.spec.model import Mistake

_SECTION: Final = "backends"
_SETTING: Final = "user_config"
_TAG: Final = "tag:yaml.org,2002:"
_READ_AS: Final = {
    "bool": (re.compile(r"(?!true$|false$).*", re.IGNORECASE), "a boolean"),
    "int": (
        re.compile(r"[-+]?(0[0-7_]+|0b[01_]+|.*:.*|.*_.*)"),
        "a number of base 8, 2 or 60, or without its _",
    ),
    "float": (re.compile(r".*[:_].*"), "a number of base 60, or without its _"),
}
"""By kind: which texts surprise, and what each is read as. JSON and YAML 1.2 have none of these."""


def surprises(document: yaml.Node | None) -> Iterator[Mistake]:
    """A warning for each value below `backends.NAME.user_config`."""
    for section, backends in _entries(document):
        if section != _SECTION:
            continue
        for name, backend in _entries(backends):
            for setting, config in _entries(backend):
                if setting == _SETTING:
                    yield from _below(config, f"{_SECTION}.{name}.{_SETTING}", frozenset())


def _below(node: yaml.Node, path: str, above: frozenset[int]) -> Iterator[Mistake]:
    if id(node) in above:
        return  # an alias inside of itself, which the loader refuses
    above |= {id(node)}
    if isinstance(node, yaml.ScalarNode):
        pattern, read = _READ_AS.get(node.tag.removeprefix(_TAG), (None, ""))
        if pattern is not None and node.style is None and pattern.fullmatch(node.value):
            yield Mistake(path, f"YAML reads it as {read}; quote it if it is a text (line {node.start_mark.line + 1})")
    elif isinstance(node, yaml.SequenceNode):
        for index, each in enumerate(node.value):
            yield from _below(each, f"{path}.{index}", above)
    else:
        for name, each in _entries(node):
            yield from _below(each, f"{path}.{name}", above)


def _entries(node: yaml.Node | None) -> Iterator[tuple[str, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield key.value, value
