"""How far handlers that yield may be ahead: what the calls of one caller may have under way together.

Purpose: a replica steps a handler until it is a credit ahead of what was taken of its values. One caller can have
thousands of such calls; if it does not read, their values wait at the router. So calls that come while their caller has
many get less.
Invariants: together `n` calls of a caller have at most `SHARED_BYTES` under way for each time that `n` can be halved,
and once more, and each of them one value besides. That holds whichever of them end: of those that are left, the n-th
oldest was at least the n-th when it was sent.
Owner: the caller counts (`callers.py`); calls carry their credit to the replica (`frames.py`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from slotmesh.wire.limits import MAX_BYTES_AHEAD, MAX_VALUES_AHEAD


class CallCredit(NamedTuple):
    """What may be ahead: it has ended when either is reached. One value always may."""

    values: int
    bytes: int


ALONE: Final = CallCredit(MAX_VALUES_AHEAD, MAX_BYTES_AHEAD)
"""Credit of a call that is its caller's only one. No handler gets further ahead of its caller."""
HALF: Final = CallCredit(ALONE.values // 2, ALONE.bytes // 2)
"""A consumer acknowledges at the latest when it has taken so much."""
SHARED_BYTES: Final = 2 * 1024 * 1024
"""What the second and third call have together at most, the next four, the next eight, …"""
SMALL_BYTES: Final = 128
"""Values cost memory however small they are: a credit has no more of them than if they had this size."""
MAX_LEVEL: Final = 14


def _credit_at(level: int) -> CallCredit:
    size = min(SHARED_BYTES >> level, HALF.bytes)
    return CallCredit(max(1, min(size // SMALL_BYTES, HALF.values)), size)


CREDITS: Final = (ALONE, *map(_credit_at, range(1, MAX_LEVEL + 1)))
"""By level: how often the number of calls can be halved."""


def level_of(calls: int) -> int:
    """The level of a call that makes its caller have so many."""
    return min(calls.bit_length() - 1, MAX_LEVEL)
