"""Runs whose outcomes frames have brought to a client: replicas keep these until it acknowledges the frame.

Owner: the outbox of a client's results.
"""

from __future__ import annotations

from collections import deque

from router_service.core.runs import SliceHolder
from router_service.shell.dispatcher import Dispatcher

MAX_RUNS = 16_384
"""Of a client that never acknowledges: replicas forget by themselves what is older."""

KeptRuns = tuple[SliceHolder, int, int, int]
"""Runs whose outcomes a replica keeps: the replica, its lost links when they were sent, first run id, count."""


class UnacknowledgedRuns:
    """Those of one client, in the order of frames."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self.runs: deque[tuple[int, KeptRuns]] = deque(maxlen=MAX_RUNS)
        """Runs, and the number of the frame that had their outcomes."""

    def acknowledge(self, through_frame: int) -> None:
        """The client has all result frames up to this one: their runs need not be kept any longer."""
        runs, forget = self.runs, self._dispatcher.links.forget
        while runs and runs[0][0] <= through_frame:
            forget(*runs.popleft()[1])
