"""Safe YAML for files that people write: plain values only, in bounded time.

Purpose: one reader for `mesh.yaml` and for settings files. Errors are `yaml.YAMLError`s with their position.
Invariants: the only objects are maps, lists, strings, numbers, booleans, dates and None; an alias counts as all values
that it refers to, so that a few lines cannot become a billion values; reading takes time linear in the text. Warnings
about plain words that YAML 1.1 reads as another type contain the path and the type, never the value, which may be a
secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import yaml

from slotmesh.names import is_utf8
from slotmesh.spec.model import SpecViolation
from slotmesh.spec.rules import show

MAX_NODES: Final = 1_000_000
"""The limit of values in one file; each use of an alias counts."""
_MAX_NUMBER_CHARS: Final = 400
"""About the number of digits of the largest float. Longer numbers, and those of base 60, take too long to parse."""


def read_yaml(text: str | bytes) -> Any:
    """The only document in the text; None if it is empty.

    Raises:
        yaml.YAMLError: it cannot be read; a `MarkedYAMLError` has the position.
    """
    return read_with(BoundedLoader, text)


def read_with(
    loader_class: type[BoundedLoader], text: str | bytes, look: Callable[[yaml.Node], object] | None = None
) -> Any:
    """The same with a stricter loader. `look` is called with the node tree before values are built from it."""
    try:
        loader = loader_class(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            if look is not None:
                look(node)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except RecursionError:
        raise yaml.YAMLError("it is nested too deep") from None
    except UnicodeError as error:
        raise yaml.YAMLError(f"it is no text: {error}") from None


class BoundedLoader(yaml.SafeLoader):
    """Counts values, and turns errors of conversions into YAML errors. Used by `read_with`."""

    def __init__(self, stream: str | bytes) -> None:
        super().__init__(stream)
        self._nodes = 0
        self._sizes: dict[str, int] = {}
        """The number of values of each anchor that is complete."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        before = self._nodes
        is_alias = isinstance(event, yaml.AliasEvent)
        if is_alias:
            if event.anchor in self.anchors and event.anchor not in self._sizes:
                raise yaml.composer.ComposerError(None, None, f"*{event.anchor} is inside of itself", event.start_mark)
            self._nodes += self._sizes.get(event.anchor, 1)
        else:
            self._nodes += 1
        if self._nodes > MAX_NODES:
            problem = f"there are more than {MAX_NODES:,} values, those behind aliases counted each time"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.ScalarNode) and not is_utf8(node.value):
            node.value = self._joined(node)
        if event.anchor is not None and not is_alias:
            self._sizes[event.anchor] = self._nodes - before
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if isinstance(node, yaml.ScalarNode) and len(node.value) > _MAX_NUMBER_CHARS and node.tag in _NUMBERS:
            raise self._unreadable(f"a number of {len(node.value)} characters; quote it where it is a text", node)
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, OverflowError, TypeError, AttributeError, LookupError):
            # Invalid values of an explicit tag or form: `!!int x`, June 31, 1:2.5 with a thousand digits.
            kind = node.tag.removeprefix("tag:yaml.org,2002:")
            raise self._unreadable(f"is no {kind}; quote it where it is a text", node) from None

    def _joined(self, node: yaml.ScalarNode) -> str:
        """JSON writes a character beyond U+FFFF as two escapes, which YAML reads as halves of a character."""
        try:
            return str(node.value).encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise self._unreadable(r"has half of a character (\ud800 … \udfff): write all of it", node) from None

    @staticmethod
    def _unreadable(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
        return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


class UniqueKeyLoader(BoundedLoader):
    """Refuses repeated keys, of which plain YAML silently uses the last.

    Keys count as the text has them: an explicit key may override one from a merge key (`<<`).
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{show(key.value)} is given twice", key.start_mark
                    )
                seen.add(key.value)
        return node


class _WrittenNumbers(UniqueKeyLoader):
    """Numbers are the texts that were written: as those of flags and variables, `0100` is of base 10."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        value = super().construct_object(node, deep=deep)
        return node.value if isinstance(node, yaml.ScalarNode) and node.tag in _NUMBERS else value


def read_settings(text: str) -> Any:
    """A file of settings of a process; None if it is empty. Raises yaml.YAMLError."""
    return read_with(_WrittenNumbers, text)


_NUMBERS: Final = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})


_SECTION: Final = "backends"
_SETTING: Final = "user_config"
_TAG: Final = "tag:yaml.org,2002:"
_Surprises = Mapping[str, tuple[re.Pattern[str], str]]
_READ_AS: Final[_Surprises] = {
    "bool": (re.compile(r"(?!true$|false$).*", re.IGNORECASE), "a boolean"),
    "int": (
        re.compile(r"[-+]?(0[0-7_]+|0b[01_]+|.*:.*|.*_.*)"),
        "a number of base 8, 2 or 60, or without its _",
    ),
    "float": (re.compile(r".*[:_].*"), "a number of base 60, or without its _"),
}
"""By type: the texts that surprise, and how they are read. JSON and YAML 1.2 have none of these."""
_OTHER_BASE: Final[_Surprises] = {
    "int": (re.compile(r"[-+]?(0[0-7_]*[1-7][0-7_]+|0b[01_]+|.*:.*)"), "a number of base 8, 2 or 60"),
    "float": (re.compile(r".*:.*"), "a number of base 60"),
}
"""Those that are other numbers than they seem to be."""


def surprises(document: yaml.Node | None) -> Iterator[SpecViolation]:
    """A warning for each surprising value: `no`, `0644`, `12:30`.

    No rule can find these below `backends.NAME.user_config`, as any JSON value is valid there. Elsewhere only numbers
    surprise: `010` is 8.
    """
    for section, resources in _entries(document):
        for name, resource in _entries(resources):
            for setting, value in _entries(resource):
                read_as = _READ_AS if section == _SECTION and setting == _SETTING else _OTHER_BASE
                yield from _below(value, f"{section}.{name}.{setting}", frozenset(), read_as)


def _below(node: yaml.Node, path: str, above: frozenset[int], read_as: _Surprises) -> Iterator[SpecViolation]:
    if id(node) in above:
        return  # an alias inside itself; the loader reports it
    above |= {id(node)}
    if isinstance(node, yaml.ScalarNode):
        pattern, read = read_as.get(node.tag.removeprefix(_TAG), (None, ""))
        line = node.start_mark.line + 1
        if pattern is not None and node.style is None and pattern.fullmatch(node.value):
            way_out = "quote it if it is a text" if read_as is _READ_AS else "write it with decimal digits alone"
            yield SpecViolation(path, f"YAML reads it as {read}; {way_out} (line {line})")
    elif isinstance(node, yaml.SequenceNode):
        for index, each in enumerate(node.value):
            yield from _below(each, f"{path}.{index}", above, read_as)
    else:
        for name, each in _entries(node):
            yield from _below(each, f"{path}.{name}", above, read_as)


def _entries(node: yaml.Node | None) -> Iterator[tuple[str, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield key.value, value
