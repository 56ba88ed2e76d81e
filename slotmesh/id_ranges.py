"""Ranges of ids between `slotmesh.wire.ranges` and `IdRange` messages, as every frame has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from slotmesh.v1 import call_pb2
from slotmesh.wire.ranges import Range, ranges_of


def ranges_from_wire(ranges: Iterable[call_pb2.IdRange]) -> list[Range]:
    """Ranges as they came: in any order, and some may end before they begin."""
    return [(each.first, each.last) for each in ranges]


def ids_from_wire(ranges: Iterable[call_pb2.IdRange]) -> list[int]:
    """The ids in these ranges. A few bytes can name very many: count them before."""
    return list(chain.from_iterable(range(each.first, each.last + 1) for each in ranges))


def ranges_to_wire(ranges: Iterable[Range]) -> list[call_pb2.IdRange]:
    """The same ranges."""
    return [call_pb2.IdRange(first=first, last=last) for first, last in ranges]


def ids_to_wire(ids: Sequence[int]) -> list[call_pb2.IdRange]:
    """Ids, in the order in which they come, neighbours as one range."""
    if isinstance(ids, range) or len(ids) == 1:  # mostly it is one of these
        return [call_pb2.IdRange(first=ids[0], last=ids[-1])] if ids else []
    return ranges_to_wire(ranges_of(ids))
