"""YAML of files that people write: plain values only, and never more of them than there are in the text.

Purpose: one reader for `mesh.yaml` and for files of settings. What is wrong is a `yaml.YAMLError`, with its place.
Invariants: no object but maps, lists, texts, numbers, booleans, dates and None; an alias counts as all that it stands
for, so that a few lines cannot become a billion values; what is read takes time in proportion to the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import yaml

from slotmesh.spec.model import Mistake

MAX_NODES: Final = 1_000_000
"""Values in one file, those behind aliases each time."""
_MAX_NUMBER_CHARS: Final = 400
"""As many as a float has in decimal; longer ones, and those of base 60, take more than their share of time."""


def read_yaml(text: str | bytes) -> Any:
    """The one document in the text; None where there is none.

    Raises:
        yaml.YAMLError: it is none that can be read; a `MarkedYAMLError` says where.
    """
    return read_with(BoundedLoader, text)


def read_with(
    loader_class: type[BoundedLoader], text: str | bytes, look: Callable[[yaml.Node], object] | None = None
) -> Any:
    """The same with a loader that is stricter. `look` is called with the document before values are made of it."""
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
    """For `read_with`."""

    def __init__(self, stream: str | bytes) -> None:
        super().__init__(stream)
        self._nodes = 0
        self._sizes: dict[str, int] = {}
        """Values that each anchor stands for, once all of them are known."""

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
        if event.anchor is not None and not is_alias:
            self._sizes[event.anchor] = self._nodes - before
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if isinstance(node, yaml.ScalarNode) and len(node.value) > _MAX_NUMBER_CHARS and node.tag in _NUMBERS:
            raise self._unreadable(f"a number of {len(node.value)} characters; quote it where it is a text", node)
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, OverflowError, TypeError, AttributeError, LookupError):
            # Tags and forms that PyYAML takes at their word: `!!int x`, the 31st of June, 1:2.5 of a thousand digits.
            kind = node.tag.removeprefix("tag:yaml.org,2002:")
            raise self._unreadable(f"is no {kind}; quote it where it is a text", node) from None

    @staticmethod
    def _unreadable(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
        return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


_NUMBERS: Final = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})


# Plain words of a mesh file that YAML 1.1 reads as another value than a person may mean: `no`, `0644`, `12:30`.
#
# Purpose: a warning for each, below `user_config`, where any JSON value is right and so no rule can find the error.
# Invariants: a warning has the path and what is read, never the value: it may be secret.

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
