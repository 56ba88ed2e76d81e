"""Acknowledgements for a replica: gathered for a while, sent in one frame.

Purpose: clients acknowledge frames of results; each replica gets the runs of its own in them, as few ranges of run ids.
Invariants: ids are those of the link that is up; what was gathered for an earlier link is dropped with it.
Owner: the link to that replica.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from slotmesh.wire.limits import MAX_FRAME_RANGES
from slotmesh.wire.ranges import Range, merged

ACK_GAP_S = 0.05
"""Between two frames of acknowledgements, at least: each costs as much as a hundred calls."""


class RunAcks:
    """Acknowledged runs on their way to one replica."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called when `take` has something to give."""
        self._wake = wake
        self._ranges: deque[Range] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.is_due = False
        """`take` has something to give."""

    def add(self, first: int, count: int) -> None:
        """The outcomes of these runs need not be kept."""
        self._ranges.append((first, first + count - 1))
        if self._timer is None and not self.is_due:
            self._timer = asyncio.get_running_loop().call_later(ACK_GAP_S, self._fall_due)

    def take(self) -> list[Range] | None:
        """What was gathered, up to the bound of a frame, once its time has come: disjoint, ascending."""
        if not self.is_due:
            return None
        ranges = [self._ranges.popleft() for _ in range(min(len(self._ranges), MAX_FRAME_RANGES))]
        self.is_due = bool(self._ranges)
        return merged(ranges)

    def flush(self) -> None:
        """`take` gives what there is at once: it is the last chance."""
        if self._timer is not None:
            self._timer.cancel()
            self._fall_due()

    def drop(self) -> None:
        """The link has ended, and its run ids have no meaning any more."""
        self._ranges.clear()
        self.is_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fall_due(self) -> None:
        self._timer = None
        self.is_due = True
        self._wake()
