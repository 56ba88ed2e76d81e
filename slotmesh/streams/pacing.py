"""When a small frame leaves, and when it waits for more calls to join.

Purpose: the rule by which every hop of the mesh gathers: client, router (both ways) and replica. Pure.

A message costs as much processor time as a hundred calls in it or more, whatever is in it, and a small frame stays
small: its answer is small, and so is the frame that the client sends when it has the answer. So small frames have to
meet. For a frame of `calls`, with `unanswered` other calls of its stream that are about to be answered:

- `unanswered == 0`: it leaves at once. This is a call alone.
- `calls >= unanswered`, and at least `HALF_CALLS`: it leaves at once. This is each of two halves that take turns: while
  one half is executed, the other one travels.
- `calls >= FULL_CALLS`: it leaves at once.
- Else it leaves `MESSAGES_S * unanswered / calls` after the frame before it, at the latest: if the unanswered calls are
  in frames of the same size, that is what those frames cost, and what can be saved by waiting for them. A pace bounds
  that wait as well. Example: 8 calls, 56 unanswered, in frames of 8: seven messages and answers, 3.5 ms.

So a stream whose frames are farther apart than that is not slowed down. The caller knows which calls are about to be
answered: those that take long, and those that wait for something else, are not.

Invariants: at one pace, a frame leaves no later than `gap_s` after the frame before it. (A call may wait on each of
four hops.)
Source: the distance is kept by the generic cell rate algorithm (ITU-T I.371, annex A): one number, no timer.
Owner: one for each writing half of a stream.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# What a message costs beside the calls in it: the figures by which frames and slices are chosen.
#
# Measured on the machines of docs/performance.md. They need not be exact: a factor of two changes little.

MESSAGES_S: Final = 0.0005
"""Processor time, seconds, of a message and its answer, at both ends together."""

QUICK_S: Final = 0.001
"""Calls that take less than this, seconds, are quick: messages are a good part of what they cost."""

FULL_CALLS: Final = 256
"""Calls of a frame whose message is a small part of what it costs."""


HALF_CALLS: Final = 16
"""Calls of a half that is worth a message of its own, at least."""


class Pace(NamedTuple):
    """How close small frames may follow one another."""

    gap_s: float
    """Seconds between two of them, at most."""
    burst: int
    """Frames that may leave without that distance after a pause."""


QUICK: Final = Pace(gap_s=0.004, burst=1)
"""Where calls are known to be quick: their answers come together if they are waited for."""
STEADY: Final = Pace(gap_s=0.001, burst=4)
"""Where they are not: a wait would bring less, so only dense streams are held back at all."""


COUNTED_FRAMES: Final = round(QUICK.gap_s / MESSAGES_S)
"""More unanswered calls than are in so many frames like the one that waits make no difference."""


def most_calls(calls: int, unanswered: int) -> int:
    """How many of the calls that wait, beside those unanswered, the next frame of a client's stream takes at most.

    In one frame, all of them would go round together, and while one process works on them the others would have nothing
    to do. So there are two at least, if each is full.
    """
    return max(FULL_CALLS, (calls + unanswered) // 2)


class Pacing:
    """Of one stream, one way."""

    __slots__ = ("_free_at",)

    def __init__(self) -> None:
        self._free_at = 0.0
        """When the frames that have left will all have had their distance. Monotonic seconds."""

    def wait_s(self, calls: int, unanswered: int, now: float, pace: Pace) -> float:
        """How long a frame of so many calls still waits; 0 where it may leave now. Changes nothing."""
        if not unanswered or calls >= FULL_CALLS or calls >= max(unanswered, HALF_CALLS):
            return 0.0
        saved_s = MESSAGES_S * unanswered / max(calls, 1)
        return max(0.0, self._free_at - pace.burst * pace.gap_s + min(saved_s, pace.gap_s) - now)

    def left(self, now: float, pace: Pace) -> None:
        """A frame has left."""
        earliest = now + (pace.burst - 1) * pace.gap_s
        self._free_at = min(max(self._free_at, now), earliest) + pace.gap_s


# Whether a frame that could leave waits for calls that are about to join it: those of many callers, one call each.
#
# Purpose: unary rpcs. A router's event loop takes them in one by one. The first one is answered before the next one has
# come, so each would have two messages of its own, and these cost more than all else of the call.
# The rule: while calls meet, a frame waits for as long as calls join it: until `EMPTY_TURNS` turns of the event loop in
# a
# row have brought none, which is a tenth of a millisecond where the loop is idle. Not longer than `MOST_S`, and not
# once
# it has `ENOUGH_CALLS`. Calls meet where a frame of the last `LONE_FRAMES` had more than one, or another call was
# unanswered then. A caller alone, with one call after another, never waits.
# Invariants: calls that meet meet again, as those that were answered together come back together: the same load does
# not
# come to small frames at one time and to large ones at another. Pure.
# Source: interrupt coalescing of network adapters, with turns of the loop in place of a timer, whose tick is too
# coarse.
# Owner: one for each writing half of a stream.

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
