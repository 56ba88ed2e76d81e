"""Ids of results that do not follow one by one: of many lanes, from several replicas.

Slices are what results usually come in, and what is cheapest. Where most slices would be single calls, they are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import eq, sub
from typing import TypeVar

ItemT = TypeVar("ItemT")


def are_scattered(ids: Sequence[int]) -> bool:
    """Whether so few of these ids follow their neighbour that slices are no gain. One look where all follow."""
    count = len(ids)
    if count < 2 or (ids[-1] - ids[0] == count - 1 and ids[1] - ids[0] == 1 and ids[count // 2] - ids[0] == count // 2):
        return False
    following: int = sum(map(eq, map(sub, ids[1:], ids), repeat(1)))
    return following * 2 < count - 1


def ascending(ids: Sequence[int], items: list[ItemT]) -> tuple[list[int], list[ItemT]]:
    """Both in the order of the ids. Of an id that stands there twice, the first one stays first."""
    order = sorted(range(len(ids)), key=ids.__getitem__)
    return [ids[at] for at in order], [items[at] for at in order]
