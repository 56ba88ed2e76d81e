"""Finds calls that were cancelled by their callers, and calls whose deadline has passed without an outcome.

Purpose: a cancelled future notifies no one, and a callback on each would cost more than scanning the pending calls
now and then: 0.1 to 0.6 µs a call. So they are scanned at intervals while there are any.
Owner: the endpoint's `RouterLink` has the `RecallWatch`, its `Connection` the `Overdue`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from slotmesh.calls.id_ranges import Range
from slotmesh.client.calls.outbox import CallOutbox
from slotmesh.client.calls.sent_parts import fail, give_up, refuse
from slotmesh.client.routers import MAY_HAVE_RUN
from slotmesh.client.stream.pending_calls import PendingCalls
from slotmesh.convert.batches import ranges_to_wire
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.security.handshakes import ConnectionProblem
from slotmesh.v1 import router_service_pb2

CANCELLED_LOOK_INTERVAL_S: Final = 0.01
"""Between two scans of few calls."""
LOOK_INTERVAL_A_CALL_S: Final = 2e-6
"""Added for each unanswered call: a hundred times the cost of scanning one."""


class RecallWatch:
    """Finds cancelled calls, and keeps them until the next frame cancels them at the router.

    Invariants: a call is reported to the router once. A call that is answered before the second scan is never
    examined; examining the others takes at most a hundredth of the time.
    """

    def __init__(self, pending: PendingCalls, wake: Callable[[], None]) -> None:
        """`wake` is called when `take_frame` has a frame."""
        self._pending = pending
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._old_below = 0
        """Calls with lower ids are old enough for the next scan."""
        self.found: list[Range] = []
        """Calls for the next `take_frame`."""

    def start(self) -> None:
        """Calls were sent. Cheap if scans are scheduled already."""
        if self._timer is None:
            self._old_below = self._pending.next_id
            self._look_again()

    def stop(self) -> None:
        """Ends the scans: the stream cannot send any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look_now(self) -> None:
        """Scans all calls that were sent: the stream is about to end."""
        self._look(self._pending.next_id)

    def take_back_all(self) -> None:
        """Cancels all calls, whatever the state of their futures."""
        self.found += self._pending.take_all()
        self._wake()

    def take_frame(self) -> router_service_pb2.CancelCalls | None:
        """The cancelled calls that were not reported yet; None if there are none."""
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


SLACK_S: Final = 0.5
"""How long a router may take to report the outcome of a call whose deadline has passed."""

STOP_SLACK_S: Final = 5.0
"""The same for calls of a lane that stops at failures: longer than it takes to find that a router is lost. Later calls
run if this one has succeeded, so only the router may report that it failed."""

OVERDUE_LOOK_INTERVAL_S: Final = 0.1
"""Between two scans of few calls."""

LOOK_INTERVAL_A_PART_S: Final = 1e-5
"""Added for each part that is scanned: a hundred times the cost of one."""

MAX_LOOK_INTERVAL_S: Final = 0.4
"""With the slack, this is less than a second."""


class Overdue:
    """Fails calls whose deadline has passed while the router is silent: away, cut off, or hanging.

    Purpose: a router reports deadlines itself. Without its report, the caller gets the failure from here, long before
    the router counts as lost. A timeout starts when the call is made, whether it can be sent or not.
    Invariants: no call fails before its deadline; a call that was sent fails `SLACK_S` later (`STOP_SLACK_S` in lanes
    that stop at failures), as the router may still report its outcome. Such a call stays unanswered until its outcome
    arrives or the stream ends, and is not sent again. Calls without a timeout cost nothing, others a check of each
    part of a run at each scan.
    """

    def __init__(
        self,
        outbox: CallOutbox,
        pending: Callable[[], PendingCalls],
        address: Callable[[], str],
        problem: Callable[[], ConnectionProblem | None],
    ) -> None:
        """`outbox`: unsent calls; `pending`: unanswered calls; `address`: of the router that has them.

        `problem`: why no router is reached; None if one is, or if that is not known.
        """
        self._outbox = outbox
        self._pending = pending
        self._address = address
        self._problem = problem
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Calls may be sent from now on."""
        if self._timer is None:
            self._timer = self._loop.call_later(OVERDUE_LOOK_INTERVAL_S, self._look)

    def stop(self) -> None:
        """No call is unanswered."""
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
        problem = self._problem()
        why = f"no router was reached{f': {problem.text}' if problem else ', or too much was unanswered'}"
        for part in overdue:
            timeout_s = part.spec.options.timeout_s or 0.0
            failure = Failure(
                reason=Reason.DEADLINE_IN_QUEUE,
                message=f"the timeout of {timeout_s:g} s passed before the call could be sent: {why}",
            )
            fail(part, 0, part.count, failure)
            part.settled(0, part.count)
        for part in behind:
            refuse(part)
        self._outbox.seal(now)

    def _failure(self, timeout_s: float) -> Failure:
        return Failure(
            reason=Reason.DEADLINE_RUNNING,
            message=f"the timeout of {timeout_s:g} s passed, and the router at {self._address()} has not reported the "
            f"outcome of the call{MAY_HAVE_RUN}",
            executed=Executed.UNKNOWN,
        )
