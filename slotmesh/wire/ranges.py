"""Ids as ranges, both ends included, as frames name them: neighbours together, so that cost is not once an id.

Purpose: calls that were sent, acknowledged, cancelled, found or forgotten are named by ranges on every stream.
Invariants: arguments named `ranges` are as `merged` leaves them: in order, disjoint, and never next to one another.
Owner: pure functions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence

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
