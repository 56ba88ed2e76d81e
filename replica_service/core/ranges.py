"""Sets of call ids as ranges, both ends included: sorted, apart from one another, and never one a call.

Purpose: what sessions ask about and forget. Arguments named `ranges` are as `merged` leaves them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

Range = tuple[int, int]
"""First and last id."""


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same ids, in order, neighbours joined. Ranges that end before they begin are dropped."""
    out: list[Range] = []
    for first, last in sorted(ranges):
        if last < first:
            continue
        if out and first <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], last))
        else:
            out.append((first, last))
    return out


def common(first: int, last: int, ranges: Sequence[Range]) -> list[Range]:
    """What of `first` … `last` is in the ranges."""
    out: list[Range] = []
    at = bisect_left(ranges, first, key=lambda each: each[1])
    while at < len(ranges) and ranges[at][0] <= last:
        out.append((max(first, ranges[at][0]), min(last, ranges[at][1])))
        at += 1
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
