"""Which router to ask next, after which pause, and for how long.

Purpose: the policy of reconnecting. No I/O: the connection tells what took how long.
Invariants: the router that was used last is asked when no other one answers. Another one that is known is asked at
once, unless streams end again and again before they have answered anything; rounds through all of them have growing
pauses, with jitter. It ends when no router could be reached for `patience_s`.
Owner: the endpoint's `Connection`.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from slotmesh.client.stream.routers import Routers
from slotmesh.runtime.backoff import Backoff

FIRST_ATTEMPT_S: Final = 1.0
"""What a router may take to answer where another one is known. Doubles from round to round."""


class Search:
    """From one reachable router to the next."""

    def __init__(self, routers: Routers, patience_s: float, last: str) -> None:
        """`last`: the router that was used last; empty where none was."""
        self._routers = routers
        self._patience_s = patience_s
        self._backoff = Backoff()
        self._left_s = patience_s
        self._attempt_s = FIRST_ATTEMPT_S
        self._strikes = 0
        """Streams in a row that were of no use."""
        self._pause_s = 0.0
        self._candidates = deque(routers.in_turn(last))
        self._alone = len(self._candidates) == 1

    @property
    def is_over(self) -> bool:
        """Whether the patience is at its end."""
        return self._left_s <= 0

    @property
    def is_alone(self) -> bool:
        """Whether there is no other router to ask than the next one."""
        return self._alone

    @property
    def timeout_s(self) -> float:
        """What the next attempt may take."""
        return max(self._left_s if self._alone else min(self._left_s, self._attempt_s), 0.0)

    def spent(self, time_s: float) -> None:
        """That much time went by without a router."""
        self._left_s -= time_s

    def take_pause_s(self, last: str) -> float:
        """What to wait before the next attempt; 0 where nothing. After a round in vain another one begins."""
        if not self._candidates:
            self._attempt_s *= 2
            self._pause_s = self._start_round(last)
        pause_s, self._pause_s = self._pause_s, 0.0
        return pause_s

    def take(self) -> str:
        """The router to ask now."""
        return self._candidates.popleft()

    def lost(self, last: str, *, was_sound: bool) -> None:
        """The stream to `last` has ended. `was_sound`: it was of use; one that was not gives no new patience."""
        if was_sound:
            self._left_s, self._attempt_s, self._strikes = self._patience_s, FIRST_ATTEMPT_S, 0
            self._backoff.reset()
        else:
            self._strikes += 1
        pause_s = self._start_round(last)
        self._pause_s = pause_s if self._alone or self._strikes > 1 else 0.0

    def _start_round(self, last: str) -> float:
        self._candidates = deque(self._routers.in_turn(last))
        self._alone = len(self._candidates) == 1
        return self._backoff.next_delay_s()
