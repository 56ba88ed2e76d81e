"""When a frame of results leaves: a few outcomes wait for a moment where more are about to come.

Owner: the outbox of a client's results; `slotmesh.wire.pacing` has the reasoning.
"""

from __future__ import annotations

from collections.abc import Sequence

from router_service.core.callers import Caller
from router_service.core.commands import DeliverResults, DeliverValues, Delivery
from slotmesh.runtime.pacer import Pacer
from slotmesh.wire.pacing import COUNTED_FRAMES, most_calls


class FrameTiming:
    """That of one client's frames."""

    def __init__(self, caller: Caller, pacer: Pacer) -> None:
        self._caller = caller
        self._pacer = pacer

    def most_calls(self, outcomes: Sequence[tuple[Delivery, int, int]], most: int) -> int:
        """How many calls the next frame may end, at most `most`; 0 where those that have ended better wait for others.

        Values never wait. The frame leaves where it may bring something.
        """
        ended = sum([len(each.ids) for each, _, _ in outcomes if not isinstance(each, DeliverValues)])
        unanswered = self._caller.calls - ended
        if not any(isinstance(each, DeliverValues) for each, _, _ in outcomes):
            (newest, _, _), left, are_quick = outcomes[-1], unanswered, False
            if isinstance(newest, DeliverResults) and newest.replica.is_quick(newest.options.method):
                left, are_quick = self._caller.count_quick(newest.replica.is_quick, ended * COUNTED_FRAMES), True
            if self._pacer.holds(ended, left, are_quick=are_quick):
                return 0
        self._pacer.left()
        return min(most, most_calls(ended, unanswered))
