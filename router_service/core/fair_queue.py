"""The unkeyed runs that wait for one backend, shared fairly between flows.

Purpose: deficit round robin (Shreedhar and Varghese, 1995) over the flows that have something waiting. A run can be cut
anywhere, so a turn never overdraws by more than one send.
Invariants: a flow that waits gets a turn of `TURN_CALLS` calls before any other gets a second one; one that has nothing
waiting keeps no credit. A flow whose runs were all taken back stays until its turn comes, or until such flows are the
majority.
Owner: the backend.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from router_service.core.queues import SloQueue

if TYPE_CHECKING:
    from router_service.core.callers import Flow
    from router_service.core.calls import Run

TURN_CALLS = 64
"""Calls a turn: enough for full frames, few enough that a caller with one call soon has its turn."""
_SWEEP_FROM = 1024


class _Share:
    """One flow's part of the queue."""

    __slots__ = ("credit", "flow", "queue")

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.queue = SloQueue()
        self.credit = TURN_CALLS
        """Calls left of this turn."""


class FairQueue:
    """Runs by flow, and whose turn it is."""

    __slots__ = ("_shares", "_sweep_at", "_turns")

    def __init__(self) -> None:
        self._shares: dict[Flow, _Share] = {}
        self._turns: deque[_Share] = deque()
        self._sweep_at = _SWEEP_FROM

    def append(self, run: Run) -> None:
        """Queues the newest run of its flow."""
        self._share(run).queue.append(run)

    def put_back(self, *runs: Run) -> None:
        """Queues runs, oldest first, that are older than others of their flows."""
        by_share: dict[_Share, list[Run]] = {}
        for run in runs:
            by_share.setdefault(self._share(run), []).append(run)
        for share, back in by_share.items():
            share.queue.put_back(*back)

    def head(self) -> Run | None:
        """The run whose turn it is, or None."""
        turns = self._turns
        while turns:
            run = turns[0].queue.head()
            if run is not None:
                return run
            del self._shares[turns.popleft().flow]
        return None

    def turn(self, run: Run) -> int:
        """How many calls of the head may be sent before others have their turn."""
        return run.waiting if len(self._turns) == 1 else min(run.waiting, self._turns[0].credit)

    def served(self, count: int) -> None:
        """`count` calls of the head were sent."""
        turns = self._turns
        if len(turns) == 1:
            return
        share = turns[0]
        share.credit -= count
        if share.credit <= 0:
            share.credit = TURN_CALLS
            turns.rotate(-1)

    def drain(self) -> list[Run]:
        """Takes out all that waits, oldest first."""
        runs = sorted((run for share in self._turns for run in share.queue.drain()), key=lambda run: run.age)
        self._shares.clear()
        self._turns.clear()
        return runs

    def __bool__(self) -> bool:
        return self.head() is not None

    def _share(self, run: Run) -> _Share:
        flow = run.caller.flow
        share = self._shares.get(flow)
        if share is None:
            if len(self._turns) >= self._sweep_at:
                self._sweep()
            share = self._shares[flow] = _Share(flow)
            self._turns.append(share)
        return share

    def _sweep(self) -> None:
        """Forgets the flows that have nothing waiting any more."""
        self._turns = deque(share for share in self._turns if share.queue.head() is not None)
        self._shares = {share.flow: share for share in self._turns}
        self._sweep_at = max(_SWEEP_FROM, 2 * len(self._turns))
