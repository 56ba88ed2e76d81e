"""What a replica need not keep any longer: gathered for a while, told in one frame.

Purpose: clients acknowledge frames of results; a replica hears of its own runs in them, as few ranges of run ids.
Invariants: ids are those of the link that is up; what was gathered for an earlier link is dropped with it.
Owner: the link to that replica.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from slotmesh.wire.limits import MAX_FRAME_RANGES

Span = tuple[int, int]
"""Run ids from first to last, both included."""

ACK_GAP_S = 0.05
"""Between two frames of acknowledgements, at least: each costs as much as a hundred calls."""


class RunAcks:
    """Acknowledged runs on their way to one replica."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called when `take` has something to give."""
        self._wake = wake
        self._spans: deque[Span] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False

    def add(self, first: int, count: int) -> None:
        """The outcomes of these runs need not be kept."""
        self._spans.append((first, first + count - 1))
        if self._timer is None and not self._is_due:
            self._timer = asyncio.get_running_loop().call_later(ACK_GAP_S, self._fall_due)

    def take(self) -> list[Span] | None:
        """What was gathered, up to the bound of a frame, once its time has come: disjoint, ascending."""
        if not self._is_due:
            return None
        spans = [self._spans.popleft() for _ in range(min(len(self._spans), MAX_FRAME_RANGES))]
        self._is_due = bool(self._spans)
        return merged(spans)

    def flush(self) -> None:
        """`take` gives what there is at once: it is the last chance."""
        if self._timer is not None:
            self._timer.cancel()
            self._fall_due()

    def drop(self) -> None:
        """The link is gone, and its run ids mean nothing any more."""
        self._spans.clear()
        self._is_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fall_due(self) -> None:
        self._timer = None
        self._is_due = True
        self._wake()


def merged(spans: list[Span]) -> list[Span]:
    """The same ids in as few spans as there can be."""
    joined: list[Span] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined
