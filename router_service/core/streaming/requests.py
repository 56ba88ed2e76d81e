"""Requests of rpcs that take several: how many a handler has taken, passed on to who sends them.

Purpose: a replica says by run ids what handlers have taken; who sends the requests of a call knows it by its caller.
Invariants: of calls that have had their outcome nothing is said any more.
Owner: the scheduler.
"""

from __future__ import annotations

from router_service.core.commands import DeliverTaken, RouterCommand
from router_service.core.runs import OPEN
from router_service.core.streaming.events import RequestsTaken


class RequestsAtReplicas:
    """Calls whose requests come one by one."""

    def __init__(self, out: list[RouterCommand]) -> None:
        """Writes into `out`, the scheduler's list of commands."""
        self._out = out

    def taken(self, event: RequestsTaken, _now: float) -> None:
        """Handlers have begun, or have taken requests."""
        replica = event.replica
        for run_id, count in event.taken:
            sent = replica.inflight.get(run_id) or replica.inflight.covering(run_id)
            if sent is None or not sent.run.options.takes_requests:
                continue
            if sent.states is None or sent.states[run_id - sent.first] == OPEN:
                self._out.append(DeliverTaken(sent.run.caller, replica, run_id, count, replica.links))
