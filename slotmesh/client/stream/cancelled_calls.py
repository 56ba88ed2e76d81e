"""Finds sent calls that nobody waits for any more, so that the router can be told.

Purpose: a future that is cancelled tells nobody, and a hook on each would cost every call more than this costs all:
0.1 to 0.6 µs a call. So the pending calls are looked through now and then, while there are any.
Invariants: a call is told as taken back once. A call that is answered by the second look is never looked at; looking at
those that take longer costs at most a hundredth of the time.
Owner: the endpoint's `RouterLink`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from slotmesh.client.stream.pending_calls import PendingCalls
from slotmesh.id_ranges import ranges_to_wire
from slotmesh.v1 import router_service_pb2
from slotmesh.wire.ranges import Range

LOOK_INTERVAL_S: Final = 0.01
"""Between two looks at few calls."""
LOOK_INTERVAL_A_CALL_S: Final = 2e-6
"""More, for each unanswered call: a hundred times what looking at one costs."""


class RecallWatch:
    """Looks at what is pending, and keeps what it found until the next frame."""

    def __init__(self, pending: PendingCalls, wake: Callable[[], None]) -> None:
        """`wake` is called when there is something for `take_frame`."""
        self._pending = pending
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._old_below = 0
        """Ids below this are old enough for the next look."""
        self.found: list[Range] = []
        """To be read: `take_frame` has something to give."""

    def start(self) -> None:
        """Calls were sent. Cheap while it is looking already."""
        if self._timer is None:
            self._old_below = self._pending.next_id
            self._look_again()

    def stop(self) -> None:
        """Nobody can be told any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look_now(self) -> None:
        """Looks at all that was sent, for it is the last chance to tell."""
        self._look(self._pending.next_id)

    def take_back_all(self) -> None:
        """Nobody waits for anything any more, whatever the futures say."""
        self.found += self._pending.take_untold()
        self._wake()

    def take_frame(self) -> router_service_pb2.CancelCalls | None:
        """What was found and not told."""
        if not self.found:
            return None
        found, self.found = self.found, []
        return router_service_pb2.CancelCalls(calls=ranges_to_wire(found))

    def _look_again(self) -> None:
        delay_s = LOOK_INTERVAL_S + LOOK_INTERVAL_A_CALL_S * self._pending.calls
        self._timer = self._loop.call_later(delay_s, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._look(self._old_below)
        self._old_below = self._pending.next_id
        if self._pending.calls:
            self._look_again()

    def _look(self, before: int) -> None:
        if unwanted := self._pending.take_unwanted(before):
            self.found += unwanted
            self._wake()
