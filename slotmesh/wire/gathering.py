"""Whether a frame that could leave waits for calls that are about to join it: those of many callers, one call each.

Purpose: unary rpcs. A router's event loop takes them in one by one. The first one is answered before the next one has
come, so each would have two messages of its own, and these cost more than all else of the call.
The rule: while calls meet, a frame waits for as long as calls join it: until `EMPTY_TURNS` turns of the event loop in a
row have brought none, which is a tenth of a millisecond where the loop is idle. Not longer than `MOST_S`, and not once
it has `ENOUGH_CALLS`. Calls meet where a frame of the last `LONE_FRAMES` had more than one, or another call was
unanswered then. A caller alone, with one call after another, never waits.
Invariants: calls that meet meet again, as those that were answered together come back together: the same load does not
come to small frames at one time and to large ones at another. Pure.
Source: interrupt coalescing of network adapters, with turns of the loop in place of a timer, whose tick is too coarse.
Owner: one for each writing half of a stream.
"""

from __future__ import annotations

from typing import Final

EMPTY_TURNS: Final = 6
"""Looks in a row that find nothing new."""
MOST_S: Final = 0.004
"""What the first call of a frame waits at most, seconds."""
ENOUGH_CALLS: Final = 64
"""Calls whose frame does not wait: its message is a small part of what it costs."""
LONE_FRAMES: Final = 64
"""Frames of one call in a row, with nothing else unanswered, after which calls are known not to meet."""


class Gathering:
    """Of one stream, one way."""

    __slots__ = ("_calls", "_empty_turns", "_until", "left_to_meet")

    def __init__(self) -> None:
        self.left_to_meet = 0
        """Lone frames that may leave until calls are known not to meet: at 0 nothing waits, and `left` of one more lone
        frame changes nothing."""
        self._calls = 0
        """Of the frame that waits, at the last look; 0 where none waits."""
        self._empty_turns = 0
        self._until = 0.0
        """When that frame leaves in any case. Monotonic seconds."""

    def waits(self, calls: int, now: float) -> bool:
        """Whether a frame of so many calls waits for the next turn of the event loop, to be asked again then."""
        if not self.left_to_meet or calls >= ENOUGH_CALLS:
            return False
        if not self._calls:
            self._until = now + MOST_S
        if calls != self._calls:
            self._calls, self._empty_turns = calls, 0
        else:
            self._empty_turns += 1
        return now < self._until and self._empty_turns < EMPTY_TURNS

    def left(self, calls: int, *, is_alone: bool) -> None:
        """A frame of so many calls has left. `is_alone`: nothing else was unanswered."""
        self._calls = 0
        if calls > 1 or not is_alone:
            self.left_to_meet = LONE_FRAMES
        elif self.left_to_meet:
            self.left_to_meet -= 1
