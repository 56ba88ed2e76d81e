"""When a small frame leaves, and when it waits for more calls to join.

Purpose: the rule by which every hop of the mesh gathers: client, router (both ways) and replica. Pure.

A message costs as much processor time as a hundred calls in it or more, whatever is in it (docs/performance.md), and
one that is small stays small: its answer is small, and so is what a client sends when it has the answer. So small
frames have to meet. What decides is what is under way:

- A frame with as many calls as are unanswered on its stream leaves at once. That is a call alone, and each of two
  halves that take turns: while one half is executed, the other travels.
- A frame with `FULL_CALLS` leaves at once: its message is a small part of what it costs. Between a client
  and its router one takes no more than half of what is under way, if that is as much: all in one, the processes of a
  mesh would work in turn.
- Any other one keeps a distance from the frames before it. Were all that is under way in frames like this one,
  `unanswered / calls` messages could be saved by waiting for them: it waits for no longer than these cost, and never
  longer than the pace allows. What comes meanwhile joins. A stream with fewer frames than that is not slowed down.

Where calls are quick, their answers are about to come, and a wait brings many of them together. Where they take long it
would bring little: the wait is shorter, and some frames may follow one another closely.

Invariants: a frame leaves no later than its pace's `gap_s` after the one before it.
Source: the distance is kept by the generic cell rate algorithm (ITU-T I.371, annex A): one number, no timer.
Owner: one for each writing half of a stream.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MESSAGES_S: Final = 0.0005
"""Processor time, seconds, of a message and its answer, at both ends together. See docs/performance.md."""

FULL_CALLS: Final = 256
"""Calls of a frame that waits for nobody."""

QUICK_S: Final = 0.001
"""Calls that take less than this, seconds, are quick: messages are a good part of what they cost."""


class Pace(NamedTuple):
    """How close small frames may follow one another."""

    gap_s: float
    """Seconds between two of them, at most."""
    burst: int
    """Frames that may leave without that distance after a pause."""


QUICK: Final = Pace(gap_s=0.004, burst=1)
"""Of quick calls."""
STEADY: Final = Pace(gap_s=0.001, burst=4)
"""Of calls that are not known to be quick."""


def most_calls(calls: int, unanswered: int) -> int:
    """How many of the calls that wait, beside those under way, the next frame of a client's stream takes at most.

    In one frame, all of them would go round together, and while one process works on them the others would have nothing
    to do.
    """
    return max(FULL_CALLS, (calls + unanswered) // 2)


class Pacing:
    """Of one stream, one way."""

    __slots__ = ("_free_at",)

    def __init__(self) -> None:
        self._free_at = 0.0
        """When the frames that have left will all have had their distance. Monotonic seconds."""

    def wait_s(self, calls: int, unanswered: int, now: float, pace: Pace) -> float:
        """How long a frame of so many calls waits for others to join; 0 where it leaves now.

        `unanswered`: calls of this stream that are under way beside those of the frame.
        """
        if calls >= min(unanswered, FULL_CALLS):
            return 0.0
        saved_s = MESSAGES_S * unanswered / max(calls, 1)
        return max(0.0, self._free_at - pace.burst * pace.gap_s + min(saved_s, pace.gap_s) - now)

    def left(self, now: float, pace: Pace) -> None:
        """A frame has left."""
        earliest = now + (pace.burst - 1) * pace.gap_s
        self._free_at = min(max(self._free_at, now), earliest) + pace.gap_s
