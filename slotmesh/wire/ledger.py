"""Which slice of calls an id means: slices by the ids that they were given when they were sent.

Purpose: the sender of calls in slices gives them consecutive ids, and finds the slice by an id that comes back, and the
place in it. Cost is once a slice, not once an id.
Invariants: ids strictly increase, so slices are in the order of their ids. A slice stays until it is dropped as a
whole. It comes in by `number` or `take_over`, and leaves by `drop` or `reset`, by nothing else that a dict has: this is
one (first id -> slice) because most answers name the first id of a slice, and a look-up of that must not cost a call.
Owner: the sender of the calls: `RoutedReplica` in the router, the pending calls in the client.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from slotmesh.wire.ranges import run_length

_SWEEP_FROM = 64


class Slice(Protocol):
    """Calls with consecutive ids."""

    first: int
    """Id of the first call; written when the slice is numbered."""
    count: int


SliceT = TypeVar("SliceT", bound=Slice)


class Ledger(dict[int, SliceT]):
    """Slices that were sent, by the first of their ids."""

    __slots__ = ("_firsts", "next_id")

    def __init__(self, next_id: int = 1) -> None:
        super().__init__()
        self.next_id = next_id
        """The first id of the slice that is sent next."""
        self._firsts: list[int] = []
        """First ids, ascending. Those of slices that have left stay until they are the greater half: taking out each
        would move the whole list."""

    def number(self, each: SliceT) -> int:
        """The slice is sent: gives it ids, and returns the first."""
        first = each.first = self.next_id
        self.next_id = first + each.count
        self[first] = each
        self._firsts.append(first)
        return first

    def take_over(self, each: SliceT) -> None:
        """A slice that another ledger has numbered comes here, behind all that are here and below `next_id`."""
        self[each.first] = each
        self._firsts.append(each.first)

    def drop(self, each: SliceT) -> None:
        """Nothing more comes for the slice."""
        del self[each.first]
        if len(self._firsts) > _SWEEP_FROM + 2 * len(self):
            self._firsts = list(self)

    def reset(self) -> None:
        """Ids mean nothing any more, and begin anew."""
        self.clear()
        self._firsts.clear()
        self.next_id = 1

    def covering(self, each: int) -> SliceT | None:
        """The slice that has this id, if it is here. Where that may be its first id, `get` is asked before."""
        at = bisect_right(self._firsts, each) - 1
        if at < 0:
            return None
        found = self.get(self._firsts[at])
        return found if found is not None and each < found.first + found.count else None

    def within(self, first: int, last: int) -> Iterator[SliceT]:
        """The slices that have ids within `first` … `last`, in order. Costs what is here, not the range."""
        firsts = self._firsts
        for at in range(max(bisect_right(firsts, first) - 1, 0), len(firsts)):
            if firsts[at] > last:
                break
            found = self.get(firsts[at])
            if found is not None and first < found.first + found.count:
                yield found

    def slices(self, ids: Sequence[int]) -> Iterator[tuple[SliceT, int, int, int]]:
        """Cuts ids, in any order, into slices: slice, place of the first id in it, index in `ids`, count.

        What is not here is passed over. A slice may be dropped before the next one is asked for.
        """
        at, end = 0, len(ids)
        may_jump = not isinstance(ids, range)
        while at < end:
            first = ids[at]
            found = self.get(first) or self.covering(first)
            if found is None:
                at += 1
                continue
            place = first - found.first
            count = min(found.count - place, end - at)
            if may_jump and count > 1:  # mostly it is all of a slice, and sometimes it is alone: neither costs a call
                if ids[at + 1] != first + 1:
                    count = 1
                elif ids[at : at + count] != list(range(first, first + count)):
                    count = run_length(ids, at, count)
            yield found, place, at, count
            at += count
