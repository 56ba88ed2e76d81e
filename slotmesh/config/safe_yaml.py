"""YAML of files that people write: plain values only, and never more of them than there are in the text.

Purpose: one reader for `mesh.yaml` and for files of settings. What is wrong is a `yaml.YAMLError`, with its place.
Invariants: no object but maps, lists, texts, numbers, booleans, dates and None; an alias counts as all that it stands
for, so that a few lines cannot become a billion values; what is read takes time in proportion to the text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import yaml

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
