"""When a small frame leaves, and when it waits for more calls to join. Pure.

Purpose: the rule by which every hop of the mesh gathers calls: client, router (both ways) and replica.

A message costs as much processor time as a hundred calls in it or more, whatever its content, and a small frame stays
small: its answer is small, and so is the frame that the client sends when it has the answer. So small frames have to
be joined. For a frame of `calls`, with `unanswered` other calls of its stream that are about to be answered:

- `unanswered == 0`: it leaves immediately. This is a single call.
- `calls >= unanswered`, and at least `HALF_CALLS`: it leaves immediately. These are two halves that take turns: while
  one half is executed, the other one travels.
- `calls >= FULL_CALLS`: it leaves immediately.
- Else it leaves `MESSAGES_S * unanswered / calls` after the frame before it, at the latest: if the unanswered calls are
  in frames of the same size, that is the cost of those frames, and what can be saved by waiting for them. A pace bounds
  that wait as well. Example: 8 calls, 56 unanswered, in frames of 8: seven messages and answers, 3.5 ms.

So a stream whose frames are farther apart than that is not slowed down. The caller knows which calls are about to be
answered: not those that take long, nor those that wait for something else.

The figures were measured on the machines of docs/performance.md; a factor of two changes little.
Invariants: at one pace, a frame leaves no later than `gap_s` after the frame before it. (A call may wait on each of
four hops.)
Source: the distance is kept by the generic cell rate algorithm (ITU-T I.371, annex A): one number, no timer.
Owner: one for each writing half of a stream.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MESSAGES_S: Final = 0.0005
"""Processor time, seconds, of a message and its answer, at both ends together."""

QUICK_S: Final = 0.001
"""Calls that take less than this, seconds, are quick: messages are a large part of their cost."""

FULL_CALLS: Final = 256
"""With this number of calls in a frame, its message is a small part of the cost."""


HALF_CALLS: Final = 16
"""Calls that make a half worth a message of its own, at least."""


class Pace(NamedTuple):
    """How close small frames may follow one another."""

    gap_s: float
    """Seconds between two of them, at most."""
    burst: int
    """Frames that may leave without that distance after a pause."""


QUICK: Final = Pace(gap_s=0.004, burst=1)
"""For calls that are known to be quick: their answers arrive together if the frame waits for them."""
STEADY: Final = Pace(gap_s=0.001, burst=4)
"""For other calls: waiting would gain less, so only dense streams are held back at all."""


COUNTED_FRAMES: Final = round(QUICK.gap_s / MESSAGES_S)
"""Unanswered calls beyond this number of frames like the waiting one make no difference."""


def most_calls(calls: int, unanswered: int) -> int:
    """How many of the waiting calls the next frame of a client's stream takes at most, beside those unanswered.

    In one frame, all of them would travel together, and while one process works on them the others would be idle. So
    there are at least two frames, if each is full.
    """
    return max(FULL_CALLS, (calls + unanswered) // 2)


class Pacing:
    """The distance between small frames of one stream, in one direction."""

    __slots__ = ("_free_at",)

    def __init__(self) -> None:
        self._free_at = 0.0
        """When all frames that have left have had their distance. Monotonic seconds."""

    def wait_s(self, calls: int, unanswered: int, now: float, pace: Pace) -> float:
        """How long a frame of this number of calls still waits; 0 if it may leave now. Changes nothing."""
        if not unanswered or calls >= FULL_CALLS or calls >= max(unanswered, HALF_CALLS):
            return 0.0
        saved_s = MESSAGES_S * unanswered / max(calls, 1)
        return max(0.0, self._free_at - pace.burst * pace.gap_s + min(saved_s, pace.gap_s) - now)

    def left(self, now: float, pace: Pace) -> None:
        """A frame has left."""
        earliest = now + (pace.burst - 1) * pace.gap_s
        self._free_at = min(max(self._free_at, now), earliest) + pace.gap_s


EMPTY_TURNS: Final = 6
"""Consecutive turns of the loop without a new call."""
MOST_S: Final = 0.004
"""How long the first call of a frame waits at most, seconds."""
ENOUGH_CALLS: Final = 64
"""With this number of calls a frame does not wait: its message is a small part of the cost."""
LONE_FRAMES: Final = 64
"""Consecutive frames of one call, with nothing else unanswered, after which calls are known not to meet."""


class Gathering:
    """Whether a frame that may leave waits for calls that are about to join it: of many callers, one call each.

    Purpose: unary rpcs. A router's event loop receives them one by one, and the first would be answered before the next
    arrives, so each would have two messages of its own, which cost more than the rest of the call.
    The rule: while calls meet, a frame waits as long as calls join it: until `EMPTY_TURNS` consecutive turns of the
    event loop have added none, which is a tenth of a millisecond if the loop is idle; at most `MOST_S`, and not once it
    has `ENOUGH_CALLS`. Calls meet if one of the last `LONE_FRAMES` frames had more than one, or another call was
    unanswered then. A single caller, with one call after another, never waits.
    Invariant: calls that meet meet again, as calls that were answered together return together: the same load does not
    lead to small frames at one time and to large ones at another.
    Source: interrupt coalescing of network adapters, with turns of the loop in place of a timer, whose tick is too
    coarse.
    """

    __slots__ = ("_calls", "_empty_turns", "_until", "left_to_meet")

    def __init__(self) -> None:
        self.left_to_meet = 0
        """Lone frames that may leave until calls are known not to meet: at 0 nothing waits, and `left` of another
        lone frame changes nothing."""
        self._calls = 0
        """Of the waiting frame, at the last check; 0 if none waits."""
        self._empty_turns = 0
        self._until = 0.0
        """When that frame leaves in any case. Monotonic seconds."""

    def waits(self, calls: int, now: float) -> bool:
        """Whether a frame of this number of calls waits for the next turn of the event loop, to be asked again then."""
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
        """A frame of this number of calls has left. `is_alone`: nothing else was unanswered."""
        self._calls = 0
        if calls > 1 or not is_alone:
            self.left_to_meet = LONE_FRAMES
        elif self.left_to_meet:
            self.left_to_meet -= 1
