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

from slotmesh.calls.id_ranges import Range
from slotmesh.client.calls.outbox import CallOutbox
from slotmesh.client.calls.outcomes import fail, give_up, refuse
from slotmesh.client.stream.pending_calls import PendingCalls
from slotmesh.convert.batches import ranges_to_wire
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.v1 import router_service_pb2

CANCELLED_LOOK_INTERVAL_S: Final = 0.01
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
        delay_s = CANCELLED_LOOK_INTERVAL_S + LOOK_INTERVAL_A_CALL_S * self._pending.calls
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


# Ends calls whose time is over and of which the router says nothing: it may be away, be cut off, or hang.
#
# Purpose: a router that is alive tells of a deadline itself. Where none does, whoever waits hears of it here, long
# before
# the silence of the router is noticed. A timeout counts from when the call was made, whether it could be sent or not.
# Invariants: nobody hears before the deadline; of calls that were sent nobody does before `SLACK_S` more, which is the
# router's time to say more, or `STOP_SLACK_S` in lanes that stop. Such a call counts as unanswered until its outcome is
# there, or the stream ends; it is not sent again. Calls without a timeout cost nothing, others a look each
# `LOOK_INTERVAL_S`, and a part of a run each, not a call.
# Owner: the endpoint's `Connection`.

SLACK_S: Final = 0.5
"""What a router gets to tell what became of a call whose deadline has passed."""

STOP_SLACK_S: Final = 5.0
"""The same in a lane that stops at failures: longer than the silence by which a router is known to be gone. Later calls
run where this one has ended well, so nobody else may say that it failed."""

OVERDUE_LOOK_INTERVAL_S: Final = 0.1
"""Between two looks at few calls."""

LOOK_INTERVAL_A_PART_S: Final = 1e-5
"""More, for each part that is looked at: a hundred times what that costs."""

MAX_LOOK_INTERVAL_S: Final = 0.4
"""Together with the slack less than a second."""


class Overdue:
    """Looks at what is unanswered, from `start` to `stop`."""

    def __init__(self, outbox: CallOutbox, pending: Callable[[], PendingCalls], address: Callable[[], str]) -> None:
        """`outbox`: what waits; `pending`: what is unanswered; `address`: of the router that has it."""
        self._outbox = outbox
        self._pending = pending
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Calls may be sent from now on."""
        if self._timer is None:
            self._timer = self._loop.call_later(OVERDUE_LOOK_INTERVAL_S, self._look)

    def stop(self) -> None:
        """Nothing is unanswered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now = self._loop.time()
        if self._outbox:
            self._end_waiting(now)
        parts = self._pending().parts()
        for part in parts:
            timeout_s = part.spec.options.timeout_s
            if timeout_s is None:
                continue
            slack_s = STOP_SLACK_S if part.spec.stop_generation else SLACK_S
            if part.since + timeout_s + slack_s <= now:
                give_up(part, self._failure(timeout_s))
        delay_s = min(OVERDUE_LOOK_INTERVAL_S + LOOK_INTERVAL_A_PART_S * len(parts), MAX_LOOK_INTERVAL_S)
        self._timer = self._loop.call_later(delay_s, self._look)

    def _end_waiting(self, now: float) -> None:
        overdue, behind = self._outbox.take_overdue(now)
        for part in overdue:
            timeout_s = part.spec.options.timeout_s or 0.0
            failure = Failure(
                reason=Reason.DEADLINE_IN_QUEUE,
                message=f"the timeout of {timeout_s:g} s passed before the call could be sent: no router was reached, "
                "or too much was unanswered",
            )
            fail(part, 0, part.count, failure)
            part.settled(0, part.count)
        for part in behind:
            refuse(part)
        self._outbox.seal(now)

    def _failure(self, timeout_s: float) -> Failure:
        return Failure(
            reason=Reason.DEADLINE_RUNNING,
            message=f"the timeout of {timeout_s:g} s passed, and the router at {self._address()} does not say what "
            "became of the call; it may have been executed",
            executed=Executed.UNKNOWN,
        )
