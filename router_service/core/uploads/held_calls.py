"""What waits for its payload, and what waits behind it.

Purpose: calls whose payloads come in chunks keep their place among those of their ordering key; all others pass
them.
Invariants: of one key, items are released in the order in which they were added. An item without a key waits for itself
alone. An item that is taken out keeps no other item waiting.
Owner: the uploads, one for each caller.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT", bound=Hashable)


class Held(Generic[ItemT]):
    """Items that are not complete, by identity, and those behind them."""

    __slots__ = ("_incomplete", "_lines")

    def __init__(self) -> None:
        self._incomplete: dict[ItemT, str] = {}
        """Its key; empty for none."""
        self._lines: dict[str, dict[ItemT, None]] = {}
        """Of each key, what is held, in order; the first one is incomplete."""

    def __bool__(self) -> bool:
        return bool(self._incomplete)

    def __iter__(self) -> Iterator[ItemT]:
        """All that is held."""
        for item, key in self._incomplete.items():
            if not key:
                yield item
        for line in self._lines.values():
            yield from line

    def holds(self, key: str) -> bool:
        """Whether an item of this key would have to wait."""
        return bool(key) and key in self._lines

    def add_incomplete(self, item: ItemT, key: str) -> None:
        """The item waits for its payload. `key` is empty where its order means nothing."""
        self._incomplete[item] = key
        if key:
            self._lines.setdefault(key, {})[item] = None

    def add_behind(self, item: ItemT, key: str) -> bool:
        """Whether the item has to wait behind another one of its key; it is held then."""
        line = self._lines.get(key) if key else None
        if line is None:
            return False
        line[item] = None
        return True

    def complete(self, item: ItemT) -> list[ItemT]:
        """The item has its payload: what can go now, in order. Empty where another one is before it."""
        key = self._incomplete.pop(item)
        return self._release(key) if key else [item]

    def remove(self, item: ItemT) -> list[ItemT]:
        """The item is not wanted any more: what can go now that waited behind it, in order. Others are ignored."""
        key = self._incomplete.pop(item, None)
        if key is None:
            key = next((each for each, line in self._lines.items() if item in line), "")
        if not key:
            return []
        del self._lines[key][item]
        return self._release(key)

    def _release(self, key: str) -> list[ItemT]:
        line = self._lines[key]
        released: list[ItemT] = []
        for item in line:
            if item in self._incomplete:
                break
            released.append(item)
        for item in released:
            del line[item]
        if not line:
            del self._lines[key]
        return released
