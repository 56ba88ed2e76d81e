"""Ids as ranges, both ends included, as frames name them; and the slices of calls that ids belong to.

Purpose: calls that were sent, acknowledged, cancelled, found or forgotten are named by ranges on every stream, so that
the cost is not per id.
Invariants: arguments named `ranges` are as `merged` returns them: in order, disjoint, and never adjacent.
Owner of the functions: none, they are pure; of a ledger: the sender of the calls.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

_SWEEP_FROM = 64


class Slice(Protocol):
    """Calls with consecutive ids."""

    first: int
    """Id of the first call; written when the slice is numbered."""
    count: int


SliceT = TypeVar("SliceT", bound=Slice)


class Ledger(dict[int, SliceT]):
    """Slices of calls that were sent, by the first of their ids.

    Purpose: the sender of calls in slices gives them consecutive ids, and finds the slice, and the place in it, by an
    id that is returned. The cost is per slice, not per id.
    Invariants: ids strictly increase, so slices are in the order of their ids. A slice stays until it is dropped as a
    whole. It is added by `number` or `take_over`, and removed by `drop` or `reset`, never by the methods of a dict:
    this is one (first id -> slice) because most answers name the first id of a slice, and looking that up must not cost
    a call.
    Owner: the sender of the calls: `RoutedReplica` in the router, the pending calls in the client.
    """

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
        """The slice gets no more answers."""
        del self[each.first]
        if len(self._firsts) > _SWEEP_FROM + 2 * len(self):
            self._firsts = list(self)

    def reset(self) -> None:
        """Forgets all ids, and starts anew."""
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

        Unknown ids are skipped. A slice may be dropped before the next one is requested.
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


Range = tuple[int, int]
"""First and last id."""


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same ids, in order, neighbours joined, whatever the ranges were. Those that end before they begin vanish."""
    out: list[Range] = []
    for first, last in sorted(ranges):
        if last < first:
            continue
        if out and first <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], last))
        else:
            out.append((first, last))
    return out


def append(ranges: list[Range], first: int, last: int) -> None:
    """Adds a range behind the others; it becomes one with the last of them where it continues that."""
    if ranges and ranges[-1][1] == first - 1:
        ranges[-1] = (ranges[-1][0], last)
    else:
        ranges.append((first, last))


def common(first: int, last: int, ranges: Sequence[Range]) -> list[Range]:
    """What of `first` … `last` is in the ranges."""
    out: list[Range] = []
    for at in range(_first_up_to(ranges, first), len(ranges)):
        begin, end = ranges[at]
        if begin > last:
            break
        if end >= first:
            out.append((max(first, begin), min(last, end)))
    return out


def without(first: int, last: int, ranges: Sequence[Range]) -> list[Range]:
    """What of `first` … `last` is not in the ranges."""
    out: list[Range] = []
    for begin, end in common(first, last, ranges):
        if first < begin:
            out.append((first, begin - 1))
        first = end + 1
    if first <= last:
        out.append((first, last))
    return out


def holds(ranges: Sequence[Range], each: int) -> bool:
    """Whether an id is in one of the ranges."""
    at = bisect_left(ranges, (each + 1,))
    return at > 0 and each <= ranges[at - 1][1]


def among(held: Collection[int], first: int, last: int) -> list[int]:
    """The ids within `first` … `last` that are held. A few bytes can name an endless range: cost is what is held."""
    if last - first < len(held):
        return [each for each in range(first, last + 1) if each in held]
    return [each for each in held if first <= each <= last]


def joined(ids: Sequence[int], more: Sequence[int]) -> Sequence[int]:
    """Ids, and more behind them: a range where all follow one by one. A list `ids` is changed, and returned."""
    if isinstance(ids, list):
        ids += more
        return ids
    if isinstance(more, range):
        if not ids:
            return more
        if isinstance(ids, range) and ids.stop == more.start:
            return range(ids.start, more.stop)
    return [*ids, *more]


def run_length(ids: Sequence[int], at: int, most: int) -> int:
    """How many of the next `most` ids from index `at` on follow one by one; at least 1. They need not ascend."""
    if isinstance(ids, range):
        return most
    first = ids[at]
    if most == 1 or ids[at + 1] != first + 1:
        return 1
    length = most
    if ids[at + most - 1] - first != most - 1:
        low, high = 2, most - 1  # where it ends, if the ids ascend
        while low < high:
            middle = (low + high + 1) // 2
            if ids[at + middle - 1] - first == middle - 1:
                low = middle
            else:
                high = middle - 1
        length = low
    if ids[at : at + length] == list(range(first, first + length)):
        return length
    length = 2  # they do not ascend
    while ids[at + length] == first + length:
        length += 1
    return length


def stretches(ids: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """First and last of ids that follow one by one, and the index of the first."""
    if isinstance(ids, range):
        if ids:
            yield ids[0], ids[-1], 0
        return
    known, at = list(ids), 0
    while at < len(known):
        count = run_length(known, at, len(known) - at)
        yield known[at], known[at] + count - 1, at
        at += count


def ranges_of(ids: Sequence[int]) -> list[Range]:
    """Ids as ranges, in the order in which they come."""
    return [(first, last) for first, last, _ in stretches(ids)]


def _first_up_to(ranges: Sequence[Range], each: int) -> int:
    """Index of the range that may hold the id: the last one that begins no later, or the first of all."""
    return max(bisect_left(ranges, (each + 1,)) - 1, 0)
